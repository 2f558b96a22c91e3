"""Tuning: search in the simulator, verify on the server, correct the simulator, search again, choose by what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brim.batcher.rule import NEVER
from brim.batcher.settings import Settings
from brim.limits import BATCH_LIMIT
from brim.measure.plan import usable_cores
from brim.service.schema import Service
from brim.tune.bystanders import BYSTANDERS
from brim.tune.choose import Choice, Point, choose
from brim.tune.demand import Demand, demand_of
from brim.tune.grid import Grid, flagged, make_grid, stalls
from brim.tune.predict import Predictor, Served
from brim.tune.refit import refit
from brim.tune.run import Figures, Load, Run, figures
from brim.tune.search import CLEARLY_BELOW, LOOKS, Candidate, capacity, judged, search
from brim.tune.setting import DEFAULT, Setting, setting_of
from brim.tune.threads import AS_IT_IS, Runtimes
from brim.tune.verify import Arrivals, Bench, Effort, Send, measure_setting, simulated

FIRST_SETTINGS = 4
"""Settings of the first round; the rest of the budget is kept for what a corrected simulator finds."""
BOUND = 0.15
"""A prediction that is off by more is not believed: the simulator is corrected and the search repeated."""
SLIGHT = 0.05
"""A latency that is off by less than this part of the objective's decides nothing."""
TIE = 0.05
"""Measured goodputs that differ by less count as equal: less than one step of the measured rates."""
MOST_TIE = 0.15
LATENCY_TIE = 0.2
"""The same for latencies at the expected rate: the percentile of a run of a few seconds moves by that much."""
MOST_LATENCY_TIE = 1.0
ALIKE_DELAY, ALIKE_SIZE = 2.0, 1.5
"""Delays and largest preferred sizes that differ by a smaller factor are one idea, of which one is measured."""
TOO_NOISY = 0.35
"""Repeats of one setting whose goodput differs by more say nothing about it."""
TOP = 10


