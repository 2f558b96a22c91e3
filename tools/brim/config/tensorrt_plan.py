"""How a TensorRT engine is built from the guarded graph: its optimisation profile, and the command of either builder.

An engine refuses every shape outside its profile, so the one profile spans all that the front sends: one row to
``max_batch_size``, variable sizes from 1 to the service's limit. Tactics are chosen for ``optimum`` alone, so that is the
batch which the service was tuned for. Pure: nothing here needs TensorRT.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from brim.config.generate import Profile, graph_tensors, profiles_of
from brim.config.shapes import OptimisationProfile, bounds, shapes_text, spans
from brim.errors import InputError
from brim.service.schema import Service


class EnginePrecision(StrEnum):
    """What an engine computes in. FP8 and INT8 take their scales from Q/DQ nodes of the graph (explicit quantisation)."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


def optimisation_profile(service: Service) -> OptimisationProfile:
    """One row to the largest batch.

    Raises:
        InputError: the service is a language model, which no engine of ours serves.
    """
    _require_batch_model(service)
    inputs, _ = graph_tensors(service)
    return spans(service, inputs)


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
    return [
        "trtexec",
        f"--onnx={graph}",
        f"--saveEngine={plan}",
        *(f"--{name}Shapes={shapes_text(shapes)}" for name, shapes in bounds(profile).items()),
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
    for name, shapes in bounds(profile).items():
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


def _require_batch_model(service: Service) -> None:
    if Profile.TENSORRT not in profiles_of(service):
        raise InputError(
            f"{service.name} is a language model: no TensorRT engine of Brim's serves it, on a GPU vLLM does",
            hint=f"serve it there with the profile vllm: brim config {service.name} --profile vllm",
        )
