"""When the requests of one run are due, from what was asked: rates and a shape, or a recorded trace."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from brim.errors import InputError
from brim.measure.arrivals import Profile, bursty, duration_us, offsets, ramp, read_trace, steady, steps
from brim.measure.plan import Distribution
from brim.units import US_PER_S

SEGMENTS = 12
"""Parts of a run that are counted one by one, so that a report can show how it went."""


class Arrivals(StrEnum):
    """How requests of an open loop come."""

    POISSON = "poisson"
    """One rate, gaps at random."""
    CONSTANT = "constant"
    """One rate, equal gaps."""
    BURSTY = "bursty"
    """One mean rate: a tenth of the time is bursts at five times the rate of the rest, gaps at random."""
    RAMP = "ramp"
    """From one rate to another in one run, gaps at random."""
    STEPS = "steps"
    """One rate after the other in one run, each for the same time, gaps at random."""
    TRACE = "trace"
    """As they were recorded."""


CHANGING = frozenset([Arrivals.RAMP, Arrivals.STEPS, Arrivals.TRACE])
"""One run has several rates by plan."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run's arrivals.

    Attributes:
        arrivals: how they come.
        rates_per_s: as asked; empty for a trace.
        rate_per_s: their mean over the run, as planned.
        due_us: from the beginning, never decreasing; at least one.
        duration_us: length of the run; every arrival is before its end.
        segment_us: length of the parts that are counted one by one; a step is one part.
    """

    arrivals: Arrivals
    rates_per_s: tuple[float, ...]
    rate_per_s: float
    due_us: Sequence[int]
    duration_us: int
    segment_us: int

    @property
    def digest(self) -> str:
        """Twelve hex digits that change with any arrival and with the length."""
        text = ",".join(map(str, (*self.due_us, self.duration_us)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def in_words(self) -> str:
        """For people: ``poisson 50/s``, ``ramp 50 to 200/s``, ``steps 50, 100, 200/s``."""
        if self.arrivals is Arrivals.TRACE:
            return f"trace, {self.rate_per_s:.6g}/s"
        between = " to " if self.arrivals is Arrivals.RAMP else ", "
        return f"{self.arrivals.value} {between.join(f'{rate:.10g}' for rate in self.rates_per_s)}/s"

    def planned_per_s(self, segment: int) -> float:
        """The rate of one part of the run, as planned; of a trace what was recorded."""
        begin, end = segment * self.segment_us, min((segment + 1) * self.segment_us, self.duration_us)
        if self.arrivals is Arrivals.STEPS:
            return self.rates_per_s[segment]
        if self.arrivals is Arrivals.RAMP:
            first, last = self.rates_per_s
            return first + (last - first) * (begin + end) / 2 / self.duration_us
        if self.arrivals is Arrivals.TRACE:
            return sum(begin <= due < end for due in self.due_us) * US_PER_S / (end - begin)
        return self.rate_per_s


def schedules(arrivals: Arrivals, rates_per_s: Sequence[float], length_us: int, *, seed: int) -> list[Schedule]:
    """The runs that are asked for: one a rate, or one through all rates for ``ramp`` and ``steps``.

    Args:
        arrivals: anything but ``trace``.
        rates_per_s: requests a second.
        length_us: of each run.
        seed: for gaps and bursts.

    Raises:
        InputError: a rate or the length is out of range, a ramp has other than two rates, or nothing would be due.
    """
    if arrivals is Arrivals.RAMP and len(rates_per_s) != 2:
        raise InputError(
            f"a ramp with {len(rates_per_s)} rates: it has two, the first and the last", hint="such as --rate 50,200"
        )
    if arrivals in CHANGING:
        return [_one(arrivals, tuple(rates_per_s), length_us, seed)]
    return [_one(arrivals, (rate,), length_us, seed) for rate in dict.fromkeys(rates_per_s)]


def trace_schedule(path: Path, length_us: int | None = None) -> Schedule:
    """The run that repeats a recorded trace (``brim.measure.arrivals.read_trace``).

    Args:
        path: the file.
        length_us: arrivals at or after this are left out; when absent the trace lasts until its last arrival and one
            mean gap.

    Raises:
        InputError: the file cannot be read or has faults, or nothing is due before ``length_us``.
    """
    due = read_trace(path)
    if length_us is None:
        length_us = due[-1] + max(1, round(due[-1] / (len(due) - 1))) if len(due) > 1 else due[-1] + US_PER_S
    due = [at_us for at_us in due if at_us < length_us]
    if not due:
        raise InputError(f"{path}: no arrival is due before {length_us / US_PER_S:g} s", hint="use a longer --duration")
    rate = len(due) * US_PER_S / length_us
    return Schedule(Arrivals.TRACE, (), rate, due, length_us, -(-length_us // SEGMENTS))


def _one(arrivals: Arrivals, rates: tuple[float, ...], length_us: int, seed: int) -> Schedule:
    profile = _profile(arrivals, rates, length_us, seed)
    whole_us = duration_us(profile)
    distribution = Distribution.CONSTANT if arrivals is Arrivals.CONSTANT else Distribution.POISSON
    due = list(offsets(profile, distribution, seed=seed))
    if not due:
        raise InputError(
            f"--rate {', '.join(f'{rate:g}' for rate in rates)}: nothing is due within {whole_us / US_PER_S:g} s",
            hint="use a higher rate or a longer run",
        )
    segment_us = profile[0].duration_us if arrivals is Arrivals.STEPS else -(-whole_us // SEGMENTS)
    # A bursty profile is a draw; what was asked for is its long-run mean.
    planned = rates[0] if arrivals is Arrivals.BURSTY else sum(part.expected for part in profile) * US_PER_S / whole_us
    return Schedule(arrivals, rates, planned, due, whole_us, segment_us)


def _profile(arrivals: Arrivals, rates: tuple[float, ...], length_us: int, seed: int) -> Profile:
    if arrivals is Arrivals.RAMP:
        return ramp(rates[0], rates[1], length_us)
    if arrivals is Arrivals.STEPS:
        return steps(rates, length_us // max(1, len(rates)))
    if arrivals is Arrivals.BURSTY:
        return bursty(rates[0], length_us, seed=seed)
    return steady(rates[0], length_us)
