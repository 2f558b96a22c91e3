"""The shapes that TensorRT is prepared for: one row to the largest batch, since an engine refuses what lies outside."""

from __future__ import annotations

from collections.abc import Sequence

from brim.service.schema import Service, Tensor

LONGEST_UNSAID = 512
"""Largest size of a variable axis for which the service file states none."""


def longest_row(service: Service) -> int:
    """Largest size of a variable axis of the graph, as far as the service file says."""
    stated = [service.runtime.longest_tokens, *(tensor.largest_size for tensor in service.inputs)]
    return max((size for size in stated if size), default=LONGEST_UNSAID)


def typical_row(service: Service) -> int:
    """Size of a variable axis that is worth being fastest at: a quarter of the longest."""
    return max(1, longest_row(service) // 4)


def profile_shapes(service: Service, inputs: Sequence[Tensor]) -> dict[str, str]:
    """``min``, ``opt`` and ``max`` of one optimisation profile, each as ``name:1x16,name:1x16``.

    Args:
        service: gives the largest batch and, for variable axes, the typical and the longest row.
        inputs: of the graph, without the batch axis.
    """
    most, longest = service.max_batch_size, longest_row(service)
    sizes = {"min": (1, 1), "opt": (most, typical_row(service)), "max": (most, longest)}
    return {bound: _shapes(inputs, rows, size) for bound, (rows, size) in sizes.items()}


def _shapes(inputs: Sequence[Tensor], rows: int, longest: int) -> str:
    return ",".join(
        f"{tensor.name}:{'x'.join(str(longest if size == -1 else size) for size in (rows, *tensor.shape))}"
        for tensor in inputs
    )
