"""The sizes of a language model that decide what serving it takes: context, KV cache, weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import InputError, ModelFileError
from brim_export.gguf_file import read_gguf, value_of
from brim_export.language_model_source import LanguageModelSource

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        context_tokens: most tokens that it was made for.
        layers: with attention, each of which has a KV cache.
        kv_heads: of a layer.
        head_size: of a key, and of a value.
        vocabulary: rows of its embedding.
    """

    context_tokens: int
    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token in float32."""
        return 2 * self.layers * self.kv_heads * self.head_size * FLOAT32_BYTES


def gguf_shape(reader: Any) -> ModelShape:
    """Of a GGUF file.

    Raises:
        KeyError: it lacks one of the values.
    """
    heads = value_of(reader, "attention.head_count")
    return ModelShape(
        context_tokens=int(value_of(reader, "context_length")),
        layers=int(value_of(reader, "block_count")),
        kv_heads=int(value_of(reader, "attention.head_count_kv", heads)),
        head_size=int(value_of(reader, "attention.key_length", value_of(reader, "embedding_length") // heads)),
        vocabulary=int(next(tensor.shape[1] for tensor in reader.tensors if tensor.name == "token_embd.weight")),
    )


def config_shape(path: Path) -> ModelShape | None:
    """Of a Hugging Face ``config.json``; None when there is none, or it has other names for its sizes."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        return ModelShape(
            context_tokens=int(config["max_position_embeddings"]),
            layers=int(config["num_hidden_layers"]),
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError, RecursionError):
        return None


def shape_of(source: LanguageModelSource) -> ModelShape | None:
    """Of a language model; None for a folder that does not say.

    Raises:
        ModelFileError: a GGUF file cannot be read, or lacks its sizes.
    """
    if not source.is_gguf:
        return config_shape(source.path / "config.json")
    try:
        return gguf_shape(read_gguf(source.path))
    except (LookupError, StopIteration, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelFileError(
            f"{source.written} does not say the sizes of a language model: {error!r}",
            hint="give a GGUF file of a llama or qwen model",
        ) from error


def check_context(shape: ModelShape | None, context_tokens: int, where: str) -> None:
    """Refuse a context longer than the model was made for: its answers would be noise.

    Raises:
        InputError: see above.
    """
    if shape is not None and context_tokens > shape.context_tokens:
        raise InputError(
            f"{where}: generation.context_tokens is {context_tokens}, and the model was made for {shape.context_tokens}",
            hint=f"set it to {shape.context_tokens} or less",
        )
