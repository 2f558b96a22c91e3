"""What one generator process is told to do, and where: a line of JSON on its stdin. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from brim_loadtest.payload import Payload
from brim_loadtest.schedule import Schedule


class Role(StrEnum):
    """What a process does in a run."""

    ALONE = "alone"
    """Everything: Locust's local runner."""
    MASTER = "master"
    """Tells workers when to begin, and puts together what they counted."""
    WORKER = "worker"
    """Sends one part of the schedule."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run.

    Attributes:
        schedule: what is sent, and when.
        payload: what requests carry.
        model: whom they are for.
        http, grpc: ``host:port`` of each protocol.
        workers: processes that share the schedule.
        in_flight: requests under way at most, in all workers together.
        patience_us: how long a caller waits from when its request was due; then it leaves.
        leaving: whether one who leaves then does so on its own account (cancelled), or had no answer (failed).
        folder: where Locust's own page is written.
        web_port: of Locust's web page, on this machine only; None for none.
    """

    schedule: Schedule
    payload: Payload
    model: str
    http: str
    grpc: str
    workers: int
    in_flight: int
    patience_us: int
    leaving: bool
    folder: str
    web_port: int | None = None

    @property
    def in_flight_each(self) -> int:
        """Of one worker."""
        return max(1, self.in_flight // self.workers)

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary of what JSON has."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "schedule": self.schedule.as_json(),
            "payload": self.payload.as_json(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """What ``as_json`` gave."""
        return cls(
            schedule=Schedule.from_json(document["schedule"]),
            payload=Payload.from_json(document["payload"]),
            **{name: document[name] for name in _PLAIN},
        )


_PLAIN = (
    *("model", "http", "grpc", "workers", "in_flight"),
    *("patience_us", "leaving", "folder", "web_port"),
)