@dataclass(frozen=True, slots=True)
class Measurement:
    """One setting on the server, beside what had been predicted before it was measured.

    Attributes:
        setting: which.
        slo_us: latency of the objective.
        predicted: by long simulations.
        predicted_goodput_per_s: by the simulator under the very arrivals that were sent.
        measured: the figures of its runs.
        runs: of all repeats.
    """

    setting: Setting
    slo_us: int
    predicted: Candidate
    predicted_goodput_per_s: float
    measured: Figures
    runs: tuple[Run, ...]

    @property
    def deviation(self) -> float | None:
        """Measured over predicted goodput, less 1; None where none was predicted, or the generator set it."""
        if not self.predicted_goodput_per_s or self.measured.limited_by_generator:
            return None
        return self.measured.goodput_per_s / self.predicted_goodput_per_s - 1

    @property
    def is_off(self) -> bool:
        """Whether the prediction is not to be believed."""
        if not self.predicted_goodput_per_s:
            return self.measured.goodput_per_s > 0
        off = self.deviation
        return (off is not None and abs(off) > BOUND) or self._latency_is_off

    @property
    def repeats(self) -> int:
        """How often it was measured."""
        return len({run.repeat for run in self.runs})

    @property
    def bystander_cores(self) -> float:
        """Cores that other programs used meanwhile: the median of the runs."""
        return statistics.median(run.bystander_cores or 0.0 for run in self.runs)

    @property
    def is_disturbed(self) -> bool:
        """Whether others used so much of the machine that one repeat says little."""
        return self.bystander_cores > BYSTANDERS * usable_cores()

    @property
    def _latency_is_off(self) -> bool:
        real, said = self.measured.p50_us, self.predicted.expected.p50_us
        if not real or not said or abs(real - said) < SLIGHT * self.slo_us:
            return False
        return abs(math.log(real / said)) > math.log1p(BOUND)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Everything that tuning found.

    Attributes:
        service: as it was.
        demand: its objective and traffic.
        effort: how much was measured.
        served: what the simulator knows in the end.
        refits: how often it was corrected.
        grid: the candidates.
        top: the best of the last search.
        simulations: in all.
        simulated: different settings that were simulated.
        measurements: settings in the order in which they were measured.
        cut_short: whether time ran out before everything that was planned had been measured.
        choice: by what was measured; its ``point`` is None when no setting meets the objective.
        predictor: the simulator in the end.
    """

    service: Service
    demand: Demand
    effort: Effort
    served: Served
    refits: int
    grid: Grid
    top: tuple[Candidate, ...]
    simulations: int
    simulated: int
    measurements: tuple[Measurement, ...]
    cut_short: bool
    choice: Choice[Setting]
    predictor: Predictor

    @property
    def best(self) -> Measurement:
        """The chosen setting, or the one that came closest."""
        return self.of(self.choice.closest.of)

    @property
    def noise(self) -> list[str]:
        """Why there can be no verdict, one sentence for each setting that was measured too badly."""
        others = max((run.bystander_cores or 0.0 for one in self.measurements for run in one.runs), default=0.0)
        said = []
        for one in {id(one): one for one in (self.best, self.default)}.values():
            if one.measured.spread > TOO_NOISY:
                said.append(
                    f"goodput of {one.setting} differs by {one.measured.spread:.0%} between repeats, {TOO_NOISY:.0%} at most can "
                    f"be worked with; other programs used {others:.1f} cores at the worst"
                )
            elif one.is_disturbed and one.repeats < self.effort.repeats:
                said.append(
                    f"{one.setting} was measured {one.repeats} of {self.effort.repeats} times before time ran out, while other "
                    f"programs used {one.bystander_cores:.1f} cores"
                )
        return said

    @property
    def slo_met(self) -> bool:
        """Whether the choice meets the objective at the expected rate and at the peak, as measured."""
        if self.choice.point is None:
            return False
        needed, measured = self.demand.percentile / 100, self.best.measured
        at_peak = (
            measured.in_slo_expected if self.demand.needed_per_s <= self.demand.rate_per_s else measured.in_slo_peak
        )
        return all(ratio is not None and ratio >= needed for ratio in (measured.in_slo_expected, at_peak))

    @property
    def default(self) -> Measurement:
        """The default setting."""
        return self.of(DEFAULT)

    def of(self, setting: Setting) -> Measurement:
        """What was measured of a setting."""
        return next(one for one in self.measurements if one.setting == setting)


def tune(
    service: Service,
    base: Settings,
    served: Served,
    bench: Bench,
    effort: Effort,
    *,
    grid: Grid | None = None,
    runtimes: Runtimes = AS_IT_IS,
    seed: int = 0,
    out_of_time: Callable[[], bool] = lambda: False,
    on_run: Callable[[Run], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Choose the batcher's settings of a service.

    Args:
        service: what is tuned.
        base: its configuration, for the simulator.
        served: its batch time and overhead, as the designed run gave them.
        bench: where settings are measured.
        effort: how much may be measured.
        grid: the candidates; ``make_grid`` of the service when absent.
        runtimes: in which ways a batch can be run, as far as ``served`` has their times.
        seed: for everything that is drawn; the same seed and the same measurements give the same choice.
        out_of_time: asked before a setting is measured again, or further ones are; when true, neither is.
        on_run: told of every run on the bench as it ends.
        on_progress: told what is happening.
    """
    grid = grid or make_grid(service, base, lone_us=served.lone_us, full_us=served.full_us, runtimes=runtimes)
    work = _Work(service, base, served, bench, effort, grid, seed, out_of_time, on_run, on_progress)
    current = setting_of(service)
    first = [DEFAULT, *([] if current == DEFAULT or stalls(base, current) else [current])]
    found = work.search()
    # How instances share the machine was not looked at under load so far: one setting with several shows it. So does one
    # with another number of threads, unless it is clearly worse by its own batch times.
    several = [one for one in found if one.setting.instances > 1][:1]
    threaded = [one for one in found if _is_promising_with_threads(one, found)][:1]
    picked = [*found[:1], *several, *threaded, *found]
    work.measure(_of_different_kind(first, picked, min(FIRST_SETTINGS, effort.settings)))
    if work.is_off():
        work.correct()
        found = work.search()
        room = effort.settings - len(work.runs)
        known = list(work.runs)
        further = [one for one in _of_different_kind(known, found, effort.settings) if one not in known][:room]
        if further and work.has_room():
            # Not the same minutes as the first ones: the default is measured again beside them.
            work.measure([DEFAULT, *further])
            work.correct()
            found = work.search()
    return work.finish(found)


