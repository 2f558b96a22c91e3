"""``brim tune`` held against an exhaustive sweep, on the real server and the model of known batch time.

The tuner runs first and knows nothing of the sweep. Then every setting of the sweep is measured by the tuner's own climb,
with the same rates and arrivals. The best of many such figures owes some of its place to luck, so the choice and the best
few are measured again in turns, several rounds, with rates that lie closer together. Everything is on the disk before the
next measurement begins; the same folder goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from brim.bench.conditions import Watch
from brim.bench.tuning_case import MODEL, ROWS, Case, Effort, parameters
from brim.bench.tuning_check import Round, Tuned, TuningCheck, finalists
from brim.bench.tuning_climb import Climbed, climbed_as_tuned, climbed_finely, key_of
from brim.bench.tuning_server import OneServer
from brim.bench.tuning_store import Store
from brim.errors import CouldNotTell
from brim.server.endpoint import Endpoint
from brim.tune.baseline import measure_baseline
from brim.tune.predict import Served
from brim.tune.refit import served_of, with_service_times
from brim.tune.setting import Setting
from brim.tune.tuning import tune
from brim.tune.verify import Arrivals, Bench, Send
from brim.units import US_PER_S

ANSWER_FILE = "bench.json"
TUNED, SWEPT, AGAIN = "tuning", "setting", "round"
FIRST_GUESS_US = 8 * US_PER_S
"""A climb with the loading of its setting, before any was timed (measured on two cores)."""
TUNING_GUESS_US = 180 * US_PER_S
FIRST_ROUND = 100
"""Arrivals are drawn by the number of a repeat. The tuner's begin at 0, and it makes some more than it is asked for."""
Progress = Callable[[str], None]


class Place(Protocol):
    """Where settings are measured: the real server, or something in its place."""

    def bench(self) -> Bench:
        """The tuner's bench."""

    def served(self, on_progress: Progress) -> Served:
        """What the designed run tells the simulator."""


class RealPlace:
    """The real server."""

    def __init__(self, server: OneServer, case: Case, effort: Effort, seed: int) -> None:
        """Nothing is started yet."""
        self._server, self._case, self._effort, self._seed = server, case, effort, seed

    def bench(self) -> Bench:
        """The tuner's bench."""
        return self._server.bench()

    def served(self, on_progress: Progress) -> Served:
        """As ``brim tune`` has it: the designed run, then single rows in service."""
        endpoint: Endpoint = self._server.endpoint
        found = measure_baseline(
            endpoint,
            MODEL,
            ROWS,
            max_rows=self._case.truth.max_batch,
            seed=self._seed,
            budget_us=self._effort.tau_budget_us,
            on_progress=on_progress,
        )
        served = served_of(found.batch_time, self._case.truth.max_batch)
        if found.in_service is None:
            return served
        times = {size: float(time_us) for size, time_us in found.in_service.execution_us_by_size.items()}
        return with_service_times(served, times, found.in_service.executions_by_size)


def check_tuning(
    case: Case,
    effort: Effort,
    *,
    cache: Path,
    log_file: Path,
    folder: Path,
    seed: int = 0,
    command: str = "",
    on_progress: Progress = lambda _: None,
) -> TuningCheck:
    """Tune, sweep, and compare on the real server. ``bench.json`` is in ``folder`` at the end.

    Args:
        case: what to tune, and what to sweep.
        effort: how long to look.
        cache: of the embedded server.
        log_file: of the server.
        folder: run folder; what it holds already is not measured again.
        seed: for arrivals and the designed run.
        command: that asked for it, for the file.
        on_progress: told what is happening, a short sentence each.

    Raises:
        InputError: the folder holds something else, or was made with other parameters.
        ServerFailed: the server did not start, or ended, or did not load a setting.
        CouldNotTell: a batch time could not be measured.
    """
    store = Store(folder, parameters(case, effort, seed))
    with OneServer(case, cache=cache, log_file=log_file) as server:
        place = RealPlace(server, case, effort, seed)
        found = run_check(case, effort, place, store, seed=seed, command=command, on_progress=on_progress)
    (folder / ANSWER_FILE).write_text(json.dumps(found.comparison.as_json()) + "\n", encoding="utf-8")
    return found


def run_check(
    case: Case,
    effort: Effort,
    place: Place,
    store: Store,
    *,
    seed: int,
    command: str = "",
    on_progress: Progress = lambda _: None,
) -> TuningCheck:
    """The same wherever settings can be measured."""
    watch = Watch()
    work = _Work(case, effort, place, store, seed, on_progress)
    tuned = work.tuned()
    watch.note()
    sweep = work.sweep(tuned)
    choice = sweep[tuned.choice]
    swept = tuple(sweep[setting] for setting in case.settings)
    if not any(one.goodput_per_s for one in swept):
        raise CouldNotTell("no setting of the sweep answered any rate in time", hint="measure on a quiet machine")
    rounds = work.rounds(tuned, sweep, finalists(swept, tuned.choice, effort.finalists))
    details: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "parameters": parameters(case, effort, seed),
        "lines_of_earlier_runs": store.resumed,
        "took_us": work.took_us(),
    }
    return TuningCheck(tuned, swept, choice, tuple(rounds), watch.stop(), details)


