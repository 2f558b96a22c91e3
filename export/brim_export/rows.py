"""Rows to try a model with: ordinary ones, and neighbours that would hurt if rows were not independent.

Everything is drawn from one seeded generator and stays valid: dtypes, shapes and index ranges are those of the graph.
Symbolic axes other than the batch take the sizes of an ``AxisSizes``; axes of one symbol share one size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from brim.errors import InputError
from brim_export.foreign import foreign, told
from brim_export.graph import BATCH_AXIS, IndexRange, TensorSpec
from brim_export.session import Array, Feed

AxisSizes = dict[str, int]
"""Size of each symbolic axis that is not the batch, by symbol."""

RowSampler = Callable[[np.random.Generator, int, Mapping[str, int]], Mapping[str, Array]]
"""``row_samples(rng, rows, axis_sizes)``: valid inputs, ``rows`` rows each, of the given axis sizes."""

RowPadder = Callable[[Mapping[str, Array], Mapping[str, int]], Mapping[str, Array]]
"""``pad_rows(inputs, axis_sizes)``: the same rows padded to larger axis sizes, as the service pads them."""

Hook = TypeVar("Hook", RowSampler, RowPadder)

NUMPY_TYPES: dict[str, type[Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""KServe v2 datatypes as numpy holds them."""

HOSTILITIES = ("zeros", "huge values", "NaN", "+Inf", "-Inf")
"""What a neighbour may hold: the smallest and largest valid value of integers, and every special float."""

_NON_FINITE = {"NaN": np.nan, "+Inf": np.inf, "-Inf": -np.inf}
_TEXTS = ("", "a", "batch", "one input a caller, one batch a launch", "größer als 3 °C", "a" * 200)


def take(feed: Mapping[str, Array], indices: Sequence[int]) -> Feed:
    """The rows at ``indices``, in that order."""
    return {name: values[list(indices)] for name, values in feed.items()}


