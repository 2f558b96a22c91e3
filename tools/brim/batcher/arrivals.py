"""Traffic: when requests are sent, and what each one asks for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from brim.batcher.rule import NEVER
from brim.errors import InputError
from brim.units import US_PER_S

MOST_REQUESTS = 5_000_000
"""Requests of one simulation at most."""
MOST_BURSTS = 1_000_000
HIGHEST_RATE = 1_000_000.0
LOWEST_RATE = 0.001
LONGEST_THINK_US = 86_400 * US_PER_S

Times = NDArray[np.int64]


class Arrival(StrEnum):
    """Gaps between requests of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    BURSTY = "bursty"


@dataclass(frozen=True)
class OpenLoop:
    """Requests that are sent at given times, whatever becomes of the earlier ones.

    Every sequence has one entry a request; None stands for the same in all of them.

    Attributes:
        sent_us: when each request is sent, ascending.
        rows: rows of each, 1 when None.
        shapes: requests share a batch when theirs are equal; all equal when None.
        priorities: as the request says; 0 (the default level) when None.
        timeouts_us: the request's own timeout; 0 (none) when None.
        cancelled_us: when its caller goes, if still queued then; ``NEVER`` when None.
        held_until_us: the batcher begins to look at this time, with everything sent before already in the queue, as a
            server does with ``TRITONSERVER_DELAY_SCHEDULER``; None when it looks from the beginning.
    """

    sent_us: Sequence[int] | Times
    rows: Sequence[int] | None = None
    shapes: Sequence[Hashable] | None = None
    priorities: Sequence[int] | None = None
    timeouts_us: Sequence[int] | None = None
    cancelled_us: Sequence[int] | None = None
    held_until_us: int | None = None

    def __post_init__(self) -> None:
        """Refuse traffic that contradicts itself.

        Raises:
            InputError: see the message; all faults at once.
        """
        faults = []
        count = len(self.sent_us)
        if not 1 <= count <= MOST_REQUESTS:
            faults.append(f"{count} requests; 1..{MOST_REQUESTS} can be simulated")
        elif np.any(np.diff(np.asarray(self.sent_us)) < 0):
            faults.append("sent_us is not ascending")
        for name in ("rows", "shapes", "priorities", "timeouts_us", "cancelled_us"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                faults.append(f"{name} has {len(column)} entries for {count} requests")
        for name, least in (("rows", 1), ("priorities", 0), ("timeouts_us", 0)):
            column = getattr(self, name)
            if column is not None and len(column) and min(column) < least:
                faults.append(f"{name} holds {min(column)}; {least} or more is expected")
        if faults:
            raise InputError("; ".join(faults), hint="times are integer microseconds, one entry a request")

    @property
    def is_plain(self) -> bool:
        """Whether all requests are of one row and alike."""
        columns = (self.shapes, self.priorities, self.timeouts_us, self.cancelled_us)
        return all(column is None for column in columns) and (self.rows is None or max(self.rows) == 1)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Callers who send one row, wait for the answer, think, and send again.

    Attributes:
        callers: how many; all of them send at time 0.
        requests: requests in all; nothing is sent beyond them.
        think_us: mean of the exponential time between an answer and the same caller's next request; 0 for none.
    """

    callers: int
    requests: int
    think_us: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no such loop.

        Raises:
            InputError: all faults at once.
        """
        faults = []
        if not 1 <= self.requests <= MOST_REQUESTS:
            faults.append(f"{self.requests} requests; 1..{MOST_REQUESTS} can be simulated")
        if not 1 <= self.callers <= MOST_REQUESTS:
            faults.append(f"{self.callers} callers; 1..{MOST_REQUESTS} are expected")
        if not 0 <= self.think_us <= LONGEST_THINK_US:
            faults.append(f"a think time of {self.think_us} us; 0..{LONGEST_THINK_US} us is expected")
        if faults:
            raise InputError("; ".join(faults), hint="a closed loop has callers who wait for their own answer")


Traffic = OpenLoop | ClosedLoop


def waiting(count: int, *, waited_us: int = 0) -> OpenLoop:
    """``count`` requests of one row that already wait, each for ``waited_us``, when the batcher begins to look.

    Raises:
        InputError: a value is out of range.
    """
    if waited_us < 0:
        raise InputError(
            f"requests have waited {waited_us} us; 0 or more is expected", hint="give a time before the start"
        )
    return OpenLoop([-waited_us] * _checked_count(count), held_until_us=0)


def poisson(rate_per_s: float, count: int, rng: np.random.Generator) -> Times:
    """Times in microseconds of ``count`` requests with exponential gaps.

    Raises:
        InputError: rate or count is out of range.
    """
    gaps = rng.exponential(US_PER_S / _checked_rate(rate_per_s), _checked_count(count))
    return _rounded(np.cumsum(gaps))


def constant(rate_per_s: float, count: int) -> Times:
    """Times in microseconds of ``count`` requests with equal gaps, the first at 0.

    Raises:
        InputError: rate or count is out of range.
    """
    return _rounded(np.arange(_checked_count(count)) * (US_PER_S / _checked_rate(rate_per_s)))


def bursty(
    rate_per_s: float,
    count: int,
    rng: np.random.Generator,
    *,
    peak: float = 4.0,
    share: float = 0.1,
    burst_us: float = US_PER_S,
) -> Times:
    """Times in microseconds of ``count`` requests of a Markov-modulated Poisson process with two states.

    Args:
        rate_per_s: mean rate of the whole.
        count: requests.
        rng: the only source of chance.
        peak: rate within a burst over the mean rate, 1 or more.
        share: share of the time that is burst, above 0 and below 1; ``peak * share`` is at most 1.
        burst_us: mean length of a burst; bursts and pauses have exponential lengths.

    Raises:
        InputError: a value is out of range; all of them at once.
    """
    rate_per_s, count = _checked_rate(rate_per_s), _checked_count(count)
    faults = []
    if not 0 < share < 1:
        faults.append(f"share is {share}; above 0 and below 1 is expected")
    elif not 1 <= peak <= 1 / share:
        faults.append(f"peak is {peak}; 1..{1 / share:g} is expected (1 / share {share:g})")
    if not 1 <= burst_us <= LONGEST_THINK_US:
        faults.append(f"burst_us is {burst_us}; 1..{LONGEST_THINK_US} is expected")
    elif count / rate_per_s * US_PER_S * share / burst_us > MOST_BURSTS:
        faults.append(f"burst_us is {burst_us}: {count} requests would take more than {MOST_BURSTS} bursts")
    if faults:
        raise InputError("; ".join(faults), hint="the mean rate stays the same: a higher peak leaves less for the rest")
    busy = rate_per_s * peak / US_PER_S
    quiet = rate_per_s * (1 - peak * share) / (1 - share) / US_PER_S
    # A Poisson process of rate 1 on the axis of expected requests, taken back to time by the inverse of that axis.
    wanted = np.cumsum(rng.exponential(1.0, count))
    ends, expected = [0.0], [0.0]
    in_burst = bool(rng.random() < share)
    while expected[-1] < wanted[-1]:
        length = rng.exponential(burst_us if in_burst else burst_us * (1 - share) / share)
        ends.append(ends[-1] + length)
        expected.append(expected[-1] + length * (busy if in_burst else quiet))
        in_burst = not in_burst
    return _rounded(np.interp(wanted, expected, ends))


def cancelled_after(sent_us: Times, patience_us: int) -> Times:
    """When callers go who wait no longer than ``patience_us`` in the queue."""
    return np.minimum(sent_us + patience_us, NEVER)


def _checked_rate(rate_per_s: float) -> float:
    if not LOWEST_RATE <= rate_per_s <= HIGHEST_RATE:
        raise InputError(
            f"the rate is {rate_per_s} requests a second; {LOWEST_RATE:g}..{HIGHEST_RATE:g} can be simulated",
            hint="a rate is above 0",
        )
    return rate_per_s


def _checked_count(count: int) -> int:
    if not 1 <= count <= MOST_REQUESTS:
        raise InputError(f"{count} requests; 1..{MOST_REQUESTS} can be simulated", hint="a longer run adds little")
    return count


def _rounded(times_us: NDArray[np.float64]) -> Times:
    return np.rint(times_us).astype(np.int64)
