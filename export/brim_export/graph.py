"""What an ONNX graph says about itself: its tensors, the index ranges it can stand, its random and training-mode operators.

Pure functions over a parsed model; nothing is run. Operator meanings are those of the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import inliner, shape_inference

from brim.errors import ModelFileError

BATCH_AXIS = 0
"""The axis along which callers share a batch, in every input and output."""

DATATYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.UINT16: "UINT16",
    onnx.TensorProto.UINT32: "UINT32",
    onnx.TensorProto.UINT64: "UINT64",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT16: "INT16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.DOUBLE: "FP64",
    onnx.TensorProto.STRING: "BYTES",
}
"""ONNX element types as KServe v2 names them. BF16 is absent: numpy cannot carry it, so no gate could run."""

_RANDOM_OPERATORS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_SAME_VALUES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose outputs hold only values of their first input (Cast: of integers to integers)."""

_SAME_VALUES_OF_ALL = frozenset({"Concat"})
_PICKS_VALUES = frozenset({"Gather", "GatherElements", "GatherND"})
_ONNX_DOMAINS = frozenset({"", "ai.onnx"})
_SHAPE_INFERENCE_LIMIT = 2_000_000_000
"""Bytes; protobuf cannot serialise more, so larger models are read without shape inference."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A graph input or output. ``shape`` holds a size, a symbol, or None (unnamed, any size) an axis; None: undeclared."""

    name: str
    datatype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Values that an index input may take: ``minimum``..``maximum``, both included.

    Below zero, down to ``-(maximum + 1)``, ONNX counts from the end: such a value is not refused, it silently
    selects another entry. Anything else fails the execution, and with it every row of the batch.
    """

    minimum: int
    maximum: int


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions expanded in place, so that every operator stands in a graph."""
    return inliner.inline_local_functions(model) if model.functions else model


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those inside If, Loop and Scan bodies too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in _bodies(attribute):
                yield from nodes(body)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every stored tensor: initializers, sparse ones, and tensors kept in attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in _bodies(attribute):
                yield from tensors(body)