class _Work:
    """What is known so far."""

    def __init__(
        self,
        service: Service,
        base: Settings,
        served: Served,
        bench: Bench,
        effort: Effort,
        grid: Grid,
        seed: int,
        out_of_time: Callable[[], bool],
        on_run: Callable[[Run], None],
        on_progress: Callable[[str], None],
    ) -> None:
        self.service, self.base, self.bench, self.effort, self.seed = service, base, bench, effort, seed
        self.out_of_time, self.on_run, self.on_progress = out_of_time, on_run, on_progress
        self.cut_short = False
        self.demand = demand_of(service)
        self.arrivals = Arrivals(self.demand, effort, seed)
        self.first_served = self.served = served
        self.predictor = self._predictor_of(served)
        self.refits = self.simulations = self.repeats = 0
        self.simulated: set[Setting] = set()
        self.grid = grid
        self.runs: dict[Setting, list[Run]] = {}
        self.predicted: dict[Setting, Candidate] = {}
        self.goodput: dict[Setting, float] = {}

    def _predictor_of(self, served: Served) -> Predictor:
        return Predictor(served, self.demand, self.base, seed=self.seed)

    def search(self) -> list[Candidate]:
        """The best candidates under what is known now; none that the linter flags."""
        found = search(
            self.predictor,
            self.grid.settings,
            ceiling_per_s=self.effort.ceiling_per_s,
            complete=not self.refits,
            on_progress=self.on_progress,
        )
        codes = flagged(self.service, [one.setting for one in found if one.setting != DEFAULT])
        return [one for one in found if not codes.get(one.setting)]

    def predict(self, setting: Setting) -> Candidate:
        """A setting under what is known now."""
        look = LOOKS[-1]
        capacity_per_s = capacity(self.predictor, setting, look, ceiling_per_s=self.effort.ceiling_per_s)
        return judged(self.predictor, setting, capacity_per_s, effort=look.effort)

    def measure(self, settings: Sequence[Setting]) -> None:
        """Every setting in turn, and again in the opposite order, and so on."""
        for setting in settings:
            if setting not in self.predicted:
                self.predicted[setting] = self.predict(setting)
        order = list(settings)
        for number in range(self.effort.repeats):
            self._repeat(order, f"repeat {number + 1} of {self.effort.repeats}")
            order.reverse()
        unsure = [setting for setting in order if self._figures(self.runs[setting]).spread > TOO_NOISY]
        if unsure and self.effort.repeats > 1:
            self._repeat(unsure, "once more, since its repeats differ")
        for setting in settings:
            if setting not in self.goodput:
                self.goodput[setting] = self._predicted_goodput(setting)

    def _is_over(self) -> bool:
        """Whether time has run out; that it did is remembered."""
        self.cut_short = self.out_of_time() or self.cut_short
        return self.cut_short

    def has_room(self) -> bool:
        """Whether further settings may be measured."""
        return len(self.runs) < self.effort.settings and not self._is_over()

    def _repeat(self, settings: Sequence[Setting], what: str) -> None:
        for setting in settings:
            if setting in self.runs and self._is_over():
                continue
            self.on_progress(f"measuring on the server, {what}: {setting}")
            with self.bench.open(setting) as send:
                self._runs_of(setting, send, self.repeats)
        self.repeats += 1

    def _runs_of(self, setting: Setting, send: Send, repeat: int) -> None:
        known = self.runs.setdefault(setting, [])

        def sent(load: Load) -> Run:
            run = send(load)
            known.append(run)
            self.on_run(run)
            return run

        measure_setting(
            sent,
            self.arrivals,
            self.demand,
            self.effort,
            repeat=repeat,
            is_first=not known,
            start_per_s=self._start_of(setting, known),
        )

    def _start_of(self, setting: Setting, known: Sequence[Run]) -> float:
        """Where to climb from: what was reached before, else what is predicted."""
        reached = [run.rate_per_s for run in known if run.in_slo_ratio >= self.demand.share]
        return max(reached, default=self.predicted[setting].capacity_per_s)

    def _predicted_goodput(self, setting: Setting) -> float:
        """What the simulator, as it was before the measurement, makes of the arrivals that were sent."""
        send = simulated(self.predictor, setting)
        start_per_s = self.predicted[setting].capacity_per_s
        runs: list[Run] = []
        for repeat in sorted({run.repeat for run in self.runs[setting]}):
            runs += measure_setting(
                send, self.arrivals, self.demand, self.effort, repeat=repeat, is_first=True, start_per_s=start_per_s
            )
        return self._figures(runs).goodput_per_s

    def _figures(self, runs: Sequence[Run]) -> Figures:
        return figures(runs, share=self.demand.share, ceiling_per_s=self.effort.ceiling_per_s)

    def measurements(self) -> list[Measurement]:
        """Everything that was measured so far, by setting."""
        return [
            Measurement(
                setting,
                self.demand.slo_us,
                self.predicted[setting],
                self.goodput[setting],
                self._figures(runs),
                tuple(runs),
            )
            for setting, runs in self.runs.items()
        ]

    def _credited_per_s(self, one: Measurement, measurements: Sequence[Measurement]) -> float:
        """The goodput with which a setting competes: what was measured. Where the generator was the limit that is only the
        least that it stands, and it counts as equal to the best of such settings if the corrected simulator says so, too."""
        limited = [other.measured.goodput_per_s for other in measurements if other.measured.limited_by_generator]
        if not one.measured.limited_by_generator or max(limited) <= one.measured.goodput_per_s:
            return one.measured.goodput_per_s
        predicted_per_s = self.predict(one.setting).capacity_per_s
        return max(one.measured.goodput_per_s, min(max(limited), predicted_per_s))

    def is_off(self) -> bool:
        """Whether a prediction is not to be believed."""
        return any(one.is_off for one in self.measurements())

    def correct(self) -> None:
        """Fit the simulator to everything that was measured, from the designed run on."""
        self.on_progress("correcting the simulator by what was measured")
        runs = [run for several in self.runs.values() for run in several]
        self.served = refit(
            self.first_served,
            runs,
            lambda run: self.arrivals.load(run.purpose, run.repeat, run.rate_per_s),
            self._predictor_of,
        )
        self.simulations += self.predictor.simulations
        self.simulated |= self.predictor.simulated
        self.predictor = self._predictor_of(self.served)
        self.refits += 1

    def finish(self, found: Sequence[Candidate]) -> Tuning:
        """The choice."""
        measurements = self.measurements()
        # A service with priorities or a bounded queue would lose them with the default, which is only measured then.
        eligible = [one for one in measurements if one.setting != DEFAULT or self.base.prefetches] or measurements
        points = [
            Point(
                one.setting,
                self._credited_per_s(one, measurements),
                NEVER if one.measured.latency_us is None else one.measured.latency_us,
            )
            for one in sorted(eligible, key=lambda one: one.setting.complexity)
        ]
        # What repeats of one setting differ by is no difference between settings.
        noise = min(MOST_TIE, statistics.median(one.measured.spread for one in measurements))
        choice = choose(
            points, limit_us=self.demand.slo_us, tie=max(TIE, noise), latency_tie=_latency_tie(measurements)
        )
        return Tuning(
            service=self.service,
            demand=self.demand,
            effort=self.effort,
            served=self.served,
            refits=self.refits,
            grid=self.grid,
            top=tuple(found[:TOP]),
            simulations=self.simulations + self.predictor.simulations,
            simulated=len(self.simulated | self.predictor.simulated),
            measurements=tuple(measurements),
            cut_short=self.cut_short,
            choice=choice,
            predictor=self.predictor,
        )


