"""What became of a simulated traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.batcher.rule import Reason
from brim.limits import BATCH_LIMIT
from brim.units import US_PER_S

Integers = NDArray[np.int64]

REASONS = tuple(Reason)
"""``Batches.reasons`` holds places in this tuple."""


class End(IntEnum):
    """How a request ended. Each ends once."""

    ANSWERED = 0
    REFUSED = 1
    """By the bound of the queue, at once."""
    EXPIRED = 2
    """Its queue timeout passed, and the batcher noticed."""
    CANCELLED = 3
    """Its caller went while it was queued; it was not executed."""


@dataclass(frozen=True)
class Batches:
    """Executed batches in the order in which instances took them, one entry of each array a batch.

    Attributes:
        taken_us: when an instance took it.
        ended_us: when its answers left.
        compute_us: tau of the batch: the time that it held the device.
        rows: its rows.
        requests: its requests.
        reasons: place of its launch reason in ``REASONS``.
    """

    taken_us: Integers
    ended_us: Integers
    compute_us: Integers
    rows: Integers
    requests: Integers
    reasons: Integers

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)

    def pairs(self) -> Iterator[tuple[int, Reason]]:
        """Rows and launch reason of each."""
        for rows, reason in zip(self.rows.tolist(), self.reasons.tolist(), strict=True):
            yield rows, REASONS[reason]


@dataclass(frozen=True)
class Result:
    """One simulation.

    Attributes:
        sent_us: when each request was sent.
        ended_us: when its caller knew how it ended.
        ends: place of its end in ``End``.
        batches: what was executed.
        instances: instances that executed.
    """

    sent_us: Integers
    ended_us: Integers
    ends: Integers
    batches: Batches
    instances: int

    @property
    def offered(self) -> int:
        """Requests sent."""
        return len(self.ends)

    def count(self, end: End) -> int:
        """Requests that ended so."""
        return int(np.count_nonzero(self.ends == end))

    @property
    def latency_us(self) -> Integers:
        """Time from sending to the answer, of the answered requests in the order in which they were sent."""
        answered = self.ends == End.ANSWERED
        latency_us: Integers = self.ended_us[answered] - self.sent_us[answered]
        return latency_us

    @property
    def wall_us(self) -> int:
        """From the first request sent to the last end; 1 at least."""
        last = int(self.ended_us.max())
        if len(self.batches):
            last = max(last, int(self.batches.ended_us.max()))
        return max(1, last - int(self.sent_us.min()))

    @property
    def mean_batch(self) -> float | None:
        """Rows a batch; None without a batch."""
        return float(self.batches.rows.mean()) if len(self.batches) else None

    @property
    def duty(self) -> float:
        """Share of the time in which an instance was taken, the mean over instances: what batch_stats show."""
        return float((self.batches.ended_us - self.batches.taken_us).sum()) / (self.wall_us * self.instances)

    @property
    def throughput(self) -> float:
        """Rows answered a second over the whole time."""
        return float(self.batches.rows.sum()) * US_PER_S / self.wall_us

    def launches(self) -> dict[str, int]:
        """Batches by launch reason."""
        counts = np.bincount(self.batches.reasons, minlength=len(REASONS)).tolist()
        return {reason.value: count for reason, count in zip(REASONS, counts, strict=True)}

    def as_json(self) -> dict[str, Any]:
        """The figures of the command line's answer: integer microseconds, ratios 0..1, None for what does not exist."""
        latency = np.sort(self.latency_us)
        return {
            **{f"p{percent}_us": nearest_rank(latency, percent) for percent in (50, 90, 99)},
            "mean_batch": self.mean_batch,
            "fill": None if self.mean_batch is None else self.mean_batch / BATCH_LIMIT,
            "duty": self.duty,
            "throughput": self.throughput,
            "offered": self.offered,
            **{end.name.lower(): self.count(end) for end in End},
            "batches": len(self.batches),
            "launches": self.launches(),
            "wall_us": self.wall_us,
        }


def nearest_rank(ascending: Integers, percent: float) -> int | None:
    """The smallest value that at least ``percent`` percent of all do not exceed; None without values."""
    if not len(ascending):
        return None
    return int(ascending[max(1, math.ceil(len(ascending) * percent / 100)) - 1])
