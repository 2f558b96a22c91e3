"""What became of every request, by class and by second; the tallies of several workers merge into one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from brim.measure.accounting import Account, Outcome, Reply
from brim.measure.histogram import nearest_rank
from brim.units import US_PER_S
from brim_loadtest.schedule import Arrival, Caller, Schedule
from brim_loadtest.shapes import Behaviour

MOST_REASONS = 20
"""Different reasons that are kept; further ones are counted together."""
OTHER_REASONS = "other"
LONGEST_REASON = 60
TIMELINE_DIGITS = 2
"""A percentile of one second is at most 1 % above the latency that it stands for, and never below it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended.

    Attributes:
        reply: its outcome, and the text of an error.
        reason: why the gateway refused it, as ``x-brim-reason`` says; empty where it says nothing.
        wrong: whether it was answered, and the answer is not the reference.
        stopped: whether it ended because the run was stopped.
        answer_bytes: length of the answer.
    """

    reply: Reply
    reason: str = ""
    wrong: bool = False
    stopped: bool = False
    answer_bytes: int = 0


def rounded_up(latency_us: int) -> int:
    """A latency to ``TIMELINE_DIGITS`` significant digits and a half: steps of 1 % at most, upwards."""
    step: int = 10 ** max(0, len(str(latency_us)) - TIMELINE_DIGITS - 1)
    return -(-latency_us // step) * step


@dataclass(slots=True)
class Entry:
    """The requests that were due in one entry of the timeline. ``latencies`` of answers, rounded: how many had each."""

    offered: int = 0
    answered: int = 0
    in_slo: int = 0
    refused: int = 0
    latencies: Counter[int] = field(default_factory=Counter)

    def merge(self, other: Entry) -> None:
        """Add another's."""
        self.offered += other.offered
        self.answered += other.answered
        self.in_slo += other.in_slo
        self.refused += other.refused
        self.latencies += other.latencies

    def percentile_us(self, percentile: float) -> int | None:
        """The nearest rank among the answers; None without any."""
        left = nearest_rank(percentile, self.answered)
        for latency_us in sorted(self.latencies):
            left -= self.latencies[latency_us]
            if left <= 0:
                return latency_us
        return None

    def as_json(self, second: int) -> dict[str, Any]:
        """As it stands in ``loadtest.json``."""
        return {
            "second": second,
            "offered": self.offered,
            "answered": self.answered,
            "in_slo": self.in_slo,
            "refused": self.refused,
            "p50_us": self.percentile_us(50),
            "p99_us": self.percentile_us(99),
        }


class ClassTally:
    """The requests of one class of callers.

    Attributes:
        caller: the class.
        account: outcomes and latencies, as in every open loop (``brim.measure.accounting``).
        reasons: of refusals and expiries, as far as the gateway gave one.
        wrong: of the failures, answers that were not the reference.
        stopped: of the cancelled, those that were under way when the run was stopped.
        judged, judged_in_slo: requests, and answers in time, of callers that did not come in order to leave.
    """

    def __init__(self, caller: Caller) -> None:
        """Empty."""
        self.caller = caller
        self.account = Account(caller.objective, late_us=caller.late_us)
        self.reasons: Counter[str] = Counter()
        self.wrong = 0
        self.stopped = 0
        self.judged = 0
        self.judged_in_slo = 0

    @property
    def offered(self) -> int:
        """Requests that the server was sent."""
        return self.account.offered - self.account.counts[Outcome.NOT_SENT]

    def add(self, arrival: Arrival, sent_us: int, done_us: int, ended: Ended) -> None:
        """Account for a request that was sent."""
        before = self.account.in_slo
        self.account.add(arrival.clock_us, max(sent_us, arrival.clock_us), max(done_us, arrival.clock_us), ended.reply)
        if ended.reason:
            self._note(ended.reason[:LONGEST_REASON], 1)
        self.wrong += ended.wrong
        self.stopped += ended.stopped
        if arrival.behaviour is not Behaviour.LEAVING and not ended.stopped:
            self.judged += 1
            self.judged_in_slo += self.account.in_slo - before

    def merge(self, other: ClassTally) -> None:
        """Add another worker's.

        Raises:
            InputError: it is of another objective.
        """
        self.account.merge(other.account)
        for reason, count in other.reasons.items():
            self._note(reason, count)
        self.wrong += other.wrong
        self.stopped += other.stopped
        self.judged += other.judged
        self.judged_in_slo += other.judged_in_slo

    def _note(self, reason: str, count: int) -> None:
        known = reason in self.reasons or len(self.reasons) < MOST_REASONS
        self.reasons[reason if known else OTHER_REASONS] += count

    def as_json(self) -> dict[str, Any]:
        """As it stands in ``loadtest.json``: ``offered`` is the sum of the five outcomes, always."""
        counts = self.account.counts
        return {
            "offered": self.offered,
            "answered": counts[Outcome.ANSWERED],
            "in_slo": self.account.in_slo,
            "refused": counts[Outcome.REFUSED],
            "expired": counts[Outcome.EXPIRED],
            "cancelled": counts[Outcome.CANCELLED],
            "failed": counts[Outcome.FAILED] + counts[Outcome.TIMED_OUT],
            "not_sent": counts[Outcome.NOT_SENT],
            "wrong": self.wrong,
            "stopped": self.stopped,
            "no_answer": counts[Outcome.TIMED_OUT],
            "p50_us": self.account.since_due.percentile_us(50),
            "p99_us": self.account.since_due.percentile_us(99),
            "max_us": self.account.since_due.max_us,
            "reject_p99_us": self.account.until_refused.percentile_us(99),
            "reasons": dict(self.reasons.most_common()),
            "late": self.account.late,
            "messages": dict(self.account.messages),
            "latency_us": self.caller.objective.latency_us,
            "percentile": self.caller.objective.percentile,
            "share": self.caller.share,
        }

    def as_message(self) -> dict[str, Any]:
        """All of it, for another process."""
        return {
            "account": self.account.as_json(),
            "reasons": dict(self.reasons),
            **{name: getattr(self, name) for name in _COUNTS},
        }

    @classmethod
    def from_message(cls, caller: Caller, message: Mapping[str, Any]) -> Self:
        """What ``as_message`` gave.

        Raises:
            InputError: its account is none.
        """
        made = cls(caller)
        made.account = Account.from_json(message["account"])
        made.reasons = Counter(message["reasons"])
        for name in _COUNTS:
            setattr(made, name, int(message[name]))
        return made


