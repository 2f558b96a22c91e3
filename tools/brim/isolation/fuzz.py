"""Thousands of broken requests, one window after the other, beside callers that keep asking and must not notice any of it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from brim.isolation.evidence import Company, Evidence
from brim.isolation.exchange import HUNG_LIMIT
from brim.isolation.fuzz_bodies import RIGHT, FuzzBody, FuzzSource
from brim.isolation.fuzz_exchange import REFUSED, FuzzLine
from brim.isolation.fuzz_plan import FuzzPlan, Window
from brim.isolation.journal import came_in_short
from brim.isolation.judge import Judgement, Tally, Verdict, deviation, judge
from brim.isolation.pool import Pool
from brim.isolation.request import Came, Request
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S, us_to_ms

__all__ = ["FuzzOutcome", "FuzzPlan", "Window", "run_fuzz"]

CONNECTIONS = 8
STEADY = 4
STEADY_PREFIX = "fuzz-steady-"
STEADY_PAUSE_S = 0.005
"""Between two requests of a steady caller, so that they leave the machine to the fuzz."""
RIGHT_FIRST = 200
"""Right requests that are sent in the place of fuzzed ones first, to learn how fast steady callers are beside them."""
CANARY_TIMEOUT_S = 10.0
CANARY = "fuzz-canary"
UNANSWERED_PAUSE_S = 0.2
RESTART_POLL_S = 0.25
CRASHES_MOST = 3
SLOWED_TIMES = 10
SLOWED_LEAST_US = 100_000
"""Steady callers are slowed when their median is so many times what it was beside right requests, and at least this."""
STALL_TIMES = 20
EXCERPT_BYTES = 160
TEXT_MOST = 300
FAULTS_SHOWN = 20
NEIGHBOURS_SHOWN = 8
SERVER_FAULTS = ("INTERNAL", "UNKNOWN")
"""gRPC codes that, like HTTP's 5xx, blame the server."""


@dataclass(frozen=True, slots=True)
class FuzzOutcome:
    """What the fuzz found.

    Attributes:
        tally: one verdict for each fuzzed request, each request of a steady caller and each canary; one ``WRONG`` a crash.
        troubles: what is wrong beyond the tally; empty when nothing is.
        note: what is worth knowing although nobody is hurt.
        repeat: words that repeat just the window of the first fault.
        dead: the server no longer answers.
        evidence: one request of each kind, and the first that were hurt.
        statuses: how often fuzzed requests ended in each way, such as ``http 400`` or ``http closed``.
    """

    tally: Tally
    troubles: tuple[str, ...]
    note: str
    repeat: tuple[str, ...]
    dead: bool
    evidence: tuple[Evidence, ...]
    statuses: Counter[str]


def run_fuzz(
    endpoint: Endpoint, pool: Pool, plan: FuzzPlan, *, on_progress: Callable[[str], None] = lambda _: None
) -> FuzzOutcome:
    """Send it all. Whatever the server does becomes part of the outcome; nothing is raised for it.

    Args:
        endpoint: the server.
        pool: good rows of the model with their answers.
        plan: how much, with which seed.
        on_progress: told how far it is, a short sentence each.
    """
    return asyncio.run(_Fuzz(endpoint, pool, plan, on_progress).run())


@dataclass(slots=True)
class _Pace:
    """How long answers to steady callers took."""

    taken_us: list[int] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        return statistics.median(self.taken_us) if self.taken_us else 0.0


@dataclass(slots=True)
class _Flight:
    """A request on its way, and those that were on theirs when it left or landed."""

    name: str
    what: str
    began_ns: int
    beside: dict[str, str]
    took_us: int = 0


