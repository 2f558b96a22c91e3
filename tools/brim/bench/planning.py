"""The planner held against real replicas: one, two and three of a model of known batch time, behind the gateway.

The planner gets the very arrivals that are sent, to five milliseconds, and one measured figure: what a lone request takes beside
its batch, at a twentieth of what one replica can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.batcher.settings import Settings
from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.fleet_place import MODEL, ROWS, Case, Place
from brim.bench.verdict import Target
from brim.errors import CouldNotTell
from brim.gateway.envoy import Gateway
from brim.measure.accounting import Objective
from brim.measure.arrivals import offsets, steady
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_processes import Job, run_jobs
from brim.measure.openloop_run import messages
from brim.measure.plan import Distribution, Protocol
from brim.plan.events import EventFleet
from brim.units import US_PER_S

NAME = "plan"
TOLERANCE = 0.15
EPOCH_US = 5_000
ROUTING = "least_request"
"""What the fleet's gateway does."""
PERCENTILE = 99.0
LONE_LOAD = 0.05
PATIENCE_S = 10.0
"""Of the simulation after the last arrival."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        replicas: sizes of the fleet.
        loads: offered, over what all replicas can do in full batches.
        rounds: of every load.
        seconds: of an open loop.
        objective_batches: what an answer may take, in full batches.
    """

    replicas: tuple[int, ...] = (1, 2, 3)
    loads: tuple[float, ...] = (0.5, 0.8)
    rounds: int = 5
    seconds: float = 8.0
    objective_batches: float = 2.0


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one open loop.

    Attributes:
        p50_us: of the latency, from the schedule.
        goodput_per_s: answers within the objective, over the schedule.
    """

    p50_us: float
    goodput_per_s: float


def planning(
    case: Case = Case(),  # noqa: B008 - frozen
    effort: Effort = DEFAULT_EFFORT,
    *,
    cache: Path,
    folder: Path,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measure every fleet, and predict it.

    Args:
        case: what is served; its replicas and its load are those of ``effort``.
        effort: how long to look.
        cache: of the embedded servers.
        folder: run folder, which gets the servers' logs.
        seed: for arrivals.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: a server or a gateway did not start, or ended.
        CouldNotTell: nothing was answered.
    """
    watch = Watch()
    objective_us = round(effort.objective_batches * case.time.time_us(case.time.max_batch))
    figures: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    limits: list[str] = []
    for count in effort.replicas:
        with Place(replace(case, replicas=count), cache, folder / str(count), say=on_progress) as place:
            lone = _rate(case, 1, LONE_LOAD)
            due, result = _measure(place.gateway, lone, effort.seconds, objective_us, seed)
            alone = predicted(case, count, due, objective_us, 0)
            overhead_us = max(0, round(_seen(result).p50_us - alone.p50_us))
            figures.setdefault(f"overhead_{count}_us", []).append(float(overhead_us))
            for number in range(effort.rounds):
                worst = {"p50": 0.0, "goodput": 0.0}
                for place_of_load, load in enumerate(effort.loads):
                    drawn = seed + 1 + number * len(effort.loads) + place_of_load
                    due, result = _measure(place.gateway, _rate(case, count, load), effort.seconds, objective_us, drawn)
                    limits += result.limits
                    measured, planned = _seen(result), predicted(case, count, due, objective_us, overhead_us)
                    for name, ours, theirs in (
                        ("p50", planned.p50_us, measured.p50_us),
                        ("goodput", planned.goodput_per_s, measured.goodput_per_s),
                    ):
                        what = f"{name}_{count}_at_{load:g}"
                        figures.setdefault(f"{what}_planned", []).append(ours)
                        figures.setdefault(f"{what}_measured", []).append(theirs)
                        off = abs(ours / theirs - 1) if theirs else math.inf
                        worst[name] = max(worst[name], off)
                for name, off in worst.items():
                    errors.setdefault(f"{name} of {count}: planned / measured - 1, the worse load", []).append(off)
                on_progress(f"{count} replicas, round {number + 1} of {effort.rounds}: {_words(worst)}")
                watch.note()
    conditions = watch.stop()
    return Comparison(
        NAME,
        tuple(judged(Target(name, most=TOLERANCE), values, conditions) for name, values in errors.items()),
        figures,
        conditions,
        {
            "generator_limits": limits,
            "case": asdict(case),
            "objective_us": objective_us,
            "seed": seed,
            "effort": asdict(effort),
            "mean_error": fmean(value for values in errors.values() for value in values),
        },
    )


def predicted(case: Case, replicas: int, due_us: Sequence[int], objective_us: int, overhead_us: int) -> Seen:
    """What the planner says of these arrivals.

    Args:
        case: what is served.
        replicas: that share it.
        due_us: arrivals, ascending.
        objective_us: what an answer may take.
        overhead_us: what a request takes beside queue and batch.
    """
    time = case.time
    machine = Machine(AffineBatchTime(time.tau0_us, time.alpha_us), prepare_us=time.prepare_us, overhead_us=overhead_us)
    settings = Settings(
        time.max_batch, preferred=tuple(time.preferred), delay_us=time.delay_us, instances=time.instances
    )
    fleet = EventFleet(settings, [machine], replicas, math.inf, EPOCH_US / US_PER_S, ROUTING, objective_us)
    ready = np.ones(replicas, bool)
    in_slo = 0.0
    for arrivals in np.bincount(np.asarray(due_us, np.int64) // EPOCH_US).tolist():
        in_slo += fleet.step(arrivals, ready).in_slo
    for _ in range(round(PATIENCE_S * US_PER_S / EPOCH_US)):
        if not fleet.in_flight.any():
            break
        in_slo += fleet.step(0, ready).in_slo
    p50_us = fleet.latency_us(0.5)
    if p50_us is None:
        raise CouldNotTell("nothing came to plan for", hint="more seconds")
    return Seen(p50_us, in_slo * US_PER_S / max(1, due_us[-1]))


def _rate(case: Case, replicas: int, load: float) -> float:
    return replace(case, replicas=replicas, load=load).rate_per_s


def _measure(
    gateway: Gateway, rate_per_s: float, seconds: float, objective_us: int, seed: int
) -> tuple[list[int], OpenLoopResult]:
    duration_us = round(seconds * US_PER_S)
    due = list(offsets(steady(rate_per_s, duration_us), Distribution.POISSON, seed=seed))
    plan = OpenLoopPlan(duration_us, objective=Objective(PERCENTILE, objective_us))
    sent = messages(gateway.endpoint, Protocol.HTTP, MODEL, ROWS)
    (result,) = run_jobs([Job(gateway.endpoint, Protocol.HTTP, sent, due, plan)])
    return due, result


def _seen(result: OpenLoopResult) -> Seen:
    p50_us = result.whole.since_due.percentile_us(50.0)
    if p50_us is None:
        raise CouldNotTell(f"nothing was answered: {result.whole.messages}", hint="see the servers' logs")
    return Seen(p50_us, result.whole.in_slo * US_PER_S / result.plan.duration_us)


def _words(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} off by {value:.1%}" for name, value in errors.items())
