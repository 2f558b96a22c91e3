"""When requests are due: a rate over time, and how arrivals scatter around it; or a recorded trace.

Everything here is drawn from a seed and touches no clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brim.errors import InputError
from brim.measure.plan import Distribution
from brim.units import US_PER_S

MOST_ARRIVALS = 10_000_000
"""More than this is refused: at 10,000 a second it is a quarter of an hour."""
LONGEST_RUN_US = 24 * 3_600 * US_PER_S
"""A run of more than a day is refused."""
MOST_STRETCHES = 100_000
FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time in which the rate (arrivals a second) goes evenly from ``begin_per_s`` to ``end_per_s``."""

    duration_us: int
    begin_per_s: float
    end_per_s: float

    @property
    def expected(self) -> float:
        """Mean number of arrivals in it."""
        return self.duration_us * (self.begin_per_s + self.end_per_s) / 2 / US_PER_S


Profile = tuple[Stretch, ...]
"""The rate over a whole run."""


def steady(rate_per_s: float, duration_us: int) -> Profile:
    """One rate throughout."""
    return checked((Stretch(duration_us, rate_per_s, rate_per_s),))


def ramp(begin_per_s: float, end_per_s: float, duration_us: int) -> Profile:
    """From one rate to another."""
    return checked((Stretch(duration_us, begin_per_s, end_per_s),))


def steps(rates_per_s: Sequence[float], each_us: int) -> Profile:
    """One rate after the other, each for the same time."""
    return checked(tuple(Stretch(each_us, rate, rate) for rate in rates_per_s))


def bursty(
    rate_per_s: float,
    duration_us: int,
    *,
    burst_factor: float = 5.0,
    burst_ratio: float = 0.1,
    burst_us: int = 1_000_000,
    seed: int = 0,
) -> Profile:
    """Two states that follow each other at random (a Markov-modulated Poisson process, with Poisson arrivals on top).

    The time in each state is exponential; the run begins in either with its long-run probability.

    Args:
        rate_per_s: mean rate over a long time.
        duration_us: length of the run.
        burst_factor: rate in a burst / rate outside.
        burst_ratio: share of the time that is burst.
        burst_us: mean length of a burst.
        seed: for the lengths.

    Raises:
        InputError: a value is out of range, or there would be more than ``MOST_STRETCHES`` changes.
    """
    faults = []
    if not burst_factor >= 1:
        faults.append(f"burst_factor {burst_factor:g}: must be 1 or more")
    if not 0 < burst_ratio < 1:
        faults.append(f"burst_ratio {burst_ratio:g}: must be between 0 and 1")
    if burst_us < 1:
        faults.append(f"burst_us {burst_us}: must be 1 or more")
    if not faults and duration_us * 2 * burst_ratio / burst_us > MOST_STRETCHES:
        faults.append(f"burst_us {burst_us}: would give more than {MOST_STRETCHES} changes in {duration_us} us")
    if faults:
        raise InputError("arrivals in bursts: " + "; ".join(faults), hint="correct these values")
    checked((Stretch(duration_us, rate_per_s, rate_per_s),))
    quiet_per_s = rate_per_s / (1 - burst_ratio + burst_ratio * burst_factor)
    draw = np.random.default_rng([seed, 1])
    in_burst = bool(draw.random() < burst_ratio)
    left_us, stretches = duration_us, []
    while left_us > 0:
        mean_us = burst_us if in_burst else burst_us * (1 - burst_ratio) / burst_ratio
        length_us = min(left_us, max(1, round(draw.exponential(mean_us))))
        rate = quiet_per_s * burst_factor if in_burst else quiet_per_s
        stretches.append(Stretch(length_us, rate, rate))
        left_us -= length_us
        in_burst = not in_burst
    return checked(tuple(stretches))