def _latency_tie(measurements: Sequence[Measurement]) -> float:
    """What repeats of one setting differ by is no difference between settings."""
    noise = statistics.median(one.measured.latency_spread for one in measurements)
    return max(LATENCY_TIE, min(MOST_LATENCY_TIE, noise))


def _of_different_kind(first: Sequence[Setting], found: Sequence[Candidate], count: int) -> list[Setting]:
    """Those that are measured in any case, then the best candidates that are not like one before; ``count`` at most."""
    chosen = list(first)[:count]
    for candidate in found:
        if len(chosen) >= count:
            break
        if not any(_alike(candidate.setting, one) for one in chosen):
            chosen.append(candidate.setting)
    return chosen


def _is_promising_with_threads(one: Candidate, found: Sequence[Candidate]) -> bool:
    return one.setting.threads is not None and one.capacity_per_s >= CLEARLY_BELOW * found[0].capacity_per_s


def _alike(one: Setting, other: Setting) -> bool:
    """Whether a measurement of one says nearly all about the other."""
    if one.instances != other.instances or (one.delay_us > 0) != (other.delay_us > 0):
        return False
    if (one.threads, one.padding) != (other.threads, other.padding):
        return False
    sizes = [setting.preferred[-1] if setting.preferred else BATCH_LIMIT for setting in (one, other)]
    delays = [max(1, setting.delay_us) for setting in (one, other)]
    return max(delays) < ALIKE_DELAY * min(delays) and max(sizes) < ALIKE_SIZE * min(sizes)
