"""The rows from which an INT8 graph takes its scales: real ones where the model's source offers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from brim.errors import InputError
from brim_export.foreign import foreign, told
from brim_export.session import Feed
from brim_export.subject import Subject

ROWS = 200
"""Rows to calibrate with: the ranges of shipped models settle well before."""

CalibrationRows = Callable[[np.random.Generator, int], Sequence[Feed]]
"""``calibration_rows(rng, rows)``: real inputs, a batch each, ``rows`` rows in all."""

_BATCH = 20


def calibration_feeds(subject: Subject, hook: CalibrationRows | None) -> list[Feed]:
    """``ROWS`` rows from the hook, else ordinary rows of the subject (the service's samples, where it has some).

    Raises:
        InputError: the hook raised, or gave nothing.
    """
    rng = subject.rng("calibration")
    if hook is None:
        return list(_ordinary(subject, rng))
    with foreign(
        lambda error: InputError(
            f"calibration_rows raised {told(error)}", hint="it stands beside the torch factory; call it in python"
        )
    ):
        feeds = [dict(feed) for feed in hook(rng, ROWS)]
    if not feeds:
        raise InputError("calibration_rows gave no rows", hint="give a list of {input name: array}, a batch each")
    return feeds


def _ordinary(subject: Subject, rng: np.random.Generator) -> Iterator[Feed]:
    for number in range(ROWS // _BATCH):
        sizes = subject.axis_sizes[number % len(subject.axis_sizes)]
        rows = _BATCH if sizes in subject.sizes_for(_BATCH) else 1
        yield subject.source.rows(rng, rows, sizes)
