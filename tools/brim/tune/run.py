"""One run of an open loop under one setting, on the real server or through the simulator, and what several say together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from brim.batcher.arrivals import Times
from brim.tune.setting import Setting
from brim.units import US_PER_S


class Purpose(StrEnum):
    """Why a run was made."""

    CLIMB = "climb"
    """In search of the highest rate that is still answered in time."""
    EXPECTED = "expected"
    PEAK = "peak"


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: the arrivals of a mean rate.

    Attributes:
        purpose: why.
        repeat: which of the repeats it belongs to, from 0.
        rate_per_s: mean rate.
        sent_us: when each request is due, ascending.
    """

    purpose: Purpose
    repeat: int
    rate_per_s: float
    sent_us: Times

    @property
    def duration_us(self) -> int:
        """Length of the schedule: what its requests take at the mean rate, or their last one's time where that is more."""
        return max(round(len(self.sent_us) / self.rate_per_s * US_PER_S), int(self.sent_us[-1]) + 1)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a load.

    Attributes:
        setting: under which.
        purpose, repeat, rate_per_s, duration_us: of the load.
        offered: requests that were due.
        answered: of them.
        in_slo: answers within the objective's latency, counted from when they were due.
        p50_us, p99_us, latency_us: of the answers, the last at the objective's percentile; None without any.
        mean_batch: rows an execution; None without one.
        duty: share of the time in which instances were taken; None when unknown.
        executions_by_size: batch size -> executions; empty in the simulator.
        execution_us_by_size: batch size -> mean time of such an execution.
        limits: in what ways the generator set the figures.
        bystander_cores: cores that other programs used meanwhile; None when unknown.
    """

    setting: Setting
    purpose: Purpose
    repeat: int
    rate_per_s: float
    duration_us: int
    offered: int
    answered: int
    in_slo: int
    p50_us: int | None
    p99_us: int | None
    latency_us: int | None
    mean_batch: float | None
    duty: float | None = None
    executions_by_size: Mapping[int, int] = field(default_factory=dict)
    execution_us_by_size: Mapping[int, float] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    bystander_cores: float | None = None

    @property
    def in_slo_ratio(self) -> float:
        """Share of the offered requests that were answered in time."""
        return self.in_slo / self.offered

    @property
    def goodput_per_s(self) -> float:
        """Answers in time a second of the schedule."""
        return self.in_slo * US_PER_S / self.duration_us

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            **asdict(self),
            "setting": self.setting.as_json(),
            "goodput_per_s": self.goodput_per_s,
            "in_slo_ratio": self.in_slo_ratio,
        }


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of one setting say together; of repeats the median.

    Attributes:
        goodput_per_s: the highest goodput of the runs in which enough requests were in time; 0 where there was none.
        capacity_per_s: the rate of that run.
        spread: how much the goodput of the repeats differs: twice the median deviation from the median, over the median.
            Of two repeats, their difference over their mean.
        p50_us, p99_us, latency_us, mean_batch: at the expected rate; None where that was not run.
        in_slo_expected, in_slo_peak: share in time at these rates; None where that was not run.
        limited_by_generator: the generator, and not the server, may have ended the climb.
        latency_spread: the same as ``spread`` for the latency at the expected rate.
        duty_at_capacity: share of the time in which instances were taken, in the runs that give the goodput; None when unknown.
        mean_batch_at_capacity: rows an execution there; None without one.
    """

    goodput_per_s: float
    capacity_per_s: float
    spread: float
    p50_us: int | None
    p99_us: int | None
    latency_us: int | None
    mean_batch: float | None
    in_slo_expected: float | None
    in_slo_peak: float | None
    limited_by_generator: bool
    latency_spread: float = 0.0
    duty_at_capacity: float | None = None
    mean_batch_at_capacity: float | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return asdict(self)


def figures(runs: Sequence[Run], *, share: float, ceiling_per_s: float) -> Figures:
    """The figures of some runs of one setting.

    Args:
        runs: at least one.
        share: of the offered requests that must be in time for the rate to count.
        ceiling_per_s: the highest rate that the generator is used at.
    """
    repeats = sorted({run.repeat for run in runs})
    best = [_best([run for run in runs if run.repeat == repeat], share) for repeat in repeats]
    goodputs = [0.0 if run is None else run.goodput_per_s for run in best]
    capacities = [0.0 if run is None else run.rate_per_s for run in best]
    expected = [run for run in runs if run.purpose is Purpose.EXPECTED]
    peak = [run for run in runs if run.purpose is Purpose.PEAK]
    return Figures(
        goodput_per_s=statistics.median(goodputs),
        capacity_per_s=statistics.median(capacities),
        spread=_spread(goodputs),
        p50_us=_whole(_median([run.p50_us for run in expected])),
        p99_us=_whole(_median([run.p99_us for run in expected])),
        latency_us=_whole(_median([run.latency_us for run in expected])),
        mean_batch=_median([run.mean_batch for run in expected]),
        in_slo_expected=_median([run.in_slo_ratio for run in expected]),
        in_slo_peak=_median([run.in_slo_ratio for run in peak]),
        limited_by_generator=any(
            (run.limits and run.in_slo_ratio < share)
            or (run.in_slo_ratio >= share and _at(run.rate_per_s, ceiling_per_s))
            for run in runs
        ),
        latency_spread=_spread([float(run.latency_us) for run in expected if run.latency_us is not None]),
        duty_at_capacity=_median([run.duty for run in best if run is not None]),
        mean_batch_at_capacity=_median([run.mean_batch for run in best if run is not None]),
    )


def _at(rate_per_s: float, ceiling_per_s: float) -> bool:
    """Whether a rate of the ladder is the last one below the ceiling."""
    return rate_per_s >= ceiling_per_s * 0.95


def _spread(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    middle = statistics.median(values)
    if not middle:
        return 1.0 if any(values) else 0.0
    return 2 * statistics.median(abs(value - middle) for value in values) / middle


def _best(runs: Sequence[Run], share: float) -> Run | None:
    passed = [run for run in runs if run.in_slo_ratio >= share]
    return max(passed, key=lambda run: run.goodput_per_s, default=None)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
