"""A guard inside the graph, for backends that fail a whole batch for one bad row.

Values that the graph cannot stand are replaced before any operator sees them, and one more output tells whose rows they
were. Only operators that exist since opset 9 and that ONNX Runtime's CPU provider implements for the chosen type are
used; types that its ``Where`` lacks (float16, narrow integers) are widened first, which keeps every value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from brim_export import graph
from brim_export.graph import IndexRange

LEAST_OPSET = 9
"""``Where``, and ``Less`` and ``Greater`` of integers, exist since this opset of the ONNX operator specification."""

_AXES_ARE_AN_INPUT = 13
"""``ReduceSum`` takes its axes as an attribute before this opset, as an input from it on."""
_FLOATS: dict[int, int] = {
    TensorProto.FLOAT: TensorProto.FLOAT,
    TensorProto.DOUBLE: TensorProto.DOUBLE,
    TensorProto.FLOAT16: TensorProto.FLOAT,
}
_UNSIGNED = {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
_INTEGERS: dict[int, int] = {
    TensorProto.INT32: TensorProto.INT32,
    **dict.fromkeys((TensorProto.INT8, TensorProto.INT16, TensorProto.INT64, *_UNSIGNED), TensorProto.INT64),
}
"""Element types that are guarded, each with the type in which it is compared and replaced."""
_PREFIX = "brim_guard"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a service lets pass of one input, both bounds included; ``finite`` refuses NaN and infinities."""

    finite: bool = True
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Guarding:
    """What a service asks of the guard: limits by graph input, and the name of the row mask (None: a free one)."""

    limits: Mapping[str, Limits] = field(default_factory=dict)
    valid: str | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    """Values outside ``low..high`` (and NaN, when ``nan``) are replaced by ``instead``; None is no bound."""

    low: float | int | None
    high: float | int | None
    nan: bool
    instead: float | int


def can_guard(model: onnx.ModelProto) -> bool:
    """Whether the model's opset has the operators that the guard is made of."""
    return _opset(model) >= LEAST_OPSET


def guarded(
    model: onnx.ModelProto, ranges: Mapping[str, IndexRange], limits: Mapping[str, Limits], valid: str
) -> onnx.ModelProto:
    """A copy of the model that no row can make fail by the values named here.

    Values outside an index range, outside the limits, and non-finite ones where ``Limits.finite`` holds, are replaced
    by one that the graph can stand (0, or the smallest allowed). Values inside pass unchanged, bit by bit. The further
    output ``valid`` (FP32 ``[rows, 1]``) is 1 for a row whose every value passed, else 0. It is FP32 with an axis of
    one because each of ONNX Runtime, TensorRT and Triton's configuration (``dims: [1]``) takes that without a reshape.

    Args:
        model: the graph; left as it is.
        ranges: ``graph.index_ranges`` of it.
        limits: by input name; an input without an entry has the default ones.
        valid: name of the further output. Any other tensor of that name is renamed, a served output is not one.

    Raises:
        ValueError: ``valid`` is an input of the graph, or the opset is too old (``can_guard``).
    """
    if not can_guard(model):
        raise ValueError(f"opset {_opset(model)}, the guard needs {LEAST_OPSET}")
    inputs = graph.inputs(model)
    if valid in {spec.name for spec in inputs}:
        raise ValueError(f"{valid} is an input of the graph, expected a name that no input has")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = _Names(made.graph)
    if valid in names:
        _rename_everywhere(made.graph, valid, names.new(valid))
    types = {value.name: value.type.tensor_type.elem_type for value in made.graph.input}
    steps = _Steps(names, _opset(made))
    counts: list[str] = []
    replaced: dict[str, str] = {}
    for spec in inputs:
        check = _check(types[spec.name], ranges.get(spec.name), limits.get(spec.name, Limits()))
        if check is not None:
            replaced[spec.name], bad = steps.replace(spec.name, types[spec.name], check)
            counts.append(steps.count(bad))
    _redirect(made.graph, replaced)
    steps.mask(counts, inputs[0].name, valid)
    own = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*steps.nodes, *own])
    rows = next((spec.shape[0] for spec in inputs if spec.shape), None)
    made.graph.output.append(helper.make_tensor_value_info(valid, TensorProto.FLOAT, [rows, 1]))
    return made


