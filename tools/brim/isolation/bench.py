"""One server under test: rows alone, rows in company, and the question whether it still answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from brim.errors import CouldNotTell
from brim.isolation.exchange import LOST, Gate, exchange
from brim.isolation.flights import Flights
from brim.isolation.journal import Journal
from brim.isolation.judge import Judgement, Tally, Verdict, judge
from brim.isolation.pool import Pool
from brim.isolation.request import Came, Expected, Request
from brim.isolation.result import Options
from brim.measure import batch_stats
from brim.measure.plan import Protocol
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.server.supervise import Supervisor

CANARY_TIMEOUT_S = 10.0
HEALED_TIMEOUT_S = 60.0
MESSAGES = 3
"""Faults that a check's message shows; ``faults`` has a few more."""


@dataclass(slots=True)
class Account:
    """What one check has found so far.

    Attributes:
        tally: verdicts on requests.
        journal: evidence.
        troubles: what is wrong beside single requests; any makes the check fail.
        note: what there is to say about a check that did not fail.
        skipped: why there was nothing to check; empty when there was.
        mean_batch: rows in a batch; None where the server does not tell.
        figures: what else was measured.
        repeat: words that the command that repeats the check needs beside its id.
    """

    tally: Tally = field(default_factory=Tally)
    journal: Journal = field(default_factory=Journal)
    troubles: list[str] = field(default_factory=list)
    note: str = ""
    skipped: str = ""
    mean_batch: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    repeat: tuple[str, ...] = ()


