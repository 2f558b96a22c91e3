"""Find the rows that make a run fail, so that only they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from brim.runtime.columns import RowIds

Result = TypeVar("Result")


class RunFailed(Exception):
    """One run failed; ``hopeless`` when smaller runs of the same rows would fail alike. Its cause says why."""

    def __init__(self, message: str, *, hopeless: bool = False) -> None:
        """Keep the text for the server's log."""
        super().__init__(message)
        self.hopeless = hopeless


class Unavailable(Exception):
    """Raised by a model function when no run can work now, whatever the rows. Its text is shown to callers."""


def bisect(
    rows: RowIds, run: Callable[[RowIds], Result], keep: Callable[[RowIds], RowIds]
) -> Iterator[tuple[RowIds, Result | RunFailed]]:
    """Run ``rows``, halving what fails until the rows that fail alone are known.

    One poison row among n costs at most ``2 * ceil(log2(n))`` runs more than the first: two a level of a balanced
    tree. Both halves are always run: that one of them worked does not prove the other bad, since a run may also fail
    for its size.

    Args:
        rows: row numbers of the first run.
        run: runs some rows; raises ``RunFailed``.
        keep: drops rows that need no result any more; asked before each run.

    Yields:
        Disjoint parts of ``rows``, each with its result, or with the failure of a single row or of a hopeless run.
    """
    waiting = [rows]
    while waiting:
        part = keep(waiting.pop())
        if not len(part):
            continue
        try:
            result = run(part)
        except RunFailed as failure:
            if len(part) == 1 or failure.hopeless:
                yield part, failure
                continue
            middle = (len(part) + 1) // 2
            waiting += [part[middle:], part[:middle]]
        else:
            yield part, result
