"""An invented run of the open-loop driver: a result of whatever outcomes a test wants, and the point made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from brim.measure.accounting import Account, Objective, Outcome, Reply
from brim.measure.batch_stats import BatchStats
from brim.measure.measure import Target
from brim.measure.open_measure import OpenPlan, make_open_point
from brim.measure.open_point import OpenPoint, Provenance
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_limits import Evidence
from brim.measure.schedule import Arrivals, Schedule, schedules
from brim.server.endpoint import Endpoint

S = 1_000_000
SLO = Objective(percentile=99, latency_us=50_000)
TARGET = Target(Endpoint("127.0.0.1:1", "127.0.0.1:2"), "m", 1, "triton 2.51.0", "aaaaaaaaaaaa")
STATS = BatchStats(
    executions_by_size={1: 10, 4: 20},
    inferences=90,
    executions=30,
    mean_batch=3.0,
    fill=0.03,
    wall_us=S,
    instances=1,
    duty=0.4,
    queue_us=100,
    compute_us={},
    execution_us_by_size={1: 500, 4: 800},
    succeeded=90,
    failed=0,
    failures=None,
)
Became = Callable[[int], tuple[Outcome, int]]
"""What becomes of the arrival of that number, and after how long."""


def fine(number: int) -> tuple[Outcome, int]:
    """Everything is answered, after 1 to 10 ms."""
    return Outcome.ANSWERED, 1_000 * (1 + number % 10)


def result_of(schedule: Schedule, plan: OpenLoopPlan, became: Became = fine, *, late_us: int = 0) -> OpenLoopResult:
    """What the driver would hand back."""
    accounts = [Account(plan.objective, late_us=plan.late_after_us) for _ in range(plan.segments)]
    for number, due_us in enumerate(schedule.due_us):
        outcome, after_us = became(number)
        account = accounts[plan.segment_of(due_us)]
        if outcome is Outcome.NOT_SENT:
            account.add_unsent()
            continue
        text = "" if outcome in (Outcome.ANSWERED, Outcome.CANCELLED) else f"told: {outcome.value}"
        account.add(due_us, due_us + late_us, due_us + max(after_us, late_us), Reply(outcome, text))
    return OpenLoopResult(plan, tuple(accounts), Evidence(0.2, 100, 7, wall_us=schedule.duration_us))


def open_point(
    rates: Sequence[float] = (100.0,),
    became: Became = fine,
    *,
    arrivals: Arrivals = Arrivals.CONSTANT,
    late_us: int = 0,
    objective: Objective | None = SLO,
) -> OpenPoint:
    """A point of a run of one second a rate."""
    (schedule,) = schedules(arrivals, rates, S * len(rates), seed=0)
    plan = OpenPlan([schedule], objective)
    result = result_of(schedule, plan.of_run(schedule), became, late_us=late_us)
    provenance = Provenance(
        command=["brim", "measure", "m", "--open-loop"],
        server="triton 2.51.0",
        brim="0.1.0",
        usable_cores=2,
        load_average=0.5,
        started_at="2026-01-01T00:00:00+00:00",
        seed=0,
        give_up_us=None,
        timeout_us=30 * S,
        in_flight_limit=10_000,
        processes=1,
    )
    key = f"m/grpc/rate={schedule.rate_per_s:g}/{arrivals.value}/aaaaaaaaaaaa"
    return make_open_point(TARGET, plan, schedule, result, STATS, True, key, provenance)


def line(point: OpenPoint) -> dict[str, Any]:
    """The point as it stands in the file."""
    document: dict[str, Any] = json.loads(json.dumps(point.as_json()))
    return document