_COUNTS = ("wrong", "stopped", "judged", "judged_in_slo")


class Tally:
    """All requests of a run, or of one worker's part of it: by class, and by the second in which they were due."""

    def __init__(self, schedule: Schedule) -> None:
        """Empty."""
        self.schedule = schedule
        self.classes = [ClassTally(caller) for caller in schedule.callers]
        self.timeline: dict[int, Entry] = {}

    def add(self, arrival: Arrival, sent_us: int, done_us: int, ended: Ended) -> None:
        """Account for a request that was sent."""
        one = self.classes[arrival.caller]
        before = one.account.in_slo
        one.add(arrival, sent_us, done_us, ended)
        entry = self._entry(arrival)
        entry.offered += 1
        entry.refused += ended.reply.outcome is Outcome.REFUSED
        if ended.reply.outcome is Outcome.ANSWERED:
            entry.answered += 1
            entry.in_slo += one.account.in_slo - before
            entry.latencies[rounded_up(max(0, done_us - arrival.clock_us))] += 1

    def add_unsent(self, arrival: Arrival) -> None:
        """Account for an arrival that the generator had no room for."""
        self.classes[arrival.caller].account.add_unsent()

    def _entry(self, arrival: Arrival) -> Entry:
        number = arrival.due_us // (self.schedule.entry_s * US_PER_S)
        return self.timeline.setdefault(number, Entry())

    def merge(self, other: Tally) -> None:
        """Add another worker's.

        Raises:
            InputError: it is of another schedule.
        """
        for mine, theirs in zip(self.classes, other.classes, strict=True):
            mine.merge(theirs)
        for number, entry in other.timeline.items():
            self.timeline.setdefault(number, Entry()).merge(entry)

    def progress(self) -> dict[str, int]:
        """A few counts, for people who watch."""
        accounts = [one.account for one in self.classes]
        counts = {outcome: sum(account.counts[outcome] for account in accounts) for outcome in Outcome}
        return {
            "offered": sum(one.offered for one in self.classes),
            "in_slo": sum(account.in_slo for account in accounts),
            **{outcome.value: counts[outcome] for outcome in Outcome},
        }

    def as_json(self) -> dict[str, Any]:
        """``classes`` and ``timeline`` as they stand in ``loadtest.json``."""
        return {
            "classes": {one.caller.label: one.as_json() for one in self.classes},
            "timeline": [
                self.timeline[number].as_json(number * self.schedule.entry_s) for number in sorted(self.timeline)
            ],
        }

    def as_message(self) -> dict[str, Any]:
        """All of it, for another process."""
        return {
            "classes": [one.as_message() for one in self.classes],
            "timeline": [
                {**asdict(entry), "number": number, "latencies": list(entry.latencies.items())}
                for number, entry in self.timeline.items()
            ],
        }

    @classmethod
    def from_message(cls, schedule: Schedule, message: Mapping[str, Any]) -> Self:
        """What ``as_message`` gave, in a run of this schedule.

        Raises:
            InputError: an account in it is none.
        """
        made = cls(schedule)
        made.classes = [
            ClassTally.from_message(caller, part)
            for caller, part in zip(schedule.callers, message["classes"], strict=True)
        ]
        for part in message["timeline"]:
            latencies = Counter({int(latency_us): int(count) for latency_us, count in part["latencies"]})
            counts = {name: int(part[name]) for name in ("offered", "answered", "in_slo", "refused")}
            made.timeline[int(part["number"])] = Entry(**counts, latencies=latencies)
        return made


def merged(schedule: Schedule, tallies: Iterable[Tally]) -> Tally:
    """One tally of all workers of a run."""
    whole = Tally(schedule)
    for tally in tallies:
        whole.merge(tally)
    return whole
