"""Checks of one request before it may share a batch.

What Triton lets through and then hurts neighbours is refused here with the caller's own client error: zero rows, a
shape on the wire that lies, an index outside a table, NaN and infinity, BOOL bytes other than 0 and 1 (numpy and ONNX
Runtime read them differently), oversized or undecodable text.

A request is checked in two steps, form (names, types, shapes, sizes) and values, each once for the whole batch, since a
hundred small numpy calls cost more than a small model. Only when that finds something are requests looked at one by one,
so that the message speaks of their own request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brim.runtime.contract import Array, Contract, Request, TensorSpec, type_name
from brim.runtime.outcome import Reason, Refusal

_BOOL = np.dtype(np.bool_)
_OBJECT = np.dtype(np.object_)


@dataclass(frozen=True, slots=True)
class InputRules:
    """Limits on one input. ``None`` is no limit.

    Attributes:
        finite: refuse NaN and infinities.
        minimum: smallest value allowed.
        maximum: largest value allowed.
        longest_bytes: longest BYTES element.
        largest_size: most elements along any variable axis.
        utf8: BYTES elements must be UTF-8.
    """

    finite: bool = True
    minimum: float | None = None
    maximum: float | None = None
    longest_bytes: int | None = None
    largest_size: int | None = None
    utf8: bool = True


_DEFAULT_RULES = InputRules()


class Stacked(NamedTuple):
    """Requests joined: the rows of each, in order, and for each input the rows of all, ``[rows, ...]``."""

    sizes: list[int]
    columns: dict[str, Array]


class Guard:
    """The checks for one model."""

    def __init__(
        self,
        contract: Contract,
        rules: Mapping[str, InputRules] | None = None,
        aligned: Sequence[str] = (),
    ) -> None:
        """Bind the rules to inputs by name; inputs without rules get the defaults.

        Args:
            contract: the model's inputs and the most rows a request may have.
            rules: limits by input name.
            aligned: inputs whose first row axis must have one length within a request (token ids and their mask).

        Raises:
            ValueError: a rule or an aligned name is not an input of the contract.
        """
        rules = rules or {}
        names = {spec.name for spec in contract.inputs}
        unknown = sorted((set(rules) | set(aligned)) - names)
        if unknown:
            raise ValueError(f"guard rules for {unknown}, which are no inputs; the inputs are {sorted(names)}")
        self._specs = tuple((spec, rules.get(spec.name, _DEFAULT_RULES)) for spec in contract.inputs)
        self._rules = {spec.name: rule for spec, rule in self._specs}
        self._quick = tuple((spec.name, spec.dtype, spec.shape) for spec in contract.inputs)
        self._all_quick = all(self._form_is_quick(spec) for spec in contract.inputs) and len(aligned) < 2
        self._aligned = tuple(aligned)
        self._max_rows = contract.max_rows

    @staticmethod
    def _form_is_quick(spec: TensorSpec) -> bool:
        """Whether type and shape alone settle the form."""
        return spec.is_fixed and spec.dtype not in (_OBJECT, _BOOL)

    def check(self, request: Request) -> Refusal | None:
        """Everything, for one request. ``None`` means that it may share a batch."""
        return self.check_form(request) or self.check_values(request)

    def stack(self, requests: Sequence[Request]) -> Stacked | None:
        """All requests as one tensor an input, when that is a way to see that the form of every one of them is right.

        Arrays are joined only when their types are the same and their shapes agree but for the rows, so what is left to
        look at is one type, one row shape and the row counts. ``None`` says nothing about any request: a form is wrong,
        or type and shape do not settle it; ``check_form`` tells.
        """
        if not self._all_quick or set(map(len, requests)) != {len(self._quick)}:
            return None
        sizes: list[int] = []
        columns: dict[str, Array] = {}
        try:
            for name, dtype, row_shape in self._quick:
                arrays = [request[name] for request in requests]
                column = np.concatenate(arrays, dtype=dtype, casting="no")
                rows = [len(array) for array in arrays]
                if column.shape[1:] != row_shape or (sizes and rows != sizes):
                    return None
                sizes, columns[name] = rows, column
        except (KeyError, TypeError, ValueError):
            return None
        return Stacked(sizes, columns) if min(sizes) >= 1 and max(sizes) <= self._max_rows else None

    def check_form(self, request: Request) -> Refusal | None:
        """Names, types, shapes, row counts, sizes, and whatever can only be read element by element (BYTES, BOOL)."""
        known = {spec.name for spec, _ in self._specs}
        for name in request:
            if name not in known:
                return Refusal(Reason.UNKNOWN_INPUT, f'input "{name}" is unknown; the inputs are {sorted(known)}')
        rows: dict[str, int] = {}
        for spec, rules in self._specs:
            array = request.get(spec.name)
            if array is None:
                return Refusal(Reason.MISSING_INPUT, f'input "{spec.name}" is missing; the inputs are {sorted(known)}')
            refusal = self._tensor_form(spec, rules, array)
            if refusal:
                return refusal
            rows[spec.name] = array.shape[0]
        if len(set(rows.values())) > 1:
            counts = ", ".join(f'"{name}" has {count}' for name, count in rows.items())
            return Refusal(Reason.ROWS_DIFFER, f"the inputs differ in batch size: {counts} rows")
        lengths = {name: request[name].shape[1] for name in self._aligned}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f'"{name}" has {length}' for name, length in lengths.items())
            return Refusal(Reason.LENGTHS_DIFFER, f"the inputs differ in length: {counts} elements a row")
        return None

    def _tensor_form(self, spec: TensorSpec, rules: InputRules, array: Array) -> Refusal | None:
        where = f'input "{spec.name}"'
        if array.dtype != spec.dtype:
            return Refusal(
                Reason.DTYPE,
                f"{where} is {type_name(array.dtype)}, expected {type_name(spec.dtype)} as the model declares",
            )
        if array.ndim != len(spec.shape) + 1:
            expected = ["rows", *spec.shape]
            return Refusal(
                Reason.RANK,
                f"{where} has shape {list(array.shape)}, expected {_shape_text(expected)}: the batch dimension is missing or 0",
            )
        if array.shape[0] < 1:
            return Refusal(
                Reason.NO_ROWS, f"{where} has shape {list(array.shape)}: the batch dimension must be at least 1"
            )
        if array.shape[0] > self._max_rows:
            return Refusal(
                Reason.TOO_MANY_ROWS,
                f"{where} has {array.shape[0]} rows, the model takes at most {self._max_rows} in one request",
            )
        if not spec.fits(array.shape[1:]):
            expected = ["rows", *spec.shape]
            return Refusal(Reason.SHAPE, f"{where} has shape {list(array.shape)}, expected {_shape_text(expected)}")
        # A row without elements is never meant: ragged backends answer it with whatever memory holds.
        if array.size == 0:
            return Refusal(Reason.SHAPE, f"{where} has shape {list(array.shape)}: a row must have at least one element")
        if rules.largest_size is not None:
            for axis, (declared, size) in enumerate(zip(spec.shape, array.shape[1:], strict=True), start=1):
                if declared == -1 and size > rules.largest_size:
                    return Refusal(
                        Reason.TOO_LARGE,
                        f"{where} has {size} elements on axis {axis}, the limit is {rules.largest_size}",
                    )
        if spec.dtype == _OBJECT:
            return _bytes_form(where, rules, array)
        if spec.dtype == _BOOL:
            raw = np.ascontiguousarray(array).view(np.uint8)
            if raw.max() > 1:
                return Refusal(Reason.BOOL_VALUE, f"{where} has the BOOL byte {raw.max()}, expected 0 or 1")
        return None

    def check_values(self, request: Request) -> Refusal | None:
        """Finite and in range, for one request whose form is right."""
        for spec, _ in self._specs:
            array = request[spec.name]
            if self.values_ok(spec.name, array):
                continue
            refusal = self._value_refusal(spec.name, array)
            if refusal:
                return refusal
        return None

    def values_ok(self, name: str, array: Array) -> bool:
        """Whether all values of one input, of one request or of many, are finite and in range.

        A false alarm is possible (finite values whose sum overflows, a NaN that may pass): ``suspect_rows`` decides.
        """
        rules, kind = self._rules[name], array.dtype.kind
        if kind not in "iuf":
            return True
        # A NaN makes min() and max() NaN, which no comparison passes: it cannot hide another value.
        if rules.minimum is not None and not array.min() >= rules.minimum:
            return False
        if rules.maximum is not None and not array.max() <= rules.maximum:
            return False
        if kind != "f" or not rules.finite or (rules.minimum is not None and rules.maximum is not None):
            return True
        # A sum is finite only when every term is, and is one pass without a temporary array.
        with np.errstate(over="ignore", invalid="ignore"):
            return math.isfinite(array.sum(dtype=np.float32 if array.dtype.itemsize < 4 else None))

    def suspect_rows(self, name: str, batch: Array) -> list[int]:
        """Numbers of the rows of ``batch`` (``[rows, ...]``) that hold a value against the rules."""
        bad = self._bad(name, batch)
        rows: list[int] = np.flatnonzero(bad.reshape(len(batch), -1).any(axis=1)).tolist()
        return rows

    def _bad(self, name: str, array: Array) -> Array:
        rules = self._rules[name]
        bad = np.zeros(array.shape, dtype=np.bool_)
        if array.dtype.kind == "f" and rules.finite:
            bad |= ~np.isfinite(array)
        if array.dtype.kind in "iuf":
            if rules.minimum is not None:
                bad |= array < rules.minimum
            if rules.maximum is not None:
                bad |= array > rules.maximum
        return bad

    def _value_refusal(self, name: str, array: Array) -> Refusal | None:
        bad = np.argwhere(self._bad(name, array))
        if not len(bad):
            return None
        place = bad[0].tolist()
        value = array[tuple(place)]
        where = f'input "{name}"{place} is {value}'
        if array.dtype.kind == "f" and not np.isfinite(value):
            return Refusal(Reason.NON_FINITE, f"{where}; the model takes finite values only")
        rules = self._rules[name]
        low = "-inf" if rules.minimum is None else rules.minimum
        high = "inf" if rules.maximum is None else rules.maximum
        return Refusal(Reason.OUT_OF_RANGE, f"{where}, expected {low}..{high}")


def _shape_text(shape: Sequence[object]) -> str:
    return "[" + ", ".join(str(item) for item in shape) + "]"


def _bytes_form(where: str, rules: InputRules, array: Array) -> Refusal | None:
    for position, value in enumerate(array.ravel()):
        if not isinstance(value, bytes | str):
            return Refusal(Reason.DTYPE, f"{where} element {position} is {type(value).__name__}, expected BYTES")
        size = len(value) if isinstance(value, bytes) else len(value.encode("utf-8", "surrogatepass"))
        if rules.longest_bytes is not None and size > rules.longest_bytes:
            return Refusal(
                Reason.TOO_MANY_BYTES,
                f"{where} element {position} has {size} bytes, the limit is {rules.longest_bytes}",
            )
        if rules.utf8:
            try:
                if isinstance(value, bytes):
                    value.decode("utf-8")
                else:
                    value.encode("utf-8")
            except UnicodeError as error:
                at = getattr(error, "start", 0)
                return Refusal(Reason.NOT_UTF8, f"{where} element {position} is not UTF-8: the fault is at byte {at}")
    return None
