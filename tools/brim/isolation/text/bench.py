"""One language model under test: calls alone, calls in company, and the question whether it still answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from brim.isolation.bench import HEALED_TIMEOUT_S, Account
from brim.isolation.exchange import HUNG_LIMIT
from brim.isolation.flights import Flights
from brim.isolation.judge import HURT, Judgement, Verdict
from brim.isolation.result import Options
from brim.isolation.text.call import Call, alone_of, came_of
from brim.isolation.text.judge import is_hung, judge_text
from brim.isolation.text.shrink import smallest_failing, statement
from brim.measure.text.stream import Heard, TextCallers
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.supervise import Supervisor
from brim.units import US_PER_S

SHRINK_S = 60.0
"""Longest search for a smaller plan; the run under way is finished."""

Spoken = tuple[Call, Heard]
"""A call and what its caller heard."""


class TextBench:
    """The server. Knows nothing of single checks."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        options: Options,
        *,
        own: EmbeddedServer | None = None,
        supervisor: Supervisor | None = None,
        on_count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Take the parts together.

        Args:
            endpoint: the server.
            model: its name there.
            options: of the run.
            own: the server itself where others like it may be started.
            supervisor: what starts that server again when it dies.
            on_count: told after each answer in company how many more have come.
        """
        self.endpoint, self.model, self.options = endpoint, model, options
        self.own, self.supervisor, self.on_count = own, supervisor, on_count
        self.good: Call | None = None
        self.dead = False

    def at(self, endpoint: Endpoint) -> TextBench:
        """The same bench around another server, which nobody starts again."""
        return TextBench(endpoint, self.model, self.options, on_count=self.on_count)

    def alone(self, calls: Sequence[Call]) -> list[Heard]:
        """What each caller hears when nobody is beside it."""
        return [heard for _, heard in self._exchange(calls, "alone", callers=1)]

    def learn(self, calls: Sequence[Call], account: Account) -> list[Call]:
        """Ask each alone, so that it is known what it must get in company. Those that hang alone are left out."""
        known = []
        for call, heard in zip(calls, self.alone(calls), strict=False):
            judgement = judge_text(replace(call, alone=None), heard)
            account.tally.add(judgement, f"{call.statement()}, alone")
            if judgement.verdict in (Verdict.RIGHT, Verdict.OWN_ERROR):
                known.append(replace(call, alone=alone_of(heard)))
        return known

    def company(
        self,
        calls: Sequence[Call],
        prefix: str,
        account: Account,
        *,
        callers: int,
        secrets: Collection[str] = (),
        beside: Sequence[Call] = (),
        shrinks: bool = True,
    ) -> list[Spoken]:
        """Ask all, ``callers`` at once, and judge every answer; when one is hurt, look for a smaller plan that hurts, too.

        Args:
            calls: in sending order, each with what it must get.
            prefix: of the request ids.
            account: where verdicts and evidence go.
            callers: how many at once.
            secrets: of all callers; see ``judge_text``.
            beside: of callers that begin before the others, and go when those have ended.
            shrinks: whether a smaller plan would be one of the same kind.
        """
        flights = Flights()
        owners = {call.alone.text: call.statement() for call in calls if call.alone and call.alone.text}
        verdicts: list[Verdict] = []

        def keep(number: int, call: Call, heard: Heard) -> None:
            judgement = judge_text(call, heard, secrets=secrets, owners=owners)
            verdicts.append(judgement.verdict)
            self._note(account, flights, prefix, number, call, heard, judgement)
            hurt.extend([number] if judgement.verdict in HURT else [])
            self.on_count(1)

        hurt: list[int] = []
        spoken = self._exchange(calls, prefix, callers=callers, flights=flights, on_heard=keep, beside=beside)
        account.journal.close(flights, prefix=prefix)
        unsent = len(calls) + len(beside) - len(spoken)
        if unsent:
            account.troubles.append(f"{unsent} more calls were not made: too many callers had no answer")
        if hurt and shrinks and Verdict.HUNG not in verdicts:
            numbers = sorted([hurt[0], *(int(other) for other in flights.beside(hurt[0]))])
            together = [spoken[number][0] for number in numbers]
            account.troubles.append(self._shrunk(together, callers, secrets))
        return spoken

    def _note(
        self,
        account: Account,
        flights: Flights,
        prefix: str,
        number: int,
        call: Call,
        heard: Heard,
        judgement: Judgement,
    ) -> None:
        request_id = f"{prefix}-{number}"
        account.tally.add(judgement, f"call {request_id} ({call.statement()})")
        came = came_of(heard, hung=is_hung(call, heard))
        account.journal.note(number, flights.requests[number], request_id, came, judgement)

    def _shrunk(self, calls: Sequence[Call], callers: int, secrets: Collection[str]) -> str:
        deadline = time.monotonic() + SHRINK_S

        def fails(some: Sequence[Call]) -> bool:
            if time.monotonic() > deadline:
                return False
            spoken = self._exchange(some, "again", callers=callers)
            return any(judge_text(call, heard, secrets=secrets).verdict in HURT for call, heard in spoken)

        return statement(smallest_failing(calls, fails), len(calls))

    def _exchange(
        self,
        calls: Sequence[Call],
        prefix: str,
        *,
        callers: int,
        flights: Flights | None = None,
        on_heard: Callable[[int, Call, Heard], None] = lambda number, call, heard: None,
        beside: Sequence[Call] = (),
    ) -> list[Spoken]:
        """In the order in which they were made; callers stop when too many had no answer."""
        return asyncio.run(self._exchanged(calls, prefix, callers, flights or Flights(), on_heard, beside))

    async def _exchanged(
        self,
        calls: Sequence[Call],
        prefix: str,
        callers: int,
        flights: Flights,
        on_heard: Callable[[int, Call, Heard], None],
        beside: Sequence[Call],
    ) -> list[Spoken]:
        spoken: list[Spoken] = []
        hung = 0

        async def make(line: TextCallers, call: Call) -> None:
            nonlocal hung
            number, heard = flights.leave(call.request(self.model)), Heard()
            call = call.named(f"{prefix}-{number}")
            spoken.append((call, heard))
            try:
                await self.speak(line, call, heard)
            finally:
                flights.land(number)
                hung += is_hung(call, heard)
                on_heard(number, call, heard)

        async def caller(line: TextCallers, waiting: Iterator[Call]) -> None:
            for call in waiting:
                await asyncio.sleep(call.starts_us / US_PER_S)
                if hung >= HUNG_LIMIT:
                    return
                await make(line, call)

        waiting = iter(calls)
        async with TextCallers(self.endpoint, self.model) as line:
            resting = [asyncio.create_task(make(line, call)) for call in beside]
            try:
                await asyncio.gather(*(caller(line, waiting) for _ in range(callers)))
            finally:
                for task in resting:
                    task.cancel()
                await asyncio.gather(*resting, return_exceptions=True)
        return spoken

    async def speak(self, line: TextCallers, call: Call, heard: Heard) -> None:
        """One call as its caller behaves; what came stands in ``heard`` also when the caller went."""
        most = call.leaves_pieces
        asking = line.ask(
            call.ask,
            leaves=None if most is None else lambda so_far: len(so_far.pieces) >= most,
            limit_s=self.options.answer_timeout_s,
            heard=heard,
            pause_s=call.pause_s,
            listens_on=True,
        )
        if call.leaves_us is None:
            await asking
            return
        try:
            async with asyncio.timeout(call.leaves_us / US_PER_S):
                await asking
        except TimeoutError:
            pass

    def canary(self) -> str:
        """A good call alone; empty when its text is its own. Remembers a server that is gone."""
        if self.good is None:
            return ""
        (heard,) = self.alone([self.good])
        judgement = judge_text(self.good, heard)
        self.dead = judgement.verdict in HURT
        return judgement.fault

    @property
    def incidents(self) -> int:
        """How often the server or a stub of it has died so far, as far as a supervisor knows."""
        counts = self.supervisor.counts if self.supervisor else {}
        return counts.get("crashed_server", 0) + counts.get("dead_stub", 0)

    def revive(self) -> None:
        """Where somebody starts the server again when it dies: wait for that, and ask whether it answers now."""
        if self.supervisor and self.supervisor.wait_healed(HEALED_TIMEOUT_S):
            self.canary()
