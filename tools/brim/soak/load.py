"""The load itself: first as many callers as it takes for the most that the service does, then a steady part of that."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from brim.measure.accounting import Account, Outcome, Reply
from brim.measure.openloop import OpenLoopPlan, drive
from brim.measure.openloop_run import Alarm
from brim.soak.line import Line
from brim.soak.sample import Resources, Sample
from brim.units import US_PER_S

LEAD_S = 0.05
LONGEST_NAP_S = 0.25
"""Between two looks at whether to stop, while the next request is not due."""
CAPACITY_US = 4_000_000
"""Of each closed loop, of which the first part is not counted."""
UNCOUNTED_RATIO = 0.25


@dataclass
class Tally:
    """What became of requests since it was last emptied, and how many are under way."""

    in_flight: int = 0
    most_in_flight: int = 0
    sent: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))

    def begin(self) -> None:
        """One more leaves."""
        self.sent += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self, outcome: Outcome) -> None:
        """One has ended."""
        self.in_flight -= 1
        self.outcomes[outcome] += 1

    def empty(self) -> Tally:
        """What it held; those under way stay."""
        held = Tally(self.in_flight, self.most_in_flight, self.sent, self.outcomes)
        self.most_in_flight, self.sent, self.outcomes = self.in_flight, 0, dict.fromkeys(Outcome, 0)
        return held


async def closed_loop_rate(line: Line, callers: int, *, length_us: int = CAPACITY_US) -> float:
    """Answers a second to so many callers, each of which sends its next request when its last one has ended.

    Counted from the last answer of the uncounted part to the very last: answers come a batch at a time.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    end_s = begin_s + length_us / US_PER_S
    numbers = itertools.count()
    answered: list[float] = []

    async def caller() -> None:
        while loop.time() < end_s:
            if (await line.ask(next(numbers))).outcome is Outcome.ANSWERED:
                answered.append(loop.time())
            else:
                # Who was refused comes back at once, and would keep the processor from those who are served.
                await asyncio.sleep(LEAD_S)

    await asyncio.gather(*(caller() for _ in range(callers)))
    counted_from = begin_s + UNCOUNTED_RATIO * length_us / US_PER_S
    first = sum(at_s <= counted_from for at_s in answered)
    within = [at_s for at_s in answered if at_s <= end_s]
    if not 0 < first < len(within):
        return len(answered) / (max([end_s, *answered]) - begin_s)
    return (len(within) - first) / (within[-1] - answered[first - 1])


async def best_rate(
    line: Line, callers: Sequence[int], on_rate: Callable[[int, float], None], *, length_us: int = CAPACITY_US
) -> float:
    """The most of several closed loops. ``on_rate`` is told of each."""
    best = 0.0
    for count in callers:
        rate = await closed_loop_rate(line, count, length_us=length_us)
        on_rate(count, rate)
        best = max(best, rate)
    return best


@dataclass(frozen=True, slots=True)
class Steady:
    """One rate for a time.

    Attributes:
        rate_per_s: requests a second, with equal gaps: a count over a minute then has no scatter of its own.
        duration_us: how long it is sampled.
        every_us: length of a sample.
        lead_in_us: load before the first sample, in which connections are opened.
        in_flight_limit: requests under way at most; an arrival beyond is not sent: what more callers do to a service that
            cannot keep up is a question about overload, and not this one.
        timeout_us: longest wait for one answer.
    """

    rate_per_s: float
    duration_us: int
    every_us: int = US_PER_S
    lead_in_us: int = 0
    in_flight_limit: int = 1_000
    timeout_us: int = 30 * US_PER_S


async def steady_load(
    line: Line,
    plan: Steady,
    *,
    read: Callable[[], Resources],
    on_sample: Callable[[Sample], None],
    is_told_to_stop: Callable[[], bool],
) -> Account:
    """Send at the steady rate until the end, or until told to stop, and wait for the last answer.

    Args:
        line: connections.
        plan: rate and lengths.
        read: what the programs hold; called from another thread.
        on_sample: given each sample as it ends.
        is_told_to_stop: asked several times a second.

    Returns:
        What became of every request, latencies from when each was due.
    """
    loop = asyncio.get_running_loop()
    tally = Tally()

    async def ask(number: int) -> Reply:
        tally.begin()
        outcome = Outcome.TIMED_OUT
        try:
            reply = await line.ask(number)
            outcome = reply.outcome
        finally:
            tally.end(outcome)
        return reply

    def due() -> Iterator[int]:
        for number in itertools.count():
            at_us = int(number * US_PER_S / plan.rate_per_s)
            if at_us >= whole_us or is_told_to_stop():
                return
            yield at_us

    async def samples(begin_s: float) -> None:
        await asyncio.sleep(begin_s - loop.time())
        tally.empty()
        earlier_us = 0
        for number in range(1, plan.duration_us // plan.every_us + 1):
            await asyncio.sleep(begin_s + number * plan.every_us / US_PER_S - loop.time())
            if is_told_to_stop():
                return
            at_us = round((loop.time() - begin_s) * US_PER_S)
            held = tally.empty()
            answered, refused = held.outcomes[Outcome.ANSWERED], held.outcomes[Outcome.REFUSED]
            on_sample(
                Sample(
                    at_us,
                    at_us - earlier_us,
                    sent=held.sent,
                    answered=answered,
                    refused=refused,
                    failed=sum(held.outcomes.values()) - answered - refused,
                    in_flight=held.in_flight,
                    most_in_flight=held.most_in_flight,
                    resources=await loop.run_in_executor(None, read),
                )
            )
            earlier_us = at_us

    whole_us = plan.lead_in_us + plan.duration_us
    open_loop = OpenLoopPlan(whole_us, timeout_us=plan.timeout_us, in_flight_limit=plan.in_flight_limit)
    with Alarm(loop) as alarm:
        begin_s = loop.time() + LEAD_S
        sampler = asyncio.create_task(samples(begin_s + plan.lead_in_us / US_PER_S))
        sender = asyncio.create_task(
            drive(due(), ask, open_loop, wait_until=_in_naps(alarm, loop, is_told_to_stop), begin_s=begin_s)
        )
        try:
            done, _ = await asyncio.wait({sampler, sender}, return_when=asyncio.FIRST_COMPLETED)
            if sampler in done:
                sampler.result()
            accounts, _ = await sender
            if not is_told_to_stop():
                await sampler
        finally:
            for task in (sampler, sender):
                task.cancel()
            await asyncio.gather(sampler, sender, return_exceptions=True)
    return accounts[0]


def _in_naps(
    alarm: Alarm, loop: asyncio.AbstractEventLoop, is_told_to_stop: Callable[[], bool]
) -> Callable[[float], Awaitable[None]]:
    """The alarm, which is left early when it is time to stop: the next request may be due in minutes."""

    async def wait_until(at_s: float) -> None:
        while loop.time() < at_s and not is_told_to_stop():
            await alarm.wait_until(min(at_s, loop.time() + LONGEST_NAP_S))

    return wait_until
