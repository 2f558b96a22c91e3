"""``bench.json`` of ``brim bench precision``: a model in several precisions, their speeds, accuracy and refusals."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SpeedVerdict = Literal["faster", "slower", "unclear"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class RatioSpread(_Part):
    """Of the ratios of all rounds: ``brim.bench.verdict.Spread``."""

    median: float
    low: float
    high: float
    confidence: float = Field(ge=0, le=1)
    rounds: int = Field(ge=1)

    @model_validator(mode="after")
    def _holds_its_median(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"median {self.median:g} lies outside of its interval, {self.low:g} to {self.high:g}")
        return self


class BatchSpeed(_Part):
    """One precision at one batch, against FP32 in the same rounds."""

    batch: int = Field(ge=1)
    rows_per_s: list[float] = Field(min_length=1)
    ratio: RatioSpread
    verdict: SpeedVerdict


class OnePrecision(_Part):
    """One precision. Without speeds, its graph could not be made; the refusals say why."""

    precision: str
    refusals: list[str]
    accuracy: dict[str, float]
    graph_bytes: int = Field(ge=0)
    speeds: list[BatchSpeed]


class Precisions(_Part):
    """The whole file."""

    benchmark: Literal["precision"]
    service: str
    chosen: str
    threads: int = Field(ge=1)
    sizes: dict[str, int]
    precisions: list[OnePrecision] = Field(min_length=1)
    conditions: dict[str, Any]
    command: str

    @property
    def ok(self) -> bool | None:
        """No where the gates refuse what the service serves; else None: a precision has no target."""
        refused = any(one.refusals for one in self.precisions if one.precision == self.chosen)
        return False if refused else None
