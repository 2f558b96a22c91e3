"""The exported model as the gates see it: loaded, with rows to try it on and axis sizes that it accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from brim_export.graph import TensorSpec
from brim_export.rows import AxisSizes, RowSource
from brim_export.session import Feed, RunFailed, Runs, RunTooLong

SIZES_TRIED = (1, 2, 7, 16, 32, 64, 128, 224, 256)
"""Sizes tried for symbolic axes beside the batch; those that run are used."""

POSITION_LIMIT = 2048
"""Most ``rows x symbolic axis sizes`` in one trial execution: bounds time and memory of the gates."""

_SIZES_KEPT = 3
_ENOUGH = 128
"""Larger sizes are tried only when fewer than two smaller ones run (image nets with a least size)."""


@dataclass(frozen=True)
class Subject:
    """A loaded model under examination. ``axis_sizes`` holds sizes that run, ``size_fault`` why none does,
    ``axis_limits`` the largest sizes that the model's source tells."""

    session: Runs
    model: onnx.ModelProto
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    source: RowSource
    batch_limit: int
    seed: int
    axis_sizes: Sequence[AxisSizes]
    size_fault: str = ""
    axis_limits: AxisSizes = field(default_factory=dict)
    _by_rows: dict[int, Feed | RunFailed] = field(default_factory=dict)

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator of its own for each gate, so that one gate's draws do not shift another's."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    def row_counts(self) -> list[int]:
        """1, 2, 3, and the limit with its predecessor."""
        return sorted(
            {rows for rows in (1, 2, 3, self.batch_limit - 1, self.batch_limit) if 1 <= rows <= self.batch_limit}
        )

    def parity_counts(self) -> list[int]:
        """``row_counts`` and half the limit."""
        return sorted({*self.row_counts(), max(1, self.batch_limit // 2)})

    def sizes_for(self, rows: int) -> list[AxisSizes]:
        """The axis sizes that ``rows`` rows can be tried at within ``POSITION_LIMIT``; always the smallest."""
        return [
            sizes
            for index, sizes in enumerate(self.axis_sizes)
            if index == 0 or rows * math.prod(sizes.values()) <= POSITION_LIMIT
        ]

    def at(self, rows: int) -> Feed | RunFailed:
        """The outputs for ``rows`` ordinary rows at the smallest axis sizes, or why there are none. Run once."""
        if rows not in self._by_rows:
            feed = self.source.rows(self.rng(f"rows {rows}"), rows, self.axis_sizes[0])
            try:
                self._by_rows[rows] = self.session.run(feed)
            except RunFailed as error:
                self._by_rows[rows] = error
        return self._by_rows[rows]


def working_sizes(session: Runs, source: RowSource, seed: int) -> tuple[list[AxisSizes], str]:
    """Up to three sets of axis sizes that run, smallest first; with none, the reason of the last failure.

    Symbols are tried at equal sizes, since a graph does not say which of its unnamed axes must agree.
    """
    symbols = source.symbols()
    candidates = [dict.fromkeys(symbols, size) for size in SIZES_TRIED] if symbols else [{}]
    if source.samples:
        candidates = source.known_sizes()
    elif symbols:
        candidates = sorted([*source.known_sizes(), *candidates], key=lambda sizes: math.prod(sizes.values()))
    unique = list({tuple(sizes.items()): sizes for sizes in candidates}.values())
    rng = np.random.default_rng(seed)
    found: list[AxisSizes] = []
    fault = ""
    for sizes in unique:
        if len(found) > 1 and not source.samples and max(sizes.values(), default=0) > _ENOUGH:
            break
        try:
            fault = _trial(session, source, sizes, rng)
        except RunTooLong as error:
            fault = str(error)
            break
        if not fault:
            found.append(sizes)
    if len(found) > _SIZES_KEPT:
        found = [found[0], found[len(found) // 2], found[-1]]
    return found, "" if found else fault


def _trial(session: Runs, source: RowSource, sizes: AxisSizes, rng: np.random.Generator) -> str:
    fault = ""
    for rows in (2, 1):
        try:
            session.run(source.rows(rng, rows, sizes))
        except RunTooLong:
            raise
        except RunFailed as error:
            fault = f"{rows} rows: {error}" if rows > 1 else fault or f"1 row: {error}"
        else:
            return ""
    return fault
