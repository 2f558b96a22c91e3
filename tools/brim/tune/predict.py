"""The simulator as tuning asks it: one setting under one rate of the service's traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from brim.batcher.arrivals import OpenLoop, Times
from brim.batcher.machine import Machine
from brim.batcher.result import nearest_rank
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.runtime.padding import PaddingCost
from brim.tune.demand import Demand
from brim.tune.setting import DEFAULT, Setting
from brim.tune.threads import Threads

LEAST_REQUESTS = 1_500
SLO_LENGTHS = 10
"""A simulation lasts as many times the objective's latency: a queue that grows needs time to miss it."""
MOST_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class _Table:
    """tau(b) of every size, looked up."""

    times_us: tuple[int, ...]

    def time_us(self, rows: int) -> int:
        """Time of a batch of so many rows."""
        return self.times_us[rows - 1]


@dataclass(frozen=True, slots=True)
class RuntimeTimes:
    """What a measurement said of another way to run a batch, next to the service's own.

    Attributes:
        threads: of ONNX Runtime in each instance.
        padding: as in ``Setting``; None: as the service file has it.
        extra_us: what a batch of 1, 2, ... rows takes beyond ``Served.time_us``; below 0 where it takes less.
        side_by_side: how much instances gain from one another: 0 when they compute one after the other, 1 when none notices
            the others; None where that was not measured.
    """

    threads: int
    padding: PaddingCost | None
    extra_us: tuple[float, ...]
    side_by_side: float | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "threads": self.threads,
            "padding": None if self.padding is None else asdict(self.padding),
            "side_by_side": self.side_by_side,
            "extra_us": [round(value, 1) for value in self.extra_us],
        }


LEAST_PART = 0.2
"""A batch takes at least this part of what it takes with the service's own runtime."""
MOSTLY = 0.5
"""Instances that gain more than this from one another are simulated side by side, those that gain less one after the other."""


@dataclass(frozen=True)
class Served:
    """What the simulator knows of the served model.

    Attributes:
        time_us: tau(b) as it is in service, for b = 1, 2, ... up to ``max_batch_size``.
        overhead_us: of a request beside queue and batch.
        jitter: sigma of the logarithm of batch times.
        prepare_us: between batches of one instance, while another instance may compute.
        serialised: instances compute one after the other, as on one GPU. On a CPU they share its cores, which is no
            more throughput either, so this holds until a measurement of several instances says otherwise.
        threads: how instances use the cores; None where the model has no such knob.
        runtimes: what was measured of other thread counts and cuttings.
    """

    time_us: tuple[float, ...]
    overhead_us: int = 0
    jitter: float = 0.0
    prepare_us: int = 0
    serialised: bool = True
    threads: Threads | None = None
    runtimes: tuple[RuntimeTimes, ...] = ()

    @property
    def max_rows(self) -> int:
        """Most rows of a batch."""
        return len(self.time_us)

    @property
    def lone_us(self) -> int:
        """Latency of a request that is alone and waits for nobody, with the service's own runtime."""
        return round(self.time_us[0]) + self.prepare_us + self.overhead_us

    @property
    def full_us(self) -> int:
        """Time of a full batch, with the service's own runtime."""
        return max(1, round(self.time_us[-1]) + self.prepare_us)

    def runtime(self, setting: Setting) -> RuntimeTimes | None:
        """What was measured of a setting's way to run a batch; None where nothing was: then it is as the service's own."""
        if self.threads is None and setting.padding is None:
            return None
        threads = 0 if self.threads is None else self.threads.of(setting)
        return next((one for one in self.runtimes if (one.threads, one.padding) == (threads, setting.padding)), None)

    def extra_us(self, setting: Setting) -> tuple[float, ...] | None:
        """What a batch of 1, 2, ... rows takes under a setting beyond ``time_us``; None: nothing."""
        found = self.runtime(setting)
        return None if found is None else found.extra_us

    def parallel(self, setting: Setting) -> float:
        """Batches of one instance alone that all of them together do in the same time: 1 where they share one device."""
        if setting.instances == 1:
            return 1.0
        found = self.runtime(setting)
        gain = None if found is None else found.side_by_side
        if gain is None:
            return 1.0 if self.serialised else float(setting.instances)
        return 1 + (setting.instances - 1) * gain if gain > MOSTLY else 1.0

    def times_us(self, setting: Setting) -> tuple[float, ...]:
        """tau(b) of one instance while it is alone, under a setting."""
        extra = self.extra_us(setting)
        if extra is None:
            return self.time_us
        pairs = zip(self.time_us, extra, strict=True)
        return tuple(max(LEAST_PART * time_us, time_us + extra_us) for time_us, extra_us in pairs)

    def lone_request_us(self, setting: Setting) -> int:
        """Latency of a request that is alone and waits for nobody, under a setting."""
        return round(self.times_us(setting)[0]) + self.prepare_us + self.overhead_us

    def full_batch_us(self, setting: Setting) -> int:
        """Time of a full batch under a setting, one instance alone."""
        return max(1, round(self.times_us(setting)[-1]) + self.prepare_us)

    def machine(self, setting: Setting = DEFAULT, *, alone: bool = False) -> Machine:
        """The same for the simulator, which makes the times rise with the rows.

        Args:
            setting: whose runtime and instances.
            alone: no other instance is busy. Otherwise instances that get in one another's way are all the slower.
        """
        key = setting.instances, setting.threads, setting.padding, alone
        if key not in self._machines:
            parallel = self.parallel(setting)
            slower = 1.0 if alone or parallel == 1.0 else setting.instances / parallel
            times = np.maximum.accumulate(np.maximum(1, np.rint(np.array(self.times_us(setting)) * slower))).astype(int)
            self._machines[key] = Machine(
                _Table(tuple(times.tolist())),
                jitter=0.0 if alone else self.jitter,
                prepare_us=self.prepare_us,
                serialised=self.serialised if setting.instances == 1 else parallel == 1.0,
                overhead_us=self.overhead_us,
            )
        return self._machines[key]

    @cached_property
    def _machines(self) -> dict[tuple[int, int | None, PaddingCost | None, bool], Machine]:
        return {}

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "overhead_us": self.overhead_us,
            "jitter": self.jitter,
            "prepare_us": self.prepare_us,
            "serialised": self.serialised,
            "runtimes": [one.as_json() for one in self.runtimes],
            "points": [{"rows": rows, "time_us": time_us} for rows, time_us in enumerate(self.time_us, start=1)],
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """What callers would see at one rate.

    Attributes:
        rate_per_s: mean rate that was offered.
        in_slo_ratio: share of the offered requests that are answered in time.
        p50_us, p99_us: of the answers.
        latency_us: at the objective's percentile.
        mean_batch: rows a batch.
    """

    rate_per_s: float
    in_slo_ratio: float
    p50_us: int
    p99_us: int
    latency_us: int
    mean_batch: float

    @property
    def goodput_per_s(self) -> float:
        """Answers in time a second."""
        return self.rate_per_s * self.in_slo_ratio


