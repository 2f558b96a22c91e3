"""What is noted while the load runs: one sample a second, each a line of the run folder's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from brim.units import US_PER_S

FILE_NAME = "samples.jsonl"
SERVER, STUBS, GATEWAY = "tritonserver", "stubs", "envoy"


@dataclass(frozen=True, slots=True)
class Resources:
    """What the programs behind one address hold at one moment.

    Attributes:
        rss: program -> resident memory in bytes; the python backend's stubs count as one program.
        fds: program -> open file descriptors.
        connections: of callers, open at the gateway; None when it did not say.
        upstream: connections from the gateway to the server; None likewise.
        shm_regions: shared-memory regions of the server.
        shm_bytes: memory that they take.
        busy_us: processor time that everything on the machine has taken since it was started.
        own_us: of that, what these programs and the generator have taken.
    """

    rss: Mapping[str, int]
    fds: Mapping[str, int]
    connections: int | None
    upstream: int | None
    shm_regions: int
    shm_bytes: int
    busy_us: int = 0
    own_us: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One stretch of the run, and what was held at its end.

    Attributes:
        at_us: its end, since the load began.
        span_us: its length.
        sent: requests that left in it.
        answered: right answers that came in it.
        refused: refusals that came in it.
        failed: everything else that came in it instead of a right answer, wrong answers among them.
        in_flight: requests under way at its end.
        most_in_flight: most at once in it.
        resources: what was held at its end.
    """

    at_us: int
    span_us: int
    sent: int
    answered: int
    refused: int
    failed: int
    in_flight: int
    most_in_flight: int
    resources: Resources

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return self.answered * US_PER_S / self.span_us

    def as_json(self) -> dict[str, Any]:
        """A line of the file."""
        document = asdict(self)
        resources = document.pop("resources")
        return {**document, **resources}


def throughput_of(samples: Sequence[Sample]) -> float:
    """Answers a second over all of these; 0 without any."""
    span_us = sum(sample.span_us for sample in samples)
    return sum(sample.answered for sample in samples) * US_PER_S / span_us if span_us else 0.0
