"""A GGUF file of the llama family as a torch module in float32: what generated tokens are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from brim.errors import ModelFileError
from brim_export.gguf_file import dequantised, read_gguf

_LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Name of a part of a layer in GGUF -> in the module."""
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first place at which torch would have gone on otherwise: index into the text, its token, and torch's."""

    index: int
    token: int
    wanted: int


class LlamaReference:
    """The module, and what it would say."""

    def __init__(self, path: Path) -> None:
        """Load every weight as float32.

        Raises:
            ModelFileError: it is no file of the llama family.
        """
        reader = read_gguf(path)
        architecture = str(reader.fields["general.architecture"].contents())
        if architecture != "llama":
            raise ModelFileError(
                f"{path} has the architecture {architecture}, and the torch reference is written for llama",
                hint="give a model of the llama family, which SmolLM, Mistral and Llama files name so",
            )
        config = _config(reader)
        self._module = LlamaForCausalLM(config)
        states = {_name(tensor.name): _weights(tensor, config) for tensor in reader.tensors}
        states.setdefault("lm_head.weight", states["model.embed_tokens.weight"])
        missing, unexpected = self._module.load_state_dict(states, strict=False)
        if missing or unexpected:
            raise ModelFileError(
                f"{path} lacks {', '.join(missing[:3]) or 'nothing'} and has {', '.join(unexpected[:3]) or 'nothing'} "
                "that the llama family does not have",
                hint="give a file of the plain llama family",
            )
        self._module.eval()

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """The likeliest token, so many times; each time over the whole text, without a cache that could be wrong."""
        text: list[int] = []
        with torch.inference_mode():
            for _ in range(length):
                logits = self._module(torch.tensor([[*prompt, *text]])).logits[0, -1]
                text.append(int(logits.argmax()))
        return text

    def check(self, prompt: Sequence[int], text: Sequence[int]) -> tuple[Disagreement | None, float]:
        """Whether greedy decoding from ``prompt`` gives ``text``, token by token.

        One run answers for every token: the likeliest token after prompt + text[:i] has to be text[i] for each i, which is
        what decoding one by one would ask.

        Returns:
            The first token that is another one, if any; and the smallest lead of a likeliest token over the next, in logits.
        """
        with torch.inference_mode():
            logits = self._module(torch.tensor([[*prompt, *text[:-1]]])).logits[0, len(prompt) - 1 :]
            best = torch.topk(logits, 2)
        lead = float((best.values[:, 0] - best.values[:, 1]).min())
        for index, (token, wanted) in enumerate(zip(text, best.indices[:, 0].tolist(), strict=True)):
            if token != wanted:
                return Disagreement(index, token, wanted), lead
        return None, lead


def _config(reader: Any) -> LlamaConfig:
    def value(key: str, default: Any = None) -> Any:
        field = reader.fields.get(f"llama.{key}")
        return default if field is None else field.contents()

    heads = value("attention.head_count")
    names = {tensor.name for tensor in reader.tensors}
    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].contents()),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=value("attention.head_count_kv", heads),
        head_dim=value("rope.dimension_count", value("embedding_length") // heads),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base", 10_000.0)},
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


def _weights(tensor: Any, config: LlamaConfig) -> torch.Tensor:
    values = dequantised(tensor)
    if ".attn_q." in tensor.name:
        values = _unpaired(values, int(config.num_attention_heads))
    elif ".attn_k." in tensor.name:
        values = _unpaired(values, int(config.num_key_value_heads or config.num_attention_heads))
    return torch.from_numpy(np.array(values, np.float32))


def _unpaired(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows as the module has them: GGUF puts the two that rotate together side by side, the module half a head apart."""
    rows, *rest = values.shape
    return values.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(values.shape)
