"""Open loops against the gateway at some offered load, and the closed loop that tells what the capacity is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from brim.bench.overload_case import MODEL
from brim.bench.overload_place import ROWS, Place
from brim.bench.overload_seen import Counted
from brim.errors import CouldNotTell
from brim.measure.accounting import Account, Objective, Outcome
from brim.measure.arrivals import offsets, steady
from brim.measure.known_time import Execution
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_http import Pool
from brim.measure.openloop_processes import Job, run_jobs
from brim.measure.openloop_run import messages
from brim.measure.plan import Distribution, Protocol
from brim.units import US_PER_S

EDGE = 2
"""Executions at either end of a closed loop that are left out: callers come and go there."""
PERCENTILE = 99.0
MOST_UNDER_WAY = 4_000
"""Ten times what is under way when refusals come at once. Each further one is a connection more, which costs both sides."""


@dataclass(frozen=True, slots=True)
class Group:
    """Callers of one kind.

    Attributes:
        name: of the kind.
        rate_per_s: that they send, Poisson.
        headers: of each request.
        give_up_us: how long they wait for an answer before they disconnect; None for those that wait.
    """

    name: str
    rate_per_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    give_up_us: int | None = None


@dataclass(frozen=True)
class Load:
    """One open loop, and what everybody counted meanwhile.

    Attributes:
        name: for people.
        factor: offered over capacity.
        results: of each group, by the driver.
        gateway: by Envoy.
        executed: rows, by the model.
        most_in_flight: highest value of the gateway's gauge.
        most_waiting: highest value of Triton's count of waiting requests.
        samples: how often the gauge was read.
    """

    name: str
    factor: float
    results: Mapping[str, OpenLoopResult]
    gateway: Counted
    executed: int
    most_in_flight: int
    most_waiting: int
    samples: int

    @cached_property
    def accounts(self) -> dict[str, Account]:
        """What became of each group's requests."""
        return {name: result.whole for name, result in self.results.items()}

    def count(self, outcome: Outcome) -> int:
        """Arrivals of all groups with this end, by the driver."""
        return sum(account.counts[outcome] for account in self.accounts.values())

    @property
    def offered(self) -> int:
        """Arrivals of all groups."""
        return sum(account.offered for account in self.accounts.values())

    @property
    def sent(self) -> int:
        """Those of them that left."""
        return self.offered - self.count(Outcome.NOT_SENT)

    @property
    def wall_us(self) -> int:
        """From the beginning of the schedule to the last answer."""
        return max(result.evidence.wall_us or result.plan.duration_us for result in self.results.values())

    @property
    def goodput_per_s(self) -> float:
        """Answers within the objective, over the time to the last answer of all.

        Not over the schedule: what is in flight at its end is answered after it, in time that counts as well. And not
        over a window, at whose edges a whole batch may or may not be in.
        """
        return sum(account.in_slo for account in self.accounts.values()) * US_PER_S / self.wall_us

    @cached_property
    def limits(self) -> list[str]:
        """In what ways the driver set the figures."""
        return [limit for result in self.results.values() for limit in result.limits]

    @property
    def lag_us(self) -> int:
        """How late the driver noticed answers (99th percentile)."""
        return max(result.evidence.lag_us or 0 for result in self.results.values())

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json``."""
        return {
            "name": self.name,
            "factor": self.factor,
            "sent": self.sent,
            "goodput_per_s": self.goodput_per_s,
            "most_in_flight": self.most_in_flight,
            "most_waiting": self.most_waiting,
            "samples": self.samples,
            "executed": self.executed,
            "gateway": {f"{name}/{outcome.value}": count for (name, outcome), count in self.gateway.outcomes.items()},
            "gateway_reasons": {f"{name}/{reason}": count for (name, reason), count in self.gateway.reasons.items()},
            "groups": {name: result.as_json() for name, result in self.results.items()},
        }


def measure_load(place: Place, name: str, factor: float, groups: Sequence[Group], *, seconds: float, seed: int) -> Load:
    """Send what the groups send for some seconds, wait for the last answer, and count.

    Args:
        place: where.
        name: for people.
        factor: offered over capacity.
        groups: who sends, each from a process of its own, all with one beginning.
        seconds: length of the schedule.
        seed: for arrivals.

    Raises:
        ServerFailed: nothing answers.
        CouldNotTell: a generator ended, or requests stay in flight.
    """
    jobs = jobs_of(place, groups, seconds=seconds, seed=seed)
    gauges = place.gauges(MODEL)
    try:
        before, executed = gauges.settled(), rows_of(place.executions(MODEL))
        with place.sampler(MODEL) as sampler:
            results = run_jobs(jobs)
        after = gauges.settled()
    finally:
        gauges.close()
    return Load(
        name,
        factor,
        {group.name: result for group, result in zip(groups, results, strict=True)},
        after.since(before),
        rows_of(place.executions(MODEL)) - executed,
        sampler.most_in_flight,
        sampler.most_waiting,
        sampler.samples,
    )


def jobs_of(place: Place, groups: Sequence[Group], *, seconds: float, seed: int) -> list[Job]:
    """What the groups send for some seconds, as a generator process each."""
    duration_us = round(seconds * US_PER_S)
    objective = Objective(PERCENTILE, place.case.slo_us)
    return [
        Job(
            place.gateway.endpoint,
            Protocol.HTTP,
            messages(place.gateway.endpoint, Protocol.HTTP, MODEL, ROWS, group.headers),
            list(offsets(steady(group.rate_per_s, duration_us), Distribution.POISSON, seed=seed * 10 + number)),
            OpenLoopPlan(duration_us, give_up_us=group.give_up_us, in_flight_limit=MOST_UNDER_WAY, objective=objective),
        )
        for number, group in enumerate(groups)
    ]


def rows_of(executions: Sequence[Execution]) -> int:
    """Rows that were executed."""
    return sum(execution.rows for execution in executions)


def closed_loop_per_s(place: Place, callers: int, *, seconds: float) -> float:
    """Rows a second that the model executes for so many callers, each of which sends again when it is answered.

    Raises:
        CouldNotTell: a request was not answered, or the time was too short.
    """
    known = len(place.executions(MODEL))
    asyncio.run(_closed_loop(place, callers, seconds))
    return steady_per_s(place.executions(MODEL)[known:])


def steady_per_s(executions: Sequence[Execution]) -> float:
    """Rows a second between the ends of two executions, without those at the edges.

    Raises:
        CouldNotTell: there are too few.
    """
    inner = executions[EDGE : len(executions) - EDGE]
    if len(inner) < 2:
        raise CouldNotTell(
            f"{len(executions)} executions in the closed loop: too few to tell a rate", hint="use more --seconds"
        )
    return rows_of(inner[1:]) * 1e9 / (inner[-1].free_ns - inner[0].free_ns)


async def _closed_loop(place: Place, callers: int, seconds: float) -> None:
    endpoint = place.gateway.endpoint
    whole = messages(endpoint, Protocol.HTTP, MODEL, ROWS)
    host, _, port = endpoint.http.rpartition(":")
    pool = Pool(host, int(port))

    async def caller(number: int, until_s: float) -> None:
        while time.monotonic() < until_s:
            status, text = await pool.ask(whole[number % len(whole)])
            if status != 200:
                raise CouldNotTell(
                    f"a caller of the closed loop was answered {status}: {text.decode('utf-8', 'replace')}",
                    hint="does somebody else use this gateway?",
                )

    try:
        await pool.open(callers)
        async with asyncio.TaskGroup() as group:
            until_s = time.monotonic() + seconds
            for number in range(callers):
                group.create_task(caller(number, until_s))
    except* CouldNotTell as found:
        raise found.exceptions[0] from None
    finally:
        pool.close()
