"""What a tritonserver says of its models: from its statistics, its configurations and its index to figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from brim.limits import BATCH_LIMIT
from brim.measure.batch_stats import Counters, instance_count, parse_every_model
from brim.units import ns_to_us

ROWS_BOUNDS = (1, 2, 4, 8, 16, 25, 32, 50, 64, 75, 99, BATCH_LIMIT)
"""Of the histogram: powers of two, the quarters, and one below the limit, so that full batches have a bucket of their own."""
READY, UNLOADED = "READY", "unloaded"
"""State in the index of a model that takes requests, and the reason of one that was told not to (``model_lifecycle.cc``)."""


class Launch(StrEnum):
    """What an execution's size tells of why it was launched."""

    FULL = "full"
    PREFERRED = "preferred"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a model's configuration says.

    Attributes:
        instances: that execute.
        max_rows: most rows of an execution; 1 without batching.
        preferred: sizes at which a batch is launched before it is full.
    """

    instances: int
    max_rows: int
    preferred: frozenset[int]


@dataclass(frozen=True, slots=True)
class Model:
    """One version of a model, its running totals and how it is set."""

    name: str
    version: str
    totals: Counters
    settings: Settings

    @property
    def busy_us(self) -> int:
        """Time that instances were taken, all together."""
        return ns_to_us(sum(sized.busy_ns for sized in self.totals.by_size.values()))

    @property
    def rows(self) -> int:
        """Rows of all executions."""
        return sum(size * sized.executions for size, sized in self.totals.by_size.items())

    @property
    def bounds(self) -> list[int]:
        """Of its histogram, ascending: the model's own limit is one of them."""
        return sorted({*ROWS_BOUNDS, self.settings.max_rows})

    def executions_up_to(self, rows: float) -> int:
        """Executions of so many rows at most."""
        return sum(sized.executions for size, sized in self.totals.by_size.items() if size <= rows)

    @property
    def launches(self) -> dict[Launch, int]:
        """Executions by what their size tells; each is there, at 0 if need be, so that a first one is seen."""
        counts = dict.fromkeys(Launch, 0)
        for size, sized in self.totals.by_size.items():
            counts[self._launch(size)] += sized.executions
        return counts

    def _launch(self, size: int) -> Launch:
        if size >= self.settings.max_rows:
            return Launch.FULL
        return Launch.PREFERRED if size in self.settings.preferred else Launch.OTHER


@dataclass(frozen=True, slots=True)
class ServerSaid:
    """What the server said at one moment.

    Attributes:
        models: whose statistics and configuration are known.
        loaded: (model, version) -> whether it takes requests.
    """

    models: tuple[Model, ...] = ()
    loaded: Mapping[tuple[str, str], bool] = field(default_factory=dict)


def read_server(
    statistics: Mapping[str, Any], configurations: Mapping[str, Mapping[str, Any]], index: list[Mapping[str, Any]]
) -> ServerSaid:
    """Put the three answers together. A model without a configuration has gone meanwhile, and is left out.

    Args:
        statistics: ``GET /v2/models/stats``.
        configurations: model -> ``GET /v2/models/M/config``.
        index: ``POST /v2/repository/index``.

    Raises:
        UnreadableStatistics: the statistics have another form.
        KeyError, TypeError, ValueError, AttributeError: the index or a configuration has.
    """
    settings = {name: read_settings(document) for name, document in configurations.items()}
    models = tuple(
        Model(name, version, totals, settings[name])
        for name, versions in sorted(parse_every_model(statistics).items())
        if name in settings
        for version, totals in sorted(versions.items())
    )
    return ServerSaid(models, loaded_versions(index))


def read_settings(config: Mapping[str, Any]) -> Settings:
    """What a configuration says, as Triton shows it: numbers may be text."""
    max_rows = max(1, int(config.get("max_batch_size", 0)))
    preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size") or []
    return Settings(instance_count(config), max_rows, frozenset(int(size) for size in preferred))


def loaded_versions(index: list[Mapping[str, Any]]) -> dict[tuple[str, str], bool]:
    """(model, version) -> whether it takes requests, of all that were ever loaded and not told to go."""
    return {
        (entry["name"], str(entry.get("version", ""))): entry["state"] == READY
        for entry in index
        if entry.get("state") and entry.get("reason") != UNLOADED
    }