class Bench:
    """The server and the references. Knows nothing of single checks."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: Pool,
        other: Pool | None,
        options: Options,
        *,
        own: EmbeddedServer | None = None,
        supervisor: Supervisor | None = None,
        guarded: bool = False,
        on_count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Take the parts together.

        Args:
            endpoint: the server.
            pool: good rows of the model under test.
            other: good rows of another model on the same server, where there is one.
            options: of the run.
            own: the server itself where the suite may load its models anew and harm it.
            supervisor: what starts that server again when it dies.
            guarded: whether a gateway stands before the server that stops what would end it.
            on_count: told after each answer in company how many more have come.
        """
        self.endpoint = endpoint
        self.pool = pool
        self.other = other
        self.options = options
        self.own = own
        self.supervisor = supervisor
        self.guarded = guarded
        self.on_count = on_count
        self.dead = False

    @property
    def control(self) -> Endpoint:
        """Where models are loaded: the server itself, since no gateway offers that to callers."""
        return self.own.endpoint if self.own else self.endpoint

    @property
    def model(self) -> str:
        """The model under test."""
        return self.pool.contract.name

    def learn(self, requests: Sequence[Request], prefix: str, account: Account) -> list[Request]:
        """Ask every unusual request once alone; in company it must get the same. Those that hang alone are left out.

        Returns:
            The requests with what each may expect; empty when the server is gone.
        """
        unknown = list({id(one): one for one in requests if one.expected is None}.values())
        learnt: dict[int, Request | None] = {}
        prefix = f"{prefix}-alone"

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, self.options.tolerance)
            account.tally.add(judgement, f"{request.name()}, alone")
            account.journal.note(number, request, request_id, came, judgement)
            usable = judgement.verdict in (Verdict.RIGHT, Verdict.OWN_ERROR)
            learnt[id(request)] = replace(request, expected=Expected(came.outputs, came.status)) if usable else None

        flights = exchange(
            self.endpoint, unknown, callers=1, timeout_s=self.options.answer_timeout_s, prefix=prefix, on_came=keep
        )
        account.journal.close(flights, prefix=prefix)
        # A connection may end on a broken message; the server must not.
        gone = [one for one in unknown if (known := learnt.get(id(one))) is None or _silent(known)]
        if gone and (trouble := self.canary()):
            fault = Judgement(Verdict.WRONG, f"the server no longer answers: {trouble}")
            account.tally.add(fault, f"{gone[0].name()}, alone")
            return []
        company = [one if one.expected is not None else learnt.get(id(one)) for one in requests]
        return [one for one in company if one is not None]

    def company(
        self,
        requests: Iterable[Request],
        prefix: str,
        account: Account,
        *,
        callers: int,
        flights: Flights | None = None,
        gate: Gate | None = None,
        batches: Sequence[Sequence[int]] | None = None,
        errors_allowed: bool = False,
        pause_s: float = 0.0,
    ) -> Flights:
        """Send them, ``callers`` at once, and judge every answer.

        Args:
            requests: each with what it may expect.
            prefix: of the request ids.
            account: where verdicts, evidence and the mean batch go.
            callers: how many at once.
            flights: as for ``exchange``.
            gate: as for ``exchange``.
            batches: numbers of the requests that will share each batch, where it is known beforehand.
            errors_allowed: whether any error counts as the caller's own, since the server is being harmed meanwhile.
            pause_s: as for ``exchange``.
        """
        tally, tolerance = account.tally, self.options.tolerance
        batches_before = self.batches()

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, tolerance)
            if errors_allowed and came.error:
                judgement = Judgement(Verdict.OWN_ERROR)
            elif judgement.verdict is Verdict.WRONG and came.outputs is not None and tally.hurt < MESSAGES:
                owner = self.pool.owner(came.outputs, tolerance)
                if owner is not None:
                    judgement = replace(judgement, fault=f"{judgement.fault}; what came is the answer to row {owner}")
            tally.add(judgement, f"request {request_id} ({request.name()})")
            account.journal.note(number, request, request_id, came, judgement)
            self.on_count(1)

        flights = exchange(
            self.endpoint,
            requests,
            callers=callers,
            timeout_s=self.options.answer_timeout_s,
            prefix=prefix,
            on_came=keep,
            flights=flights,
            gate=gate,
            pause_s=pause_s,
        )
        account.journal.close(flights, prefix=prefix, batches=batches)
        account.mean_batch = _mean_batch(batches_before, self.batches())
        return flights

    def incidents(self) -> int:
        """How often the server or a stub of it has died so far, as far as a supervisor knows."""
        counts = self.supervisor.counts if self.supervisor else {}
        return counts.get("crashed_server", 0) + counts.get("dead_stub", 0)

    def revive(self) -> None:
        """Where somebody starts the server again when it dies: wait for that, and ask whether it answers now."""
        if self.supervisor and self.supervisor.wait_healed(HEALED_TIMEOUT_S):
            self.canary()

    def batches(self) -> batch_stats.Snapshot | None:
        """The server's own count of batches, where it has one."""
        with closing(self.endpoint.http_client(timeout_s=CANARY_TIMEOUT_S)) as client:
            try:
                return batch_stats.snapshot(client, self.model)
            except (*NO_ANSWER, CouldNotTell):
                return None

    def duty(self, before: batch_stats.Snapshot | None) -> float | None:
        """Share of the time since ``before`` in which the model ran; None where the server does not tell."""
        after = self.batches()
        if before is None or after is None:
            return None
        with closing(self.endpoint.http_client(timeout_s=CANARY_TIMEOUT_S)) as client:
            try:
                instances = batch_stats.instance_count(client.get_model_config(self.model))
                return batch_stats.difference(before, after, instances=instances).duty
            except (*NO_ANSWER, CouldNotTell):
                return None

    def canary(self) -> str:
        """A good row alone over each protocol; empty when both answers are right. Remembers a server that is gone."""
        troubles: list[str] = []

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, self.options.tolerance)
            if judgement.verdict is not Verdict.RIGHT:
                troubles.append(f"{request.protocol.value}: {judgement.fault}")

        canaries = [self.pool.request(0, protocol) for protocol in Protocol]
        exchange(self.endpoint, canaries, callers=1, timeout_s=CANARY_TIMEOUT_S, prefix="canary", on_came=keep)
        self.dead = bool(troubles)
        return "; ".join(troubles)


def _silent(known: Request) -> bool:
    """Whether what a request got alone is what it would get from a server that is gone."""
    return known.expected is not None and known.expected.status in (LOST, "UNAVAILABLE")


def _mean_batch(before: batch_stats.Snapshot | None, after: batch_stats.Snapshot | None) -> float | None:
    if before is None or after is None:
        return None
    try:
        return batch_stats.difference(before, after, instances=1).mean_batch
    except CouldNotTell:
        return None
