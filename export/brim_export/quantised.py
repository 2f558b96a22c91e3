"""Whether a graph suits the precision of a TensorRT engine: what its Q/DQ nodes hold, and operators that TensorRT lacks."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from brim.config.tensorrt_plan import EnginePrecision
from brim.errors import InputError
from brim_export import graph

_ONNX_DOMAINS = frozenset({"", "ai.onnx"})
_FLOAT8 = onnx.TensorProto.FLOAT8E4M3FN
_QUANTISED: dict[int, EnginePrecision] = {onnx.TensorProto.INT8: EnginePrecision.INT8, _FLOAT8: EnginePrecision.FP8}


def require_precision(model: onnx.ModelProto, precision: EnginePrecision, name: str) -> None:
    """Refuse a graph of which TensorRT makes no engine of that precision.

    TensorRT takes scales from Q/DQ nodes whose zero points are 0 (its documentation, explicit quantisation).

    Raises:
        InputError: see above; all faults at once.
    """
    faults = []
    foreign = sorted({node.op_type for node in graph.nodes(model.graph) if node.domain not in _ONNX_DOMAINS})
    if foreign:
        faults.append(f"has operators that only ONNX Runtime knows ({', '.join(foreign)})")
    types, shifted = _zero_points(model)
    held = {_QUANTISED[kind] for kind in types if kind in _QUANTISED}
    odd = sorted(onnx.TensorProto.DataType.Name(kind) for kind in types if kind not in _QUANTISED)
    if odd:
        faults.append(f"has values quantised to {', '.join(odd)}, which TensorRT does not take")
    if shifted:
        faults.append("has zero points other than 0, which TensorRT does not take")
    if precision in _QUANTISED.values() and precision not in held:
        faults.append(f"has no {precision.value} Q/DQ nodes, from which an engine takes its scales")
    if held - {precision}:
        faults.append(f"is quantised to {', '.join(sorted(held - {precision}))}, not {precision.value}")
    if faults:
        remedy = {
            EnginePrecision.INT8: f"`brim export {name} --precision int8` makes a graph with them",
            EnginePrecision.FP8: "bring an ONNX file that NVIDIA ModelOpt has quantised to FP8",
        }
        raise InputError(
            f"the graph of {name} {'; and it '.join(faults)}",
            hint=remedy.get(precision, f"`brim export {name} --precision fp32` makes one without"),
        )


def _zero_points(model: onnx.ModelProto) -> tuple[set[int], bool]:
    """Element types of the zero points of Q/DQ nodes, and whether one of them is not 0."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    types, shifted = set[int](), False
    for node in graph.nodes(model.graph):
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 3:
            continue
        zero = stored.get(node.input[2])
        # INT32 is a bias, whose scale is the product of the others'.
        if zero is None or zero.data_type == onnx.TensorProto.INT32:
            continue
        types.add(zero.data_type)
        if zero.data_type == onnx.TensorProto.INT8 and numpy_helper.to_array(zero).any():
            shifted = True
    return types, shifted
