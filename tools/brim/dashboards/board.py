"""What a dashboard is: rows of panels, each with its unit and its queries. How Grafana has it: ``brim.dashboards.grafana``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How a panel is drawn."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    HEATMAP = "heatmap"


class Unit(StrEnum):
    """What a panel's figures are, as Grafana names it."""

    SHARE = "percentunit"
    MICROSECONDS = "µs"
    SECONDS = "s"
    PER_SECOND = "reqps"
    ROWS_PER_SECOND = "rowsps"
    TOKENS_PER_SECOND = "cps"
    COUNT = "short"


class Needs(StrEnum):
    """What must be there before a panel can show anything; queries of others are run against a real Prometheus in the tests."""

    NOTHING = ""
    GPU = "an NVIDIA GPU"
    PICKER = "the picker, which `brim serve --replicas` starts before language models"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and how its series are called: Grafana's template over their labels."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure.

    Attributes:
        title: what it is, in a few words.
        description: what it tells, and what it hides.
        unit: of every query.
        queries: one at least.
        shape: how it is drawn.
        most: upper end of the axis; None follows the figures.
        needs: what must be there.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    shape: Shape = Shape.LINES
    most: float | None = None
    needs: Needs = Needs.NOTHING


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    Attributes:
        name: of its file, and its uid with ``brim-`` in front.
        title: for people.
        description: what one looks here for.
        models_of: series whose label ``model`` offers the models to choose from.
        rows: from top to bottom.
    """

    name: str
    title: str
    description: str
    models_of: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        """All of them, in order."""
        for row in self.rows:
            yield from row.panels


MODEL = 'model=~"$model"'
"""In every query of a series that has the label."""
WINDOW = "$__rate_interval"
"""Of every rate: Grafana makes it four scrapes at least."""


def lines(*queries: tuple[str, str]) -> tuple[Query, ...]:
    """Expressions with their legends."""
    return tuple(Query(expression, legend) for expression, legend in queries)


def rate(series: str, by: str, more: str = "") -> str:
    """A counter's growth a second, summed by labels."""
    return f"sum by ({by}) (rate({series}{{{MODEL}{more}}}[{WINDOW}]))"


def per(part: str, whole: str) -> str:
    """A ratio that has no value where there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def percentile(part: float, buckets: str, by: str = "model") -> str:
    """Of a histogram."""
    return f"histogram_quantile({part:g}, {rate(buckets, f'{by}, le')})"
