"""The model's inputs for all rows of a batch, and how some of those rows become one run's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from brim.runtime.contract import Array

RowIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Model inputs by name, indexed by row number.

    A column is one array ``[rows, ...]`` when all rows have one shape, else a list with one array a row, without the
    batch axis. ``pads`` names the inputs whose first row axis is padded, each with its padding value.
    """

    rows: int
    cells: Mapping[str, Array | Sequence[Array]]
    pads: Mapping[str, float] = field(default_factory=dict)
    everyone: RowIds = field(init=False)
    """All row numbers, in order."""

    def __post_init__(self) -> None:
        """Number the rows."""
        object.__setattr__(self, "everyone", np.arange(self.rows, dtype=np.int64))

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        """Tokens of each row, or ``None`` when nothing is padded."""
        for name in self.pads:
            column = self.cells[name]
            if isinstance(column, np.ndarray):
                return np.full(self.rows, column.shape[1], dtype=np.int64)
            return np.fromiter((len(cell) for cell in column), dtype=np.int64, count=self.rows)
        return None

    def groups(self) -> list[RowIds]:
        """Row numbers in groups that may share a run: equal shapes, but for the padded axis."""
        ragged = [(name, column) for name, column in self.cells.items() if not isinstance(column, np.ndarray)]
        if all(name in self.pads and all(cell.ndim == 1 for cell in column) for name, column in ragged):
            return [self.everyone]
        members: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for row in range(self.rows):
            key = tuple(column[row].shape[1 if name in self.pads else 0 :] for name, column in ragged)
            members.setdefault(key, []).append(row)
        return [np.array(rows, dtype=np.int64) for rows in members.values()]

    def take(self, rows: RowIds) -> dict[str, Array]:
        """Tensors ``[len(rows), ...]`` of one run, in the order of ``rows``, padded to the longest of them.

        Read-only: a model that wrote into its input would change the rows that a retry reads.
        """
        tensors = {name: self._tensor(name, column, rows) for name, column in self.cells.items()}
        for tensor in tensors.values():
            tensor.flags.writeable = False
        return tensors

    def _tensor(self, name: str, column: Array | Sequence[Array], rows: RowIds) -> Array:
        if isinstance(column, np.ndarray):
            return column if rows is self.everyone else column[rows]
        cells = [column[row] for row in rows.tolist()]
        if name not in self.pads:
            return np.stack(cells)
        longest = max(len(cell) for cell in cells)
        tensor = np.full((len(cells), longest, *cells[0].shape[1:]), self.pads[name], dtype=cells[0].dtype)
        for place, cell in zip(tensor, cells, strict=True):
            place[: len(cell)] = cell
        return tensor


def stack_requests(tensors: Sequence[Array]) -> Array | list[Array]:
    """One input of many requests as a column: the rows of all of them, in order."""
    first = tensors[0].shape[1:]
    if all(tensor.shape[1:] == first for tensor in tensors):
        return np.concatenate(tensors)
    return [row for tensor in tensors for row in tensor]
