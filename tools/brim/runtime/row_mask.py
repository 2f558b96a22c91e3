"""A model's own word on which rows it could take: one more output, made by the guard in its graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brim.runtime.columns import RowIds
from brim.runtime.contract import Array
from brim.runtime.isolate import RunFailed
from brim.runtime.outcome import Reason, Refusal
from brim.runtime.outputs import Tensors


def valid_rows(name: str, outputs: Tensors, rows: int) -> Array:
    """Which rows the model could take, BOOL ``[rows]``, from its output ``name`` (``[rows]`` or ``[rows, 1]``, 0 or not).

    Raises:
        RunFailed: the output is missing or has another shape, for any rows.
    """
    mask = outputs.get(name)
    if not isinstance(mask, np.ndarray) or mask.shape not in ((rows,), (rows, 1)):
        shape = list(mask.shape) if isinstance(mask, np.ndarray) else type(mask).__name__
        raise RunFailed(f'output "{name}", which marks valid rows, is {shape}, expected {[rows, 1]}', hopeless=True)
    return np.asarray(mask.reshape(rows) != 0)


def refusals_for(bad: RowIds, sizes: Sequence[int]) -> dict[int, Refusal]:
    """By request, why it is refused: it owns a row of ``bad``. Request k owns the ``sizes[k]`` rows after those before it.

    A request of several rows reads which of them it is, counted within the request.
    """
    ends = np.cumsum(sizes)
    found: dict[int, Refusal] = {}
    for row in sorted(bad.tolist()):
        owner = int(np.searchsorted(ends, row, side="right"))
        place = row - int(ends[owner]) + sizes[owner]
        text = f"row {place} holds a value that the model cannot take: not finite, or outside its range"
        found.setdefault(owner, Refusal(Reason.OUT_OF_RANGE, text))
    return found
