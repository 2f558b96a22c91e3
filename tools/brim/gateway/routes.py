"""What is offered to callers: inference, health, metadata and statistics, and nothing that changes the server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from brim.gateway.admission import Admission
from brim.gateway.clusters import AROUND, OTHERS, cluster_name
from brim.gateway.replicas import HOST_TRIES
from brim.gateway.xds import (
    AROUND_HEADER,
    GRPC,
    HTTP,
    MODEL_HEADER,
    REASON_HEADER,
    TENANT_HEADER,
    TYPE,
    Document,
    equal,
    header_to_add,
    seconds,
    subset,
)
from brim.units import US_PER_S

ANY_MODEL = "/v2/models/[^/?]+(/versions/[^/?]+)?"
READ_PATHS = rf"/v2|/v2/health/(live|ready)|{ANY_MODEL}(/ready|/config|/stats)?|/v2/models/stats"
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
TRACE_HEADERS = ("traceparent", "tracestate")
"""Of W3C Trace Context. Triton follows each request that has the first, whatever its own rate (docs/user_guide/trace.md)."""
GRPC_HEALTH = "/grpc.health.v1.Health/Check"
TENANT_FILTER = "envoy.filters.http.local_ratelimit"
TENANT_TYPE = f"{TYPE}extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
UNBOUNDED = Admission()
ANSWER_TIMEOUT_S = 300
"""Longest that a caller is kept waiting when it brings no deadline of its own."""
ENDLESS: Document = {"timeout": "0s", "max_stream_duration": {"max_stream_duration": "0s"}}
"""What comes in pieces lasts as long as something comes now and then (``ANSWER_TIMEOUT_S``). Without it a route has 15 s."""
AS_PIECES: Document = {
    "regex_rewrite": {"pattern": {"regex": "/generate$"}, "substitution": "/generate_stream"},
}
"""See ``pieces.lua``, which makes one answer of them again."""
RETRIES: Document = {
    "retry_on": "connect-failure,refused-stream",
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
}
"""Only what has not reached the server: an inference that may have been executed is not sent again."""
TO_ANOTHER: Document = {
    **RETRIES,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": f"{TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    "host_selection_retry_max_attempts": HOST_TRIES,
}
"""The same on another replica."""
ONCE_MORE: Document = {**TO_ANOTHER, "retry_on": "connect-failure,refused-stream,reset", "num_retries": 1}
"""Of a batch's row also what had reached a replica that went before it began to answer: it gives the same answer anywhere, and
changes nothing. Once only, so that a request that ends its server does not end them all."""


def virtual_host(models: Mapping[str, Admission], *, many: bool = False, untraced: bool = False) -> Document:
    """All routes, the first that fits counts.

    Args:
        models: by name.
        many: there are replicas.
        untraced: callers do not say which requests the server follows.
    """
    rest = TO_ANOTHER if many else RETRIES

    def to(model: str | None, protocol: str, bounds: Admission = UNBOUNDED) -> Document:
        # What makes texts has begun before the first piece comes; and of a model that is not known nothing is known.
        again = ONCE_MORE if many and model is not None and not bounds.pieces else rest
        return _to(model, protocol, bounds, again)

    infer = f"{GRPC_SERVICE}ModelInfer"
    reads = [*(f"{GRPC_SERVICE}{name}" for name in GRPC_READS), GRPC_HEALTH]
    return {
        "name": "triton",
        "domains": ["*"],
        # 24.10 ends itself on some weights in Accept-Encoding (gzip;q=1e999); without the header it packs no answer.
        "request_headers_to_remove": [MODEL_HEADER, "accept-encoding", *(TRACE_HEADERS if untraced else ())],
        "routes": [
            {"match": {"prefix": "/", "headers": [equal(AROUND_HEADER, "1")]}, "route": {"cluster": AROUND, **ENDLESS}},
            *(
                {
                    "match": {"path": infer, "headers": [equal(MODEL_HEADER, model)]},
                    "route": to(model, GRPC, bounds),
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
            ),
            *({"match": {"path": path}, "route": to(None, GRPC)} for path in (infer, *reads)),
            {
                "match": {"path": GRPC_STREAM},
                "route": {**_to_stream(), **({"retry_policy": TO_ANOTHER} if many else {})},
            },
            {"match": {"prefix": GRPC_SERVICE}, **_not_offered("this call is not offered here")},
            *(
                {
                    "match": _matching(pieces_path(model), "POST"),
                    "route": {**to(model, HTTP, bounds), **ENDLESS},
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
                if bounds.pieces
            ),
            *(
                {
                    "match": _matching(f"{model_path(model)}/generate", "POST"),
                    "route": {**to(model, HTTP, bounds), **ENDLESS, **AS_PIECES},
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
                if bounds.tells
            ),
            *(
                {
                    "match": _matching(infer_path(model), "POST"),
                    "route": to(model, HTTP, bounds),
                    **_tenants(bounds),
                }
                for model, bounds in models.items()
            ),
            {"match": _matching(infer_path(None), "POST"), "route": to(None, HTTP)},
            *({"match": _matching(f"{model_path(model)}/ready", "GET"), "route": to(model, HTTP)} for model in models),
            {"match": _matching(READ_PATHS, "GET"), "route": to(None, HTTP)},
            {"match": {"prefix": "/"}, **_not_offered("this path or method is not offered here")},
        ],
    }


def infer_path(model: str | None) -> str:
    """Every path of a POST that reaches Triton, of one model or of any; ``guard.lua`` looks at all of them."""
    return f"{ANY_MODEL if model is None else model_path(model)}/(infer|generate|generate_stream)"


def pieces_path(model: str) -> str:
    """Of a POST whose answer comes in pieces."""
    return f"{model_path(model)}/generate_stream"


def model_path(model: str) -> str:
    """Every path of one model begins with it."""
    return f"/v2/models/{re.escape(model)}(/versions/[^/?]+)?"


def _to(model: str | None, protocol: str, bounds: Admission, retries: Document) -> Document:
    longest = seconds(bounds.timeout_us or ANSWER_TIMEOUT_S * US_PER_S)
    return {
        "cluster": cluster_name(model) if model else OTHERS,
        "metadata_match": subset(protocol),
        "timeout": longest,
        "retry_policy": retries,
        # The deadline that a gRPC call brings along ends it here, too, and so in the server. With it ``timeout`` is off.
        **(
            {"max_stream_duration": {"grpc_timeout_header_max": longest, "max_stream_duration": longest}}
            if protocol == GRPC
            else {}
        ),
    }


def _to_stream() -> Document:
    return {
        "cluster": OTHERS,
        "metadata_match": subset(GRPC),
        **ENDLESS,
        "max_stream_duration": {"grpc_timeout_header_max": "0s", "max_stream_duration": "0s"},
    }


def longest_us(models: Mapping[str, Admission]) -> int:
    """What the most patient model allows."""
    return max(ANSWER_TIMEOUT_S * US_PER_S, *(bounds.timeout_us or 0 for bounds in models.values()), 0)


def _matching(path: str, method: str) -> Document:
    return {"safe_regex": {"regex": path}, "headers": [equal(":method", method)]}


def _not_offered(text: str) -> Document:
    return {
        "direct_response": {"status": 404, "body": {"inline_string": text}},
        "response_headers_to_add": [header_to_add(REASON_HEADER, "not_offered")],
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
                "@type": TENANT_TYPE,
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
