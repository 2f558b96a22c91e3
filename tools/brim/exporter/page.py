"""The exporter's page, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from brim.exporter.gateway_said import GatewaySaid
from brim.exporter.server_said import ServerSaid

OF_VERSION, OF_MODEL = ("model", "version"), ("model",)


class Source(StrEnum):
    """Whom the exporter asks."""

    TRITON = "triton"
    GATEWAY = "gateway"


class Page(Collector):
    """All families, of what was said. A source that said nothing leaves its families out."""

    def __init__(
        self, server: ServerSaid | None, gateway: GatewaySaid | None, up: Mapping[Source, bool], scrape_us: int
    ) -> None:
        """What stands on the page.

        Args:
            server: what tritonserver said; None where it did not answer.
            gateway: what the gateway said; None where it did not answer, or was not asked.
            up: whether it answered, of each source that was asked.
            scrape_us: what asking took.
        """
        self._server, self._gateway, self._up, self._scrape_us = server, gateway, up, scrape_us

    @property
    def up(self) -> Mapping[Source, bool]:
        """Whether it answered, of each source that was asked."""
        return self._up

    def text(self) -> bytes:
        """As it is sent."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        if self._server is not None:
            yield from _of_server(self._server)
        if self._gateway is not None:
            yield from _of_gateway(self._gateway)
        yield _gauge(
            "brim_exporter_source_up",
            "1 when the source answered this time.",
            ("source",),
            (((source.value,), int(answered)) for source, answered in sorted(self._up.items())),
        )
        yield _gauge(
            "brim_exporter_scrape_us", "Microseconds that asking the sources took.", (), [((), self._scrape_us)]
        )


def _of_server(said: ServerSaid) -> Iterator[Metric]:
    rows = HistogramMetricFamily("brim_batch_rows", "Rows of an execution.", labels=OF_VERSION)
    for model in said.models:
        bounds = [*((str(bound), bound) for bound in model.bounds), ("+Inf", float("inf"))]
        buckets = [(name, model.executions_up_to(bound)) for name, bound in bounds]
        rows.add_metric((model.name, model.version), buckets, model.rows)
    yield rows
    named = [((model.name, model.version), model) for model in said.models]
    yield _counter(
        "brim_busy_us",
        "Microseconds that instances were taken, of all of them together.",
        OF_VERSION,
        ((who, model.busy_us) for who, model in named),
    )
    yield _counter(
        "brim_launches",
        "Executions, by what their size tells of why they were launched.",
        (*OF_VERSION, "reason"),
        (((*who, reason.value), count) for who, model in named for reason, count in model.launches.items()),
    )
    yield _gauge(
        "brim_instances",
        "Instances that the configuration asks for.",
        OF_VERSION,
        ((who, model.settings.instances) for who, model in named),
    )
    yield _gauge(
        "brim_max_batch_rows",
        "Most rows of an execution.",
        OF_VERSION,
        ((who, model.settings.max_rows) for who, model in named),
    )
    yield _gauge(
        "brim_model_loaded",
        "1 when the server's index says that the version takes requests.",
        OF_VERSION,
        ((who, int(loaded)) for who, loaded in sorted(said.loaded.items())),
    )


def _of_gateway(said: GatewaySaid) -> Iterator[Metric]:
    yield _counter(
        "brim_requests",
        "Requests that have ended at the gateway, by how they did.",
        ("model", "class", "outcome", "reason"),
        (
            ((model, kind, how.value, reason), count)
            for (model, kind, how, reason), count in sorted(said.requests.items())
        ),
    )
    yield _gauge(
        "brim_gateway_in_flight",
        "Requests between the gateway and the servers.",
        OF_MODEL,
        (((model,), count) for model, count in sorted(said.in_flight.items())),
    )
    yield _gauge(
        "brim_gateway_in_flight_limit",
        "Requests in flight at which the gateway refuses all classes.",
        OF_MODEL,
        (((model,), count) for model, count in sorted(said.limits.items())),
    )


Samples = Iterable[tuple[Sequence[str], int]]


def _counter(name: str, help_: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _gauge(name: str, help_: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
