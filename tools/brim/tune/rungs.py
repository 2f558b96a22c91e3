"""A ladder of rates that all settings share, and climbing it: the highest rate that passes, with few tries."""

from __future__ import annotations

import math
from collections.abc import Callable


def rung_of(rate_per_s: float, step: float) -> int:
    """The rung nearest to a rate; rungs are ``step`` times apart."""
    return round(math.log(rate_per_s) / math.log(step))


def rate_of(rung: int, step: float) -> float:
    """The rate of a rung in requests a second."""
    return float(step**rung)


def climb(passes: Callable[[int], bool], start: int, *, lowest: int, highest: int, tries: int) -> int | None:
    """The highest rung that passes, as far as the tries show; None when none of those tried did.

    From ``start`` up or down in steps that double until a rung passes below one that does not, then by halves. It takes a
    rung that passes for proof that those below it do.
    """
    good: int | None = None
    bad: int | None = None
    rung, stride = min(max(start, lowest), highest), 1
    for _ in range(tries):
        if passes(rung):
            good = rung
            if rung == highest:
                break
        else:
            bad = rung
            if rung == lowest:
                break
        if good is not None and bad is not None:
            if bad - good <= 1:
                break
            rung = (good + bad) // 2
            continue
        rung = min(rung + stride, highest) if bad is None else max(rung - stride, lowest)
        stride *= 2
    return good