def stack(feeds: Sequence[Mapping[str, Array]]) -> Feed:
    """All rows of ``feeds`` in one batch, in order."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


@dataclass(frozen=True)
class RowSource:
    """What is known about valid inputs: the graph's ranges, the user's rows, and the hooks beside a torch factory.

    ``samples`` holds rows without the batch axis; ``examples`` whole example tensors.
    """

    inputs: Sequence[TensorSpec]
    ranges: Mapping[str, IndexRange]
    samples: Mapping[str, Sequence[Array]] | None = None
    row_samples: RowSampler | None = None
    pad_rows: RowPadder | None = None
    examples: Mapping[str, Array] = field(default_factory=dict)

    def symbols(self) -> list[str]:
        """Symbolic axes other than the batch, each once, in order of appearance."""
        batch = {spec.shape[BATCH_AXIS] for spec in self.inputs if spec.shape}
        found = [
            _symbol(spec, axis)
            for spec in self.inputs
            for axis, size in enumerate(spec.shape or ())
            if axis != BATCH_AXIS and not isinstance(size, int) and (size is None or size not in batch)
        ]
        return list(dict.fromkeys(found))

    def known_sizes(self) -> list[AxisSizes]:
        """Axis sizes of the samples, each once; without samples those of the example tensors."""
        if self.samples:
            return list(
                {tuple(sorted(sizes.items())): sizes for sizes in map(self._sizes_of, self._sample_rows())}.values()
            )
        return [self._sizes_of({name: example[0] for name, example in self.examples.items()})] if self.examples else []

    def rows(self, rng: np.random.Generator, rows: int, sizes: AxisSizes) -> Feed:
        """``rows`` ordinary rows: the user's samples of that size, else the hook's, else drawn from the graph's ranges.

        Raises:
            InputError: the hook's answer does not fit the inputs.
        """
        fitting = [row for row in self._sample_rows() if self._sizes_of(row) == sizes] if self.samples else []
        if fitting:
            chosen = rng.integers(len(fitting), size=rows)
            return {spec.name: np.stack([fitting[index][spec.name] for index in chosen]) for spec in self.inputs}
        if self.row_samples:
            answer = _called("row_samples", lambda hook: hook(rng, rows, dict(sizes)), self.row_samples)
            return self._checked(answer, rows, sizes, "row_samples")
        return {spec.name: self._draw(rng, spec, self._shape(spec, rows, sizes)) for spec in self.inputs}

    def hostile(self, rng: np.random.Generator, kind: str, rows: int, sizes: AxisSizes, *, unranged: bool) -> Feed:
        """``rows`` rows of one of ``HOSTILITIES``: extreme, but of valid type, shape and index.

        Integers whose range the graph does not tell take extreme values only with ``unranged``.
        """
        feed = self.rows(rng, rows, sizes)
        for spec in self.inputs:
            extreme = self._extreme(spec, kind, feed[spec.name].shape, unranged=unranged)
            if extreme is not None:
                feed[spec.name] = extreme
        return feed

    def has_floats(self) -> bool:
        """Whether any input can hold NaN."""
        return any(spec.datatype.startswith("FP") for spec in self.inputs)

    def unranged(self) -> list[str]:
        """Integer inputs of which neither the graph nor a hook tells the valid values."""
        if self.row_samples:
            return []
        return [spec.name for spec in self.inputs if "INT" in spec.datatype and spec.name not in self.ranges]

    def padded(self, feed: Feed, sizes: AxisSizes) -> Feed:
        """``feed`` padded by the hook to ``sizes``.

        Raises:
            InputError: the hook's answer does not fit the inputs.
        """
        if self.pad_rows is None:
            raise ValueError("no pad_rows hook")
        rows = len(feed[self.inputs[0].name])
        answer = _called("pad_rows", lambda hook: hook(feed, dict(sizes)), self.pad_rows)
        return self._checked(answer, rows, sizes, "pad_rows")

    def check_samples(self) -> None:
        """Refuse samples that do not fit the inputs.

        Raises:
            InputError: an input has no samples, or a row has another type or shape; says which.
        """
        if self.samples is None:
            return
        names = [spec.name for spec in self.inputs]
        if set(self.samples) != set(names):
            raise InputError(
                f"samples are for {sorted(self.samples)}, the model's inputs are {sorted(names)}",
                hint="give every sample a value for each of the model's inputs, under the graph's own names",
            )
        counts = {name: len(rows) for name, rows in self.samples.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            raise InputError(
                f"samples need the same number of rows, at least one, for every input; found {counts}",
                hint="give each sample a value for every input",
            )
        for index, row in enumerate(self._sample_rows()):
            self._checked({name: row[name][np.newaxis] for name in row}, 1, self._sizes_of(row), f"sample {index}")

    def _sample_rows(self) -> list[Feed]:
        if not self.samples:
            return []
        names = [spec.name for spec in self.inputs]
        columns = [self.samples[name] for name in names]
        return [
            {name: np.asarray(value) for name, value in zip(names, row, strict=True)}
            for row in zip(*columns, strict=True)
        ]

    def _sizes_of(self, row: Mapping[str, Array]) -> AxisSizes:
        wanted = set(self.symbols())
        sizes: AxisSizes = {}
        for spec in self.inputs:
            for axis, size in enumerate(row[spec.name].shape, start=1):
                if spec.shape and axis < len(spec.shape) and _symbol(spec, axis) in wanted:
                    sizes.setdefault(_symbol(spec, axis), size)
        return sizes

    def _shape(self, spec: TensorSpec, rows: int, sizes: AxisSizes) -> tuple[int, ...]:
        shape = []
        for axis, size in enumerate(spec.shape or ()):
            if axis == BATCH_AXIS:
                shape.append(rows)
            else:
                shape.append(size if isinstance(size, int) else sizes.get(_symbol(spec, axis), rows))
        return tuple(shape)

    def _draw(self, rng: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
        dtype = NUMPY_TYPES[spec.datatype]
        if spec.datatype.startswith("FP"):
            return rng.standard_normal(shape).astype(dtype)
        if spec.datatype == "BYTES":
            return rng.choice(np.array(_TEXTS, dtype=np.object_), size=shape)
        known = self.ranges.get(spec.name)
        if known:
            return rng.integers(known.minimum, known.maximum, size=shape, endpoint=True).astype(dtype)
        if spec.name in self.examples:
            return rng.choice(np.unique(self.examples[spec.name]), size=shape).astype(dtype)
        most = 255 if spec.datatype == "UINT8" else 1
        return rng.integers(0, most, size=shape, endpoint=True).astype(dtype)

    def _extreme(self, spec: TensorSpec, kind: str, shape: tuple[int, ...], *, unranged: bool) -> Array | None:
        dtype = NUMPY_TYPES[spec.datatype]
        if spec.datatype.startswith("FP"):
            if kind in _NON_FINITE:
                return np.full(shape, _NON_FINITE[kind], dtype)
            values = np.zeros(shape, dtype)
            if kind == "huge values":
                flat = values.reshape(-1)
                flat[0::2], flat[1::2] = np.finfo(dtype).max / 8, np.finfo(dtype).min / 8
            return values
        known = self.ranges.get(spec.name)
        if known:
            return np.full(shape, known.maximum if kind == "huge values" else known.minimum, dtype)
        if "INT" in spec.datatype and unranged and kind in ("zeros", "huge values"):
            return np.full(shape, np.iinfo(dtype).max if kind == "huge values" else 0, dtype)
        return None

    def _checked(self, answer: Mapping[str, Array], rows: int, sizes: AxisSizes, origin: str) -> Feed:
        feed: Feed = {}
        for spec in self.inputs:
            if spec.name not in answer:
                raise InputError(
                    f"{origin} gave no {spec.name}; it gave {sorted(answer, key=str)}",
                    hint="give an array for every input of the model, under its own name",
                )
            wanted = np.dtype(NUMPY_TYPES[spec.datatype])
            values = _array(f"{origin} gave {spec.name}", answer[spec.name])
            shape = self._shape(spec, rows, sizes)
            if values.dtype != wanted or values.shape != shape:
                raise InputError(
                    f"{origin} gave {spec.name} as {values.dtype} {list(values.shape)}, expected {wanted} {list(shape)}",
                    hint="cast with .astype and shape it as expected; the first axis is the batch",
                )
            feed[spec.name] = values
        return feed


def _called(name: str, call: Callable[[Hook], object], hook: Hook) -> Mapping[str, Array]:
    with foreign(
        lambda error: InputError(
            f"{name} raised {told(error)}", hint="it stands beside the torch factory; call it in python"
        )
    ):
        answer = call(hook)
    if not isinstance(answer, Mapping):
        raise InputError(
            f"{name} gave a {type(answer).__name__}, expected a mapping of input names to arrays",
            hint="return a dict: {input name: array}",
        )
    return answer


def _array(origin: str, values: object) -> Array:
    with foreign(lambda error: InputError(f"{origin} as no array: {told(error)}", hint="return numpy arrays")):
        return np.asarray(values)


def _symbol(spec: TensorSpec, axis: int) -> str:
    size = spec.shape[axis] if spec.shape else None
    return size if isinstance(size, str) else f"{spec.name} axis {axis}"
