"""A Hugging Face folder as what the engine reads: a GGUF file in half precision, and beside it the folder's own tokenizer.

openvino-genai reads weights from GGUF files and from graphs that optimum-intel makes. The former needs nothing but the
names and the order of rows of the GGUF format, which the gguf library knows, and covers the families that the engine's
reader computes. The tokenizer is converted as it stands, so that words are cut as the model's own tokenizer cuts them.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import openvino
import openvino_tokenizers
import tokenizers
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from brim.engine.tokenise import TOKENIZER_FILES
from brim.errors import ModelFileError
from brim_export.gguf_file import Rewritten, write_f16
from brim_export.llama_reference import PAIRED
from brim_export.noise import captured

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` of the configuration -> architecture of the GGUF file."""
CONVERT = (
    "`optimum-cli export openvino --model FOLDER OUT`, in an environment with optimum-intel, makes a folder that can be "
    "added; the profile vllm reads this one as it is (generation.vllm_model)"
)
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_AMISS = ("missing_keys", "unexpected_keys", "mismatched_keys")


class HuggingFaceModel:
    """What the folder holds: its configuration, its tokenizer, and its module in float32."""

    def __init__(self, folder: Path) -> None:
        """Load it.

        Raises:
            ModelFileError: it lacks something, is corrupt, or the engine does not compute such a model; names every fault
                that can be seen before the weights are loaded.
        """
        self._folder = folder
        self.config = _config(folder)
        self._tokenizer = tokens_of_folder(folder)
        faults = _faults(folder, self.config, self._tokenizer)
        if faults:
            raise ModelFileError(f"{folder.name} cannot be served: {'; '.join(faults)}", hint=CONVERT)
        self.module = _module(folder, self.config)

    def write_weights(self, target: Path) -> Rewritten:
        """Write the GGUF file. Rows of the embedding that no token has (padding) are left out.

        Raises:
            ModelFileError: half precision cannot hold a weight.
        """
        config = self.config
        kind = FAMILIES[config.model_type]
        names = gguf.get_tensor_name_map(
            next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind), config.num_hidden_layers
        )
        tokens = _token_count(self._tokenizer)
        writer = gguf.GGUFWriter(target, kind)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(_head_size(config))
        writer.add_value_length(_head_size(config))
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(tokens)
        states = {name: values for name, values in self.module.state_dict().items() if not self._is_tied(name)}
        return write_f16(
            writer,
            (
                (names.get_name(name, try_suffixes=(".weight", ".bias")), self._ordered(name, values, tokens))
                for name, values in states.items()
            ),
            self._folder,
        )

    def write_tokenizer(self, target: Path) -> None:
        """Write the tokenizer in OpenVINO's format into the folder ``target``.

        Raises:
            ModelFileError: it cannot be converted.
        """
        try:
            with captured(io.StringIO()):
                fast = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
                made = openvino_tokenizers.convert_tokenizer(fast, with_detokenizer=True)
        except Exception as error:  # a bad file ends in whatever its reader stumbles over
            raise _unreadable(self._folder, "tokenizer", error) from error
        for model, name in zip(made, TOKENIZER_FILES, strict=True):
            openvino.save_model(model, target / name)

    def _is_tied(self, name: str) -> bool:
        return name == _HEAD and bool(self.config.tie_word_embeddings)

    def _ordered(self, name: str, weights: torch.Tensor, tokens: int) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = weights.numpy()
        if name in (_EMBEDDING, _HEAD):
            return values[:tokens]
        if FAMILIES[self.config.model_type] == PAIRED and ".q_proj." in name:
            return paired(values, self.config.num_attention_heads)
        if FAMILIES[self.config.model_type] == PAIRED and ".k_proj." in name:
            return paired(values, self.config.num_key_value_heads)
        return values


def paired(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows as a GGUF file of the llama family has them: the two that rotate together side by side."""
    rows, *rest = values.shape
    return values.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)


def tokens_of_folder(folder: Path) -> tokenizers.Tokenizer:
    """The folder's ``tokenizer.json``, cutting no text short and filling none up.

    Raises:
        ModelFileError: it is missing or corrupt.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"{folder.name} has no tokenizer.json",
            hint="save the model's fast tokenizer into it: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)",
        )
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise _unreadable(folder, "tokenizer.json", error) from error
    found.no_truncation()
    found.no_padding()
    return found


def _token_count(tokenizer: tokenizers.Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _config(folder: Path) -> Any:
    path = folder / "config.json"
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        kind = written["model_type"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _unreadable(folder, "config.json", error) from error
    if kind not in FAMILIES:
        raise ModelFileError(
            f"{folder.name} is a model of the type {kind}, and those that can be served from such a folder are "
            f"{', '.join(FAMILIES)}",
            hint=CONVERT,
        )
    try:
        with captured(io.StringIO()):
            return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the class makes of wrong values
        raise _unreadable(folder, "config.json", error) from error


def _faults(folder: Path, config: Any, tokenizer: tokenizers.Tokenizer) -> list[str]:
    faults = []
    if not any(name.endswith("ForCausalLM") for name in config.architectures or ()):
        faults.append(f"it is {' and '.join(config.architectures or ['of no architecture'])}, which generates no text")
    if getattr(config, "quantization_config", None):
        faults.append("its weights are quantised")
    rope = config.rope_parameters or {}
    if rope.get("rope_type", "default") != "default":
        faults.append(f"its rotary embeddings are scaled ({rope['rope_type']}), which the engine does not do")
    if rope.get("partial_rotary_factor", 1) != 1:
        faults.append("its rotary embeddings take a part of a head, and the engine's take all of it")
    window = getattr(config, "sliding_window", None)
    if window and window < config.max_position_embeddings and getattr(config, "use_sliding_window", True):
        faults.append(f"its attention slides over {window} tokens, and the engine's does not")
    if FAMILIES[config.model_type] == PAIRED and getattr(config, "attention_bias", False):
        faults.append("its attention has biases, which the engine puts in another order")
    if config.hidden_act != "silu":
        faults.append(f"it uses {config.hidden_act}, and the engine silu")
    if not any(folder.glob("*.safetensors")):
        faults.append("it has no *.safetensors")
    if "ByteLevel" not in json.dumps(json.loads(tokenizer.to_str())["decoder"]):
        faults.append("its vocabulary is not a byte-level one (SentencePiece?), and this host takes those")
    if _token_count(tokenizer) > config.vocab_size:
        faults.append(f"its tokenizer has {_token_count(tokenizer)} tokens, and its embedding {config.vocab_size} rows")
    return faults


def _module(folder: Path, config: Any) -> Any:
    try:
        with captured(io.StringIO()):
            module, told = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # a bad file ends in whatever its reader stumbles over
        raise _unreadable(folder, "weights", error) from error
    amiss = [f"{what.removesuffix('_keys')} {sorted(map(str, told[what]))[0]}" for what in _AMISS if told.get(what)]
    if amiss:
        raise ModelFileError(
            f"{folder.name}: its weights are not those of its config.json: {', '.join(amiss)}",
            hint="download the folder again",
        )
    return module


def _unreadable(folder: Path, what: str, error: Exception) -> ModelFileError:
    told = (str(error).strip() or repr(error)).splitlines()[0][:300]
    return ModelFileError(f"{folder.name}: its {what} cannot be read: {told}", hint="download the folder again")