class _Work:
    """One run of the benchmark."""

    def __init__(
        self, case: Case, effort: Effort, place: Place, store: Store, seed: int, on_progress: Progress
    ) -> None:
        self.case, self.effort, self.place, self.store, self.seed = case, effort, place, store, seed
        self.say, self.begun_s = on_progress, time.monotonic()
        self.bench: Bench | None = None
        self.of_tuner = effort.tuning(case.slo_us)
        self.arrivals = Arrivals(case.demand, self.of_tuner, seed)

    def took_us(self) -> int:
        """Since the beginning of this run."""
        return round((time.monotonic() - self.begun_s) * US_PER_S)

    def open(self, setting: Setting) -> AbstractContextManager[Send]:
        """A setting on the bench, which is asked for when something has to be measured."""
        if self.bench is None:
            self.bench = self.place.bench()
        return self.bench.open(setting)

    def tuned(self) -> Tuned:
        """The tuner's run: from the store, or now."""
        document = self.store.read(TUNED)
        if document is not None:
            return Tuned.from_json(document)
        begun_s = time.monotonic()
        self.say(f"tuning, blind of what follows; in all {_minutes(self.left_us([], TUNING_GUESS_US))}")
        served = self.place.served(self.say)
        if self.bench is None:
            self.bench = self.place.bench()
        tuning = tune(
            self.case.service,
            self.case.base,
            served,
            self.bench,
            self.of_tuner,
            seed=self.seed,
            out_of_time=lambda: time.monotonic() - begun_s > self.effort.tune_budget_s,
            on_run=lambda run: self.say(f"  {run.rate_per_s:.0f}/s: {run.in_slo_ratio:.1%} in time"),
            on_progress=self.say,
        )
        took_us = round((time.monotonic() - begun_s) * US_PER_S)
        found = Tuned.of(tuning, took_us)
        self.store.append(TUNED, "", found.as_json())
        self.say(f"the tuner chose after {took_us / US_PER_S:.0f} s and {len(found.measured)} settings: {found.choice}")
        return found

    def sweep(self, tuned: Tuned) -> dict[Setting, Climbed]:
        """Every setting of the sweep, and the choice, once."""
        settings = list(dict.fromkeys([*self.case.settings, tuned.choice]))
        found: dict[Setting, Climbed] = {}
        for number, setting in enumerate(settings, start=1):
            document = self.store.read(SWEPT, key_of(setting))
            if document is None:
                with _Timer() as timer, self.open(setting) as send:
                    measured = climbed_as_tuned(
                        setting,
                        send,
                        self.arrivals,
                        self.case.climb_only,
                        self.of_tuner,
                        start_per_s=self.case.expected_per_s(setting, self.effort.ceiling_per_s),
                    )
                found[setting] = replace(measured, took_us=timer.took_us)
                self.store.append(SWEPT, key_of(setting), found[setting].as_json())
                left_us = self.left_us(list(found.values()), 0, settings=len(settings) - number)
                self.say(
                    f"{number} of {len(settings)}: {setting}: {found[setting].goodput_per_s:.0f}/s; {_minutes(left_us)}"
                )
            else:
                found[setting] = Climbed.from_json(document)
        return found

    def rounds(self, tuned: Tuned, sweep: dict[Setting, Climbed], others: list[Setting]) -> list[Round]:
        """The choice and the finalists in turns, in an order that turns every round; arrivals are new in each."""
        effort = self.effort.final()
        arrivals = Arrivals(self.case.demand, effort, self.seed)
        settings = [tuned.choice, *others]
        share, ceiling_per_s = self.case.demand.share, self.effort.ceiling_per_s
        begins_per_s = {
            one: sweep[one].level_per_s / share or self.case.expected_per_s(one, ceiling_per_s) for one in settings
        }
        found: list[Round] = []
        for number in range(self.effort.rounds):
            climbed: dict[Setting, Climbed] = {}
            measured_now = False
            for setting in settings if number % 2 == 0 else settings[::-1]:
                key = f"{number}/{key_of(setting)}"
                document = self.store.read(AGAIN, key)
                if document is None:
                    with _Timer() as timer, self.open(setting) as send:
                        measured = climbed_finely(
                            setting,
                            send,
                            arrivals,
                            self.case.demand,
                            effort,
                            repeat=FIRST_ROUND + number,
                            start_per_s=begins_per_s[setting],
                        )
                    climbed[setting] = replace(measured, took_us=timer.took_us)
                    measured_now = True
                    self.store.append(AGAIN, key, climbed[setting].as_json())
                    self.say(f"round {number + 1} of {self.effort.rounds}: {setting}: {measured.level_per_s:.0f}/s")
                else:
                    climbed[setting] = Climbed.from_json(document)
                begins_per_s[setting] = climbed[setting].level_per_s / share or begins_per_s[setting]
            found.append(Round(tuple(climbed[setting] for setting in settings)))
            every = [one for turn in found for one in turn.climbed]
            left = (self.effort.rounds - number - 1) * len(settings)
            if measured_now:
                self.say(f"{number + 1} of {self.effort.rounds} rounds; {_minutes(left * mean_us(every))}")
        return found

    def left_us(self, measured: list[Climbed], tuning_us: int, *, settings: int | None = None) -> int:
        """Time for what is left of the sweep, and for the rounds after it."""
        climbs = len(self.case.settings) if settings is None else settings
        return tuning_us + (climbs + self.effort.rounds * (1 + self.effort.finalists)) * mean_us(measured)


def mean_us(measured: list[Climbed]) -> int:
    """Mean time of a measurement; ``FIRST_GUESS_US`` before there is any."""
    return round(sum(one.took_us for one in measured) / len(measured)) if measured else FIRST_GUESS_US


def _minutes(time_us: int) -> str:
    return f"about {time_us / US_PER_S / 60:.1f} min left"


class _Timer:
    """How long a block took."""

    took_us = 0

    def __enter__(self) -> _Timer:
        self._begun_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_us = round((time.monotonic() - self._begun_s) * US_PER_S)
