"""A picker in front of the balancing: Envoy asks it which replica takes a request, and goes on without it when it does not say.

The filter is off but on routes of inferences, so that everything else costs nothing. A picker that is dead, hung or slow costs
its callers ``TIMEOUT_S`` at most, until its health check has failed; then nothing, and the balancing decides alone.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from brim.gateway.clusters import cluster_name
from brim.gateway.replicas import Picking
from brim.gateway.routes import GRPC_STREAM
from brim.gateway.xds import TYPE, Document, address_of, equal, is_address
from brim.router.protocol import DESTINATION, READ_HEADERS

PICKER = "picker"
"""Its cluster."""
FILTER = "envoy.filters.http.ext_proc"
TIMEOUT_S = 0.05
"""For one answer of the picker. It is asked twice about a prompt: its headers, then its body."""
HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 1, 0.5
MOST_REQUESTS = 65_536
"""Each request under way is a call of the picker's, too."""


class BodyMode(StrEnum):
    """How the picker is given a prompt."""

    BUFFERED = "BUFFERED"
    """All at once, and a timeout holds. What ``brim picker`` is asked with."""
    FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
    """To and fro in pieces, as the Gateway API Inference Extension's own picker has it. Envoy has no timeout for it."""


def picking(
    address: str, models: Collection[str], token_models: Collection[str], mode: BodyMode = BodyMode.BUFFERED
) -> Picking:
    """All of it, for ``brim.gateway.replicas.Replicas``.

    Args:
        address: of the picker, ``host:port``.
        models: whose inferences it is asked about.
        token_models: those of them whose prompts it is shown.
        mode: how.
    """
    return Picking(
        picking_filters(mode),
        [picker_cluster(address)],
        around,
        lambda host: asking(host, models, token_models, mode),
    )


def picker_cluster(address: str) -> Document:
    """Where the picker is asked, ``host:port``."""
    return {
        "name": PICKER,
        "type": "STATIC" if is_address(address) else "STRICT_DNS",
        "connect_timeout": f"{TIMEOUT_S}s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "circuit_breakers": {
            "thresholds": [
                {"priority": "DEFAULT", "max_requests": MOST_REQUESTS, "max_pending_requests": MOST_REQUESTS}
            ]
        },
        "health_checks": [
            {
                "timeout": f"{HEALTH_TIMEOUT_S}s",
                "interval": f"{HEALTH_EVERY_S}s",
                "no_traffic_interval": f"{HEALTH_EVERY_S}s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        # One that does not answer is not asked for want of a better one.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address_of(address)}}]}],
        },
    }


def picking_filters(mode: BodyMode = BodyMode.BUFFERED) -> list[Document]:
    """In front of the router: callers name no replica themselves, and the picker may."""
    own = mode is BodyMode.BUFFERED
    return [
        {
            "name": "envoy.filters.http.header_mutation",
            "typed_config": {
                "@type": f"{TYPE}extensions.filters.http.header_mutation.v3.HeaderMutation",
                "mutations": {"request_mutations": [{"remove": DESTINATION}]},
            },
        },
        {
            "name": FILTER,
            "disabled": True,
            "typed_config": {
                "@type": f"{TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
                # Without a timeout of its own: a call lasts as long as its request.
                "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
                "failure_mode_allow": True,
                "message_timeout": f"{TIMEOUT_S}s",
                "processing_mode": _mode("NONE"),
                "mutation_rules": {"disallow_all": True, "allow_expression": {"regex": DESTINATION}} if own else {},
                "route_cache_action": "RETAIN",
                # Ours refuses nothing. The other one may: with 429 what is to be shed, with 503 where nothing is ready.
                "disable_immediate_response": own,
                **(
                    {"forward_rules": {"allowed_headers": {"patterns": [{"exact": name} for name in READ_HEADERS]}}}
                    if own
                    else {}
                ),
            },
        },
    ]


def around(fallback: Document) -> Document:
    """The policy of a cluster: the replica that was picked, else ``fallback``, which is an entry of ``policies``.

    The header and not the dynamic metadata of that name: what stands under ``envoy.lb`` would be matched against the
    replicas' subsets as well (``router.cc`` at v1.40), and none has it.
    """
    return {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": f"{TYPE}extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [{"header": DESTINATION}],
                "fallback_policy": {"policies": [fallback]},
            },
        }
    }


def asking(
    host: Document, models: Collection[str], token_models: Collection[str], mode: BodyMode = BodyMode.BUFFERED
) -> Document:
    """A virtual host whose inferences the picker is asked about.

    Args:
        host: as ``brim.gateway.routes.virtual_host`` makes it.
        models: whose inferences.
        token_models: those of them whose prompts the picker is shown.
        mode: how.
    """
    body_modes = {cluster_name(model): mode.value if model in token_models else "NONE" for model in models}
    return {**host, "routes": [_asking(route, body_modes, any_tokens=bool(token_models)) for route in host["routes"]]}


def _asking(route: Document, body_modes: dict[str, str], *, any_tokens: bool) -> Document:
    cluster = route.get("route", {}).get("cluster")
    if route["match"].get("path") == GRPC_STREAM:
        # Its messages may never end, and each may be for another model: only the queues can be looked at.
        body = "NONE" if any_tokens else None
    elif equal(":method", "GET") in route["match"].get("headers", ()):
        body = None
    else:
        body = body_modes.get(cluster)
    if body is None:
        return route
    config = {
        "@type": f"{TYPE}config.route.v3.FilterConfig",
        "config": {
            "@type": f"{TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
            "overrides": {"processing_mode": _mode(body)},
        },
    }
    return {**route, "typed_per_filter_config": {**route.get("typed_per_filter_config", {}), FILTER: config}}


def _mode(body: str) -> Document:
    """What the picker is told. Of the answer, its trailers, for which the call stays open until the request ends."""
    duplex = body == BodyMode.FULL_DUPLEX
    return {
        "request_header_mode": "SEND",
        "request_body_mode": body,
        "request_trailer_mode": "SEND" if duplex else "SKIP",
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",
    }
