"""What a check saw, request by request: a bounded sample that shows what was sent, what came and who was beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Company(StrEnum):
    """How it is known who the neighbours of a request were."""

    ALONE = "alone"
    """Nobody else was in flight: the suite asked it by itself."""
    OVERLAPPING = "overlapping in time"
    """They were in flight at the same time, so they may have shared its batch; nearest answers first."""
    BATCH = "the same batch"
    """The batch was composed on purpose, so these are exactly its other requests."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One request of a check. All texts are short and made for people; none holds a whole tensor.

    A ``Result`` has a bounded sample of these in ``exchanges``: the first ``FAULTS_SHOWN`` that were hurt, and some of each
    verdict that is no fault. ``Result.as_json()`` turns each into the object of ``as_json`` below.

    Attributes:
        request_id: as it travelled, such as ``identity-17``; it holds the check's id and the number in sending order.
        protocol: ``http`` or ``grpc`` (a value of ``brim.measure.plan.Protocol``).
        sent: what was sent: ``row 12``, ``NaN in X``, ``a caller that cancels its call``; the marker where it has one.
        expected: what it gets alone: the outputs in short or ``refused with 400``; empty where anything is its own.
        came: what came: the outputs in short, ``[400] text``, ``no answer in time``, ``the caller had gone``.
        verdict: a value of ``brim.isolation.judge.Verdict``, the name of the count that it went into.
        fault: why the verdict is a fault; empty when it is none.
        company: how the neighbours are known.
        neighbours: some of those that shared its time or its batch, one short text each, as ``request_id (sent)``.
        neighbour_count: how many there were in all; ``neighbours`` is cut, this is not.
        began_us: when it was sent, from the first request of its check on; 0 where it was asked alone.
        took_us: from sending to answer.
    """

    request_id: str
    protocol: str
    sent: str
    expected: str
    came: str
    verdict: str
    fault: str = ""
    company: Company = Company.OVERLAPPING
    neighbours: tuple[str, ...] = ()
    neighbour_count: int = 0
    began_us: int = 0
    took_us: int = 0

    def as_json(self) -> dict[str, object]:
        """The evidence as a JSON object: the attributes above by name, ``company`` as its text."""
        return {**asdict(self), "company": self.company.value, "neighbours": list(self.neighbours)}