def _opset(model: onnx.ModelProto) -> int:
    return max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1)


def _check(kind: int, indices: IndexRange | None, limits: Limits) -> _Check | None:
    if kind in _FLOATS:
        return _float_check(kind, limits)
    return _integer_check(kind, indices, limits) if kind in _INTEGERS else None


def _float_check(kind: int, limits: Limits) -> _Check | None:
    if not limits.finite and limits.minimum is None and limits.maximum is None:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    largest = float(np.finfo(dtype).max)
    with np.errstate(over="ignore"):
        low = None if limits.minimum is None else float(np.array(limits.minimum).astype(dtype))
        high = None if limits.maximum is None else float(np.array(limits.maximum).astype(dtype))
    if limits.finite:
        low = -largest if low is None else max(low, -largest)
        high = largest if high is None else min(high, largest)
    return _Check(low, high, limits.finite, _replacement(low, high))


def _replacement(low: float | None, high: float | None) -> float:
    """0 where it is allowed, else the bound that is nearest to it."""
    if (low is None or low <= 0) and (high is None or high >= 0):
        return 0.0
    return next((value for value in (low, high) if value is not None and math.isfinite(value)), 0.0)


def _integer_check(kind: int, indices: IndexRange | None, limits: Limits) -> _Check | None:
    lows = [] if limits.minimum is None else [math.ceil(limits.minimum)]
    highs = [] if limits.maximum is None else [math.floor(limits.maximum)]
    if indices is not None:
        lows.append(indices.minimum)
        highs.append(indices.maximum)
    narrow = helper.tensor_dtype_to_np_dtype(_INTEGERS[kind])
    least, most = int(np.iinfo(narrow).min), int(np.iinfo(narrow).max)
    # Beyond 2**63 an unsigned number turns negative when it is widened: the lower bound catches those.
    low = max([*lows, *([0] if kind in _UNSIGNED else [])], default=None)
    high = min(highs, default=None)
    if not lows and not highs:
        return None
    if kind == TensorProto.UINT64 and (high is None or high > most):
        return None
    # Nothing passes: whatever is not above the largest number is above the smallest.
    if (low is not None and low > most) or (high is not None and high < least):
        low, high = most, least
    low = None if low is None or low <= least else low
    high = None if high is None or high >= most else high
    if low is None and high is None:
        return None
    inside = indices is not None or ((low is None or low <= 0) and (high is None or high >= 0))
    return _Check(low, high, False, 0 if inside else next(value for value in (low, high) if value is not None))


class _Names:
    """Names of tensors and nodes that a graph and its bodies use."""

    def __init__(self, body: onnx.GraphProto) -> None:
        self._taken = set(_names(body))

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def new(self, wish: str) -> str:
        """A name that nothing has yet."""
        name, number = wish, 1
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name