class Predictor:
    """Predictions under one idea of the machine. Counts simulations and settings; every rate has the same arrivals for all settings."""

    def __init__(self, served: Served, demand: Demand, base: Settings, *, seed: int) -> None:
        """Nothing is simulated yet.

        Args:
            served: the machine.
            demand: traffic and objective.
            base: what the service's configuration says besides preferred sizes, delay and instances.
            seed: for arrivals and jitter.
        """
        self.served = served
        self.demand = demand
        self.base = base
        self.seed = seed
        self.simulations = 0
        self.simulated: set[Setting] = set()
        self._traffic: dict[tuple[float, int], OpenLoop] = {}

    def at(self, setting: Setting, rate_per_s: float, *, effort: float = 1.0) -> Prediction:
        """A setting at a rate.

        Args:
            setting: what is asked about.
            rate_per_s: mean rate.
            effort: how much longer than a first look.
        """
        wanted = SLO_LENGTHS * self.demand.slo_us * rate_per_s / 1e6
        count = round(effort * min(max(LEAST_REQUESTS, wanted), MOST_REQUESTS))
        key = rate_per_s, count
        if key not in self._traffic:
            self._traffic[key] = OpenLoop(self.demand.arrivals_us(rate_per_s, count, self.seed))
        return self._run(setting, self._traffic[key], rate_per_s)

    def through(self, setting: Setting, sent_us: Times | Sequence[int], rate_per_s: float) -> Prediction:
        """A setting under given arrivals, as they were sent to the real server."""
        return self._run(setting, OpenLoop(sent_us), rate_per_s)

    def lone(self, setting: Setting) -> Prediction:
        """One caller, and nobody else: it may have to wait for company that does not come."""
        return self._run(setting, OpenLoop([0]), 0.0, alone=True)

    def _run(self, setting: Setting, traffic: OpenLoop, rate_per_s: float, *, alone: bool = False) -> Prediction:
        self.simulations += 1
        self.simulated.add(setting)
        machine = self.served.machine(setting, alone=alone)
        result = simulate(settings_for(self.base, setting), machine, traffic, seed=self.seed)
        latency_us = np.sort(result.latency_us)
        in_slo = int(np.searchsorted(latency_us, self.demand.slo_us, side="right"))
        longest = int(latency_us[-1]) if len(latency_us) else 0
        p50_us, p99_us, at_us = (nearest_rank(latency_us, p) or longest for p in (50, 99, self.demand.percentile))
        return Prediction(
            rate_per_s=rate_per_s,
            in_slo_ratio=in_slo / result.offered,
            p50_us=p50_us,
            p99_us=p99_us,
            latency_us=at_us,
            mean_batch=result.mean_batch or 0.0,
        )


def settings_for(base: Settings, setting: Setting) -> Settings:
    """The setting for the simulator, with the queue policies and priorities of the service. The default has none."""
    if setting == DEFAULT:
        return Settings(base.max_rows)
    return replace(base, preferred=setting.preferred, delay_us=setting.delay_us, instances=setting.instances)
