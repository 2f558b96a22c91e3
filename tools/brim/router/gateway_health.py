"""Which replicas Envoy itself holds for sick: those of its canaries and of its outlier detection.

The policy that follows a picker's choice (``override_host``, v1.40) sends a request to the host that was picked whether it
is well or not, so a picker has to leave the sick ones out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brim.router.metrics_page import ALL
from brim.router.replica_file import Server

SICK_FLAGS = ("failed_active_health_check", "failed_outlier_check", "active_hc_timeout")
SICK_STATES = frozenset({"UNHEALTHY", "DRAINING", "TIMEOUT"})


def sick_hosts(page: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Cluster -> ``host:port`` of those that get no requests, from ``/clusters?format=json``.

    Raises:
        KeyError, TypeError, AttributeError: it is not that page.
    """
    return {
        cluster["name"]: frozenset(
            _endpoint(host) for host in cluster.get("host_statuses", []) if _is_sick(host.get("health_status", {}))
        )
        for cluster in page["cluster_statuses"]
    }


def unfit_replicas(sick: Mapping[str, frozenset[str]], servers: Iterable[Server]) -> dict[str, set[str]]:
    """Model, and ``ALL`` for every model -> replicas that get no requests.

    A cluster is the one of the model that its name ends with, after a slash. A server that its file says is unfit is so for
    every model.
    """
    servers = list(servers)
    unfit = {
        name.rpartition("/")[2]: {server.name for server in servers if {server.http, server.grpc} & hosts}
        for name, hosts in sick.items()
        if "/" in name
    }
    return {**unfit, ALL: {server.name for server in servers if not server.fit}}


def _is_sick(status: Mapping[str, Any]) -> bool:
    return any(status.get(flag) for flag in SICK_FLAGS) or status.get("eds_health_status") in SICK_STATES


def _endpoint(host: Mapping[str, Any]) -> str:
    where = host["address"]["socket_address"]
    address = where["address"]
    return f"[{address}]:{where['port_value']}" if ":" in address else f"{address}:{where['port_value']}"
