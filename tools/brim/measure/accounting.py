"""What became of every arrival of an open loop: outcomes by kind, latencies from the schedule, and the SLO's verdict.

Latency is charged from the time at which a request was *due*. Counted from sending instead, a generator that is held up
sends late, so the requests that would have waited longest are measured as if nothing had been wrong ("coordinated
omission"; perf_analyzer counts so in its rate mode, triton-inference-server/server issue 3113).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from brim.errors import CouldNotTell, InputError
from brim.measure.histogram import Latencies, nearest_rank
from brim.units import US_PER_S, us_to_ms

LATE_US = 1_000
"""A request that leaves more than this after it was due left late."""
MESSAGES = 10
"""Different error texts that are kept; the rest are only counted by kind."""
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_HISTOGRAMS = ("since_due", "since_sent", "send_delay", "until_refused", "refused_since_sent")


class Outcome(StrEnum):
    """What became of one arrival. Every arrival has exactly one."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """At once, for want of room: HTTP 429 or 503, gRPC UNAVAILABLE or RESOURCE_EXHAUSTED."""
    EXPIRED = "expired"
    """Given up by the server after it had waited in a queue: Triton's request timeout, a gateway's 504."""
    TIMED_OUT = "timed_out"
    """No answer within the generator's own bound."""
    CANCELLED = "cancelled"
    """The caller gave up, as the plan says that it does."""
    FAILED = "failed"
    """Any other error, a lost connection among them."""
    NOT_SENT = "not_sent"
    """The generator was at its bound; the server never saw it."""


class Reply(NamedTuple):
    """The outcome of one request, and the text of an error."""

    outcome: Outcome
    message: str = ""


@dataclass(frozen=True, slots=True)
class Objective:
    """An SLO: ``percentile`` percent of the requests answered within ``latency_us`` (at exactly that is within).

    Raises:
        InputError: a value is out of range.
    """

    percentile: float
    latency_us: int

    def __post_init__(self) -> None:
        """Refuse what no run could meet or miss."""
        nearest_rank(self.percentile, 1)
        if self.latency_us < 1:
            raise InputError(f"latency_us {self.latency_us}: must be 1 or more", hint="give the SLO's latency")


