"""An open loop: requests leave when they are due, whether or not earlier ones have been answered.

This module is the loop and what it says; it knows neither a protocol nor a socket, and its only clock is the event
loop's. ``openloop_run`` puts a real server behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.measure.accounting import (
    LATE_US,
    Account,
    Objective,
    Outcome,
    Reply,
    SloVerdict,
    goodput_per_s,
    judge_slo,
    merged,
)
from brim.measure.openloop_limits import Evidence, limits_seen
from brim.units import US_PER_S

MOST_SEGMENTS = 200
"""Every segment has histograms of its own."""
SLO_PER_LATE = 20
"""Late sends of less than this part of the SLO's latency do not decide whether it is met."""
SENT_IN_A_ROW = 32
"""After so many arrivals that are due at once, answers get their turn."""

Ask = Callable[[int], Awaitable[Reply]]
"""Sends the request of that number and gives what became of it. It is cancelled when the caller leaves."""
N = TypeVar("N", int, float)
WaitUntil = Callable[[float], Awaitable[None]]
"""Waits until the event loop's clock (seconds) shows this."""


@dataclass(frozen=True, slots=True)
class OpenLoopPlan:
    """How callers behave, and what is counted.

    Attributes:
        duration_us: length of the schedule; rates are taken over it.
        timeout_us: longest wait for one answer; then the request is cancelled and counted as timed out.
        give_up_us: how long a caller waits from the time at which it was due; then it cancels its request and goes. None
            for callers that wait for ever (that is, for ``timeout_us``).
        in_flight_limit: requests under way at most. An arrival beyond is not sent, and the run says so.
        objective: the SLO; None to judge none.
        late_us: a request that leaves more than this after it was due left late. When absent 1 ms, or a twentieth of the
            SLO's latency where that is more.
        segment_us: length of the segments that are accounted for one by one; None for one segment.
    """

    duration_us: int
    timeout_us: int = 30_000_000
    give_up_us: int | None = None
    in_flight_limit: int = 10_000
    objective: Objective | None = None
    late_us: int | None = None
    segment_us: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: with every fault at once.
        """
        given = {
            "duration_us": self.duration_us,
            "timeout_us": self.timeout_us,
            "give_up_us": 1 if self.give_up_us is None else self.give_up_us,
            "in_flight_limit": self.in_flight_limit,
            "late_us": self.late_after_us,
            "segment_us": 1 if self.segment_us is None else self.segment_us,
        }
        faults = [f"{name} {value}: must be 1 or more" for name, value in given.items() if value < 1]
        if not faults and self.segments > MOST_SEGMENTS:
            faults.append(
                f"segment_us {self.segment_us}: gives {self.segments} segments, at most {MOST_SEGMENTS} are kept"
            )
        if faults:
            raise InputError("the open loop cannot be carried out: " + "; ".join(faults), hint="correct these values")

    @property
    def late_after_us(self) -> int:
        """What counts as late."""
        if self.late_us is not None:
            return self.late_us
        return LATE_US if self.objective is None else max(LATE_US, self.objective.latency_us // SLO_PER_LATE)

    @property
    def segments(self) -> int:
        """How many segments the schedule has."""
        return 1 if self.segment_us is None else -(-self.duration_us // self.segment_us)

    def segment_of(self, offset_us: int) -> int:
        """The segment in which an arrival is due; one after the end belongs to the last."""
        return 0 if self.segment_us is None else min(offset_us // self.segment_us, self.segments - 1)

    @property
    def patience_us(self) -> tuple[int, Outcome]:
        """How long a request may take from when it was due, and what it counts as when it takes longer."""
        if self.give_up_us is not None and self.give_up_us <= self.timeout_us:
            return self.give_up_us, Outcome.CANCELLED
        return self.timeout_us, Outcome.TIMED_OUT


@dataclass(frozen=True, slots=True)
class OpenLoopResult:
    """What a run gave.

    Attributes:
        plan: what was asked.
        accounts: one a segment.
        evidence: what was seen of the generator itself.
        server_alive: whether the server still answered at the end.
    """

    plan: OpenLoopPlan
    accounts: tuple[Account, ...]
    evidence: Evidence
    server_alive: bool = True

    @property
    def whole(self) -> Account:
        """All segments together."""
        return merged(self.accounts)

    @property
    def limits(self) -> list[str]:
        """In what ways the generator, and not the server, set the figures; empty when it did not."""
        return limits_seen(self.whole, self.evidence, self.plan.in_flight_limit)

    def verdict(self) -> SloVerdict:
        """Whether the objective was met.

        Raises:
            ServerFailed: the server ended during the run.
            CouldNotTell: the generator was the limit, or nothing arrived.
            InputError: the plan has no objective.
        """
        if not self.server_alive:
            raise ServerFailed(
                f"the server ended during the run, which answered {self.whole.counts[Outcome.ANSWERED]} of "
                f"{self.whole.offered} requests",
                hint="see its log; tritonserver 24.10 can end when calls are cancelled as they complete",
            )
        limits = self.limits
        if limits:
            raise CouldNotTell(
                f"could not tell: the generator is the limit: {'; '.join(limits)}",
                hint="use a lower rate, another machine or more processes for the generator, or callers that give up",
            )
        return judge_slo(self.whole)

    def as_json(self) -> dict[str, Any]:
        """The whole, each segment, and what limited the generator. Rates are per second of the schedule."""
        whole = self.whole
        plan = self.plan

        def per_s(count: int) -> float:
            return count * US_PER_S / plan.duration_us

        return {
            "duration_us": plan.duration_us,
            "offered_per_s": per_s(whole.offered),
            "answered_per_s": per_s(whole.counts[Outcome.ANSWERED]),
            "goodput_per_s": goodput_per_s(whole, plan.duration_us),
            "goodput_ratio": whole.in_slo_ratio,
            "generator_bound": bool(self.limits),
            "limits": self.limits,
            "generator": self.evidence.as_json(),
            "server_alive": self.server_alive,
            **whole.as_json(),
            "segments": [
                {"begin_us": number * (plan.segment_us or 0), **account.as_json()}
                for number, account in enumerate(self.accounts)
            ],
        }


def merged_results(plan: OpenLoopPlan, results: Sequence[OpenLoopResult]) -> OpenLoopResult:
    """One result of several generators that shared a schedule. Their evidence is that of the worst.

    Args:
        plan: of the whole schedule.
        results: of each part, under a plan with the same segments and objective.

    Raises:
        InputError: there is none, or they do not fit the plan.
    """
    if not results or any(len(result.accounts) != plan.segments for result in results):
        raise InputError(
            f"{[len(result.accounts) for result in results]} segments of the parts, {plan.segments} of the plan",
            hint="merge results of one plan",
        )
    seen = [result.evidence for result in results]
    return OpenLoopResult(
        plan,
        tuple(merged(parts) for parts in zip(*(result.accounts for result in results), strict=True)),
        Evidence(
            loop_cores=_worst([one.loop_cores for one in seen]),
            lag_us=_worst([one.lag_us for one in seen]),
            most_under_way=sum(one.most_under_way for one in seen),
            processes=sum(one.processes for one in seen),
            wall_us=_worst([one.wall_us for one in seen]),
        ),
        all(result.server_alive for result in results),
    )


def _worst(values: Sequence[N | None]) -> N | None:
    return max((value for value in values if value is not None), default=None)


class _Run:
    """One pass through a schedule."""

    def __init__(self, plan: OpenLoopPlan, ask: Ask, loop: asyncio.AbstractEventLoop, begin_s: float) -> None:
        self.plan = plan
        self.ask = ask
        self.loop = loop
        self.begin_s = begin_s
        self.accounts = tuple(Account(plan.objective, late_us=plan.late_after_us) for _ in range(plan.segments))
        self.under_way = 0
        self.most_under_way = 0
        self.patience_us, self.leaving = plan.patience_us
        self.left: set[int] = set()

    def now_us(self) -> int:
        """Since the beginning of the schedule."""
        return round((self.loop.time() - self.begin_s) * US_PER_S)

    async def one(self, number: int, due_us: int) -> None:
        """One caller, from sending to whatever ends it."""
        task = asyncio.current_task()
        sent_us = self.now_us()

        def leave() -> None:
            assert task is not None
            self.left.add(number)
            task.cancel()

        timer = self.loop.call_at(self.begin_s + (due_us + self.patience_us) / US_PER_S, leave)
        try:
            reply = await self.ask(number)
        except asyncio.CancelledError:
            if number not in self.left:
                raise
            reply = Reply(self.leaving)
        finally:
            timer.cancel()
            self.left.discard(number)
            self.under_way -= 1
        self.accounts[self.plan.segment_of(due_us)].add(due_us, sent_us, self.now_us(), reply)


async def drive(
    due_offsets_us: Iterable[int], ask: Ask, plan: OpenLoopPlan, *, wait_until: WaitUntil, begin_s: float
) -> tuple[tuple[Account, ...], int]:
    """Send everything when it is due and wait for the last answer, ``timeout_us`` at most.

    Args:
        due_offsets_us: when requests are due, from the beginning, never decreasing.
        ask: sends one request.
        plan: how callers behave.
        wait_until: waits for a time on the event loop's clock; it may come late, which is counted.
        begin_s: the beginning, on the event loop's clock.

    Returns:
        The accounts, one a segment, and the most requests that were under way at once.
    """
    loop = asyncio.get_running_loop()
    run = _Run(plan, ask, loop, begin_s)
    in_a_row = 0
    async with asyncio.TaskGroup() as callers:
        for number, due_us in enumerate(due_offsets_us):
            if run.now_us() < due_us:
                await wait_until(begin_s + due_us / US_PER_S)
                in_a_row = 0
            elif in_a_row >= SENT_IN_A_ROW:
                await asyncio.sleep(0)
                in_a_row = 0
            in_a_row += 1
            # A caller whose patience ended before it could be sent was never seen by the server either.
            if run.under_way >= plan.in_flight_limit or run.now_us() >= due_us + run.patience_us:
                run.accounts[plan.segment_of(due_us)].add_unsent()
                continue
            run.under_way += 1
            run.most_under_way = max(run.most_under_way, run.under_way)
            callers.create_task(run.one(number, due_us))
    return run.accounts, run.most_under_way
