"""Which replica is slow: batches of the same size, held against the others'.

The fewest requests under way is no answer to a replica that is slow throughout: it is given as many as the others hold, and each
of them waits long. So one that is found slow gets a share of the requests so small that the 99th percentile does not see them,
and that grows by itself when the others are full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from brim.measure.batch_stats import BatchStats

SLOW_RATIO, WELL_RATIO = 2.0, 1.5
"""Of its time to the others': above the first it is slow, below the second it is so no longer."""
LEAST_EXECUTIONS = 20
LEAST_EXECUTIONS_SLOW = 4
"""Of a look; of one that is slow already, and gets few requests, fewer must do."""
IN_A_ROW = 2
WELL_WEIGHT, SLOW_WEIGHT = 1_000, 1
"""Envoy divides a weight by the requests under way plus one."""

Sizes = Mapping[int, tuple[int, float]]
"""Batch size -> executions, and their mean time in us."""
Pace = Mapping[str, Sizes]
"""Model name -> what it did since the look before."""


def sizes_of(stats: BatchStats) -> Sizes:
    """What a model did between two readings of its statistics."""
    return {
        size: (count, float(stats.execution_us_by_size[size]))
        for size, count in stats.executions_by_size.items()
        if count and size in stats.execution_us_by_size
    }


def ratio(own: Pace, others: list[Pace]) -> float | None:
    """Time of its executions over what the others would have taken for the same sizes; of several models the worst.

    None where they have no model in common.
    """
    found = []
    for model, sizes in own.items():
        expected = _expected([other[model] for other in others if other.get(model)])
        if sizes and expected is not None:
            took = sum(count * time_us for count, time_us in sizes.values())
            found.append(took / max(1.0, sum(count * expected(size) for size, (count, _) in sizes.items())))
    return max(found, default=None)


def _expected(others: list[Sizes]) -> Callable[[int], float] | None:
    """tau(b) of the others, a line through what was seen of them."""
    seen = [(size, count, time_us) for sizes in others for size, (count, time_us) in sizes.items()]
    if not seen:
        return None
    sizes, counts, times = (np.array(column, float) for column in zip(*seen, strict=True))
    mean = float(np.average(times, weights=counts))
    if len(set(sizes)) < 2:
        return lambda size: mean
    slope, fixed = np.polyfit(sizes, times, 1, w=np.sqrt(counts))
    # A line that falls, or begins below zero, is noise.
    slope, fixed = max(0.0, float(slope)), float(fixed)
    return lambda size: max(mean / 4, fixed + slope * size)


class Slowness:
    """Who is slow, as one after the other tells what it has done."""

    def __init__(self) -> None:
        """Nobody has told anything yet."""
        self._slow: set[str] = set()
        self._last: dict[str, Pace] = {}
        self._in_a_row: dict[str, int] = {}

    def heard(self, name: str, pace: Pace) -> bool:
        """Take in what a replica did since it told so last; whether it is slow. It is held against those that are well."""
        self._last[name] = pace
        found = ratio(pace, [last for other, last in self._last.items() if other != name and other not in self._slow])
        if found is not None:
            was = name in self._slow
            changes = found < WELL_RATIO if was else found > SLOW_RATIO
            self._in_a_row[name] = self._in_a_row.get(name, 0) + 1 if changes else 0
            if self._in_a_row[name] >= IN_A_ROW:
                self._in_a_row[name] = 0
                self._slow ^= {name}
        return name in self._slow

    def forget(self, name: str) -> None:
        """It has gone, or been started anew."""
        self._slow.discard(name)
        self._last.pop(name, None)
        self._in_a_row.pop(name, None)