class _Steps:
    """The guard's nodes, in the order in which they run."""

    def __init__(self, names: _Names, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._names = names
        self._opset = opset

    def replace(self, name: str, kind: int, check: _Check) -> tuple[str, str]:
        """The input with its bad values replaced, and a BOOL tensor of its shape that is true where one was."""
        wide = _FLOATS.get(kind) or _INTEGERS[kind]
        values = name if wide == kind else self._add("Cast", [name], to=wide)
        dtype = helper.tensor_dtype_to_np_dtype(wide)
        faults = [self._add("IsNaN", [values])] if check.nan else []
        if check.low is not None:
            faults.append(self._add("Less", [values, self._constant(np.array(check.low, dtype))]))
        if check.high is not None:
            faults.append(self._add("Greater", [values, self._constant(np.array(check.high, dtype))]))
        bad = faults[0]
        for fault in faults[1:]:
            bad = self._add("Or", [bad, fault])
        good = self._add("Where", [bad, self._constant(np.array(check.instead, dtype)), values])
        return (good if wide == kind else self._add("Cast", [good], to=kind)), bad

    def count(self, bad: str) -> str:
        """Bad values of each row, FP32 ``[rows, 1]``."""
        flat = self._add("Flatten", [self._add("Cast", [bad], to=TensorProto.FLOAT)], axis=1)
        if self._opset < _AXES_ARE_AN_INPUT:
            return self._add("ReduceSum", [flat], axes=[1], keepdims=1)
        return self._add("ReduceSum", [flat, self._constant(np.array([1], np.int64))], keepdims=1)

    def mask(self, counts: Sequence[str], anything: str, valid: str) -> None:
        """The output ``valid``; ones, as many as ``anything`` has rows, when nothing is counted."""
        if counts:
            total = counts[0]
            for count in counts[1:]:
                total = self._add("Add", [total, count])
            none = self._add("Less", [total, self._constant(np.array(0.5, np.float32))])
            self._add("Cast", [none], output=valid, to=TensorProto.FLOAT)
            return
        one = self._constant(np.array([1], np.int64))
        rows = self._add("Gather", [self._add("Shape", [anything]), self._constant(np.array([0], np.int64))], axis=0)
        shape = self._add("Concat", [rows, one], axis=0)
        ones = numpy_helper.from_array(np.ones(1, np.float32))
        self._add("ConstantOfShape", [shape], output=valid, value=ones)

    def _constant(self, value: np.ndarray[Any, Any]) -> str:
        # A node, not an initializer: before IR version 4 an initializer has to be an input as well.
        return self._add("Constant", [], value=numpy_helper.from_array(value))

    def _add(self, operator: str, inputs: Sequence[str], *, output: str = "", **attributes: Any) -> str:
        output = output or self._names.new(f"{_PREFIX}_{operator.lower()}")
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=self._names.new(f"{_PREFIX}_node"), **attributes)
        )
        return output


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _defined(body: onnx.GraphProto) -> Iterator[str]:
    """Tensors that a graph itself brings forth."""
    yield from (value.name for value in body.input)
    yield from (tensor.name for tensor in body.initializer)
    yield from (sparse.values.name for sparse in body.sparse_initializer)
    yield from (name for node in body.node for name in node.output if name)


def _names(body: onnx.GraphProto) -> Iterator[str]:
    yield from _defined(body)
    yield from (value.name for values in (body.output, body.value_info) for value in values)
    for node in body.node:
        yield node.name
        yield from node.input
        for inner in _bodies(node):
            yield from _names(inner)


def _redirect(body: onnx.GraphProto, replaced: Mapping[str, str]) -> None:
    """Let every node, those of inner bodies too, read the replacements. A body's own tensor of that name is another one."""
    for node in body.node:
        _exchange(node.input, replaced)
        for inner in _bodies(node):
            own = set(_defined(inner))
            outer = {name: other for name, other in replaced.items() if name not in own}
            _exchange_names(inner.output, outer)
            _redirect(inner, outer)


def _rename_everywhere(body: onnx.GraphProto, name: str, other: str) -> None:
    change = {name: other}
    for values in (body.input, body.output, body.value_info, body.initializer):
        _exchange_names(values, change)
    _exchange_names((sparse.values for sparse in body.sparse_initializer), change)
    for note in body.quantization_annotation:
        note.tensor_name = change.get(note.tensor_name, note.tensor_name)
        for entry in note.quant_parameter_tensor_names:
            entry.value = change.get(entry.value, entry.value)
    for node in body.node:
        _exchange(node.input, change)
        _exchange(node.output, change)
        for inner in _bodies(node):
            _rename_everywhere(inner, name, other)


def _exchange(names: Any, change: Mapping[str, str]) -> None:
    for place, name in enumerate(names):
        if name in change:
            names[place] = change[name]


def _exchange_names(values: Iterable[Any], change: Mapping[str, str]) -> None:
    for value in values:
        if value.name in change:
            value.name = change[value.name]