def checked(profile: Profile) -> Profile:
    """The profile, if it can be carried out.

    Raises:
        InputError: with every fault at once.
    """
    faults = [] if profile else ["it has no stretch of time"]
    for number, stretch in enumerate(profile):
        if stretch.duration_us < 1:
            faults.append(f"stretch {number}: duration_us {stretch.duration_us} must be 1 or more")
        faults += [
            f"stretch {number}: a rate of {rate:g} a second must be 0 or more, and finite"
            for rate in dict.fromkeys((stretch.begin_per_s, stretch.end_per_s))
            if not 0 <= rate < math.inf
        ]
    if not faults:
        expected = sum(stretch.expected for stretch in profile)
        if duration_us(profile) > LONGEST_RUN_US:
            faults.append(f"{duration_us(profile)} us, at most a day ({LONGEST_RUN_US} us) is carried out")
        if expected > MOST_ARRIVALS:
            faults.append(f"{expected:.0f} arrivals are expected, at most {MOST_ARRIVALS} are carried out")
    if faults:
        raise InputError(f"the rate over time: {'; '.join(faults[:FAULTS_SHOWN])}", hint="correct these values")
    return profile


def duration_us(profile: Profile) -> int:
    """Length of the whole run."""
    return sum(stretch.duration_us for stretch in profile)


def offsets(profile: Profile, distribution: Distribution, *, seed: int = 0) -> Iterator[int]:
    """When requests are due, in microseconds from the beginning, never decreasing, all before the end.

    With ``constant`` gaps one arrival is due at the beginning and then one whenever the rate has added up to one more.
    With ``poisson`` it has to add up to an exponential number of mean 1 each time, which is a Poisson process of that
    (changing) rate.
    """
    draw = np.random.default_rng([seed, 0])
    number = 0
    due = 0.0 if distribution is Distribution.CONSTANT else float(draw.exponential())
    passed, begin_us = 0.0, 0
    for stretch in profile:
        expected = stretch.expected
        while due < passed + expected:
            at_us = begin_us + math.floor(_time_of(stretch, due - passed))
            yield min(at_us, begin_us + stretch.duration_us - 1)
            number += 1
            due = float(number) if distribution is Distribution.CONSTANT else due + float(draw.exponential())
        passed += expected
        begin_us += stretch.duration_us


def _time_of(stretch: Stretch, arrivals: float) -> float:
    """Microseconds into the stretch at which the rate has added up to so many arrivals (the stable quadratic root)."""
    rise = (stretch.end_per_s - stretch.begin_per_s) / (stretch.duration_us / US_PER_S)
    root = math.sqrt(max(0.0, stretch.begin_per_s**2 + 2 * rise * arrivals))
    return 2 * arrivals / (stretch.begin_per_s + root) * US_PER_S if arrivals else 0.0


def read_trace(path: Path) -> list[int]:
    """Offsets of a recorded trace: one JSON object a line, ``{"offset_us": 1250}``, never decreasing. Other keys are passed over.

    Raises:
        InputError: the file cannot be read, or lines are something else: the first ``FAULTS_SHOWN`` of them at once.
    """
    found: list[int] = []
    faults: list[str] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                fault = _take(line, found) if line.strip() else ""
                if fault:
                    faults.append(f"line {number}: {fault}")
                if len(found) > MOST_ARRIVALS:
                    faults.append(f"more than {MOST_ARRIVALS} arrivals")
                if len(faults) >= FAULTS_SHOWN or len(found) > MOST_ARRIVALS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint="give a file of JSON lines") from error
    if not found and not faults:
        faults.append("there is no arrival in it")
    if faults:
        raise InputError(
            f"{path}: {'; '.join(faults)}", hint='one object a line: {"offset_us": 1250}, from the beginning, in order'
        )
    return found


def _take(line: str, found: list[int]) -> str:
    """Append the line's offset to ``found``; what is wrong with it instead."""
    try:
        offset = json.loads(line)["offset_us"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{line.strip()[:60]!r} has no offset_us"
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= LONGEST_RUN_US:
        return (
            f"offset_us {str(offset)[:40]!r} is not a whole number of microseconds from 0 to {LONGEST_RUN_US} (a day)"
        )
    if found and offset < found[-1]:
        return f"offset_us {offset} comes after {found[-1]}"
    found.append(offset)
    return ""
