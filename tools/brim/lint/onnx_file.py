"""The inputs and outputs that an ONNX file declares, read without its weights; and the smallest file that declares some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from brim.errors import ModelFileError

Dim = int | str | None
"""A fixed size, a symbol, or nothing known."""

TRITON_TYPES: dict[int, str] = {
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.STRING: "TYPE_STRING",
    TensorProto.BFLOAT16: "TYPE_BF16",
}
"""ONNX element type to the ``data_type`` of a configuration."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One declared tensor: ``data_type`` in Triton's spelling, ``dims`` with the batch; None when the rank is unknown."""

    data_type: str
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs (without initialisers) and outputs of a graph, by name."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def read_signature(path: Path) -> Signature:
    """What the file at ``path`` declares. External weights are not read.

    Raises:
        ModelFileError: the file cannot be read, or is no ONNX model.
    """
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (OSError, DecodeError, ValueError) as error:
        raise ModelFileError(
            f"{path.name} cannot be read as an ONNX model: {error}", hint="build or copy the model file again"
        ) from error
    if not graph.output:
        raise ModelFileError(
            f"{path.name} holds no ONNX graph: it declares no output", hint="build or copy the model file again"
        )
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: _tensor(value) for value in graph.input if value.name not in constants}
    return Signature(inputs, {value.name: _tensor(value) for value in graph.output})


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    data_type = TRITON_TYPES.get(kind.elem_type, f"ONNX type {kind.elem_type}")
    if not kind.HasField("shape"):
        return Tensor(data_type, None)
    dims: list[Dim] = []
    for dim in kind.shape.dim:
        dims.append(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None)
    return Tensor(data_type, tuple(dims))


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An ONNX file to be made: one float matrix product from ``x`` to ``y`` with the given shapes, for examples."""

    x: tuple[Dim, ...]
    y: tuple[Dim, ...]

    def to_bytes(self) -> bytes:
        """The serialised model: ``y = x @ w`` with a constant ``w`` of ones."""
        rows, columns = self.x[-1], self.y[-1]
        if not isinstance(rows, int) or not isinstance(columns, int):
            raise ValueError(f"the last dim of x and of y must be a number, got {self.x} and {self.y}")
        weights = numpy_helper.from_array(np.ones((rows, columns), np.float32), "w")
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.x))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(self.y))],
            [weights],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()

    def describe(self) -> str:
        """One line for the documentation."""
        return f"x: float {list(self.x)}, y: float {list(self.y)}"
