"""Traffic shapes: the rate over a run, and the part of the callers that behave badly. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum

from brim.errors import InputError
from brim.measure.arrivals import Profile, Stretch, bursty, checked, steady

PEAK_FACTOR = 2.0
"""Peak rate / rate where nobody says."""
DAY_STRETCHES = 48
"""A day is drawn in half hours, however long the run is."""
LOWEST_OF_DAY = 0.1
"""Of the mean rate, at night, at the least."""
RAMP_FROM = 0.1
"""Of the rate, where a ramp begins."""
DECAY_STRETCHES = 10
DECAYS = 3.0
"""A flash crowd has fallen to e^-3 of its size (5 %) at the end of the run."""
MISBEHAVED_RATIO = 0.2
"""Part of the callers that send slowly, or leave, in the shapes that are named after them."""


class Shape(StrEnum):
    """What the traffic looks like."""

    STEADY = "steady"
    """The rate throughout."""
    BURSTY = "bursty"
    """Bursts of five times the rate between them, a tenth of the time, at random."""
    RAMP = "ramp"
    """Evenly from a tenth of the rate to the rate."""
    SPIKE = "spike"
    """The rate, and the peak in the middle fifth of the run."""
    DIURNAL = "diurnal"
    """A day: a wave around the rate, its lowest points at both ends, its highest at the peak (at most 1.9 times the rate)."""
    FLASH_CROWD = "flash-crowd"
    """The rate for a third of the run, then the peak at once, which dies away."""
    SLOW_CLIENT = "slow-client"
    """The rate; a fifth of the callers take a second to send their body."""
    DISCONNECTING_CLIENT = "disconnecting-client"
    """The rate; a fifth of the callers leave while they wait."""


class Behaviour(StrEnum):
    """What one caller does."""

    PLAIN = "plain"
    SLOW = "slow"
    LEAVING = "leaving"


class Travel(StrEnum):
    """How requests travel; ``both`` is one half each, at random."""

    HTTP = "http"
    GRPC = "grpc"
    BOTH = "both"


Parts = Sequence[tuple[float, float, float]]
"""Parts of a run: share of its time, first rate, last rate."""
MISBEHAVIOUR = {Shape.SLOW_CLIENT: Behaviour.SLOW, Shape.DISCONNECTING_CLIENT: Behaviour.LEAVING}
"""Of ``MISBEHAVED_RATIO`` of the callers."""


def profile(shape: Shape, rate_per_s: float, peak_per_s: float, duration_us: int, *, seed: int = 0) -> Profile:
    """The rate over a run of this shape.

    Args:
        shape: which.
        rate_per_s: requests a second.
        peak_per_s: requests a second at the worst, for the shapes that have a peak.
        duration_us: length of the run.
        seed: for the lengths of bursts.

    Raises:
        InputError: a value is out of range, or there would be too many arrivals.
    """
    if not peak_per_s >= rate_per_s:
        raise InputError(
            f"the peak, {peak_per_s:g} a second, is below the rate, {rate_per_s:g}", hint="give a higher --peak"
        )
    even = steady(rate_per_s, duration_us)
    steady(peak_per_s, duration_us)
    if shape is Shape.BURSTY:
        return bursty(rate_per_s, duration_us, seed=seed)
    parts = _PARTS.get(shape)
    return even if parts is None else _joined(parts(rate_per_s, peak_per_s), duration_us)


def _ramp(rate_per_s: float, peak_per_s: float) -> Parts:
    return [(1.0, RAMP_FROM * rate_per_s, rate_per_s)]


def _spike(rate_per_s: float, peak_per_s: float) -> Parts:
    quiet = (0.4, rate_per_s, rate_per_s)
    return [quiet, (0.2, peak_per_s, peak_per_s), quiet]


def _diurnal(rate_per_s: float, peak_per_s: float) -> Parts:
    swing = min(peak_per_s / rate_per_s - 1, 1 - LOWEST_OF_DAY) if rate_per_s else 0.0
    return _through(
        [
            rate_per_s * (1 - swing * math.cos(2 * math.pi * number / DAY_STRETCHES))
            for number in range(DAY_STRETCHES + 1)
        ]
    )


def _flash_crowd(rate_per_s: float, peak_per_s: float) -> Parts:
    crowd = peak_per_s - rate_per_s
    falling = _through(
        [rate_per_s + crowd * math.exp(-DECAYS * number / DECAY_STRETCHES) for number in range(DECAY_STRETCHES + 1)]
    )
    return [(1 / 3, rate_per_s, rate_per_s), *((share * 2 / 3, begin, end) for share, begin, end in falling)]


def _through(rates_per_s: Sequence[float]) -> Parts:
    """Straight lines between the rates, each for the same time."""
    share = 1 / (len(rates_per_s) - 1)
    return [(share, begin, end) for begin, end in itertools.pairwise(rates_per_s)]


_PARTS = {
    Shape.RAMP: _ramp,
    Shape.SPIKE: _spike,
    Shape.DIURNAL: _diurnal,
    Shape.FLASH_CROWD: _flash_crowd,
}


def _joined(parts: Parts, duration_us: int) -> Profile:
    """The parts one after the other; their lengths add up to the run's exactly."""
    ends, passed = [], 0.0
    for share, _, _ in parts:
        passed += share
        ends.append(round(passed * duration_us))
    ends[-1] = duration_us
    begins = [0, *ends[:-1]]
    return checked(
        tuple(
            Stretch(end - begin, first, last)
            for begin, end, (_, first, last) in zip(begins, ends, parts, strict=True)
            if end > begin
        )
    )