class _Fuzz:
    """One run."""

    def __init__(self, endpoint: Endpoint, pool: Pool, plan: FuzzPlan, on_progress: Callable[[str], None]) -> None:
        self.endpoint = endpoint
        self.pool = pool
        self.plan = plan
        self.on_progress = on_progress
        self.source = FuzzSource(pool, plan.seed, killers=plan.killers)
        self.tally = Tally()
        self.statuses: Counter[str] = Counter()
        self.kinds: set[str] = set()
        self.evidence: list[Evidence] = []
        self.hurt_shown = 0
        self.troubles: list[str] = []
        self.first_fault: Window | None = None
        self.in_flight: dict[str, str] = {}
        self.pace = _Pace()
        self.stall_s = plan.stall_s
        self.crashes = 0
        self.dead = False
        self.began_ns = time.perf_counter_ns()

    async def run(self) -> FuzzOutcome:
        self.line = FuzzLine(self.endpoint)
        self.quiet = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        steady = [asyncio.create_task(self._steady(number)) for number in range(STEADY)]
        try:
            right = await self._learn_pace()
            await self._fuzz()
            self._compare(right)
        finally:
            self.quiet.set()
            self.go_on.set()
            await asyncio.gather(*steady)
            await self.line.close()
        return FuzzOutcome(
            self.tally,
            tuple(self.troubles),
            self._note(),
            ("--fuzz-only", str(self.first_fault)) if self.first_fault else (),
            self.dead,
            tuple(self.evidence),
            self.statuses,
        )

    async def _learn_pace(self) -> _Pace:
        count = min(RIGHT_FIRST, max(CONNECTIONS, self.plan.bodies))
        bodies = [self.source.right(tuple(Protocol)[number % 2], number) for number in range(count)]
        await self._send_all(bodies)
        right, self.pace = self.pace, _Pace()
        longest_s = max(right.taken_us, default=0) / US_PER_S
        self.stall_s = max(self.plan.stall_s, STALL_TIMES * longest_s)
        return right

    async def _fuzz(self) -> None:
        windows = list(self.plan.windows())
        for at, window in enumerate(windows):
            hurt = self.tally.hurt
            await self._send_all(self._bodies(window))
            if self.tally.hurt > hurt:
                self.first_fault = self.first_fault or window
            trouble = await self._canary()
            if trouble:
                self.first_fault = self.first_fault or window
                await self._crashed(window, trouble)
            unsent = sum(one.last - one.first + 1 for one in windows[at + 1 :])
            if (self.dead or self._hopeless()) and unsent:
                self.troubles.append(f"{unsent} more fuzzed requests were not sent")
                return
            if at % 20 == 19:
                self.on_progress(f"fuzz: {at + 1} of {len(windows)} windows sent")

    def _hopeless(self) -> bool:
        return self.tally.counts[Verdict.HUNG] >= HUNG_LIMIT or self.crashes >= CRASHES_MOST

    def _bodies(self, window: Window) -> list[FuzzBody]:
        return [self.source.body(window.protocol, number) for number in range(window.first, window.last + 1)]

    async def _send_all(self, bodies: Sequence[FuzzBody]) -> None:
        waiting = iter(bodies)

        async def caller(waiting: Iterator[FuzzBody]) -> None:
            for body in waiting:
                await self._send(body)

        await asyncio.gather(*(caller(waiting) for _ in range(CONNECTIONS)))

    async def _send(self, body: FuzzBody) -> None:
        flight = self._leave(body.request_id, body.what)
        came = await self.line.send(body, self.plan.answer_timeout_s)
        self._land(flight)
        if came.status == REFUSED:
            # Nobody was there: what the canary says of that is counted, not this.
            return
        judgement = self._judge(body, came)
        self.tally.add(judgement, f"fuzzed request {flight.name} ({body.what})")
        self.statuses[f"{body.protocol.value} {_status(came)}"] += 1
        if self._worth_showing(judgement, {f"{body.protocol.value} {kind}" for kind in body.kinds}):
            expected = "" if body.row is None else f"the answer to row {body.row}, or an error"
            sent = f"{body.what}: {excerpt(body.data)}"
            self.evidence.append(self._evidence(flight, body.protocol, sent, expected, came, judgement))

    def _leave(self, name: str, what: str) -> _Flight:
        flight = _Flight(name, what, time.perf_counter_ns(), dict(self.in_flight))
        self.in_flight[name] = what
        return flight

    def _land(self, flight: _Flight) -> None:
        flight.took_us = (time.perf_counter_ns() - flight.began_ns) // 1_000
        del self.in_flight[flight.name]
        flight.beside |= self.in_flight

    def _worth_showing(self, judgement: Judgement, kinds: set[str]) -> bool:
        """The first of each kind, and the first that were hurt."""
        new = kinds - self.kinds
        self.kinds |= kinds
        hurt = bool(judgement.fault) and self.hurt_shown < FAULTS_SHOWN
        self.hurt_shown += hurt
        return hurt or bool(new)

    def _evidence(
        self, flight: _Flight, protocol: Protocol, sent: str, expected: str, came: Came, judgement: Judgement
    ) -> Evidence:
        others = [f"{name} ({what})" for name, what in flight.beside.items()]
        return Evidence(
            request_id=flight.name,
            protocol=protocol.value,
            sent=sent,
            expected=expected,
            came=came_in_short(came),
            verdict=judgement.verdict.value,
            fault=judgement.fault,
            company=Company.OVERLAPPING if others else Company.ALONE,
            neighbours=tuple(others[:NEIGHBOURS_SHOWN]),
            neighbour_count=len(others),
            began_us=(flight.began_ns - self.began_ns) // 1_000,
            took_us=flight.took_us,
        )

    def _judge(self, body: FuzzBody, came: Came) -> Judgement:
        if came.hung:
            return Judgement(Verdict.HUNG, "neither an answer nor the end of the connection in time")
        if came.error:
            said = f"[{came.status}] {came.error[:TEXT_MOST]}"
            if not body.kinds:
                return Judgement(Verdict.NEIGHBOUR_ERRORS, f"nothing is wrong with it, and an error came: {said}")
            return Judgement(Verdict.OWN_ERROR)
        if body.row is None:
            return Judgement(Verdict.RIGHT)
        if came.outputs is None:
            return Judgement(Verdict.WRONG, "an answer without outputs")
        if came.echoed is not None and came.echoed != body.request_id:
            return Judgement(Verdict.WRONG, f"the answer carries the id {came.echoed!r}")
        off, fault = deviation(came.outputs, self.pool.answers[body.row])
        if fault or off > self.plan.tolerance:
            return Judgement(Verdict.WRONG, fault or f"off by {off:.3g} from row {body.row}'s answer alone", off)
        return Judgement(Verdict.RIGHT, deviation=off)

    async def _steady(self, caller: int) -> None:
        """One good caller, until ``quiet``."""
        protocol = tuple(Protocol)[caller % 2]
        number = 0
        while not self.quiet.is_set():
            await self.go_on.wait()
            if self.quiet.is_set():
                return
            row = (caller + number * STEADY) % len(self.pool.rows)
            name = f"{STEADY_PREFIX}{caller}-{number}"
            answered = await self._ask(self.pool.request(row, protocol), name, f"row {row}")
            number += 1
            await asyncio.sleep(STEADY_PAUSE_S if answered else UNANSWERED_PAUSE_S)

    async def _ask(self, request: Request, name: str, what: str) -> bool:
        """Whether it got its answer."""
        flight = self._leave(name, what)
        came = await self.line.ask(request, name, self.stall_s)
        self._land(flight)
        if not self.go_on.is_set():
            # The server is known to be gone, and this caller was on its way to it.
            return False
        self.pace.taken_us.append(flight.took_us)
        judgement = judge(request, came, name, self.plan.tolerance)
        if judgement.verdict is Verdict.HUNG:
            judgement = Judgement(Verdict.HUNG, f"a steady caller had no answer within {self.stall_s:g} s")
        others = [f"{one} ({of})" for one, of in flight.beside.items() if not one.startswith(STEADY_PREFIX)]
        beside = ", ".join(others[:NEIGHBOURS_SHOWN]) or "no fuzzed request"
        self.tally.add(judgement, f"steady request {name} beside {beside}")
        broken = any(of != RIGHT for one, of in flight.beside.items() if not one.startswith(STEADY_PREFIX))
        if self._worth_showing(judgement, {f"{STEADY_PREFIX}{request.protocol.value}"} if broken else set()):
            self.evidence.append(
                self._evidence(flight, request.protocol, what, f"the answer to {what}", came, judgement)
            )
        return judgement.verdict is Verdict.RIGHT

    async def _canary(self) -> str:
        """A good row over both protocols; empty when both are answered right, else what came.

        Steady callers wait from a failure to the next success: they need not find out, too.
        """
        troubles: list[str] = []
        for protocol in Protocol:
            request = self.pool.request(0, protocol)
            came = await self.line.ask(request, CANARY, CANARY_TIMEOUT_S)
            judgement = judge(request, came, CANARY, self.plan.tolerance)
            if judgement.verdict is Verdict.RIGHT:
                self.tally.add(judgement, CANARY)
            else:
                troubles.append(f"{protocol.value}: {judgement.fault}")
        if troubles:
            self.go_on.clear()
        else:
            self.go_on.set()
        return "; ".join(troubles)

    async def _crashed(self, window: Window, trouble: str) -> None:
        """The canary is dead. Say after which requests, and, where somebody restarts the server, find the one."""
        self.crashes += 1
        where = f"fuzzed requests {window} of seed {self.plan.seed}"
        self.tally.add(Judgement(Verdict.WRONG, "the server no longer answers a good row"), where)
        text = f"after {where} the server no longer answers a good row: {trouble}"
        if await self._back():
            text += f"; {await self._localise(window)}"
            if await self._back():
                self.troubles.append(text)
                return
        self.dead = True
        self.troubles.append(text)

    async def _back(self) -> bool:
        """Whether the server answers, or does within ``restart_s``."""
        deadline = time.monotonic() + self.plan.restart_s
        while await self._canary():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(RESTART_POLL_S)
        return True

    async def _localise(self, window: Window) -> str:
        """The same requests again, one at a time with a canary after each: the first that is followed by silence."""
        for body in self._bodies(window):
            await self.line.send(body, self.plan.answer_timeout_s)
            if await self._canary():
                self.first_fault = Window(body.protocol, body.number, body.number)
                return f"{body.request_id} alone does it: {body.what}, {len(body.data)} bytes, {excerpt(body.data)}"
        return "one at a time they do not do it again"

    def _compare(self, right: _Pace) -> None:
        """Whether steady callers were slowed, by the medians: one late answer is a matter of ``stall_s``."""
        before, now = right.median_us, self.pace.median_us
        if now > SLOWED_TIMES * before and now > SLOWED_LEAST_US:
            self.troubles.append(
                f"steady callers were slowed: their median was {us_to_ms(before):.1f} ms beside right requests "
                f"and {us_to_ms(now):.1f} ms beside fuzzed ones, more than {SLOWED_TIMES} times as much"
            )

    def _note(self) -> str:
        of_server = sum(count for status, count in self.statuses.items() if _blames_server(status))
        closed = sum(count for status, count in self.statuses.items() if status.endswith("closed"))
        kinds = sum(not kind.startswith(STEADY_PREFIX) for kind in self.kinds)
        return (
            f"answered 5xx for malformed input (a tritonserver's own habit): {of_server}; closed without an answer: {closed}; "
            f"kinds of mutations: {kinds}; median of steady callers {us_to_ms(self.pace.median_us):.1f} ms"
        )


def _status(came: Came) -> str:
    return "hung" if came.hung else came.status or "200"


def _blames_server(status: str) -> bool:
    protocol, _, code = status.partition(" ")
    return code in SERVER_FAULTS if protocol == Protocol.GRPC else len(code) == 3 and code.startswith("5")


def excerpt(data: bytes) -> str:
    """The first bytes, for people, and how many there are in all."""
    text = repr(data[:EXCERPT_BYTES])[2:-1]
    return text if len(data) <= EXCERPT_BYTES else f"{text}... ({len(data)} bytes)"
