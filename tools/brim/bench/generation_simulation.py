"""The simulator of token models held against the engine, and continuous against static batching on it.

Everything is a closed process: the service's model in an engine of its own, the same scheduler as in service, calls sent by
schedule from the thread that steps (``brim.engine.drive``). Step times are measured before and after every few points, so
that what is predicted is the machine as it was then; the simulator gets the very calls and times that were sent. Each point
is on the disk before the next one begins; the same folder goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from brim.bench.conditions import Watch
from brim.bench.generation_check import SATURATED, Checked, GenerationCheck, Pace, Ways, figures_of
from brim.bench.generation_grid import SCALED_CHATS, STATIC, Case, Mix, Variant
from brim.bench.simulation_store import Store
from brim.engine.admission import Policy
from brim.engine.calibration import Timed, calibrate, jitter_of
from brim.engine.drive import ProcessorClock, WallClock, drive
from brim.engine.engine_process import EngineProcess
from brim.engine.replay import Clock
from brim.engine.simulate import closed_loop
from brim.engine.simulate import open_loop as simulate_open
from brim.engine.simulated import Simulated
from brim.engine.static_batching import drive_static, simulate_static
from brim.engine.step_time import StepTime, fit
from brim.engine.traffic import Call, draw_calls, poisson_times_us
from brim.paths import Project
from brim.service.schema import Service
from brim.tune.text.setting import Setting, engine_arguments, with_setting
from brim.units import US_PER_S

CHECK_FILE = "generation-simulation.json"
MEASUREMENTS_FILE = "generation-simulation.jsonl"
READERS = {"point": Checked.from_json, "static": Ways.from_json}
CONTEXT_TOKENS = 2048
FIRST_LOOK = 60
"""Calls from which the simulator says what an engine can stand."""
MOST_CALLS = 240
"""Of a point; all of them may wait."""
OPEN_LOAD = 0.7
"""Of what continuous batching stands: the rate of the open loop under both ways."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        point_s: about how long a point takes.
        points_between: points between two calibrations.
        static_calls: of the comparison with static batching when all wait, and half as many of the open loop.
        least_calls: of a point.
        budget_s: no point begins after it.
        processor_time: times are the processor time of an engine with one thread, for a machine that others use.
    """

    point_s: float = 20.0
    points_between: int = 2
    static_calls: int = 96
    least_calls: int = 60
    budget_s: float = 900.0
    processor_time: bool = False


DEFAULT_EFFORT = Effort()


def check_generation(
    project: Project,
    service: Service,
    cases: Sequence[Case],
    *,
    folder: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    command: str = "",
    on_progress: Progress = lambda _: None,
) -> GenerationCheck:
    """Calibrate, measure and predict the points, then both ways of batching. ``CHECK_FILE`` is in ``folder`` at the end.

    Args:
        project: where the exported model lies.
        service: a language model.
        cases: what to check (``brim.bench.generation_grid``), those of one variant together.
        folder: run folder; what it holds already is not measured again.
        seed: for calls, arrivals and prompts.
        effort: how long to look.
        command: that asked for it, for the file.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ModelFileError, ServerFailed: the engine did not start, or ended.
        CouldNotTell: a run on the engine took too long.
        InputError: the folder holds lines of something else.
    """
    watch = Watch()
    store = Store(folder, file=MEASUREMENTS_FILE, readers=READERS)
    run = _Run(project, service, store, effort, seed, time.monotonic() + effort.budget_s, on_progress, watch)
    for variant in dict.fromkeys(case.variant for case in cases):
        run.check(variant, [case for case in cases if case.variant == variant])
    ways = run.compare()
    points = [store.read("point", run.key(case.as_json())) for case in cases]
    found = GenerationCheck(
        [Checked.from_json(point) for point in points if point is not None],
        len(cases),
        ways,
        watch.stop(),
        {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "seed": seed, "effort": asdict(effort)},
        command,
        shared=not effort.processor_time,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CHECK_FILE).write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """What every part of a run needs; it ends at ``ends_s`` (monotonic)."""

    project: Project
    service: Service
    store: Store
    effort: Effort
    seed: int
    ends_s: float
    say: Progress
    watch: Watch

    def key(self, *parts: object) -> str:
        """Of a measurement: the same parts, seed and effort need no second one."""
        made_of = (parts, self.seed, replace(self.effort, budget_s=0.0, points_between=0))
        return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def check(self, variant: Variant, cases: Sequence[Case]) -> None:
        """Measure those points of a variant that are not on the disk, and predict them."""
        pending = [case for case in cases if self.store.read("point", self.key(case.as_json())) is None]
        if not pending or time.monotonic() > self.ends_s:
            return
        self.say(f"an engine with {variant}")
        with closing(self.engine(variant)) as engine:
            bench = _Bench(self, variant, engine)
            while pending and time.monotonic() < self.ends_s:
                now, pending = pending[: self.effort.points_between], pending[self.effort.points_between :]
                for point in bench.points(now):
                    self.store.append("point", point.key, point.as_json())
                    errors = ", ".join(f"{name} {error:.1%}" for name, error in point.errors.items())
                    self.say(f"{point.name}: off by {errors}")
            self.watch.note()

    def compare(self) -> list[Ways]:
        """Continuous against static batching: when all wait from the beginning, and at a rate."""
        keys = {name: self.key("static", name) for name in (SATURATED, "open loop")}
        stored = {name: self.store.read("static", key) for name, key in keys.items()}
        if any(found is None for found in stored.values()) and time.monotonic() < self.ends_s:
            self.say(f"continuous against static batching: an engine with {STATIC}")
            with closing(self.engine(STATIC)) as engine:
                bench = _Bench(self, STATIC, engine)
                for name, key in keys.items():
                    if stored[name] is None:
                        ways = bench.ways(name, key, open_loop=name != SATURATED)
                        self.store.append("static", key, ways.as_json())
                        self.say(f"{name}: {ways.ratios['measured']['tokens_per_s']:.2f} times the tokens a second")
                self.watch.note()
        return [Ways.from_json(found) for key in keys.values() if (found := self.store.read("static", key)) is not None]

    def engine(self, variant: Variant) -> EngineProcess:
        """One of the service's model."""
        setting = Setting(variant.chunk_tokens, variant.max_sequences, variant.kv_blocks)
        arguments = engine_arguments(self.project, with_setting(self.service, setting))
        arguments = replace(arguments, context_tokens=min(CONTEXT_TOKENS, arguments.context_tokens))
        return EngineProcess(replace(arguments, threads=1) if self.effort.processor_time else arguments)


