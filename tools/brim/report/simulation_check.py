"""``simulation-check.json``: figures that the simulator predicted beside the same ones measured, over a grid."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

FILE_NAME = "simulation-check.json"
FIGURES = {"p50": "p50_us", "p99": "p99_us", "mean_batch": "mean_batch"}
"""Name of a figure in ``median_error`` -> its name in ``Figures``."""
AGREES = 0.005
"""A median error in the file may differ by this from the one of its points: it may be rounded."""


class Figures(BaseModel):
    """Of one side; None where a figure could not be had."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    p50_us: float | None = Field(default=None, ge=0)
    p99_us: float | None = Field(default=None, ge=0)
    mean_batch: float | None = Field(default=None, ge=0)
    launches: dict[str, int] = Field(default_factory=dict)
    """Launch reason -> batches, where the side knows."""


class CheckedPoint(BaseModel):
    """One load of one setting, predicted and measured."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    curve: str
    setting: str
    load: float = Field(gt=0)
    predicted: Figures
    measured: Figures


class SimulationCheck(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    conditions: dict[str, Any]
    command: str | list[str]
    points: list[CheckedPoint]
    median_error: dict[str, float | None] = Field(default_factory=dict)


class Pair(NamedTuple):
    """One figure at one load of one setting, both sides. ``measured`` is above 0."""

    curve: str
    setting: str
    load: float
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return (self.predicted - self.measured) / self.measured


def pairs(check: SimulationCheck, field: str) -> list[Pair]:
    """The points that have this figure on both sides. ``field`` is one of the values of ``FIGURES``."""
    both = ((point, getattr(point.measured, field), getattr(point.predicted, field)) for point in check.points)
    return [
        Pair(point.curve, point.setting, point.load, measured, predicted)
        for point, measured, predicted in both
        if measured and predicted is not None
    ]


def median_error(check: SimulationCheck, name: str) -> float | None:
    """The median of |error| over the points; None when no point has the figure on both sides."""
    errors = [abs(pair.error) for pair in pairs(check, FIGURES[name])]
    return statistics.median(errors) if errors else None


def disagreements(check: SimulationCheck) -> list[str]:
    """Where the file's own medians are not those of its points."""
    found = []
    for name in FIGURES:
        said, computed = check.median_error.get(name), median_error(check, name)
        if said is not None and (computed is None or abs(said - computed) > AGREES):
            is_really = "no point has it on both sides" if computed is None else f"its points give {computed:.1%}"
            found.append(f"{FILE_NAME} gives a median error of {said:.1%} for {name}, yet {is_really}")
    return found
