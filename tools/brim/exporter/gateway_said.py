"""What the gateway says of its requests: from Envoy's pages to figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from brim.gateway.clusters import cluster_name
from brim.gateway.outcomes import NONE, REQUESTS, STREAM_REQUESTS, Ended, ended, stream_ended

IN_FLIGHT, CLUSTER = "envoy_cluster_upstream_rq_active", "envoy_cluster_name"
PAGE_FILTER = rf"^brim\.(stream_)?requests|^cluster\.{cluster_name('')}.*\.upstream_rq_active$"
"""Of Envoy's own names, so that its page has what is read and no more."""
DEFAULT = "DEFAULT"
"""Envoy's name of the priority that every route has."""
Who = tuple[str, str, Ended, str]
"""Model, class, how it ended, and the reason."""


@dataclass(frozen=True, slots=True)
class GatewaySaid:
    """What the gateway said at one moment.

    Attributes:
        requests: that have ended.
        in_flight: model -> requests between gateway and server.
        limits: model -> requests in flight at which all are refused; empty where it was not asked.
    """

    requests: Counter[Who] = field(default_factory=Counter)
    in_flight: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)


def read_gateway(page: str, clusters: Mapping[str, Any] | None = None) -> GatewaySaid:
    """Put its pages together.

    Args:
        page: in Prometheus' text format.
        clusters: ``/clusters?format=json``; None where it is out of reach.

    Raises:
        ValueError: the page is not in that format.
        KeyError, TypeError, AttributeError: the clusters have another form.
    """
    requests: Counter[Who] = Counter()
    in_flight: dict[str, int] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            # A counter's name ends like that for the parser, whether or not it does on the page.
            name, labels = sample.name.removesuffix("_total"), sample.labels
            if not (math.isfinite(sample.value) and sample.value >= 0):
                continue
            if name == REQUESTS:
                requests[_who(labels, ended(labels))] += int(sample.value)
            elif name == STREAM_REQUESTS and (how := stream_ended(labels["outcome"])) is not None:
                requests[_who(labels, how)] += int(sample.value)
            elif name == IN_FLIGHT and (model := _model_of(labels.get(CLUSTER, ""))) is not None:
                in_flight[model] = int(sample.value)
    return GatewaySaid(requests, in_flight, {} if clusters is None else limits(clusters))


def limits(clusters: Mapping[str, Any]) -> dict[str, int]:
    """Model -> requests in flight at which Envoy refuses, as its circuit breakers stand now."""
    return {
        model: int(threshold["max_requests"])
        for cluster in clusters["cluster_statuses"]
        if (model := _model_of(cluster["name"])) is not None
        for threshold in cluster.get("circuit_breakers", {}).get("thresholds", [])
        if threshold.get("priority", DEFAULT) == DEFAULT and "max_requests" in threshold
    }


def _who(labels: Mapping[str, str], how: tuple[Ended, str]) -> Who:
    model, kind = ("" if labels.get(name, "") in NONE else labels[name] for name in ("model", "class"))
    return (model, kind, *how)


def _model_of(cluster: str) -> str | None:
    """The model whose cluster it is; None of a cluster of something else."""
    prefix = cluster_name("")
    return cluster.removeprefix(prefix) if cluster.startswith(prefix) and cluster != prefix else None
