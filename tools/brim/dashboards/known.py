"""The series that a query may ask for: who gives them, what kind they are, which labels they have.

The tests hold this against the pages of the real server, the real gateway and the real exporter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brim.engine.metrics import FAMILIES, Family, Kind
from brim.plan import series
from brim.plan.alerts import Document
from brim.plan.rules import scaling_rules
from brim.plan.scaling import Fleet
from brim.plan.service_rules import service_rules
from brim.service.schema import Service

OF_TARGET = frozenset(("job", "instance"))
"""Given by Prometheus to every series that it reads."""
OF_VERSION = ("model", "version")


@dataclass(frozen=True, slots=True)
class Series:
    """One name: whether it is a counter, part of a histogram or a value of now, and its labels."""

    kind: Kind
    labels: frozenset[str]


def _given(kind: Kind, names: Iterable[str], *labels: str) -> dict[str, Series]:
    return {name: Series(kind, OF_TARGET | set(labels)) for name in names}


TRITON = {
    **_given(
        Kind.COUNTER,
        ("nv_inference_count", "nv_inference_exec_count", series.SUCCESS, series.QUEUE_US),
        *OF_VERSION,
    ),
    **_given(Kind.COUNTER, ("nv_inference_compute_infer_duration_us",), *OF_VERSION),
    **_given(Kind.COUNTER, ("nv_inference_request_failure",), *OF_VERSION, "reason"),
    **_given(Kind.GAUGE, (series.PENDING,), *OF_VERSION),
    **_given(Kind.GAUGE, (series.GPU_UTILISATION,), "gpu_uuid"),
}
EXPORTER = {
    **_given(Kind.HISTOGRAM, (f"{series.BATCH_ROWS}_bucket",), *OF_VERSION, "le"),
    **_given(Kind.COUNTER, (f"{series.BATCH_ROWS}_sum", f"{series.BATCH_ROWS}_count", series.BUSY_US), *OF_VERSION),
    **_given(Kind.COUNTER, ("brim_launches_total",), *OF_VERSION, "reason"),
    **_given(Kind.GAUGE, (series.INSTANCES, series.MAX_ROWS, series.MODEL_LOADED), *OF_VERSION),
    **_given(Kind.COUNTER, (series.REQUESTS,), "model", "class", "outcome", "reason"),
    **_given(Kind.GAUGE, ("brim_gateway_in_flight", "brim_gateway_in_flight_limit"), "model"),
    **_given(Kind.GAUGE, (series.SOURCE_UP,), "source"),
    **_given(Kind.GAUGE, ("brim_exporter_scrape_us",)),
}
GATEWAY = {
    **_given(Kind.GAUGE, (series.IN_FLIGHT,), series.CLUSTER_LABEL),
    **_given(Kind.COUNTER, (series.GATEWAY_REQUESTS,), "model", "class", "code", "grpc_status", "reason", "flags"),
}
PICKER = {
    **_given(Kind.COUNTER, ("brim_picker_picks_total",), "model", "replica", "reason"),
    **_given(Kind.GAUGE, ("brim_picker_in_flight", "brim_picker_prefix_blocks"), "model", "replica"),
    **_given(Kind.GAUGE, ("brim_picker_replicas",)),
    **_given(Kind.COUNTER, ("brim_picker_unplaced_total",)),
}
PROMETHEUS = {
    **_given(Kind.GAUGE, ("up",)),
    # Besides these, those of whatever the alert is about.
    **_given(Kind.GAUGE, ("ALERTS",), "alertname", "alertstate", "severity"),
}
RECORDED_LABELS = {
    "brim_service:": frozenset(("model", "class", "outcome", "reason", "window", "pace")),
    "brim_model:": frozenset(("job", "model", "figure")),
    "brim_fleet:": frozenset(("job",)),
}
"""That the rules may keep, by the beginning of the name; which of them a series has, its expression decides."""


def known_series(services: Sequence[Service]) -> Mapping[str, Series]:
    """Every name, with what the rules of these services record."""
    documents = (service_rules(services), scaling_rules(services, Fleet(1, 8, 1)))
    return {
        **TRITON,
        **EXPORTER,
        **GATEWAY,
        **PICKER,
        **PROMETHEUS,
        **{name: found for family in FAMILIES for name, found in _of_host(family)},
        **{
            name: Series(Kind.GAUGE, labels)
            for document in documents
            for name in _recorded(document)
            for beginning, labels in RECORDED_LABELS.items()
            if name.startswith(beginning)
        },
    }


def _of_host(family: Family) -> Iterable[tuple[str, Series]]:
    labels = (*OF_VERSION, "process", *([family.label] if family.label else []))
    names = (family.name, *(alias for alias, extra in family.aliases if not extra))
    for name in names:
        if family.kind is Kind.HISTOGRAM:
            yield from _given(Kind.HISTOGRAM, (f"{name}_bucket",), *labels, "le").items()
            yield from _given(Kind.COUNTER, (f"{name}_sum", f"{name}_count"), *labels).items()
        else:
            yield from _given(family.kind, (name,), *labels).items()


def _recorded(document: Document) -> Iterable[str]:
    return (rule["record"] for group in document["groups"] for rule in group["rules"] if "record" in rule)
