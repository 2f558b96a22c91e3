"""A GGUF file of the llama, qwen2 or qwen3 family as a torch module in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from brim.errors import ModelFileError
from brim_export.gguf_file import dequantised, read_gguf, value_of
from brim_export.model_shape import gguf_shape
from brim_export.torch_reference import TorchReference

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
"""Architecture of a GGUF file -> configuration and module. They name their parts alike."""
PAIRED = "llama"
"""The family whose files have the rows of q and k that rotate together side by side."""
_LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Name of a part of a layer in GGUF -> in the module."""
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class LlamaReference(TorchReference):
    """The module of a file."""

    def __init__(self, path: Path) -> None:
        """Load every weight as float32.

        Raises:
            ModelFileError: it is no file of these families.
        """
        reader = read_gguf(path)
        architecture = str(value_of(reader, "general.architecture"))
        if architecture not in FAMILIES:
            raise ModelFileError(
                f"{path} has the architecture {architecture}, and the torch reference is written for {', '.join(FAMILIES)}",
                hint="give a model of one of these; SmolLM, Mistral and Llama files name theirs llama",
            )
        config_class, module_class = FAMILIES[architecture]
        config = _config(reader, config_class)
        module = module_class(config)
        states = {_name(tensor.name): _weights(tensor, config, architecture) for tensor in reader.tensors}
        states.setdefault("lm_head.weight", states["model.embed_tokens.weight"])
        try:
            missing, unexpected = module.load_state_dict(states, strict=False)
        except RuntimeError as error:
            raise ModelFileError(
                f"{path} has tensors of other sizes than it says: {' '.join(str(error).split())[:300]}",
                hint="download or convert it again",
            ) from error
        if missing or unexpected:
            raise ModelFileError(
                f"{path} lacks {', '.join(missing[:3]) or 'nothing'} and has {', '.join(unexpected[:3]) or 'nothing'} "
                f"that the {architecture} family does not have",
                hint=f"give a file of the plain {architecture} family",
            )
        super().__init__(module)


def _config(reader: Any, config_class: Any) -> Any:
    shape = gguf_shape(reader)
    names = {tensor.name for tensor in reader.tensors}
    return config_class(
        vocab_size=shape.vocabulary,
        hidden_size=value_of(reader, "embedding_length"),
        intermediate_size=value_of(reader, "feed_forward_length"),
        num_hidden_layers=shape.layers,
        num_attention_heads=value_of(reader, "attention.head_count"),
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context_tokens,
        rms_norm_eps=value_of(reader, "attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value_of(reader, "rope.freq_base", 10_000.0)},
        tie_word_embeddings="output.weight" not in names,
        attn_implementation="eager",
    )


def _name(gguf_name: str) -> str:
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{kind}"
    _, _, rest = stem.partition("blk.")
    number, _, part = rest.partition(".")
    return f"model.layers.{number}.{_LAYER_PARTS.get(part, part)}.{kind}"


def _weights(tensor: Any, config: Any, architecture: str) -> torch.Tensor:
    values = dequantised(tensor)
    if architecture == PAIRED and ".attn_q." in tensor.name:
        values = _unpaired(values, int(config.num_attention_heads))
    elif architecture == PAIRED and ".attn_k." in tensor.name:
        values = _unpaired(values, int(config.num_key_value_heads))
    return torch.from_numpy(np.array(values, np.float32))


def _unpaired(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows as the module has them: GGUF puts the two that rotate together side by side, the module half a head apart."""
    rows, *rest = values.shape
    return values.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(values.shape)
