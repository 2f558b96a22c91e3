"""Many replicas behind one gateway: how each cluster finds them, and how requests are spread over them.

Which replicas there are stands in files, one a cluster (``brim.gateway.replica_files``), that Envoy watches. A cluster holds
two hosts of each replica, its HTTP and its gRPC port, as subsets. Envoy takes one resource a file (``eds.cc`` at v1.40).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from brim.gateway.xds import GRPC, HTTP, SUBSET_KEY, TYPE, Document, Upstream, address_of, subset
from brim.router.replica_file import BRIM, METRICS, NAME

POLICIES = f"{TYPE}extensions.load_balancing_policies"
CHOICES = 6
"""Replicas drawn for a request, with repetition, of which the one with the fewest requests under way is taken. Of three
replicas, one that is slow is drawn alone once in 729 requests; two draws would make it one in nine."""
HOST_TRIES = 200
"""Draws until a retry has a replica that has not had the request: one with nothing under way is nearly always the least."""
LOCAL_FAILURES = 5
"""In a row (no connection, a reset, no answer in time), after which a replica gets no requests for a while."""
EJECTED_S = 5
MOST_EJECTED_PERCENT = 50
FAILING_PERCENT, FAILING_REQUESTS = 60, 20
"""Of so many answers in a second, the part that must be errors of the server. A count in a row would be no good: callers who
send what a model fails on would have healthy replicas ejected, and what they send comes to all replicas alike."""
SICK_STATUS = "500|502|504"
"""Of an answer that speaks against its replica. 503 does not: Triton says so when a model's queue is full."""


class Balance(StrEnum):
    """Who gets a request, of the replicas that are well."""

    LEAST_REQUEST = "least-request"
    ROUND_ROBIN = "round-robin"


def _as_it_is(host: Document) -> Document:
    return host


@dataclass(frozen=True, slots=True)
class Picking:
    """What picks a replica in front of the balancing, which stays its fallback.

    Attributes:
        filters: HTTP filters, in front of the router.
        clusters: that the filters speak to.
        around: the policy of a cluster, from the balancing that it falls back on.
        asking: the virtual host, from the one whose routes ask nobody.
    """

    filters: Sequence[Document]
    clusters: Sequence[Document]
    around: Callable[[Document], Document]
    asking: Callable[[Document], Document] = _as_it_is


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas in place of one server.

    Attributes:
        folder: of the files that say which there are.
        balance: how requests are spread.
        picking: what picks in front of it.
    """

    folder: Path
    balance: Balance = Balance.LEAST_REQUEST
    picking: Picking | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as its cluster has it.

    Attributes:
        name: for people.
        upstream: where it answers.
        draining: it gets no more requests, and those under way go on.
        weight: its share. Envoy divides it by the requests under way, where they are looked at.
        metrics: its metrics page, ``host:port``, for a picker; None where there is none.
    """

    name: str
    upstream: Upstream
    draining: bool = False
    weight: int = 1
    metrics: str | None = None


def file_of(folder: Path, cluster: str) -> Path:
    """Where a cluster's replicas stand. The ending is how Envoy knows JSON."""
    return folder / f"{quote(cluster, safe='')}.json"


def count_file(folder: Path) -> Path:
    """Where the number of replicas that take requests stands, for ``admission.lua``."""
    return folder / "serving"


def assignment(cluster: str, members: Sequence[Member]) -> Document:
    """A cluster's file (``envoy.service.discovery.v3.DiscoveryResponse``)."""
    return {
        "resources": [
            {
                "@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": cluster,
                "endpoints": [{"lb_endpoints": [host for member in members for host in _hosts(member)]}],
            }
        ]
    }


def _hosts(member: Member) -> list[Document]:
    # Both ports are one server: what asks for its health goes to its HTTP port.
    http = {"port_value": address_of(member.upstream.http)["socket_address"]["port_value"]}
    return [
        {
            "endpoint": {"address": address_of(address), "health_check_config": http},
            "metadata": _metadata(protocol, member),
            "load_balancing_weight": member.weight,
            **({"health_status": "DRAINING"} if member.draining else {}),
        }
        for protocol, address in ((HTTP, member.upstream.http), (GRPC, member.upstream.grpc))
    ]


def _metadata(protocol: str, member: Member) -> Document:
    """What Envoy tells the two ports apart by; and for a picker, whose they are (``brim.router.replica_file``)."""
    page = {} if member.metrics is None else {METRICS: member.metrics}
    return {"filter_metadata": {**subset(protocol)["filter_metadata"], BRIM: {NAME: member.name, **page}}}


def found_in_files(name: str, replicas: Replicas) -> Document:
    """What makes a cluster one of many replicas."""
    folder = str(replicas.folder.absolute())
    source = {"path": str(file_of(replicas.folder.absolute(), name)), "watched_directory": {"path": folder}}
    return {
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "path_config_source": source}},
        # Else one that is taken out stays in for as long as it answers its canary.
        "ignore_health_on_host_removal": True,
        # A sick replica is not tried for want of a better one.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_balancing_policy": {"policies": [_policy(replicas)]},
        "outlier_detection": {
            "interval": "1s",
            "base_ejection_time": f"{EJECTED_S}s",
            "max_ejection_percent": MOST_EJECTED_PERCENT,
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": LOCAL_FAILURES,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_failure_percentage": 100,
            "failure_percentage_threshold": FAILING_PERCENT,
            "failure_percentage_minimum_hosts": 2,
            "failure_percentage_request_volume": FAILING_REQUESTS,
        },
    }


def sick_answers() -> Document:
    """Which answers count against a replica (``HttpProtocolOptions.outlier_detection``)."""
    status = {"name": ":status", "string_match": {"safe_regex": {"regex": SICK_STATUS}}}
    return {"error_matcher": {"http_response_headers_match": {"headers": [status]}}}


def _policy(replicas: Replicas) -> Document:
    by_subset = {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.subset",
            "typed_config": {
                "@type": f"{POLICIES}.subset.v3.Subset",
                "fallback_policy": "NO_FALLBACK",
                "subset_selectors": [{"keys": [SUBSET_KEY]}],
                "subset_lb_policy": {"policies": [_balancing(replicas.balance)]},
            },
        }
    }
    return by_subset if replicas.picking is None else replicas.picking.around(by_subset)


def _balancing(balance: Balance) -> Document:
    config: Document
    if balance is Balance.ROUND_ROBIN:
        name, config = "round_robin", {"@type": f"{POLICIES}.round_robin.v3.RoundRobin"}
    else:
        name = "least_request"
        config = {"@type": f"{POLICIES}.least_request.v3.LeastRequest", "choice_count": CHOICES}
    return {"typed_extension_config": {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}}
