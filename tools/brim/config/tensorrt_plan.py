"""The command that turns the guarded graph into a TensorRT plan which takes every batch that the front sends."""

from __future__ import annotations

from pathlib import Path

from brim.config.generate import graph_tensors
from brim.config.shapes import profile_shapes
from brim.service.schema import Service


def plan_command(service: Service, graph: Path, plan: Path) -> str:
    """``trtexec`` with one optimisation profile from one row to the largest batch (a plan refuses shapes outside its own)."""
    inputs, _ = graph_tensors(service)
    shapes = [f"--{bound}Shapes={text}" for bound, text in profile_shapes(service, inputs).items()]
    return " ".join(["trtexec", f"--onnx={graph}", f"--saveEngine={plan}", *shapes])
