"""How a TensorRT engine is built from the guarded graph: its optimisation profile, and the command of either builder.

An engine refuses every shape outside its profile, so the one profile spans all that the front sends: one row to
``max_batch_size``, variable sizes from 1 to the service's limit. Tactics are chosen for ``optimum`` alone, so that is the
batch which the service was tuned for. Pure: nothing here needs TensorRT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from brim.config.generate import Profile, graph_tensors, profiles_of
from brim.errors import InputError
from brim.service.schema import Service, Tensor

LONGEST_UNSAID = 512
"""Largest size of a variable axis for which the service file states none."""
TYPICAL_SHARE = 4
"""A row's typical size along a variable axis is that part of the largest: texts are mostly short."""


class EnginePrecision(StrEnum):
    """What an engine computes in. FP8 and INT8 take their scales from Q/DQ nodes of the graph (explicit quantisation)."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Span:
    """Full shapes of one input, batch first, that an engine takes, and the one that it is fastest at."""

    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


OptimisationProfile = Mapping[str, Span]
"""By input of the graph."""


def optimisation_profile(service: Service) -> OptimisationProfile:
    """One row to the largest batch.

    Raises:
        InputError: the service is a language model, which no engine of ours serves.
    """
    _require_batch_model(service)
    inputs, _ = graph_tensors(service)
    longest = _longest(service)
    most = service.max_batch_size
    return {
        tensor.name: Span(
            _shape(tensor, 1, 1),
            _shape(tensor, tuned_rows(service), max(1, longest // TYPICAL_SHARE)),
            _shape(tensor, most, longest),
        )
        for tensor in inputs
    }


def tuned_rows(service: Service) -> int:
    """The batch that the service was tuned for: its largest preferred size (``brim tune --apply`` writes them), else the
    largest batch."""
    return max(service.batching.preferred, default=service.max_batch_size)


def profile_document(profile: OptimisationProfile) -> dict[str, dict[str, list[int]]]:
    """The profile as ``profiles.json`` beside the engine states it for the linter (``brim.lint.tensorrt``)."""
    return {
        name: {"min": list(span.minimum), "opt": list(span.optimum), "max": list(span.maximum)}
        for name, span in profile.items()
    }


def trtexec_command(
    profile: OptimisationProfile, precision: EnginePrecision, graph: Path, plan: Path, timing_cache: Path
) -> list[str]:
    """NVIDIA's ``trtexec``, as words. ``timing_cache`` is read where it exists, and written again."""
    bounds = _bounds(profile)
    return [
        "trtexec",
        f"--onnx={graph}",
        f"--saveEngine={plan}",
        *(f"--{name}Shapes={','.join(f'{one}:{_joined(shape)}' for one, shape in bounds[name])}" for name in bounds),
        *_precision_flags(precision),
        # FP32 means FP32: TF32 has ten bits of mantissa and is on unless it is switched off.
        "--noTF32",
        f"--timingCacheFile={timing_cache}",
        "--skipInference",
    ]


def polygraphy_command(
    profile: OptimisationProfile, precision: EnginePrecision, graph: Path, plan: Path, timing_cache: Path
) -> list[str]:
    """NVIDIA's Polygraphy, as words, where there is TensorRT's Python package and no ``trtexec``. TF32 is off there."""
    words = ["polygraphy", "convert", str(graph), "--convert-to", "trt", "--output", str(plan)]
    for name, shapes in _bounds(profile).items():
        words += [f"--trt-{name}-shapes", *(f"{one}:[{','.join(map(str, shape))}]" for one, shape in shapes)]
    return [
        *words,
        *_precision_flags(precision),
        "--load-timing-cache",
        str(timing_cache),
        "--save-timing-cache",
        str(timing_cache),
    ]


def _precision_flags(precision: EnginePrecision) -> list[str]:
    """Both builders spell them alike. What Q/DQ nodes do not quantise is computed in FP16."""
    if precision is EnginePrecision.FP32:
        return []
    quantised = precision in (EnginePrecision.FP8, EnginePrecision.INT8)
    return [f"--{precision.value}", *(["--fp16"] if quantised else [])]


def _bounds(profile: OptimisationProfile) -> dict[str, list[tuple[str, Sequence[int]]]]:
    return {
        "min": [(name, span.minimum) for name, span in profile.items()],
        "opt": [(name, span.optimum) for name, span in profile.items()],
        "max": [(name, span.maximum) for name, span in profile.items()],
    }


def _joined(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _require_batch_model(service: Service) -> None:
    if Profile.TENSORRT not in profiles_of(service):
        raise InputError(
            f"{service.name} is a language model: no TensorRT engine of Brim's serves it, on a GPU vLLM does",
            hint=f"serve it there with the profile vllm: brim config {service.name} --profile vllm",
        )


def _longest(service: Service) -> int:
    stated = [service.runtime.longest_tokens, *(tensor.largest_size for tensor in service.inputs)]
    return max((size for size in stated if size), default=LONGEST_UNSAID)


def _shape(tensor: Tensor, rows: int, longest: int) -> tuple[int, ...]:
    return (rows, *(longest if size == -1 else size for size in tensor.shape))
