"""Rows to send: random valid ones where nobody gives better, and the same rows poisoned or marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from ml_dtypes import finfo

from brim.isolation.contract import ModelContract, TensorSpec, is_floating
from brim.isolation.wire import WireTensor, tensor_bytes, wire_tensors
from brim.service.samples import Row

LONGEST_AXIS = 16
INTEGER_RANGES = (2, 10, 100, 1000)
"""A model's index tables are unknown: rows from each range are drawn, and those that are refused alone are dropped."""
LONG_TEXT_BYTES = 20_000
VERY_LONG_TEXT_BYTES = 300_000
TEXTS = {
    "an empty text": b"",
    "a long text": b"word " * (LONG_TEXT_BYTES // 5),
    "a very long text": b"x" * VERY_LONG_TEXT_BYTES,
    "text that is not UTF-8": b"\xff\xfe\xfa",
    "text cut inside a character": "é".encode()[:1],
    "half a surrogate pair": b"\xed\xa0\x80",
    "text with NUL bytes": b"a\x00\x00",
}
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
"""Elements of a variable axis, or words of a text: short ones are as many as long ones."""
TEXTS_OF_A_LENGTH = 2
FIRST_MARKER = 7_700_000
MARKERS = 100_000
_MARKABLE = frozenset(["INT32", "INT64", "UINT32", "UINT64", "FP32", "FP64", "BYTES"])


def random_rows(contract: ModelContract, count: int, draw: np.random.Generator) -> list[Row]:
    """Rows that fit the contract's types and shapes, each input with the batch dimension 1 in front if it has one."""
    rows = []
    for number in range(count):
        longest = int(draw.integers(1, LONGEST_AXIS + 1))
        rows.append({spec.name: _random(contract, spec, longest, number, draw) for spec in contract.inputs})
    return rows


def _random(
    contract: ModelContract, spec: TensorSpec, longest: int, number: int, draw: np.random.Generator
) -> npt.NDArray[Any]:
    # One length for all variable axes of a row: token ids and their mask must agree.
    shape = tuple(longest if size < 0 else size for size in spec.shape)
    shape = (1, *shape) if contract.batched else shape
    kind = spec.numpy_type
    if kind.kind == "O":
        words = draw.integers(0, 1_000_000, shape)
        return np.array([f"row {word}".encode() for word in words.ravel()], dtype=np.object_).reshape(shape)
    if is_floating(kind):
        # Every second row without negative values: many models take sizes, amounts or grey values.
        return draw.uniform(-1.0 if number % 2 else 0.0, 1.0, shape).astype(kind)
    high = 2 if kind.kind == "b" else min(INTEGER_RANGES[number % len(INTEGER_RANGES)], np.iinfo(kind).max)
    return draw.integers(0, high, shape).astype(kind)


@dataclass(frozen=True, slots=True)
class Special:
    """A row that is special in one way: what it is, for people, and its tensors."""

    what: str
    tensors: tuple[WireTensor, ...]
    marker: str = ""


def poison_rows(contract: ModelContract, row: Row, draw: np.random.Generator) -> list[Special]:
    """``row`` with one harmful value in one input, every kind of harm for every input."""
    tensors = wire_tensors(contract, row)
    found = []
    for number, (spec, tensor) in enumerate(zip(contract.inputs, tensors, strict=True)):
        for what, data in _harms(spec, row[spec.name], draw):
            changed = (*tensors[:number], replace(tensor, data=data), *tensors[number + 1 :])
            found.append(Special(f"{what} in {spec.name}", changed))
    return found


def _harms(spec: TensorSpec, array: npt.NDArray[Any], draw: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    place = int(draw.integers(array.size)) if array.size else 0
    if spec.datatype == "BYTES":
        for what, text in TEXTS.items():
            yield what, tensor_bytes(_with(array, place, text), spec.datatype)
    elif spec.datatype == "BOOL":
        for byte in (2, 255):
            yield f"the BOOL byte {byte}", bytes([byte]) * array.size
    elif is_floating(array.dtype):
        limits = finfo(array.dtype)  # type: ignore[no-untyped-call]
        for what, value in (
            ("NaN", np.nan),
            ("infinity", np.inf),
            ("-infinity", -np.inf),
            ("a denormal", limits.smallest_subnormal),
            ("the largest finite value", limits.max),
        ):
            yield what, tensor_bytes(_with(array, place, value), spec.datatype)
        yield "nothing but NaN", tensor_bytes(np.full_like(array, np.nan), spec.datatype)
    else:
        signed, limits_i = array.dtype.kind == "i", np.iinfo(array.dtype)
        values = [limits_i.max, *((-1, limits_i.min) if signed else ())]
        # Between a usual table and the type's own limit.
        values += [value for value in (100_000, 1 << 31) if value < limits_i.max]
        for value in values:
            yield f"the value {value}", tensor_bytes(_with(array, place, value), spec.datatype)


def has_lengths(contract: ModelContract) -> bool:
    """Whether rows of the model can differ in size: a variable axis, or text."""
    return any(-1 in spec.shape or spec.datatype == "BYTES" for spec in contract.inputs)


def rows_of_lengths(contract: ModelContract, row: Row, draw: np.random.Generator) -> list[Special]:
    """Rows of every length of ``LENGTHS``, with random values or words; inputs of a fixed size are those of ``row``."""
    found = []
    for number, length in enumerate(LENGTHS * TEXTS_OF_A_LENGTH):
        made = {spec.name: _long(contract, spec, row[spec.name], length, number, draw) for spec in contract.inputs}
        found.append(Special(f"length {length}", wire_tensors(contract, made)))
    return found


def _long(
    contract: ModelContract,
    spec: TensorSpec,
    array: npt.NDArray[Any],
    length: int,
    number: int,
    draw: np.random.Generator,
) -> npt.NDArray[Any]:
    if -1 in spec.shape:
        array = _random(contract, spec, length, number, draw)
    if spec.datatype != "BYTES":
        return array
    words = [f"{word}".encode() for word in draw.integers(0, 1_000, length)]
    return np.full(array.shape, b" ".join(words), dtype=np.object_)


def _with(array: npt.NDArray[Any], place: int, value: object) -> npt.NDArray[Any]:
    changed = array.copy()
    changed.ravel()[place : place + 1] = value
    return changed


def markable(contract: ModelContract) -> list[TensorSpec]:
    """Inputs that can carry a marker exactly."""
    return [spec for spec in contract.inputs if spec.datatype in _MARKABLE]


def marked_rows(contract: ModelContract, rows: Sequence[Row], count: int, draw: np.random.Generator) -> list[Special]:
    """``count`` rows that carry a marker of their own; every second one also holds what provokes an error.

    Numbers carry the marker as a value, texts as a word. NaN, a negative number or a byte that is no UTF-8 provokes.
    """
    found: list[Special] = []
    specs = markable(contract)
    for number in range(min(count, MARKERS)):
        marker = FIRST_MARKER + number
        row = dict(rows[int(draw.integers(len(rows)))])
        spec = specs[number % len(specs)]
        row[spec.name] = _marked(row[spec.name], marker, number % 2 == 1)
        what = "a marked row that provokes an error" if number % 2 else "a marked row"
        found.append(Special(what, wire_tensors(contract, row), str(marker)))
    return found


def _marked(array: npt.NDArray[Any], marker: int, provoke: bool) -> npt.NDArray[Any]:
    if array.dtype.kind == "O":
        return _with(array, 0, (b"\xff " if provoke else b"") + f"marked {marker} text".encode())
    if array.dtype.kind == "f":
        changed = _with(array, 0, marker)
        return _with(changed, array.size - 1, np.nan) if provoke and array.size > 1 else changed
    return _with(array, 0, -marker if provoke and array.dtype.kind == "i" else marker)


def rows_together(rows: Sequence[Row]) -> Row:
    """One request of several rows. They must have equal shapes."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def shape_of(*rows: Row) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What must be equal for rows to share a request: the sizes of every tensor behind the batch dimension."""
    return tuple((name, array.shape[1:]) for row in rows for name, array in sorted(row.items()))
