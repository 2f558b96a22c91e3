"""Pieces of Envoy's API (v3) that several parts of the configuration are made of.

Source of the field names, here and in the modules beside: envoyproxy/envoy, ``api/envoy`` at v1.40.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from brim.units import US_PER_S

Document = dict[str, Any]
TYPE = "type.googleapis.com/envoy."
NOT: Document = {"invert_match": True, "treat_missing_header_as_empty": True}
"""Of a header: another value, or none at all. Without the second, no comparison would take place where it is missing."""
MODEL_HEADER, AROUND_HEADER = "x-brim-model", "x-brim-around"
"""Set by ``filter.lua``: the model that a gRPC message names; and that a request is to go around once."""
REASON_HEADER, TENANT_HEADER = "x-brim-reason", "x-brim-tenant"
"""Why the gateway itself has refused a request; and on whose behalf a request is sent."""
RETRY_AFTER_S = 1
HTTP, GRPC, SUBSET_KEY = "http", "grpc", "protocol"
"""A server's two ports are two hosts of a cluster, told apart by this key."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One tritonserver, as ``host:port`` of each protocol."""

    http: str
    grpc: str


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway answers.

    Attributes:
        host: address for callers.
        port: their port, for every protocol.
        admin_port: Envoy's own pages, on loopback only: they can change it.
        metrics_host: address for Prometheus.
        metrics_port: ``/metrics``, and nothing else.
    """

    host: str
    port: int
    admin_port: int
    metrics_host: str
    metrics_port: int


def seconds(time_us: int) -> str:
    """As Envoy reads a duration."""
    return f"{time_us / US_PER_S:.6f}s"


def header_to_add(name: str, value: str) -> Document:
    """A header of a given value, whatever it was."""
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def equal(header: str, value: str) -> Document:
    """A request whose header has this value."""
    return {"name": header, "string_match": {"exact": value}}


def subset(protocol: str) -> Document:
    """The hosts that speak a protocol."""
    return {"filter_metadata": {"envoy.lb": {SUBSET_KEY: protocol}}}


def is_address(host_and_port: str) -> bool:
    """Whether ``host:port`` names its host by address, so that nothing has to be resolved."""
    try:
        ip_address(address_of(host_and_port)["socket_address"]["address"])
    except ValueError:
        return False
    return True


def address_of(address: str) -> Document:
    """``host:port`` as a socket address."""
    host, _, port = address.rpartition(":")
    return socket_address(host.strip("[]"), int(port))


def socket_address(host: str, port: int) -> Document:
    """A socket address."""
    return {"socket_address": {"address": host, "port_value": port}}
