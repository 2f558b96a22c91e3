"""The numbers of ``brim.engine.metrics`` on Triton's metrics page, under our names and those that routers expect."""

from __future__ import annotations

import os
from typing import Any, Protocol

from brim.engine.metrics import FAMILIES, Change, Family, Kind, Metrics


class MetricsBackend(Protocol):
    """The part of ``triton_python_backend_utils`` that makes metrics."""

    MetricFamily: Any


class MetricsPage:
    """Used from one thread and from no other: metrics set from several threads of a stub end tritonserver 24.10 (seen)."""

    def __init__(self, backend: MetricsBackend, metrics: Metrics, model: str, version: str) -> None:
        """Put everything on the page. Whatever the server objects to passes through.

        The process is one of the labels: two stubs with equal labels would share one metric, which the first of them to
        end frees.
        """
        self._metrics = metrics
        self._labels = {"model": model, "version": version, "process": str(os.getpid())}
        kinds = {
            Kind.COUNTER: backend.MetricFamily.COUNTER,
            Kind.GAUGE: backend.MetricFamily.GAUGE,
            Kind.HISTOGRAM: backend.MetricFamily.HISTOGRAM,
        }
        # A metric does not keep its family, and dies with it.
        self._families: dict[str, Any] = {}
        for family in FAMILIES:
            for name in (family.name, *(alias for alias, _ in family.aliases)):
                if name not in self._families:
                    self._families[name] = backend.MetricFamily(
                        name=name, description=family.help, kind=kinds[family.kind]
                    )
        self._made: dict[tuple[Family, str], list[Any]] = {}
        self.publish()

    def publish(self) -> None:
        """Bring the page up to date."""
        for change in self._metrics.changes():
            for metric in self._metrics_of(change.family, change.label):
                _apply(metric, change)

    def _metrics_of(self, family: Family, label: str) -> list[Any]:
        key = (family, label)
        if key not in self._made:
            own = {family.label: label} if family.label else {}
            buckets = {"buckets": list(family.buckets)} if family.kind is Kind.HISTOGRAM else {}
            self._made[key] = [
                self._families[name].Metric(labels={**self._labels, **own, **dict(extra)}, **buckets)
                for name, extra in ((family.name, ()), *family.aliases)
            ]
        return self._made[key]


def _apply(metric: Any, change: Change) -> None:
    if change.family.kind is Kind.COUNTER:
        metric.increment(change.amount)
    elif change.family.kind is Kind.GAUGE:
        metric.set(change.amount)
    else:
        for value in change.observed:
            metric.observe(value)
