"""One run of streaming callers against a server, in one event loop: a closed loop, or an open one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from brim.engine.lifecycle import RequestClass
from brim.engine.request import CLASS_PARAMETER
from brim.engine.traffic import Call
from brim.measure.accounting import LATE_US, Outcome, Reply
from brim.measure.histogram import Latencies
from brim.measure.openloop import SLO_PER_LATE, OpenLoopPlan, drive
from brim.measure.openloop_limits import LAG_PERCENTILE, Evidence, limits_seen
from brim.measure.openloop_run import LEAD_S, Alarm, Watch
from brim.measure.text.account import TextAccount, Window
from brim.measure.text.outcome import reply_of
from brim.measure.text.prompts import Prompts
from brim.measure.text.server_side import Looks, read_page
from brim.measure.text.stream import Ask, Heard, TextCallers, clock_us
from brim.measure.text.token_times import TokenObjective
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

REFUSED_PAUSE_S = 0.1
"""A closed loop's caller who was refused comes again after this: without, refusals would be most of what is counted."""
LOOK_S = 0.2
"""Between two looks at the server's gauges."""
PROBE_S = 0.5
"""Between two requests that are refused while they are read."""
PROBE_LIMIT_S = 10.0
TRANSPORT_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class TextLoad:
    """What is sent.

    Attributes:
        concurrency: callers of a closed loop; 0 for an open one.
        due_us: when requests of the open loop are due, from the beginning, never decreasing.
        calls: in turn; of an open loop as many as are due.
        prompts: makes their prompts.
        classes: class of callers -> the name that requests say; empty to say none.
        duration_us: load is offered for so long.
        objective: the SLO; None to judge none.
        give_up_us: how long a caller waits from when its request was due; None for ``timeout_us``.
        timeout_us: longest wait for the end of a text.
        in_flight_limit: requests under way at most; an open loop's arrival beyond is not sent.
    """

    concurrency: int
    due_us: Sequence[int]
    calls: Sequence[Call]
    prompts: Prompts
    classes: dict[RequestClass, str]
    duration_us: int
    objective: TokenObjective | None
    give_up_us: int | None
    timeout_us: int
    in_flight_limit: int

    @property
    def late_us(self) -> int:
        """What counts as late: 1 ms, or a twentieth of the shortest time in the SLO where that is more."""
        slo = self.objective
        limits = [] if slo is None else [us for us in (slo.ttft_us, slo.tpot_us) if us is not None]
        return max(LATE_US, min(limits, default=0) // SLO_PER_LATE)

    def ask(self, number: int) -> Ask:
        """The request of that number."""
        call = self.calls[number % len(self.calls)]
        options = {"max_tokens": call.max_tokens, "ignore_eos": True, "temperature": 0}
        named = {CLASS_PARAMETER: self.classes[call.kind]} if self.classes else {}
        return Ask(self.prompts.prompt(call, number), options, named)


@dataclass(slots=True)
class TextRun:
    """What a run gave.

    Attributes:
        whole: every request.
        classes: name of a class -> its requests; empty where requests named none.
        evidence: what was seen of the generator itself.
        limits: in what ways the generator, and not the server, set the figures.
        lag: how late its event loop came.
        turnaround: of requests that were refused while they were read.
        looks: at the server's gauges while the load ran.
        wall_us: from the beginning until the last request had ended.
    """

    whole: TextAccount
    classes: dict[str, TextAccount]
    evidence: Evidence
    limits: list[str]
    lag: Latencies
    turnaround: Latencies
    looks: Looks
    wall_us: int


async def run_load(callers: TextCallers, endpoint: Endpoint, model: str, load: TextLoad) -> TextRun:
    """Send everything, and wait for the last one to end.

    Args:
        callers: opened.
        endpoint: whose metrics page is looked at meanwhile; nothing where it has none.
        model: name of the model.
        load: what is sent.
    """
    loop = asyncio.get_running_loop()
    lag, turnaround, looks = Latencies(), Latencies(), Looks()
    begin_s = loop.time() + LEAD_S
    tally = _Tally(load, Window(round(begin_s * US_PER_S), load.duration_us))
    beside = [
        loop.create_task(_every(PROBE_S, lambda: _probe(callers, turnaround))),
        loop.create_task(_every(LOOK_S, lambda: _look(endpoint, model, looks))),
    ]
    watch, began_cpu_s = Watch(loop), time.thread_time()
    try:
        most = await (_closed if load.concurrency else _open)(callers, load, tally, begin_s)
        wall_s, own_s = loop.time() - begin_s, time.thread_time() - began_cpu_s
    finally:
        watch.stop()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    lag.merge(watch.lag)
    wall_us = round(wall_s * US_PER_S)
    evidence = Evidence(own_s / wall_s, lag.percentile_us(LAG_PERCENTILE), most, wall_us=wall_us)
    limits = limits_seen(tally.whole.outcomes, evidence, load.in_flight_limit)
    return TextRun(tally.whole, tally.classes, evidence, limits, lag, turnaround, looks, wall_us)


class _Tally:
    """Takes in what callers heard."""

    def __init__(self, load: TextLoad, window: Window) -> None:
        self.load, self.window = load, window
        self.whole = self._account()
        self.classes = {name: self._account() for name in load.classes.values()}

    def _account(self) -> TextAccount:
        return TextAccount(self.window, self.load.objective, late_us=self.load.late_us)

    def of(self, number: int) -> list[TextAccount]:
        """The accounts that a request belongs to."""
        kind = self.load.calls[number % len(self.load.calls)].kind
        return [self.whole, *([self.classes[self.load.classes[kind]]] if self.classes else [])]

    def add(self, number: int, due_us: int, heard: Heard, reply: Reply) -> None:
        """A request that was sent."""
        for account in self.of(number):
            account.add(self.load.calls[number % len(self.load.calls)], due_us, heard, reply)


async def _closed(callers: TextCallers, load: TextLoad, tally: _Tally, begin_s: float) -> int:
    """Each caller asks again when its text has ended, as long as load is offered."""
    loop = asyncio.get_running_loop()
    end_s = begin_s + load.duration_us / US_PER_S
    numbers = iter(range(2**62))

    async def caller() -> None:
        await asyncio.sleep(begin_s - loop.time())
        while loop.time() < end_s:
            number = next(numbers)
            heard = await callers.ask(load.ask(number), limit_s=load.timeout_us / US_PER_S)
            reply = reply_of(heard)
            tally.add(number, heard.sent_us, heard, reply)
            if reply.outcome is not Outcome.ANSWERED:
                await asyncio.sleep(REFUSED_PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.concurrency):
            group.create_task(caller())
    return load.concurrency


async def _open(callers: TextCallers, load: TextLoad, tally: _Tally, begin_s: float) -> int:
    """Requests leave when they are due, whatever became of earlier ones."""
    plan = OpenLoopPlan(
        load.duration_us,
        timeout_us=load.timeout_us,
        give_up_us=load.give_up_us,
        in_flight_limit=load.in_flight_limit,
        late_us=load.late_us,
    )
    seen: set[int] = set()

    async def ask(number: int) -> Reply:
        heard, due_us = Heard(), tally.window.begin_us + load.due_us[number]
        seen.add(number)
        try:
            await callers.ask(load.ask(number), limit_s=load.timeout_us / US_PER_S, heard=heard)
        except asyncio.CancelledError:
            # Before it was sent there is nothing to cancel, and the clock of what was heard stands still.
            heard.sent_us, heard.ended_us = heard.sent_us or clock_us(), heard.ended_us or clock_us()
            tally.add(number, due_us, heard, Reply(plan.patience_us[1]))
            raise
        reply = reply_of(heard)
        tally.add(number, due_us, heard, reply)
        return reply

    with Alarm(asyncio.get_running_loop()) as alarm:
        _, most = await drive(load.due_us, ask, plan, wait_until=alarm.wait_until, begin_s=begin_s)
    for number in set(range(len(load.due_us))) - seen:
        for account in tally.of(number):
            account.add_unsent()
    return most


async def _every(period_s: float, act: Callable[[], Awaitable[None]]) -> None:
    while True:
        await act()
        await asyncio.sleep(period_s)


async def _look(endpoint: Endpoint, model: str, looks: Looks) -> None:
    if endpoint.metrics is not None:
        reading = await asyncio.to_thread(read_page, endpoint.metrics, model)
        if reading is not None:
            looks.add(reading)


async def _probe(callers: TextCallers, turnaround: Latencies) -> None:
    """An empty prompt is refused as it is read, so its time is that of the way there and back and of nothing else."""
    heard = await callers.ask(Ask(b""), limit_s=PROBE_LIMIT_S)
    if heard.error and not heard.error.startswith(TRANSPORT_STATUSES):
        turnaround.record(max(0, heard.ended_us - heard.sent_us))
