"""The shapes that TensorRT is prepared for: one row to the largest batch, since an engine refuses what lies outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.service.schema import Service, Tensor

LONGEST_UNSAID = 512
"""Largest size of a variable axis for which the service file states none."""
TYPICAL_SHARE = 4
"""A row's typical size along a variable axis is that part of the largest: texts are mostly short."""


@dataclass(frozen=True, slots=True)
class Span:
    """Full shapes of one input, batch first, that an engine takes, and the one that it is fastest at."""

    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


OptimisationProfile = Mapping[str, Span]
"""By input of the graph."""


def spans(service: Service, inputs: Sequence[Tensor]) -> OptimisationProfile:
    """One row to the largest batch, fastest at what the service was tuned for.

    Args:
        service: gives the batches and, for variable axes, the typical and the longest row.
        inputs: of the graph, without the batch axis.
    """
    return {
        tensor.name: Span(
            _shape(tensor, 1, 1),
            _shape(tensor, tuned_rows(service), typical_row(service)),
            _shape(tensor, service.max_batch_size, longest_row(service)),
        )
        for tensor in inputs
    }


def bounds(profile: OptimisationProfile) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """The same by bound: ``min``, ``opt`` and ``max``, each with every input's shape."""
    return {
        "min": [(name, span.minimum) for name, span in profile.items()],
        "opt": [(name, span.optimum) for name, span in profile.items()],
        "max": [(name, span.maximum) for name, span in profile.items()],
    }


def shapes_text(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """``name:1x16,name:1x16``, as trtexec and ONNX Runtime's TensorRT provider write the shapes of one bound."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes)


def tuned_rows(service: Service) -> int:
    """The batch that the service was tuned for: its largest preferred size (``brim tune --apply`` writes them), else the
    largest batch."""
    return max(service.batching.preferred, default=service.max_batch_size)


def longest_row(service: Service) -> int:
    """Largest size of a variable axis of the graph, as far as the service file says."""
    stated = [service.runtime.longest_tokens, *(tensor.largest_size for tensor in service.inputs)]
    return max((size for size in stated if size), default=LONGEST_UNSAID)


def typical_row(service: Service) -> int:
    """Size of a variable axis that is worth being fastest at."""
    return max(1, longest_row(service) // TYPICAL_SHARE)


def _shape(tensor: Tensor, rows: int, size: int) -> tuple[int, ...]:
    return (rows, *(size if one == -1 else one for one in tensor.shape))
