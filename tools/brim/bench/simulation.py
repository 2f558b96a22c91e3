"""The simulator held against the real server over a grid of batch times, settings and loads.

The model of known batch time is served; a designed run a batch time tells the simulator what it must know, once and before
any point. Then every point is a Poisson open loop whose latencies count from the schedule, and the simulator replays the
very arrivals that are sent. Each point is on the disk before the next one begins; the same folder goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from brim.batcher.arrivals import OpenLoop
from brim.batcher.machine import Machine
from brim.batcher.result import nearest_rank
from brim.batcher.simulate import simulate
from brim.bench.conditions import Watch
from brim.bench.simulation_calibration import Calibration, answered, calibrate
from brim.bench.simulation_check import Checked, Figures, SimulationCheck, worst
from brim.bench.simulation_grid import (
    DEFAULT_EFFORT,
    PLAIN,
    Case,
    Curve,
    Effort,
    Setting,
    by_curve,
    capacity_per_s,
)
from brim.bench.simulation_store import Store
from brim.errors import CouldNotTell
from brim.measure.accounting import LATE_US
from brim.measure.arrivals import offsets, steady
from brim.measure.callers import Row
from brim.measure.known_time import INPUT, WIDTH, write_known_time
from brim.measure.plan import Distribution
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

CHECK_FILE = "simulation-check.json"
LATE_SHARE = 40
"""A request may leave late by this part of the predicted median latency (a quarter of the error that may be)."""
ROWS: list[Row] = [{INPUT: np.full((1, WIDTH), value, np.float32)} for value in range(10)]
Progress = Callable[[str], None]


def check_simulation(
    cases: Sequence[Case],
    *,
    cache: Path,
    log_file: Path,
    folder: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    command: str = "",
    on_progress: Progress = lambda _: None,
) -> SimulationCheck:
    """Calibrate, predict and measure the grid. ``simulation-check.json`` is in ``folder`` at the end.

    Args:
        cases: what to check (``brim.bench.simulation_grid.grid``).
        cache: of the embedded server.
        log_file: of the server.
        folder: run folder; what it holds already is not measured again.
        seed: for arrivals and the order of the designed runs.
        effort: how long to look.
        command: that asked for it, for the file.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: the server did not start, or ended.
        CouldNotTell: a batch time could not be measured, or requests were not answered.
        InputError: the folder holds lines of something else.
    """
    watch = Watch()
    store = Store(folder)
    run = _Run(cache, log_file, store, effort, seed, time.monotonic(), on_progress)
    measured_before = set(store.known)
    checked: list[Checked] = []
    calibrations: dict[str, dict[str, Any]] = {}
    for curve, of_curve in by_curve(cases):
        with _Bench(run, curve, {PLAIN, *(case.setting for case in of_curve)}) as bench:
            calibration = bench.calibration()
            calibrations[curve.name] = calibration.as_json()
            checked += bench.check(of_curve, calibration, share=(len(checked) + len(of_curve)) / len(cases))
            on_progress(f"{len(checked)} of {len(cases)} points")
            watch.note()
    checked = _repeat_worst(run, checked, cases, watch)
    found = SimulationCheck(
        tuple(checked),
        calibrations,
        watch.stop(),
        {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": seed,
            "effort": asdict(effort),
            "scheduling": _scheduling(),
            "points_of_earlier_runs": sum(("point", point.key) in measured_before for point in checked),
        },
        command,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CHECK_FILE).write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """What every part of a run needs; it began at ``begun_s`` (monotonic)."""

    cache: Path
    log_file: Path
    store: Store
    effort: Effort
    seed: int
    begun_s: float
    say: Progress

    def duration_us(self, point: Checked) -> int:
        return self.effort.duration_us(point.load)

    def has_time_for(self, point: Checked, share: float = 1.0) -> bool:
        """Whether a further measurement of the point ends within this share of the time for the whole run."""
        ends_s = time.monotonic() + self.duration_us(point) / US_PER_S
        return ends_s <= self.begun_s + share * self.effort.budget_s


def _repeat_worst(run: _Run, checked: list[Checked], cases: Sequence[Case], watch: Watch) -> list[Checked]:
    """Measure the points with the largest errors once more. The first measurement stays the one that counts."""
    chosen = {point.key for point in worst(checked, run.effort.again) if point.again is None}
    numbers = {case: number for number, case in enumerate(cases) if checked[number].key in chosen}
    found = list(checked)
    for curve, of_curve in by_curve(list(numbers)):
        with _Bench(run, curve, {case.setting for case in of_curve}) as bench:
            for case in of_curve:
                point = checked[numbers[case]]
                if not run.has_time_for(point):
                    break
                run.say(f"once more: {curve.name}; {case.setting}; {point.load:.0f}/s")
                again, limits = bench.measure(case.setting, point)
                if not limits:
                    found[numbers[case]] = replace(point, again=again)
                    run.store.append("point", point.key, found[numbers[case]].as_json())
            watch.note()
    return found


class _Bench:
    """A real server of one batch time with a model for every setting."""

    def __init__(self, run: _Run, curve: Curve, settings: set[Setting]) -> None:
        self.run, self.curve, self.settings = run, curve, settings

    def __enter__(self) -> _Bench:
        self.stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server's, which starts when it is first asked for: a folder that holds every point needs none."""
        place = self.stack.enter_context(TemporaryDirectory(prefix="brim-simulation-"))
        repository = Path(place) / "repository"
        for setting in self.settings:
            write_known_time(repository, setting.model_name, self.curve.model(setting))
        names = sorted(setting.model_name for setting in self.settings)
        server = EmbeddedServer(repository, names, cache=self.run.cache, log_file=self.run.log_file)
        return self.stack.enter_context(server).endpoint

    def calibration(self) -> Calibration:
        """From the store, or measured now."""
        effort, seed = self.run.effort, self.run.seed
        design = (effort.repeats, effort.executions, effort.lone_requests, seed)
        key = f"{self.curve.name}/{_digest(asdict(self.curve.time), design)}"
        document = self.run.store.read("calibration", key)
        if document is not None:
            return Calibration.from_json(document)
        self.run.say(f"designed run: {self.curve.name}")
        found = calibrate(self.endpoint, PLAIN.model_name, ROWS, effort, seed=seed, on_progress=self.run.say)
        self.run.store.append("calibration", key, found.as_json())
        return found

    def check(self, cases: Sequence[Case], calibration: Calibration, *, share: float) -> list[Checked]:
        """Predict all points, and measure those that the store does not have, or has with a generator at its limit.

        Where the generator was the limit, the point is measured again after all others: what held it up may have passed.
        That ends with ``share`` of the time for the whole run, so that what comes later has its own.
        """
        points = {case: self.predicted(case, calibration) for case in cases}
        pending = []
        for case, point in points.items():
            document = self.run.store.read("point", point.key)
            if document is not None:
                points[case] = Checked.from_json(document)
            if document is None or points[case].limits:
                pending.append(case)
        for attempt in range(self.run.effort.tries):
            bound = []
            for case in pending:
                point = points[case]
                if attempt and not self.run.has_time_for(point, share):
                    continue
                measured, limits = self.measure(case.setting, point)
                points[case] = point = replace(point, measured=measured, limits=tuple(limits))
                self.run.store.append("point", point.key, point.as_json())
                if limits:
                    bound.append(case)
                self.run.say(_words(point))
            pending = bound
        return [points[case] for case in cases]

    def predicted(self, case: Case, calibration: Calibration) -> Checked:
        """A point that is not measured yet: the prediction stands for the measurement."""
        machine, seed = calibration.machine, self.run.seed
        rate = round(case.load * capacity_per_s(case.setting, machine), 1)
        duration_us = self.run.effort.duration_us(rate)
        # Every point has arrivals of its own: one unlucky stretch of them is not in all points.
        arrivals_seed = int(_digest(self.curve.name, case.setting.model_name, case.load, seed), 16)
        made_of = (asdict(self.curve.time), asdict(case.setting), calibration.as_json(), rate, duration_us)
        arrivals = _arrivals(rate, duration_us, arrivals_seed)
        predicted = predict(case.setting, machine, arrivals, seed)
        return Checked(
            key=f"{self.curve.name}/{case.setting.model_name}/{case.load:g}/{_digest(*made_of, arrivals_seed)}",
            curve=self.curve.name,
            setting=str(case.setting),
            load=rate,
            load_ratio=case.load,
            predicted=predicted,
            measured=predicted,
            requests=len(arrivals),
            arrivals_seed=arrivals_seed,
        )

    def measure(self, setting: Setting, point: Checked) -> tuple[Figures, list[str]]:
        """One open loop, and in what ways the generator was its limit.

        Raises:
            CouldNotTell: not every request was answered, or somebody else uses the model.
        """
        duration_us = self.run.duration_us(point)
        arrivals = _arrivals(point.load, duration_us, point.arrivals_seed)
        late_us = max(LATE_US, round(point.predicted.p50_us / LATE_SHARE))
        result, stats = answered(self.endpoint, setting.model_name, ROWS, arrivals, duration_us, late_us=late_us)
        p50_us, p99_us = (result.whole.since_due.percentile_us(percent) for percent in (50, 99))
        assert p50_us is not None and p99_us is not None and stats.mean_batch is not None
        return Figures(p50_us, p99_us, stats.mean_batch), result.limits