def inputs(model: onnx.ModelProto) -> list[TensorSpec]:
    """What a caller must give: graph inputs that no initializer supplies.

    Raises:
        ModelFileError: an input is not a tensor, or of a type that cannot be served.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    return [_spec(value, "input") for value in model.graph.input if value.name not in stored]


def outputs(model: onnx.ModelProto) -> list[TensorSpec]:
    """What a caller gets.

    Raises:
        ModelFileError: an output is not a tensor, or of a type that cannot be served.
    """
    return [_spec(value, "output") for value in model.graph.output]


def random_operators(model: onnx.ModelProto) -> list[str]:
    """``Operator (node name)`` for each node that draws random numbers."""
    return [
        _title(node) for node in nodes(inlined(model).graph) if _is_onnx(node) and node.op_type in _RANDOM_OPERATORS
    ]


def training_operators(model: onnx.ModelProto) -> list[str]:
    """``Operator (node name)`` for each node in training mode.

    Dropout: input ``training_mode`` since opset 12, attribute ``is_test`` below 7. BatchNormalization: attribute
    ``training_mode`` since opset 14, more than one output from 7 to 13, attribute ``is_test`` below 7.
    """
    model = inlined(model)
    opset = max((item.version for item in model.opset_import if item.domain in _ONNX_DOMAINS), default=1)
    constants = _constants(model.graph)
    return [_title(node) for node in nodes(model.graph) if _is_onnx(node) and _is_training(node, opset, constants)]


def index_ranges(model: onnx.ModelProto) -> dict[str, IndexRange]:
    """The valid values of every graph input that selects entries of a table, the tightest when it selects from several.

    An input counts when it reaches the indices of Gather, GatherElements or GatherND (or the word ids of the fused
    ``com.microsoft`` EmbedLayerNormalization) through operators that keep values as they are, and the size of the
    table's axis is known. Paths through arithmetic, Clip or a Loop body are not followed: no range is reported
    for them, never a wrong one.
    """
    model = _with_shapes(inlined(model))
    sizes = _known_shapes(model.graph)
    producers = {name: node for node in nodes(model.graph) for name in node.output if name}
    names = {spec.name for spec in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    found: dict[str, IndexRange] = {}
    for node in nodes(model.graph):
        for indices, entries in _selections(node, sizes, producers):
            for name in _origins(indices, producers) & names:
                known = found.get(name)
                found[name] = IndexRange(0, min(entries - 1, known.maximum if known else entries - 1))
    return {name: found[name] for name in sorted(found)}


def _bodies(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _is_onnx(node: onnx.NodeProto) -> bool:
    return node.domain in _ONNX_DOMAINS


def _title(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({node.name or node.output[0]})"


def _spec(value: onnx.ValueInfoProto, role: str) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ModelFileError(
            f"{role} {value.name} is a {(kind or 'value without a type').removesuffix('_type')}, not a tensor",
            hint="Triton passes tensors only; export the model so that it gives arrays (scikit-learn: zipmap=False)",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in DATATYPES:
        raise ModelFileError(
            f"{role} {value.name} has element type {_type_name(tensor.elem_type)}, "
            f"which cannot be served; served are {', '.join(DATATYPES.values())}",
            hint=f"cast {value.name} to one of them inside the graph",
        )
    if not tensor.HasField("shape"):
        return TensorSpec(value.name, DATATYPES[tensor.elem_type], None)
    return TensorSpec(value.name, DATATYPES[tensor.elem_type], tuple(_axis(axis) for axis in tensor.shape.dim))


def _type_name(number: int) -> str:
    known = onnx.TensorProto.DataType
    return known.Name(number) if number in known.values() else str(number)


def _axis(axis: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if axis.HasField("dim_value"):
        return axis.dim_value
    return axis.dim_param or None


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((item.i for item in node.attribute if item.name == name), default)


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes(graph):
        found.update(
            {tensor.name: tensor for item in node.attribute for body in _bodies(item) for tensor in body.initializer}
        )
        if node.op_type == "Constant":
            for item in node.attribute:
                if item.name == "value":
                    found[node.output[0]] = item.t
    return found


def _is_training(node: onnx.NodeProto, opset: int, constants: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type == "Dropout":
        if opset < 7:
            return not _attribute(node, "is_test", 0)
        if opset < 12 or len(node.input) < 3 or not node.input[2]:
            return False
        mode = constants.get(node.input[2])
        return mode is None or bool(onnx.numpy_helper.to_array(mode).any())
    if node.op_type == "BatchNormalization":
        if opset < 7:
            return not _attribute(node, "is_test", 0)
        return bool(_attribute(node, "training_mode", 0)) if opset >= 14 else len(node.output) > 1
    return False


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.ByteSize() >= _SHAPE_INFERENCE_LIMIT:
        return model
    try:
        return shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, ValueError):
        return model


def _known_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int | str | None, ...]]:
    """Shapes by tensor name, those of nested bodies too."""
    found: dict[str, tuple[int | str | None, ...]] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            found[value.name] = tuple(_axis(axis) for axis in value.type.tensor_type.shape.dim)
    for node in graph.node:
        for attribute in node.attribute:
            for body in _bodies(attribute):
                found |= _known_shapes(body)
    found |= {name: tuple(tensor.dims) for name, tensor in _constants(graph).items()}
    return found


def _selections(
    node: onnx.NodeProto,
    shapes: dict[str, tuple[int | str | None, ...]],
    producers: dict[str, onnx.NodeProto],
) -> Iterator[tuple[str, int]]:
    """(indices tensor, entries it selects from) for each selection that the node makes and whose size is known."""
    if node.domain == "com.microsoft" and node.op_type == "EmbedLayerNormalization":
        names = list(node.input) + [""] * 5
        yield from _sized([(names[0], names[2], 0), (names[1], names[4], 0)], shapes)
    if not _is_onnx(node):
        return
    if node.op_type in ("Gather", "GatherElements"):
        yield from _sized([(node.input[1], node.input[0], _attribute(node, "axis", 0))], shapes)
    if node.op_type == "GatherND":
        first = _attribute(node, "batch_dims", 0)
        indices = node.input[1]
        depth = shapes.get(indices, (None,))[-1:] or (None,)
        if depth[0] == 1:
            yield from _sized([(indices, node.input[0], first)], shapes)
            return
        joined = producers.get(indices)
        if joined is None or joined.op_type != "Concat":
            return
        parts = list(joined.input)
        axis = _attribute(joined, "axis", 0)
        on_last = axis == -1 or axis == len(shapes.get(indices, ())) - 1
        if on_last and all(shapes.get(part, (None,))[-1:] == (1,) for part in parts):
            yield from _sized([(part, node.input[0], first + place) for place, part in enumerate(parts)], shapes)


def _sized(
    selections: list[tuple[str, str, int]], shapes: dict[str, tuple[int | str | None, ...]]
) -> Iterator[tuple[str, int]]:
    for indices, table, axis in selections:
        shape = shapes.get(table) if indices and table else None
        if shape is None or not -len(shape) <= axis < len(shape):
            continue
        entries = shape[axis]
        if isinstance(entries, int) and entries > 0:
            yield indices, entries


def _origins(name: str, producers: dict[str, onnx.NodeProto]) -> set[str]:
    """Tensors without a producer whose values arrive unchanged at ``name``."""
    found: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        node = producers.get(current)
        if node is None:
            found.add(current)
            continue
        for source in _value_sources(node):
            if source and source not in seen:
                seen.add(source)
                waiting.append(source)
    return found


def _value_sources(node: onnx.NodeProto) -> list[str]:
    if not _is_onnx(node):
        return []
    if node.op_type in _SAME_VALUES or node.op_type in _PICKS_VALUES:
        return list(node.input[:1])
    if node.op_type in _SAME_VALUES_OF_ALL:
        return list(node.input)
    if node.op_type == "Where":
        return list(node.input[1:])
    return []
