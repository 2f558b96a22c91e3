"""``loadtest.json``: what a load test's callers got, by class of traffic, and how it went second by second."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from brim.measure.accounting import Objective
from brim.units import ms_to_us

FILE_NAME = "loadtest.json"
ENDS = ("answered", "refused", "expired", "cancelled", "failed")
"""How a request can end. What is missing from ``offered`` had not ended when the test did."""
WORDS = {
    **dict.fromkeys(("ok", "yes", "met", "pass", "passed"), True),
    **dict.fromkeys(("no", "missed", "not met", "fail", "failed"), False),
}
"""Verdicts in a word."""

Count = Annotated[int, Field(ge=0)]
Microseconds = Annotated[float | None, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


def _order(p50_us: float | None, p99_us: float | None) -> None:
    if p50_us is not None and p99_us is not None and p50_us > p99_us:
        raise ValueError(f"p50_us {p50_us:g} is above p99_us {p99_us:g}")


class ClassResult(_Part):
    """One class of traffic.

    ``p50_us`` and ``p99_us`` are of answers, ``reject_p99_us`` is of refusals; never mixed. ``met`` is its own verdict, and
    ``latency_us`` with ``percentile`` its own SLO where it has another than the test.
    """

    offered: Count
    answered: Count
    in_slo: Count
    refused: Count
    expired: Count
    cancelled: Count
    failed: Count
    p50_us: Microseconds = None
    p99_us: Microseconds = None
    reject_p99_us: Microseconds = None
    met: bool | None = None
    latency_us: Annotated[int | None, Field(ge=1)] = None
    percentile: Annotated[float | None, Field(gt=0, lt=100)] = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        ended = sum(getattr(self, end) for end in ENDS)
        if ended > self.offered:
            raise ValueError(f"{' + '.join(ENDS)} is {ended}, more than offered {self.offered}")
        if self.in_slo > self.answered:
            raise ValueError(f"in_slo {self.in_slo} is more than answered {self.answered}")
        _order(self.p50_us, self.p99_us)
        return self

    @property
    def unended(self) -> int:
        """Requests that had no end when the test ended."""
        ended: int = sum(getattr(self, end) for end in ENDS)
        return self.offered - ended


class Second(_Part):
    """What was due in one second of the test, or from then until the next entry's; latencies are of answers."""

    second: Count
    offered: Count
    answered: Count
    in_slo: Count
    refused: Count
    p50_us: Microseconds = None
    p99_us: Microseconds = None

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.in_slo > self.answered:
            raise ValueError(f"in_slo {self.in_slo} is more than answered {self.answered}")
        _order(self.p50_us, self.p99_us)
        return self


class Slo(_Part):
    """What a class's answers are held against."""

    latency_ms: float = Field(gt=0)
    percentile: float = Field(gt=0, lt=100)


class Verdict(_Part):
    """Whether the test was passed (None: could not tell), and why."""

    ok: bool | None
    message: str = ""


class LoadTest(_Part):
    """The whole file."""

    classes: dict[str, ClassResult] = Field(min_length=1)
    verdict: bool | str | Verdict
    slo: Slo
    conditions: dict[str, Any]
    message: str = ""
    """Why the verdict is what it is."""
    limits: list[str] = Field(default_factory=list)
    """In what ways the load generator, and not the server, set the figures."""
    timeline: list[Second] = Field(default_factory=list)
    command: str | list[str] = ""

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        seconds = [one.second for one in self.timeline]
        for earlier, later in pairwise(seconds):
            if later <= earlier:
                raise ValueError(f"timeline: second {later} comes after {earlier}")
        return self

    @property
    def objective(self) -> Objective:
        """The SLO."""
        return Objective(percentile=self.slo.percentile, latency_us=max(1, ms_to_us(self.slo.latency_ms)))

    @property
    def ok(self) -> bool | None:
        """The verdict as yes, no, or None where it could not be told."""
        if isinstance(self.verdict, Verdict):
            return self.verdict.ok
        return self.verdict if isinstance(self.verdict, bool) else WORDS.get(self.verdict.strip().lower())

    @property
    def said(self) -> str:
        """Why, in words; empty where nothing says."""
        if isinstance(self.verdict, Verdict):
            return self.verdict.message or self.message
        word = "" if isinstance(self.verdict, bool) or self.verdict.strip().lower() in WORDS else self.verdict
        return self.message or word

    @property
    def entry_s(self) -> int:
        """Seconds of one entry of the timeline: the least distance of two; 1 where there are no two."""
        seconds = [one.second for one in self.timeline]
        return min((later - earlier for earlier, later in pairwise(seconds)), default=1)

    @property
    def typed(self) -> str:
        """The command, as far as the file tells."""
        if isinstance(self.command, str):
            return self.command or "brim load"
        return shlex.join(self.command)
