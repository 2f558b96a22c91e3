"""The command that turns the guarded graph into a TensorRT plan which takes every batch that the front sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brim.config.generate import graph_tensors
from brim.service.schema import Service, Tensor

LONGEST_UNSAID = 512
"""Largest size of a variable axis for which the service file states none."""


def plan_command(service: Service, graph: Path, plan: Path) -> str:
    """``trtexec`` with one optimisation profile from one row to the largest batch (a plan refuses shapes outside its own)."""
    inputs, _ = graph_tensors(service)
    longest = _longest(service)
    most = service.max_batch_size
    sizes = {"min": (1, 1), "opt": (most, max(1, longest // 4)), "max": (most, longest)}
    shapes = [f"--{name}Shapes={_shapes(inputs, rows, size)}" for name, (rows, size) in sizes.items()]
    return " ".join(["trtexec", f"--onnx={graph}", f"--saveEngine={plan}", *shapes])


def _longest(service: Service) -> int:
    stated = [service.runtime.longest_tokens, *(tensor.largest_size for tensor in service.inputs)]
    return max((size for size in stated if size), default=LONGEST_UNSAID)


def _shapes(inputs: Sequence[Tensor], rows: int, longest: int) -> str:
    return ",".join(
        f"{tensor.name}:{'x'.join(str(longest if size == -1 else size) for size in (rows, *tensor.shape))}"
        for tensor in inputs
    )