class _Bench:
    """One engine, and the newest steps that were measured on it."""

    def __init__(self, run: _Run, variant: Variant, engine: EngineProcess) -> None:
        self._run, self._variant, self._engine = run, variant, engine
        self._policy = Policy(max_sequences=variant.max_sequences, max_waiting=MOST_CALLS, max_waiting_batch=MOST_CALLS)
        self._calibrations = 0
        self._steps: Timed = self._calibrated()

    def points(self, cases: Sequence[Case]) -> Iterator[Checked]:
        """Measure some points, then step times again; predict by those from before and after. Every point has prompts of
        its own, of which the engine has none in its cache.
        """
        model = fit(self._steps)
        driven = []
        for case in cases:
            rng = np.random.default_rng(int(self._run.key(case.as_json()), 16))
            calls, sent_us, rate = self._traffic(case, model, rng)
            self._run.say(f"measuring {len(calls)} calls: {case.name}")
            driven.append((case, calls, sent_us, rate, self._driven(case, calls, sent_us)))
        before, self._steps = self._steps, self._calibrated()
        model, jitter = fit(before + self._steps), jitter_of(fit(before + self._steps), before + self._steps)
        for case, calls, sent_us, rate, measured in driven:
            predicted = self._predicted(case, calls, sent_us, model, jitter)
            key = self._run.key(case.as_json())
            yield Checked(key, case.name, len(calls), rate, figures_of(predicted), figures_of(measured))

    def ways(self, name: str, key: str, *, open_loop: bool) -> Ways:
        """The same calls under both ways, on the engine and simulated; all wait from the beginning, or come at a rate."""
        rng = np.random.default_rng(int(key, 16))
        calls = _drawn(SCALED_CHATS, self._run.effort.static_calls // (2 if open_loop else 1), rng)
        sent_us = [0] * len(calls)
        if open_loop:
            sent_us = poisson_times_us(OPEN_LOAD * self._capacity_per_s(calls, fit(self._steps)), len(calls), rng)
        seats = self._variant.max_sequences
        self._run.say(f"{name}: {len(calls)} calls, continuous")
        continuous = drive(
            self._engine, self._policy, calls, sent_us=sent_us, seed=int(key, 16) + 1, clock=self._clock()
        )
        self._run.say(f"{name}: the same calls, static")
        static = drive_static(calls, sent_us, self._engine, seats, self._clock(), seed=int(key, 16) + 2)
        before, self._steps = self._steps, self._calibrated()
        model = fit(before + self._steps)
        limits = self._engine.limits
        return Ways(
            key,
            name,
            len(calls),
            {"continuous": Pace.of(continuous), "static": Pace.of(static)},
            {
                "continuous": Pace.of(simulate_open(calls, sent_us, model, limits, self._policy)),
                "static": Pace.of(simulate_static(calls, sent_us, model, limits, seats)),
            },
        )

    def _traffic(
        self, case: Case, model: StepTime, rng: np.random.Generator
    ) -> tuple[list[Call], list[int] | None, float | None]:
        """Calls that take about as long as a point may, and when they are sent: None for a closed loop."""
        effort = self._run.effort
        first = _drawn(case.mix, FIRST_LOOK, rng)
        if case.load is None:
            looked = closed_loop(first, case.callers, model, self._engine.limits, self._policy)
            per_s = len(first) * US_PER_S / looked.wall_us
        else:
            per_s = case.load * self._capacity_per_s(first, model)
        count = min(MOST_CALLS, max(effort.least_calls, round(effort.point_s * per_s)))
        calls = _drawn(case.mix, count, rng)
        return (calls, None, None) if case.load is None else (calls, poisson_times_us(per_s, count, rng), per_s)

    def _capacity_per_s(self, calls: Sequence[Call], model: StepTime) -> float:
        """Calls a second of the engine when all wait from the beginning, by the simulator."""
        found = simulate_open(calls, [0] * len(calls), model, self._engine.limits, self._policy)
        return len(calls) * US_PER_S / found.wall_us

    def _driven(self, case: Case, calls: Sequence[Call], sent_us: Sequence[int] | None) -> Simulated:
        callers = None if sent_us is not None else case.callers
        return drive(
            self._engine,
            self._policy,
            calls,
            sent_us=sent_us,
            callers=callers,
            seed=int(self._run.key(case.as_json(), "prompts"), 16),
            clock=self._clock(),
        )

    def _predicted(
        self, case: Case, calls: Sequence[Call], sent_us: Sequence[int] | None, model: StepTime, jitter: float
    ) -> Simulated:
        limits, seed = self._engine.limits, self._run.seed
        if sent_us is None:
            return closed_loop(calls, case.callers, model, limits, self._policy, jitter=jitter, seed=seed)
        return simulate_open(calls, sent_us, model, limits, self._policy, jitter=jitter, seed=seed)

    def _calibrated(self) -> Timed:
        self._calibrations += 1
        found = calibrate(
            self._engine,
            max_sequences=self._variant.max_sequences,
            most_passes=1,
            seed=self._run.seed + self._calibrations,
            clock=self._clock(),
        )
        return list(found.steps)

    def _clock(self) -> Clock:
        return ProcessorClock(self._engine.pid) if self._run.effort.processor_time else WallClock()


def _drawn(mix: Mix, count: int, rng: np.random.Generator) -> list[Call]:
    return draw_calls(count, mix.prompts, mix.texts, rng, context_tokens=CONTEXT_TOKENS)
