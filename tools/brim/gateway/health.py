"""Health by canary: a model counts as healthy while it answers a real inference, which Envoy sends to it now and then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tritonclient.http import InferenceServerClient

from brim.engine.request import CANARY_PARAMETER
from brim.gateway.admission import Admission
from brim.gateway.xds import header_to_add
from brim.server.canary import infer_inputs, text_inputs

EVERY_S, WHILE_IDLE_EVERY_S = 5, 5
AGAIN_S = 0.1
"""After a canary that was not answered, and until the model is healthy again: its two ports come back one after the other."""
UNHEALTHY_AFTER, HEALTHY_AFTER = 2, 1
LENGTH_HEADER = "Inference-Header-Content-Length"
LIVE_EVERY_S, LIVE_TIMEOUT_S = 1, 3
LEAST_TIMEOUT_S = 30
"""A canary waits in the model's queue like everybody: overload must not look like sickness."""


@dataclass(frozen=True, slots=True)
class Canary:
    """An inference over HTTP whose answer shows that a model works.

    Attributes:
        body: of the request: KServe's binary form, or JSON for ``generate``.
        header_length: of the JSON in front of tensors, in bytes; None for ``generate``.
    """

    body: bytes
    header_length: int | None


def canary_of(row: Mapping[str, npt.NDArray[Any]], bounds: Admission | None = None) -> Canary:
    """The canary that sends one row.

    A model that answers in pieces has an answer for ``generate`` only. Its host, which refuses when its room is full, answers
    this request then as soon as anybody else's text goes on: overload is no sickness, and an engine that hangs is.
    """
    if bounds is not None and bounds.pieces:
        known = {CANARY_PARAMETER: True} if bounds.tells else {}
        return Canary(json.dumps({**text_inputs(row), **known}).encode(), None)
    body, header_length = InferenceServerClient.generate_request_body(infer_inputs(row))
    return Canary(bytes(body), len(body) if header_length is None else header_length)


def health_check(model: str, canary: Canary, timeout_us: int | None) -> dict[str, Any]:
    """Envoy's health check of a model's cluster (``api/envoy/config/core/v3/health_check.proto`` at v1.40).

    Args:
        model: which.
        canary: what is sent.
        timeout_us: longest that one of the model's requests may take.
    """
    length = canary.header_length
    return {
        "timeout": f"{max(LEAST_TIMEOUT_S, (timeout_us or 0) / 1_000_000):g}s",
        "interval": f"{EVERY_S}s",
        "no_traffic_interval": f"{WHILE_IDLE_EVERY_S}s",
        "unhealthy_interval": f"{AGAIN_S}s",
        "unhealthy_edge_interval": f"{AGAIN_S}s",
        "unhealthy_threshold": UNHEALTHY_AFTER,
        "healthy_threshold": HEALTHY_AFTER,
        "http_health_check": {
            "path": f"/v2/models/{model}/{'generate' if length is None else 'infer'}",
            "method": "POST",
            "send": {"text": canary.body.hex()},
            "request_headers_to_add": [] if length is None else [header_to_add(LENGTH_HEADER, str(length))],
        },
    }


def live_check() -> dict[str, Any]:
    """Of a replica whatever the model: whether its HTTP side answers at all."""
    return {
        "timeout": f"{LIVE_TIMEOUT_S}s",
        "interval": f"{LIVE_EVERY_S}s",
        "no_traffic_interval": f"{LIVE_EVERY_S}s",
        "unhealthy_threshold": UNHEALTHY_AFTER,
        "healthy_threshold": HEALTHY_AFTER,
        "http_health_check": {"path": "/v2/health/live"},
    }