class Account:
    """What became of a number of arrivals. Accounts of parts (segments, processes) merge into one of the whole.

    Attributes:
        counts: outcome -> arrivals; their sum is ``offered``.
        late: requests that left more than ``late_us`` after they were due.
        in_slo: answers within the objective's latency, counted exactly; 0 without an objective.
        since_due: of answers, from the time at which they were due. The latency.
        since_sent: of answers, from sending. Only to show what counting from sending would hide.
        send_delay: of everything sent, from due to sent.
        until_refused: of refusals, from due: how soon a caller hears that there is no room.
        refused_since_sent: the same from sending: what the server's side of it takes.
        messages: texts of errors -> how often, ``MESSAGES`` different ones at most.
    """

    def __init__(self, objective: Objective | None = None, *, late_us: int = LATE_US) -> None:
        """Empty."""
        self.objective = objective
        self.late_us = late_us
        self.counts = dict.fromkeys(Outcome, 0)
        self.late = 0
        self.in_slo = 0
        self.since_due = Latencies()
        self.since_sent = Latencies()
        self.send_delay = Latencies()
        self.until_refused = Latencies()
        self.refused_since_sent = Latencies()
        self.messages: dict[str, int] = {}

    @property
    def offered(self) -> int:
        """Arrivals, whatever became of them."""
        return sum(self.counts.values())

    @property
    def late_ratio(self) -> float:
        """Late requests / requests sent; 0 without any."""
        return self.late / self.send_delay.count if self.send_delay.count else 0.0

    @property
    def in_slo_ratio(self) -> float | None:
        """Answers within the objective / offered; None without an objective or an arrival."""
        return self.in_slo / self.offered if self.objective is not None and self.offered else None

    def add(self, due_us: int, sent_us: int, done_us: int, reply: Reply) -> None:
        """Account for a request that was sent. The three times are of one clock."""
        self.counts[reply.outcome] += 1
        delay_us = max(0, sent_us - due_us)
        self.send_delay.record(delay_us)
        self.late += delay_us > self.late_us
        if reply.outcome is Outcome.ANSWERED:
            latency_us = done_us - due_us
            self.since_due.record(latency_us)
            self.since_sent.record(done_us - sent_us)
            self.in_slo += self.objective is not None and latency_us <= self.objective.latency_us
        elif reply.outcome is Outcome.REFUSED:
            self.until_refused.record(done_us - due_us)
            self.refused_since_sent.record(done_us - sent_us)
        if reply.message:
            self._note(reply.message, 1)

    def add_unsent(self) -> None:
        """Account for an arrival that the generator had no room for."""
        self.counts[Outcome.NOT_SENT] += 1

    def merge(self, other: Account) -> None:
        """Add another's arrivals, which keeps its own.

        Raises:
            InputError: it was taken under another objective, or another idea of late.
        """
        if (other.objective, other.late_us) != (self.objective, self.late_us):
            raise InputError(
                f"accounts of {self.objective}, late above {self.late_us} us, and of {other.objective}, late above "
                f"{other.late_us} us: their counts do not mean the same",
                hint="merge accounts of one plan",
            )
        for outcome, count in other.counts.items():
            self.counts[outcome] += count
        self.late += other.late
        self.in_slo += other.in_slo
        for name in _HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name))
        for message, count in other.messages.items():
            self._note(message, count)

    def as_json(self) -> dict[str, Any]:
        """Counts, the usual percentiles for people, and the histograms for merging."""
        return {
            **{outcome.value: self.counts[outcome] for outcome in Outcome},
            "offered": self.offered,
            "in_slo": self.in_slo,
            "late": self.late,
            "late_us": self.late_us,
            "slo": None
            if self.objective is None
            else {"percentile": self.objective.percentile, "latency_us": self.objective.latency_us},
            **{f"p{p:g}_us": self.since_due.percentile_us(p) for p in PERCENTILES},
            "max_us": self.since_due.max_us,
            "reject_p99_us": self.until_refused.percentile_us(99),
            "messages": dict(self.messages),
            "histograms": {name: getattr(self, name).as_json() for name in _HISTOGRAMS},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            InputError: it is something else.
        """
        try:
            slo = document["slo"]
            objective = None if slo is None else Objective(slo["percentile"], slo["latency_us"])
            made = cls(objective, late_us=int(document["late_us"]))
            made.counts = {outcome: int(document[outcome.value]) for outcome in Outcome}
            made.late, made.in_slo = int(document["late"]), int(document["in_slo"])
            made.messages = {str(text): int(count) for text, count in document["messages"].items()}
            for name, histogram in document["histograms"].items():
                if not isinstance(getattr(made, name, None), Latencies):
                    raise ValueError(f"there is no histogram {name!r}")
                setattr(made, name, Latencies.from_json(histogram))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"not an account of an open loop: {type(error).__name__}: {error}",
                hint="expected is what `as_json` gave",
            ) from error
        if made.counts[Outcome.ANSWERED] != made.since_due.count:
            raise InputError(
                f"not an account of an open loop: {made.counts[Outcome.ANSWERED]} answers and "
                f"{made.since_due.count} latencies",
                hint="the file was changed",
            )
        return made

    def _note(self, message: str, count: int) -> None:
        if message in self.messages or len(self.messages) < MESSAGES:
            self.messages[message] = self.messages.get(message, 0) + count


def merged(accounts: Iterable[Account]) -> Account:
    """One account of all.

    Raises:
        InputError: there is none, or they are of different objectives.
    """
    parts = list(accounts)
    if not parts:
        raise InputError("no account to merge", hint="give one at least")
    whole = Account(parts[0].objective, late_us=parts[0].late_us)
    for part in parts:
        whole.merge(part)
    return whole


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """Whether an objective was met: ``in_slo`` of the ``offered`` arrivals, where ``needed`` had to be."""

    met: bool
    in_slo: int
    needed: int
    offered: int
    message: str


def judge_slo(account: Account) -> SloVerdict:
    """Whether enough of *all* arrivals were answered in time.

    What was refused, expired, failed, or left without an answer is not in time. Judged by exact counts, so that a
    latency of exactly the limit is within, whatever the histogram rounds to.

    Raises:
        InputError: the account has no objective.
        CouldNotTell: nothing arrived.
    """
    objective = account.objective
    if objective is None:
        raise InputError("no objective was given, so none can be judged", hint="give a percentile and a latency")
    if not account.offered:
        raise CouldNotTell("no request was due in this run", hint="use a higher rate or a longer run")
    needed = nearest_rank(objective.percentile, account.offered)
    met = account.in_slo >= needed
    message = (
        f"{account.in_slo} of {account.offered} requests were answered within {us_to_ms(objective.latency_us):g} ms of "
        f"the time at which they were due; p{objective.percentile:g} needs {needed}"
    )
    return SloVerdict(met, account.in_slo, needed, account.offered, message)


def goodput_per_s(account: Account, duration_us: int) -> float | None:
    """Answers within the objective a second of the schedule; None without an objective or without time."""
    if account.objective is None or duration_us <= 0:
        return None
    return account.in_slo * US_PER_S / duration_us
