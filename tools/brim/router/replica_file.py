"""Which replicas there are, from the file that Envoy finds them in (EDS: one ``ClusterLoadAssignment``, as JSON).

A replica is one or more hosts of that file: hosts of one address that are asked for their health at one port are one server.
What the gateway writes beside each host (``filter_metadata``) says its protocol, its replica's name and its metrics page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import InputError

LB, PROTOCOL = "envoy.lb", "protocol"
BRIM, NAME, METRICS = "brim", "replica", "metrics"
HTTP, GRPC = "http", "grpc"
UNFIT = frozenset({"UNHEALTHY", "DRAINING", "TIMEOUT"})
"""States of a host that gets no new requests (``envoy.config.core.v3.HealthStatus``)."""
LARGEST_FILE = 16 << 20
MOST_REPLICAS = 1_000


@dataclass(frozen=True, slots=True)
class Server:
    """Where one replica answers, ``host:port`` each.

    Attributes:
        name: of the replica.
        http: for HTTP.
        grpc: for gRPC; as ``http`` where one port speaks both.
        metrics: its metrics page; None without.
        fit: whether it takes new requests.
    """

    name: str
    http: str
    grpc: str
    metrics: str | None = None
    fit: bool = True

    def endpoint(self, *, is_grpc: bool) -> str:
        """The address for a request."""
        return self.grpc if is_grpc else self.http


def read_replicas(path: Path, metrics_port: int | None = None) -> list[Server]:
    """The replicas in a file, by name.

    Args:
        path: the file.
        metrics_port: of every replica that does not say where its page is.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    hint = "expected an EDS file in JSON, such as the gateway's own: resources with one ClusterLoadAssignment"
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than {LARGEST_FILE} bytes", hint=hint)
        servers = servers_of(json.loads(path.read_text(encoding="utf-8")), metrics_port)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} does not name replicas: {type(error).__name__}: {error}", hint=hint) from error
    if len(servers) > MOST_REPLICAS:
        raise InputError(f"{path} names {len(servers)} replicas, more than {MOST_REPLICAS}", hint=hint)
    return servers


def servers_of(document: Mapping[str, Any], metrics_port: int | None = None) -> list[Server]:
    """The replicas of a ``DiscoveryResponse``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    (assignment,) = document["resources"]
    hosts = [_host(one) for locality in assignment["endpoints"] for one in locality.get("lb_endpoints", [])]
    groups: dict[tuple[str, int], list[_Host]] = {}
    for host in hosts:
        groups.setdefault((host.address, host.health_port), []).append(host)
    return sorted((_server(group, metrics_port) for group in groups.values()), key=lambda server: server.name)


@dataclass(frozen=True, slots=True)
class _Host:
    address: str
    port: int
    health_port: int
    protocol: str | None
    name: str | None
    metrics: str | None
    fit: bool

    @property
    def endpoint(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def _host(one: Mapping[str, Any]) -> _Host:
    endpoint = one["endpoint"]
    where = endpoint["address"]["socket_address"]
    said = one.get("metadata", {}).get("filter_metadata", {})
    port = int(where["port_value"])
    return _Host(
        address=str(where["address"]),
        port=port,
        health_port=int(endpoint.get("health_check_config", {}).get("port_value", port)),
        protocol=said.get(LB, {}).get(PROTOCOL),
        name=said.get(BRIM, {}).get(NAME),
        metrics=said.get(BRIM, {}).get(METRICS),
        fit=one.get("health_status") not in UNFIT,
    )


def _server(hosts: list[_Host], metrics_port: int | None) -> Server:
    by_protocol = {host.protocol: host for host in hosts}
    first = by_protocol.get(HTTP, hosts[0])
    page = next((host.metrics for host in hosts if host.metrics), None)
    if page is None and metrics_port is not None:
        page = f"{first.endpoint.rpartition(':')[0]}:{metrics_port}"
    return Server(
        next((host.name for host in hosts if host.name), first.endpoint),
        http=first.endpoint,
        grpc=by_protocol.get(GRPC, first).endpoint,
        metrics=page,
        fit=all(host.fit for host in hosts),
    )
