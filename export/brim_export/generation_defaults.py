"""How much a language model may hold, as its sizes and this machine's memory give it: the defaults of ``generation``."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import InputError
from brim.service.schema import KV_BLOCK_TOKENS, Generation
from brim_export.model_shape import ModelShape

MEMORY_SHARE = 0.25
"""Part of the free memory that the KV cache may take: the weights, the server and everything else share the rest."""
LEAST_BLOCKS = 4
"""Of a KV cache that is worth serving with."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Context and KV cache, each with the reason that stands beside it in the service file."""

    context_tokens: int
    context_reason: str
    kv_blocks: int
    kv_reason: str


def generation_defaults(shape: ModelShape | None, free_bytes: int) -> GenerationDefaults:
    """The schema's own defaults, as far as the model was made for them and a share of the memory holds them.

    Args:
        shape: sizes of the model; None when they are not known.
        free_bytes: memory that nobody uses.

    Raises:
        InputError: the memory holds no KV cache worth serving with.
    """
    usual = Generation()
    if shape is None:
        return GenerationDefaults(
            usual.context_tokens,
            "the folder does not say what the model was made for: look it up, more is noise",
            usual.kv_blocks,
            f"{usual.kv_blocks * KV_BLOCK_TOKENS} tokens; what a token takes is not known",
        )
    block_bytes = shape.kv_token_bytes * KV_BLOCK_TOKENS
    held = int(free_bytes * MEMORY_SHARE) // block_bytes
    if held < LEAST_BLOCKS:
        raise InputError(
            f"the KV cache takes {_size(block_bytes)} for {KV_BLOCK_TOKENS} tokens, and a quarter of the free memory "
            f"({_size(free_bytes)}) holds {held} times that, expected at least {LEAST_BLOCKS}",
            hint="free memory, or add the model on a larger machine",
        )
    blocks = min(usual.kv_blocks, held)
    context = min(usual.context_tokens, shape.context_tokens, blocks * KV_BLOCK_TOKENS)
    made_for = f"the model was made for {shape.context_tokens}"
    return GenerationDefaults(
        context,
        made_for if context == shape.context_tokens else f"{made_for}; more needs more of the KV cache",
        blocks,
        f"{blocks * KV_BLOCK_TOKENS} tokens in {_size(blocks * block_bytes)} of memory, in float32"
        + ("" if blocks == usual.kv_blocks else "; a quarter of what was free holds no more"),
    )


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"
