"""``soak.json`` and ``samples.jsonl`` of ``brim soak`` as far as a report shows them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from brim.measure.accounting import Outcome
from brim.soak.verdict import LEAST_RATIO, Answer
from brim.units import US_PER_S

FILE_NAME = "soak.json"

Count = Annotated[int, Field(ge=0)]
Microseconds = Annotated[int | None, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Trend(_Part):
    """Memory after the warm-up: its median, its rise by the trend, and what that may be."""

    level_bytes: Count
    growth_bytes: int
    allowed_bytes: Count

    @property
    def is_within(self) -> bool:
        """Whether it grew by no more than it may."""
        return self.growth_bytes <= self.allowed_bytes


class Soak(_Part):
    """The whole ``soak.json``."""

    answer: Answer
    reasons: list[str]
    window_us: Count
    first: float = Field(ge=0)
    """Right answers a second in the first window, and ``last`` in the last one."""
    last: float = Field(ge=0)
    ratio: Annotated[float | None, Field(ge=0)]
    rss: dict[str, Trend]
    shm: Trend
    bytes_per_request: float | None = None
    others_cores: Annotated[float | None, Field(ge=0)] = None
    model: str
    protocol: str
    rate: float = Field(gt=0)
    capacity: float | None = None
    load: float | None = None
    duration_us: int = Field(ge=1)
    ran_us: Count
    interrupted: bool
    samples: Count
    offered: Count
    answered: Count
    refused: Count
    expired: Count
    timed_out: Count
    cancelled: Count
    failed: Count
    not_sent: Count
    p50_us: Microseconds
    p99_us: Microseconds
    max_us: Microseconds
    messages: dict[str, Count] = Field(default_factory=dict)
    command: str = ""
    conditions: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        ended = sum(self.count(outcome) for outcome in Outcome)
        if ended != self.offered:
            raise ValueError(f"the outcomes add up to {ended}, and {self.offered} requests were offered")
        if (self.answer is Answer.FLAT) is bool(self.reasons):
            raise ValueError(f"answer is {self.answer.value!r} with {len(self.reasons)} reasons against 'flat'")
        return self

    def count(self, outcome: Outcome) -> int:
        """Requests with this end."""
        found: int = getattr(self, outcome.value)
        return found

    @property
    def ok(self) -> bool | None:
        """Whether everything stayed as it was; None where that could not be told."""
        return {Answer.FLAT: True, Answer.NOT_FLAT: False, Answer.COULD_NOT_TELL: None}[self.answer]

    @property
    def needed(self) -> float:
        """Least answers a second of the last window."""
        return LEAST_RATIO * self.first

    @property
    def typed(self) -> str:
        """The command, or what the file tells of it."""
        given = ["--duration", f"{self.duration_us / US_PER_S:.10g}", "--rate", f"{self.rate:.10g}"]
        return self.command or shlex.join(["brim", "soak", self.model, *given, "--protocol", self.protocol])


class Sample(_Part):
    """One stretch of the run, and what was held at its end: a line of the file, as ``brim.soak.sample`` describes it."""

    at_us: int = Field(ge=1)
    span_us: int = Field(ge=1)
    answered: Count
    most_in_flight: Count
    rss: dict[str, Count]
    fds: dict[str, Count]
    connections: Annotated[int | None, Field(ge=0)]
    upstream: Annotated[int | None, Field(ge=0)]
    shm_regions: Count
    shm_bytes: Count


def throughput_of(samples: Sequence[Sample]) -> float:
    """Right answers a second over all of these, of which there is at least one."""
    return sum(one.answered for one in samples) * US_PER_S / sum(one.span_us for one in samples)


def out_of_order(samples: Sequence[Sample]) -> str:
    """Which sample ends no later than the one before it; empty when all ascend."""
    wrong = next(((earlier, later) for earlier, later in pairwise(samples) if later.at_us <= earlier.at_us), None)
    return "" if wrong is None else f"at_us {wrong[1].at_us} comes after {wrong[0].at_us}: later ones are expected"
