"""Tuning text generation: search in the simulator, measure the few best and the present setting, choose by what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from brim.engine.drive import WallClock, drive
from brim.engine.engine_process import EngineProcess
from brim.engine.simulated import Simulated
from brim.engine.traffic import Call
from brim.paths import Project
from brim.service.schema import Service
from brim.tune.text.demand import Demand, Figures, figures
from brim.tune.text.search import Candidate, Predictor, of_different_kind, search
from brim.tune.text.setting import Setting, engine_arguments, host_settings, setting_of, with_setting

LEAST_CALLS = 20
TIE = 0.03
"""Measured goodputs that differ by less count as equal."""
TTFT_TIE = 0.15
"""The same for TTFT p99, which hangs on a few calls of a short run."""
ENGINE_OVER_S = 300.0
"""A run on the engine that takes so much longer than its arrivals is given up."""


class Bench(Protocol):
    """Where a setting is measured."""

    def run(self, setting: Setting, calls: Sequence[Call], sent_us: Sequence[int], seed: int) -> Simulated:
        """What becomes of calls under a setting."""


@dataclass(frozen=True, slots=True)
class EngineBench:
    """The service's engine in a closed process, behind the same scheduler as in service; started for each run."""

    project: Project
    service: Service

    def run(self, setting: Setting, calls: Sequence[Call], sent_us: Sequence[int], seed: int) -> Simulated:
        """See ``Bench``.

        Raises:
            ModelFileError, ServerFailed: the engine did not start, or ended.
            CouldNotTell: the run took too long.
        """
        service = with_setting(self.service, setting)
        policy = host_settings(service).policy
        with closing(EngineProcess(engine_arguments(self.project, service))) as engine:
            # What an engine runs first takes longer, whatever it is.
            drive(engine, policy, calls[:1], sent_us=[0], seed=seed + 1)
            clock = WallClock(sent_us[-1] / 1e6 + ENGINE_OVER_S)
            return drive(engine, policy, calls, sent_us=sent_us, seed=seed, clock=clock)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        settings: that are measured at most, the present one among them.
        repeats: of each.
        run_us: about how long a run's arrivals take.
    """

    settings: int = 4
    repeats: int = 2
    run_us: int = 20_000_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """One setting on the engine.

    Attributes:
        setting: which.
        predicted: by the simulator, for the very calls of the runs: the mean of them.
        runs: each repeat.
    """

    setting: Setting
    predicted: Figures
    runs: tuple[Figures, ...]

    @property
    def measured(self) -> Figures:
        """The mean of the repeats."""
        return mean_of(self.runs)

    @property
    def spread(self) -> float:
        """Largest over smallest TTFT p99 of the repeats, less 1; 0 with one."""
        seen = [run.ttft_p99_us for run in self.runs if run.ttft_p99_us]
        return max(seen) / min(seen) - 1 if seen else 0.0


def mean_of(runs: Sequence[Figures]) -> Figures:
    """The mean of each figure, of the runs that have it."""

    def mean(name: str) -> Any:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        return statistics.fmean(values) if values else None

    return Figures(**{name: mean(name) for name in Figures.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Tuning:
    """Everything that tuning found.

    Attributes:
        service: as it was.
        demand: its objective and traffic.
        top: of the search, best first.
        simulations: in all.
        measurements: in the order in which they were measured, the present setting first.
        cut_short: whether time ran out before all was measured.
    """

    service: Service
    demand: Demand
    top: tuple[Candidate, ...]
    simulations: int
    measurements: tuple[Measurement, ...]
    cut_short: bool

    @property
    def present(self) -> Measurement:
        """What the service file says."""
        return self.measurements[0]

    @property
    def best(self) -> Measurement:
        """The best by what was measured, of those that meet the objective where any does. Another one takes the place of the
        present one, and a later one of an earlier one, only where it is better beyond noise.
        """
        able = [one for one in self.measurements if self.meets(one)] or list(self.measurements)
        best = able[0]
        for one in able[1:]:
            best = one if beats(one, best) else best
        return best

    @property
    def slo_met(self) -> bool:
        """Whether any setting meets the objective, as measured."""
        return self.meets(self.best)

    def meets(self, one: Measurement) -> bool:
        """Whether a setting meets the objective, as measured."""
        return one.measured.in_slo >= self.demand.percentile / 100


def beats(one: Measurement, other: Measurement) -> bool:
    """Whether one setting is better than another beyond noise: more goodput, or as much and a lower TTFT p99."""
    ours, theirs = one.measured, other.measured
    if ours.goodput_per_s > theirs.goodput_per_s * (1 + TIE):
        return True
    if ours.goodput_per_s < theirs.goodput_per_s * (1 - TIE):
        return False
    noise = max(TTFT_TIE, one.spread, other.spread)
    return (ours.ttft_p99_us or float("inf")) * (1 + noise) < (theirs.ttft_p99_us or float("inf"))


def tune(
    predictor: Predictor,
    bench: Bench,
    effort: Effort,
    *,
    most_blocks: int,
    out_of_time: Callable[[], bool] = lambda: False,
    on_run: Callable[[Setting, int, Figures, Figures], None] = lambda *_: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Choose how texts of a service are generated.

    Args:
        predictor: the simulator of the service.
        bench: where settings are measured.
        effort: how much may be measured.
        most_blocks: no setting has a larger cache.
        out_of_time: asked before a setting is measured again, or a further one is; when true, neither is.
        on_run: told of every run as it ends: setting, repeat, measured, predicted.
        on_progress: told what is happening.
    """
    service, demand = predictor.service, predictor.demand
    present = setting_of(service)
    top = search(predictor, most_blocks=most_blocks, out_of_time=out_of_time, on_progress=on_progress)
    chosen = of_different_kind(top, present, effort.settings)
    count = max(LEAST_CALLS, round(demand.rate_per_s * effort.run_us / 1e6))
    runs: dict[Setting, list[tuple[Figures, Figures]]] = {}
    cut_short = False
    for repeat in range(effort.repeats):
        seed = predictor.seed + 1 + repeat
        calls, sent_us = demand.traffic(count, seed)
        for setting in chosen if repeat % 2 == 0 else reversed(chosen):
            if runs and out_of_time():
                cut_short = True
                continue
            on_progress(f"measuring {count} calls on the engine, repeat {repeat + 1} of {effort.repeats}: {setting}")
            measured = figures(bench.run(setting, calls, sent_us, seed), calls, demand)
            predicted = predictor.at(setting, count, seed)
            runs.setdefault(setting, []).append((measured, predicted))
            on_run(setting, repeat, measured, predicted)
    measurements = [
        Measurement(setting, mean_of([one for _, one in of]), tuple(one for one, _ in of))
        for setting, of in runs.items()
    ]
    return Tuning(service, demand, tuple(top), predictor.simulations, tuple(measurements), cut_short)
