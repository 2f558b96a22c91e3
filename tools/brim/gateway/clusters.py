"""Where requests go on to: one cluster a model, with its bounds and its health, and the gateway itself.

The server's two ports are subsets of one cluster, whose circuit breaker counts the requests in flight over both protocols;
a request goes on in the protocol in which it came.
"""

from __future__ import annotations

from brim.gateway.admission import Admission
from brim.gateway.health import Canary, health_check, live_check
from brim.gateway.replicas import Replicas, found_in_files, sick_answers
from brim.gateway.xds import (
    GRPC,
    HTTP,
    SUBSET_KEY,
    TYPE,
    Document,
    Listen,
    Upstream,
    address_of,
    is_address,
    socket_address,
    subset,
)
from brim.server.endpoint import LOOPBACK

OTHERS, AROUND, OWN_PAGES = "triton", "around", "own-pages"
"""Everything that has no bound of its own, and the gateway itself."""
RESPONSE_HEADERS_KB = 8_192
CONNECT_TIMEOUT_S = 1
BY_NAME: Document = {"type": "STRICT_DNS", "lb_policy": "LEAST_REQUEST"}
"""A name may stand for many replicas, as that of a Kubernetes service without an address of its own does."""
RETRY_BUDGET: Document = {"retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": 3}}
MOST_REQUESTS = 1_000
"""In flight towards Triton at once in each cluster, over both protocols; beyond it a caller is refused. Of more HTTP connections
that come at once some are never answered: they overflow the backlog of Triton's listener (24.10: none of 1,000, 158 of 2,000).
Of replicas, each has so many."""
MOST_REPLICAS = 64
REPLICAS_RETRY_BUDGET: Document = {"retry_budget": {"budget_percent": {"value": 50}, "min_retry_concurrency": 20}}
"""All that was under way on a replica that has died may come again at once: of two, that is half of all."""


def cluster_name(model: str) -> str:
    """Of the cluster of a model."""
    return f"triton/{model}"


def breaker(bounds: Admission, threads: int) -> int:
    """Requests in flight at which the circuit breaker refuses."""
    return MOST_REQUESTS if bounds.in_flight is None else max(1, bounds.in_flight - (threads - 1))


def triton_cluster(name: str, upstream: Upstream | Replicas, most_requests: int) -> Document:
    """The server, or its replicas, with a bound on the requests that go there. Of replicas it is that of each one."""
    many = isinstance(upstream, Replicas)
    cluster = _cluster(
        name, {"use_downstream_protocol_config": {"http2_protocol_options": {}}}, most_requests, many=many
    )
    if isinstance(upstream, Replicas):
        return {**cluster, **found_in_files(name, upstream), "health_checks": [live_check()]}
    return {
        **cluster,
        **({} if is_address(upstream.http) and is_address(upstream.grpc) else BY_NAME),
        "lb_subset_config": {"fallback_policy": "NO_FALLBACK", "subset_selectors": [{"keys": [SUBSET_KEY]}]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": address_of(address)}, "metadata": subset(protocol)}
                        for protocol, address in ((HTTP, upstream.http), (GRPC, upstream.grpc))
                    ]
                }
            ],
        },
    }


def model_cluster(
    name: str, upstream: Upstream | Replicas, bounds: Admission, threads: int, canary: Canary | None
) -> Document:
    """The server, or its replicas, as one model has it."""
    cluster = triton_cluster(cluster_name(name), upstream, breaker(bounds, threads))
    if canary is None:
        return cluster
    checks = {"health_checks": [health_check(name, canary, bounds.timeout_us)]}
    if isinstance(upstream, Replicas):
        return {**cluster, **checks}
    # Both ports are one server: the canary goes to its HTTP port, whichever of them it stands for.
    http = {"port_value": address_of(upstream.http)["socket_address"]["port_value"]}
    for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        one["endpoint"]["health_check_config"] = http
    return {
        **cluster,
        **checks,
        # A sick server is not tried for want of a better one.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }


def around_cluster(listen: Listen) -> Document:
    """The gateway itself, over HTTP/1.1."""
    return _self(AROUND, LOOPBACK if listen.host in ("0.0.0.0", "") else listen.host, listen.port)


def own_pages_cluster(listen: Listen) -> Document:
    """Envoy's own pages."""
    return _self(OWN_PAGES, LOOPBACK, listen.admin_port)


def _self(name: str, host: str, port: int) -> Document:
    endpoint = {"endpoint": {"address": socket_address(host, port)}}
    return {
        **_cluster(name, {"explicit_http_config": {"http_protocol_options": {}}}, MOST_REQUESTS),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _cluster(name: str, protocol: Document, most_requests: int, *, many: bool = False) -> Document:
    # HTTP/1.1 has one request a connection, and a request that waits for a connection is counted apart: with as many
    # connections as requests none ever waits, and the bound is on requests in both protocols.
    most_connections = MOST_REQUESTS * (MOST_REPLICAS if many else 1)
    bounds = {
        "max_requests": most_requests,
        "max_connections": most_connections,
        "max_pending_requests": most_connections,
    }
    retries = REPLICAS_RETRY_BUDGET if many else RETRY_BUDGET
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                # What is longer ends the connection, with the requests of all who share it. Triton puts texts of callers
                # into the header that carries a gRPC error.
                "common_http_protocol_options": {"max_response_headers_kb": RESPONSE_HEADERS_KB},
                **protocol,
                **({"outlier_detection": sick_answers()} if many else {}),
            }
        },
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **bounds, **retries, "track_remaining": True}]},
    }
