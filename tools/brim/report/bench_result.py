"""``bench.json``: a benchmark's ratios against their targets, or what ``brim bench overload`` or ``precision`` found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from brim.report.bench_verdict import Verdict, verdict_of
from brim.report.overload_result import Overload
from brim.report.precision_result import Precisions

FILE_NAME = "bench.json"
OVERLOAD = "overload"
PRECISION = "precision"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Ratio(_Part):
    """One ratio over all rounds, and what it was held against: ``least``, ``most``, or both."""

    ratio: str
    least: float | None = None
    most: float | None = None
    median: float
    low: float
    high: float
    confidence: float = Field(ge=0, le=1)
    rounds: int = Field(ge=1)
    verdict: Verdict

    @model_validator(mode="after")
    def _holds_its_median(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"median {self.median:g} lies outside of its interval, {self.low:g} to {self.high:g}")
        return self

    @property
    def target(self) -> str:
        """In words; empty without one."""
        words = [] if self.least is None else [f">= {self.least:g}"]
        return " and ".join(words + ([] if self.most is None else [f"<= {self.most:g}"]))


Values = Annotated[list[float], Field(min_length=1)]


class Comparison(_Part):
    """A benchmark that compares two ways of the same work, round by round."""

    benchmark: str
    ratios: list[Ratio]
    figures: dict[str, Values]
    """Name with its unit -> one value a round."""
    conditions: dict[str, Any]

    @property
    def ok(self) -> bool | None:
        """No with a missed target; None where the noise forbids an answer, and where there is no target."""
        return verdict_of([one.verdict for one in self.ratios])


class OtherBenchmark(_Part):
    """Any other: it has no target, and makes no section."""


def _which(document: object) -> str:
    if isinstance(document, Mapping) and document.get("benchmark") == OVERLOAD:
        return OVERLOAD
    if isinstance(document, Mapping) and document.get("benchmark") == PRECISION:
        return PRECISION
    return "comparison" if isinstance(document, Mapping) and "ratios" in document else "benchmark"


BenchFile = Annotated[
    Annotated[Overload, Tag(OVERLOAD)]
    | Annotated[Precisions, Tag(PRECISION)]
    | Annotated[Comparison, Tag("comparison")]
    | Annotated[OtherBenchmark, Tag("benchmark")],
    Discriminator(_which),
]
"""What the file holds, by the benchmark that wrote it."""
