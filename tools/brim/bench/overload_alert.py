"""An alert that fires under overload and ends after it: the real server, gateway, exporter and Prometheus.

The rules are those of a service file, with shorter times: nobody waits an hour for a demonstration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.bench.alert_watch import AlertWatch, Change, State
from brim.bench.overload_case import BATCH, INTERACTIVE, MODEL, Case
from brim.bench.overload_load import PERCENTILE, Group, jobs_of
from brim.bench.overload_place import Place
from brim.errors import CouldNotTell, InputError
from brim.measure.accounting import Outcome
from brim.measure.known_time import INPUT, OUTPUT, WIDTH, KnownTime
from brim.measure.openloop_processes import run_jobs
from brim.monitor.prometheus import Prometheus, scrape_config, start
from brim.plan.burn import FAST, TIMING, Timing
from brim.plan.rules import rules_text
from brim.plan.series import EXPORTER_JOB, FLEET_JOB, GATEWAY_JOB
from brim.plan.service_rules import MODULES, service_rules
from brim.service.schema import Service
from brim.units import us_to_ms

ALERT = f"BrimSloBurning{FAST.name.capitalize()}"
"""The one that has to fire, and to end."""
SCRAPE_EVERY_S = 1.0
SCRAPED_TIMEOUT_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class OneModel(Case):
    """A case without the models that other questions need."""

    def models(self) -> dict[str, KnownTime]:
        """The one of the case's batch time."""
        return {MODEL: self.time}


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard, and how long at most.

    Attributes:
        factor: offered over capacity.
        calm_factor: the same before and after.
        divided_by: every time of the rules is so many times shorter.
        calm_s: load before the overload, under which nothing may fire.
        chunk_s: load between two looks at whether it has been enough.
        most_s: of the overload until the alert fires, and of the calm until it has ended.
    """

    factor: float = 3.0
    calm_factor: float = 0.4
    divided_by: float = 20.0
    calm_s: float = 10.0
    chunk_s: float = 5.0
    most_s: float = 75.0

    def __post_init__(self) -> None:
        """Refuse what cannot show anything.

        Raises:
            InputError: with every fault at once.
        """
        faults = []
        if not 1.5 <= self.factor <= 20:
            faults.append(f"factor {self.factor:g}: expected 1.5 to 20, or too few are refused to use a budget up")
        if not 0 < self.calm_factor <= 0.8:
            faults.append(f"calm_factor {self.calm_factor:g}: expected above 0 and at most 0.8, or it is no calm")
        for name, value in (("calm_s", self.calm_s), ("chunk_s", self.chunk_s), ("most_s", self.most_s)):
            if not 1 <= value <= 3_600:
                faults.append(f"{name} {value:g}: expected 1 to 3600")
        if faults:
            raise InputError("; ".join(faults), hint="`brim demo --help` shows what it takes")

    @property
    def timing(self) -> Timing:
        """Of the rules."""
        return TIMING.divided_by(self.divided_by)


@dataclass(frozen=True, slots=True)
class Shown:
    """What came of it.

    Attributes:
        case: what was served.
        effort: how.
        changes: of every alert, in turn.
        offered: requests, by what was done: calm, overload, calm again.
        figures: recorded series at the height of the overload.
    """

    case: Case
    effort: Effort
    changes: tuple[Change, ...]
    offered: dict[str, dict[str, int]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def states(self) -> list[State]:
        """What the alert has become, in turn."""
        return [change.state for change in self.changes if change.alert == ALERT]

    @property
    def ok(self) -> bool:
        """It was pending, then fired, and has ended."""
        return self.states[-3:] == [State.PENDING, State.FIRING, State.RESOLVED]

    def as_json(self) -> dict[str, Any]:
        """For the envelope."""
        return {
            "alert": ALERT,
            "changes": [change.as_json() for change in self.changes],
            "offered": self.offered,
            "figures": self.figures,
            "factor": self.effort.factor,
            "times_divided_by": self.effort.divided_by,
            "capacity_per_s": self.case.full_rate_per_s,
        }


def service_of(case: Case) -> Service:
    """The case as a service file would say it, as far as rules look at one."""
    return Service.model_validate(
        {
            "name": MODEL,
            "model": {"onnx": f"{MODEL}.onnx"},
            "inputs": [{"name": INPUT, "dtype": "FP32", "shape": [WIDTH]}],
            "outputs": [{"name": OUTPUT, "dtype": "FP32", "shape": [WIDTH]}],
            "max_batch_size": case.max_rows,
            "slo": {"latency_ms": us_to_ms(case.slo_us), "percentile": PERCENTILE},
            "callers": [
                {"name": name, "priority": priority, "share": 0.5}
                for priority, name in enumerate((INTERACTIVE, BATCH), start=1)
            ],
        }
    )


def overload_alert(
    case: Case,
    effort: Effort,
    *,
    cache: Path,
    folder: Path,
    log_file: Path,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
    on_change: Callable[[Change], None] = lambda _: None,
) -> Shown:
    """Calm, overload until the alert fires, calm until it has ended.

    Args:
        case: what is served.
        effort: how hard, and how long at most.
        cache: of the embedded server and of Prometheus' program.
        folder: for Prometheus.
        log_file: of the server; the gateway's lies beside it.
        seed: for arrivals.
        on_progress: told what is happening, a short sentence each.
        on_change: told of every change of an alert at once.

    Raises:
        MissingTool: there is no Prometheus.
        ServerFailed: something did not start.
        CouldNotTell: a page is not read, or a generator ended.
    """
    # These take a moment to load, which commands that only know this one's options have not to wait for.
    from brim.exporter.serve import ExporterBeside
    from brim.exporter.sources import Sources

    folder.mkdir(parents=True, exist_ok=True)
    rules = folder / "service.yml"
    rules.write_text(rules_text(service_rules([service_of(case)], effort.timing), MODULES), encoding="utf-8")
    offered: dict[str, dict[str, int]] = {}
    with Place(case, cache=cache, log_file=log_file, on_progress=on_progress) as place:
        sources = Sources(place.server.endpoint.http, gateway_admin=place.gateway.admin)
        metrics = place.server.endpoint.metrics
        assert metrics is not None
        with ExporterBeside(sources, on_change=on_progress) as exporter:
            pages = {FLEET_JOB: metrics, GATEWAY_JOB: place.gateway.metrics, EXPORTER_JOB: exporter.address}
            config = scrape_config(pages, every_s=SCRAPE_EVERY_S, rules=(rules,))
            with start(config, folder / "prometheus", cache=cache, on_progress=on_progress) as prometheus:
                wait_scraped(prometheus, len(pages))
                with AlertWatch(prometheus, on_change) as watch:
                    load = _Load(place, effort, watch, seed)
                    on_progress(f"calm: {effort.calm_factor:g} of the capacity of {case.full_rate_per_s:.0f}/s")
                    offered["calm"] = load.drive(effort.calm_factor, lambda: True, effort.calm_s)
                    on_progress(f"overload: {effort.factor:g} times the capacity, until {ALERT} fires")
                    offered["overload"] = load.drive(
                        effort.factor, lambda: State.FIRING in watch.states(ALERT), effort.chunk_s
                    )
                    figures = figures_of(prometheus)
                    on_progress("calm again, until it has ended")
                    offered["calm again"] = load.drive(
                        effort.calm_factor, lambda: watch.states(ALERT)[-1:] != [State.FIRING], effort.chunk_s
                    )
    return Shown(case, effort, tuple(watch.changes), offered, figures)


def wait_scraped(prometheus: Prometheus, pages: int) -> None:
    """Wait until so many pages have been read; Prometheus takes some seconds before it begins.

    Raises:
        CouldNotTell: one is not, with Prometheus' reason.
    """
    deadline_s = time.monotonic() + SCRAPED_TIMEOUT_S
    while True:
        targets = prometheus.targets()
        missing = [one for one in targets if one.health != "up"]
        if len(targets) >= pages and not missing:
            return
        if time.monotonic() > deadline_s:
            reasons = [f"{one.job} {one.instance}: {one.error or one.health}" for one in missing]
            raise CouldNotTell(
                "; ".join(reasons) or f"Prometheus knows {len(targets)} of {pages} pages",
                hint="Prometheus has to read every page once",
            )
        time.sleep(POLL_S)


def figures_of(prometheus: Prometheus) -> dict[str, float]:
    """Everything that the rules have recorded, but for the limits: series with its labels -> value."""
    samples = prometheus.query('{__name__=~"brim_service:.*", __name__!~".*:limit"}')
    return {
        one.labels["__name__"]
        + "".join(
            f" {name}={value}" for name, value in sorted(one.labels.items()) if name not in ("__name__", "model")
        ): (one.value)
        for one in sorted(samples, key=lambda one: sorted(one.labels.items()))
    }


class _Load:
    """One load after another, in chunks."""

    def __init__(self, place: Place, effort: Effort, watch: AlertWatch, seed: int) -> None:
        self.place, self.effort, self.watch, self.seed = place, effort, watch, seed

    def drive(self, factor: float, enough: Callable[[], bool], chunk_s: float) -> dict[str, int]:
        """Send until it is enough, one chunk at least, and ``most_s`` at most. Outcome -> requests."""
        counts: dict[str, int] = {}
        until_s = time.monotonic() + self.effort.most_s
        group = Group(INTERACTIVE, factor * self.place.case.full_rate_per_s)
        while True:
            self.seed += 1
            for result in run_jobs(jobs_of(self.place, [group], seconds=chunk_s, seed=self.seed)):
                for outcome in Outcome:
                    counts[outcome.value] = counts.get(outcome.value, 0) + result.whole.counts[outcome]
            if enough() or self.watch.failed() or time.monotonic() > until_s:
                return counts
