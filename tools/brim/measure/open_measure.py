"""Measuring with the open-loop driver: one run a schedule, with Triton's own statistics around every run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import brim
from brim.errors import InputError, ServerFailed
from brim.measure import batch_stats
from brim.measure.accounting import PERCENTILES, Objective, Outcome, goodput_per_s, judge_slo, merged
from brim.measure.batch_stats import BatchStats
from brim.measure.callers import Row
from brim.measure.histogram import Latencies
from brim.measure.measure import Target, ask_target, read_snapshot
from brim.measure.open_point import (
    Generator,
    OpenPoint,
    Provenance,
    Segment,
    Slo,
    append_open_point,
    counts,
    read_open_points,
)
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_processes import run_in_processes
from brim.measure.openloop_run import messages, run_open_loop
from brim.measure.plan import Protocol, usable_cores
from brim.measure.schedule import CHANGING, Schedule
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

SETTLE_TIMEOUT_S = 30.0
WARM_UP_US = 300_000
WARM_UP_PER_S = 50
"""What a fresh server gets before the first run, uncounted: its first requests wait for memory and connections."""
THIRDS = 3


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """How the schedules are carried out.

    Attributes:
        schedules: one run and one point each, in this order.
        objective: the SLO; None to judge none.
        protocol: HTTP or gRPC.
        give_up_us: how long a caller waits from when its request was due; None for ever, that is for ``timeout_us``.
        timeout_us: longest wait for one answer.
        in_flight_limit: requests under way at most.
        processes: generators that share each schedule.
        seed: what the schedules and rows were drawn from.
        stability_percent: the medians of a run's thirds must agree within this to be called stable.
        command: what was typed.
    """

    schedules: Sequence[Schedule]
    objective: Objective | None
    protocol: Protocol = Protocol.GRPC
    give_up_us: int | None = None
    timeout_us: int = 30_000_000
    in_flight_limit: int = 10_000
    processes: int = 1
    seed: int = 0
    stability_percent: float = 10.0
    command: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: with every fault of a run at once.
        """
        if not self.schedules:
            raise InputError("no run is asked for", hint="give a rate or a trace")
        if not self.stability_percent > 0:
            raise InputError(f"stability_percent {self.stability_percent:g}: must be above 0", hint="10 is usual")
        for schedule in self.schedules:
            self.of_run(schedule)

    def of_run(self, schedule: Schedule) -> OpenLoopPlan:
        """What the driver is told for one schedule."""
        return OpenLoopPlan(
            schedule.duration_us,
            timeout_us=self.timeout_us,
            give_up_us=self.give_up_us,
            in_flight_limit=self.in_flight_limit,
            objective=self.objective,
            segment_us=schedule.segment_us,
        )

    def fingerprint(self, schedule: Schedule, rows: Sequence[Row]) -> str:
        """Twelve hex digits that are the same for points of one curve: they change with everything but a steady rate."""
        sent = hashlib.sha256()
        for body in messages(Endpoint("plan:0", "plan:0"), self.protocol, "plan", rows):
            sent.update(body)
        parts = {
            "arrivals": schedule.arrivals,
            "rates": schedule.digest if schedule.arrivals in CHANGING else "",
            "duration_us": schedule.duration_us,
            "rows": sent.hexdigest(),
            "objective": None if self.objective is None else [self.objective.percentile, self.objective.latency_us],
            "give_up_us": self.give_up_us,
            "timeout_us": self.timeout_us,
            "in_flight_limit": self.in_flight_limit,
            "processes": self.processes,
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def measure_open(
    endpoint: Endpoint,
    model: str,
    plan: OpenPlan,
    rows: Sequence[Row],
    *,
    folder: Path,
    on_point: Callable[[OpenPoint], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[OpenPoint]:
    """Carry out every schedule, in order. Each point is in ``openloop.jsonl`` before the next run begins.

    Points that the folder holds already for this plan and this configuration of the model are taken over.

    Args:
        endpoint: where the server answers.
        model: name of the model.
        plan: what to do.
        rows: what requests carry in turn, with the batch dimension 1 in front.
        folder: the run folder.
        on_point: told of each point as it ends.
        on_progress: told what is happening.

    Raises:
        ServerFailed: the server does not answer, or ended during a run.
        InputError: the model is unknown, or a row cannot be sent.
        CouldNotTell: a generator process ended, or no arrival was counted.
    """
    target = ask_target(endpoint, model)
    known = {point.key: point for point in read_open_points(folder)}
    found = []
    is_warm = False
    for schedule in plan.schedules:
        rate, digest = schedule.rate_per_s, plan.fingerprint(schedule, rows)
        key = f"{model}/{plan.protocol.value}/rate={rate:g}/{digest}/{target.config_digest}"
        point = known.get(key)
        if point is None:
            if not is_warm:
                due = range(0, WARM_UP_US, US_PER_S // WARM_UP_PER_S)
                run_open_loop(endpoint, plan.protocol, model, rows, due, OpenLoopPlan(WARM_UP_US))
                is_warm = True
            on_progress(f"measuring {model}: {schedule.in_words}, {schedule.duration_us / US_PER_S:g} s")
            point = _run(target, plan, schedule, rows, key)
            append_open_point(folder, point)
        found.append(point)
        on_point(point)
    return found


def _run(target: Target, plan: OpenPlan, schedule: Schedule, rows: Sequence[Row], key: str) -> OpenPoint:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    load_average = os.getloadavg()[0]
    before, idle_before = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    one = plan.of_run(schedule)
    asked = (target.endpoint, plan.protocol, target.model, rows, schedule.due_us, one)
    result = run_open_loop(*asked) if plan.processes == 1 else run_in_processes(*asked, processes=plan.processes)
    if not result.server_alive:
        raise ServerFailed(
            f"the server ended during {schedule.in_words}: {result.whole.counts[Outcome.ANSWERED]} of "
            f"{result.whole.offered} requests had been answered",
            hint="see its log; tritonserver 24.10 can end when calls are cancelled as they complete",
        )
    after, idle_after = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    stats = batch_stats.difference(before, after, instances=target.instances, wall_us=_under_load_us(schedule, result))
    provenance = Provenance(
        command=list(plan.command),
        server=target.server,
        brim=brim.__version__,
        usable_cores=usable_cores(),
        load_average=load_average,
        started_at=started_at,
        seed=plan.seed,
        give_up_us=plan.give_up_us,
        timeout_us=plan.timeout_us,
        in_flight_limit=plan.in_flight_limit,
        processes=plan.processes,
    )
    return make_open_point(target, plan, schedule, result, stats, idle_before and idle_after, key, provenance)


def _under_load_us(schedule: Schedule, result: OpenLoopResult) -> int:
    """The schedule's length, or longer where answers came after its end."""
    return max(schedule.duration_us, result.evidence.wall_us or 0)


def make_open_point(
    target: Target,
    plan: OpenPlan,
    schedule: Schedule,
    result: OpenLoopResult,
    stats: BatchStats,
    settled: bool,
    key: str,
    provenance: Provenance,
) -> OpenPoint:
    """A point from one run and the statistics around it.

    Raises:
        CouldNotTell: no arrival was counted.
    """
    whole = result.whole
    limits = result.limits
    objective = plan.objective
    evidence = result.evidence
    return OpenPoint(
        **counts(whole),
        key=key,
        model=target.model,
        protocol=plan.protocol.value,
        rate=schedule.rate_per_s,
        arrivals=schedule.arrivals,
        rates=list(schedule.rates_per_s),
        duration_us=schedule.duration_us,
        throughput=whole.counts[Outcome.ANSWERED] * US_PER_S / max(stats.wall_us, schedule.duration_us),
        latency_us=_percentiles(whole.since_due, objective),
        since_sent_us=_percentiles(whole.since_sent, objective),
        reject_p99_us=whole.until_refused.percentile_us(99),
        slo=None if objective is None else Slo(percentile=objective.percentile, latency_us=objective.latency_us),
        goodput=goodput_per_s(whole, schedule.duration_us),
        goodput_ratio=whole.in_slo_ratio,
        slo_met=None if objective is None or limits else judge_slo(whole).met,
        mean_batch=stats.mean_batch,
        fill=stats.fill,
        duty=stats.duty,
        queue_us=stats.queue_us,
        compute_us=stats.compute_us,
        executions_by_size=stats.executions_by_size,
        execution_us_by_size=stats.execution_us_by_size,
        inferences=stats.inferences,
        executions=stats.executions,
        instances=stats.instances,
        stable=is_stable(schedule, result, plan.stability_percent),
        settled=settled,
        generator_bound=bool(limits),
        limits=limits,
        late=whole.late,
        late_us=whole.late_us,
        generator=Generator(
            loop_cores=evidence.loop_cores,
            lag_us=evidence.lag_us,
            most_under_way=evidence.most_under_way,
            processes=evidence.processes,
        ),
        messages=whole.messages,
        segments=[
            Segment(
                **counts(account),
                begin_us=number * schedule.segment_us,
                duration_us=min(schedule.segment_us, schedule.duration_us - number * schedule.segment_us),
                rate=schedule.planned_per_s(number),
            )
            for number, account in enumerate(result.accounts)
        ],
        histograms=whole.as_json()["histograms"],
        provenance=provenance,
    )


def _percentiles(latencies: Latencies, objective: Objective | None) -> dict[str, int]:
    """The usual percentiles and the objective's own; empty without an answer."""
    wanted = sorted({*PERCENTILES, *(() if objective is None else (objective.percentile,))})
    named = {f"{one:g}": latencies.percentile_us(one) for one in wanted}
    return {name: us for name, us in named.items() if us is not None}


def is_stable(schedule: Schedule, result: OpenLoopResult, percent: float) -> bool:
    """Whether the medians of the run's thirds are within so many percent of their own mean.

    A queue that grows shows in this: each third waits longer than the one before. A rate that changes by plan has no one
    median, so it is never stable.
    """
    count = len(result.accounts)
    if schedule.arrivals in CHANGING or count < THIRDS:
        return False
    bounds = [round(count * part / THIRDS) for part in range(THIRDS + 1)]
    medians = [merged(result.accounts[begin:end]).since_due.percentile_us(50) for begin, end in pairwise(bounds)]
    known = [us for us in medians if us is not None]
    if len(known) < THIRDS:
        return False
    mean = sum(known) / THIRDS
    return all(abs(us - mean) <= percent / 100 * mean for us in known)