def _words(point: Checked) -> str:
    where = f"{point.curve}; {point.setting}; {point.load:g}/s"
    if point.limits:
        return f"{where}: the generator was the limit: {'; '.join(point.limits)}"
    return f"{where}: off by " + ", ".join(f"{name} {error:.1%}" for name, error in point.errors.items())


def predict(setting: Setting, machine: Machine, arrivals: Sequence[int], seed: int = 0) -> Figures:
    """What the simulator makes of these arrivals (microseconds, one row each, never decreasing)."""
    found = simulate(setting.settings, machine, OpenLoop(arrivals), seed=seed)
    latency_us = np.sort(found.latency_us)
    p50_us, p99_us = (nearest_rank(latency_us, percent) for percent in (50, 99))
    assert p50_us is not None and p99_us is not None and found.mean_batch is not None
    return Figures(p50_us, p99_us, found.mean_batch)


def _arrivals(rate_per_s: float, duration_us: int, seed: int) -> list[int]:
    arrivals = list(offsets(steady(rate_per_s, duration_us), Distribution.POISSON, seed=seed))
    if not arrivals:
        raise CouldNotTell("no request was due in this run", hint="use a longer run")
    return arrivals


def _scheduling() -> str:
    """How the kernel treats this process, and so the server and its stubs, which inherit it."""
    real_time = {os.SCHED_FIFO: "first in first out", os.SCHED_RR: "round robin"}.get(os.sched_getscheduler(0))
    if real_time is not None:
        return f"real-time ({real_time}), priority {os.sched_getparam(0).sched_priority}"
    return f"normal, nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]
