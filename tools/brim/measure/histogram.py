"""Distributions of latencies in an HDR histogram: bounded memory, mergeable, and percentiles by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from brim.errors import InputError

LONGEST_US = 3_600_000_000
"""Longest latency that is told apart: one hour. A longer one counts as this; the largest is kept exactly beside it."""
DIGITS = 3
"""Significant digits: a percentile is at most 0.1 % above the latency that it stands for, and never below it."""


def nearest_rank(percentile: float, count: int) -> int:
    """Which of ``count`` sorted values is the percentile: the smallest rank (from 1) that covers that share of them.

    Worked out with exact fractions: 99.9 % of 1,000 is rank 999, which floating point makes 1,000.

    Raises:
        InputError: ``percentile`` is not above 0 and at most 100.
    """
    if not 0 < percentile <= 100:
        raise InputError(f"percentile {percentile:g}: must be above 0 and at most 100", hint="99 is a usual one")
    return max(1, math.ceil(Fraction(str(percentile)) * count / 100))


class Latencies:
    """Latencies in microseconds: how many, their sum and extremes exactly, percentiles to ``DIGITS`` digits."""

    def __init__(self) -> None:
        """Empty."""
        self._counts: Any = HdrHistogram(1, LONGEST_US, DIGITS)
        self.sum_us = 0
        self.min_us: int | None = None
        self.max_us: int | None = None

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._counts.get_total_count())

    @property
    def mean_us(self) -> float | None:
        """Their exact mean; None without any."""
        return self.sum_us / self.count if self.count else None

    def record(self, latency_us: int) -> None:
        """Add one. Below 0 there is none: clocks that disagree are a fault of the caller."""
        if latency_us < 0:
            raise ValueError(f"a latency of {latency_us} us")
        self._counts.record_value(min(latency_us, LONGEST_US))
        self.sum_us += latency_us
        self.min_us = latency_us if self.min_us is None else min(self.min_us, latency_us)
        self.max_us = latency_us if self.max_us is None else max(self.max_us, latency_us)

    def percentile_us(self, percentile: float) -> int | None:
        """The latency at the nearest rank; None without any.

        Raises:
            InputError: ``percentile`` is not above 0 and at most 100.
        """
        rank = nearest_rank(percentile, self.count)
        if self.max_us is None:
            return None
        # The library rounds share x count to the nearest whole number: this share is that rank exactly.
        value = int(self._counts.get_value_at_percentile(100 * rank / self.count))
        return self.max_us if rank == self.count else min(value, self.max_us)

    def merge(self, other: Latencies) -> None:
        """Add all of another's, which keeps its own."""
        if other.min_us is None or other.max_us is None:
            return
        self._counts.add(other._counts)
        self.sum_us += other.sum_us
        self.min_us = other.min_us if self.min_us is None else min(self.min_us, other.min_us)
        self.max_us = other.max_us if self.max_us is None else max(self.max_us, other.max_us)

    def as_json(self) -> dict[str, Any]:
        """Everything, with the counts in the compressed form (V2, base64) that every HdrHistogram library reads."""
        return {
            "count": self.count,
            "sum_us": self.sum_us,
            "min_us": self.min_us,
            "max_us": self.max_us,
            "hdr": self._counts.encode().decode(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            InputError: it is something else.
        """
        made = cls()
        try:
            made._counts.decode_and_add(document["hdr"].encode())
            made.sum_us = int(document["sum_us"])
            made.min_us = None if document["min_us"] is None else int(document["min_us"])
            made.max_us = None if document["max_us"] is None else int(document["max_us"])
            count = document["count"]
        # The library has no error of its own: base64, zlib, ctypes and the dictionary each raise theirs.
        except Exception as error:
            raise InputError(
                f"not a latency histogram: {type(error).__name__}: {error}",
                hint="expected are count, sum_us, min_us, max_us and hdr, as `as_json` writes them",
            ) from error
        if made.count != count or (count == 0) != (made.max_us is None):
            raise InputError(
                f"not a latency histogram: it says {count} values and holds {made.count}", hint="the file was changed"
            )
        return made
