"""Rows of different length: which of them share a run, and what padding that costs.

A run pads its rows to the longest. Sorted by length, only neighbours need to share, so the best cut of n rows is a
shortest path over n + 1 boundaries. What a run costs is modelled as

    fixed_us + per_token_us * rows * longest + per_pair_us * rows * longest^2

(the last term is attention). On a CPU the fixed part is worth a dozen tokens and runs beyond the caches are slower a
token, so many small runs win; on a GPU the fixed part is worth thousands of tokens and few large runs win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class PaddingCost:
    """The cost of one run. Only the ratios matter for where to cut.

    ``max_tokens`` caps ``rows * longest`` of a run (0: no cap); a single row above it runs alone.
    """

    fixed_us: float
    per_token_us: float
    per_pair_us: float = 0.0
    max_tokens: int = 0

    def of(self, rows: int, longest: int) -> float:
        """Modelled time of a run, in microseconds."""
        return self.fixed_us + rows * longest * (self.per_token_us + self.per_pair_us * longest)


CPU_COST = PaddingCost(fixed_us=3_000, per_token_us=250, max_tokens=256)
"""Measured for a 6-layer, 384-wide FP32 encoder on one x86 core: 3 ms and 250 us a token, 20 % more a token beyond 2,048.
Caps of 128 to 1,024 tokens differ by 3 % there; 256 was the fastest. On two threads `brim bench fit-padding` found 1.9 ms,
123 us a token and 0.075 us a pair, within 5 % of every run of 4 to 1,024 tokens: other numbers in nearly the same ratio, and
a hundred sentences cut by them take as long as cut by these (foretold: 592 and 597 ms; measured: no difference)."""

GPU_COST = PaddingCost(fixed_us=2_500, per_token_us=0.5)
"""Not measured: the same encoder as some hundred launches of 10 us, and a token far below 1 us."""


@dataclass(slots=True)
class PaddingStats:
    """Tokens that callers sent and tokens that the model was given, padding included."""

    real_tokens: int = 0
    padded_tokens: int = 0

    @property
    def waste(self) -> float:
        """Share of the model's tokens that was padding, 0..1."""
        return 1 - self.real_tokens / self.padded_tokens if self.padded_tokens else 0.0


def cut(
    lengths: Sequence[int] | npt.NDArray[np.int64], cost: PaddingCost, max_rows: int
) -> list[npt.NDArray[np.int64]]:
    """Indices of ``lengths``, cut into the runs of least total cost, at most ``max_rows`` each.

    Every index appears once. Within a run rows are in order of length, ties in order of arrival.
    """
    given = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(given, kind="stable")
    ordered = given[order]
    count = len(ordered)
    best = np.zeros(count + 1)
    start_of = [0] * (count + 1)
    sizes = np.arange(max_rows, 0, -1)
    for stop in range(1, count + 1):
        longest = int(ordered[stop - 1])
        most = min(stop, max_rows)
        if cost.max_tokens:
            most = max(1, min(most, cost.max_tokens // max(longest, 1)))
        rate = longest * (cost.per_token_us + cost.per_pair_us * longest)
        totals = best[stop - most : stop] + rate * sizes[max_rows - most :]
        choice = int(totals.argmin())
        best[stop] = totals[choice] + cost.fixed_us
        start_of[stop] = stop - most + choice
    runs = []
    stop = count
    while stop:
        start = start_of[stop]
        runs.append(order[start:stop])
        stop = start
    return runs[::-1]
