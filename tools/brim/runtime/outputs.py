"""What came out of the model: is it what was promised, and whose is it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from brim.runtime.columns import RowIds
from brim.runtime.contract import Array, TensorSpec, type_name
from brim.runtime.isolate import RunFailed

Tensors: TypeAlias = Mapping[str, Array]


def check_output(spec: TensorSpec, outputs: Tensors, rows: int, length: int | None) -> None:
    """Raise ``RunFailed`` unless ``outputs`` holds ``spec`` with one row for each row that went in.

    A wrong name or type is wrong for any rows, so halving would not help. A wrong shape may be one row's doing (a model
    that drops what it cannot handle), so halving may.
    """
    array = outputs.get(spec.name) if isinstance(outputs, Mapping) else None
    if not isinstance(array, np.ndarray):
        names = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise RunFailed(f'the model function returned {names}, without the output "{spec.name}"', hopeless=True)
    if array.dtype != spec.dtype:
        raise RunFailed(
            f'output "{spec.name}" is {type_name(array.dtype)}, expected {type_name(spec.dtype)}', hopeless=True
        )
    if array.ndim == 0 or array.shape[0] != rows or not spec.fits(array.shape[1:]):
        raise RunFailed(f'output "{spec.name}" has shape {list(array.shape)}, expected {[rows, *spec.shape]}')
    if length is not None and array.shape[1] != length:
        raise RunFailed(f'output "{spec.name}" has shape {list(array.shape)}, expected {length} elements on axis 1')


class Scatter:
    """Deals out results by row number: which run a row was in, and at which place, is written down once, here."""

    def __init__(
        self,
        names: Sequence[str],
        everyone: RowIds,
        placed: Sequence[tuple[RowIds, Tensors]],
        trim: frozenset[str] = frozenset(),
        lengths: RowIds | None = None,
    ) -> None:
        """Take the results.

        Args:
            names: the outputs to deal out.
            everyone: all row numbers, in order.
            placed: for each run the row numbers that went in, in that order, and the outputs.
            trim: outputs whose first row axis is cut back to the length of each row.
            lengths: the length of each row, when rows were padded.
        """
        self._names = tuple(names)
        self._results = [result for _, result in placed]
        self._trim = trim
        self._lengths = lengths
        # One run with every row in order needs no look-up: row r is at place r.
        self._whole = self._results[0] if len(placed) == 1 and placed[0][0] is everyone and not trim else None
        self._home: list[int] = []
        self._place: list[int] = []
        if self._whole is None:
            home = np.full(len(everyone), -1, dtype=np.int64)
            place = np.zeros(len(everyone), dtype=np.int64)
            for number, (rows, _) in enumerate(placed):
                home[rows] = number
                place[rows] = np.arange(len(rows))
            self._home, self._place = home.tolist(), place.tolist()

    def all(self, sizes: Sequence[int]) -> list[dict[str, Array]]:
        """The outputs of consecutive requests of so many rows each, together all the rows.

        Raises:
            RunFailed: rows of one of the requests came back in different shapes.
        """
        ends = list(accumulate(sizes))
        if self._whole is None:
            return [self.outputs(end - size, size) for end, size in zip(ends, sizes, strict=True)]
        if len(self._names) == 1:
            (name,) = self._names
            whole = self._whole[name]
            return [{name: whole[end - size : end]} for end, size in zip(ends, sizes, strict=True)]
        return [
            {name: self._whole[name][end - size : end] for name in self._names}
            for end, size in zip(ends, sizes, strict=True)
        ]

    def outputs(self, first: int, count: int) -> dict[str, Array]:
        """The outputs of the rows ``first .. first + count - 1``, each of which must have a result.

        Raises:
            RunFailed: rows of one request came back in different shapes, which no tensor can hold.
        """
        if self._whole is not None:
            whole = self._whole
            return {name: whole[name][first : first + count] for name in self._names}
        home, place = self._home[first], self._place[first]
        together = count == 1 or (
            self._home[first : first + count] == [home] * count
            and self._place[first : first + count] == list(range(place, place + count))
        )
        if together and not self._trim:
            result = self._results[home]
            return {name: result[name][place : place + count] for name in self._names}
        return {name: self._stacked(name, first, count) for name in self._names}

    def _stacked(self, name: str, first: int, count: int) -> Array:
        rows = [self._results[self._home[row]][name][self._place[row]] for row in range(first, first + count)]
        if name in self._trim and self._lengths is not None:
            rows = [row[: self._lengths[first + place]] for place, row in enumerate(rows)]
        try:
            return np.stack(rows)
        except ValueError as error:
            raise RunFailed(f'rows of one request differ in the shape of output "{name}"') from error
