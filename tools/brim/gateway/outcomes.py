"""What became of a request, from the labels under which the gateway counts it.

One reading of them for everybody: the exporter counts outcomes, and Prometheus' rules select with ``RIGHT`` and ``ELIGIBLE``,
which say the same in labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from brim.gateway.replies import HOST_ERRORS

REQUESTS, DURATION, STREAM_REQUESTS = "envoy_brim_requests", "envoy_brim_request_duration", "envoy_brim_stream_requests"
"""The gateway's own series (``brim.gateway.counters``) as Envoy's page names them."""
NONE = ("", "-")
"""How Envoy writes that there is nothing."""
HOST_PREFIX = "host_"
ADMITTED = "admitted"
"""Of a stream's outcomes, the sum of others."""


class Ended(StrEnum):
    """How a request ended, as far as the gateway can tell."""

    RIGHT = "right"
    """Answered without an error."""
    OWN_ERROR = "own_error"
    """Its caller has to send something else."""
    CANCELLED = "cancelled"
    """Its caller left."""
    REFUSED = "refused"
    """Not begun: no room, or no time."""
    EXPIRED = "expired"
    """Let in, and not finished in time."""
    FAILED = "failed"
    """The server, the model or the gateway could not."""


BY_REASON = {
    **dict.fromkeys(("queue_full", "shed", "tenant_rate", "deadline_unreachable"), Ended.REFUSED),
    **dict.fromkeys(("room_full", "draining"), Ended.REFUSED),
    **dict.fromkeys(("deadline", "expired"), Ended.EXPIRED),
    **dict.fromkeys(("unavailable", "internal", "engine_lost", "engine_down", "failed"), Ended.FAILED),
    **dict.fromkeys(("bad_request", "unknown_class", "compressed", "too_large", "not_offered"), Ended.OWN_ERROR),
    **dict.fromkeys(("too_long_for_context", "too_long_for_cache"), Ended.OWN_ERROR),
}
"""Reasons of the gateway and of a language model's host. ``deadline`` with 503 is the host's, which has not begun."""
OWN_GRPC = frozenset(("3", "5", "6", "9", "11", "12"))
"""INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED."""
BY_GRPC = {
    **dict.fromkeys(OWN_GRPC, Ended.OWN_ERROR),
    "1": Ended.CANCELLED,
    "4": Ended.EXPIRED,
    "8": Ended.REFUSED,
}
"""Statuses of gRPC that are no fault of the server's (grpc/grpc, doc/statuscodes.md)."""

_OWN_REASONS = frozenset(reason for reason, end in BY_REASON.items() if end is Ended.OWN_ERROR)
_LEFT = "(.*,)?D[CR](,.*)?"
"""Of flags: the connection was closed, or the stream reset, by its caller. UMSDR is something else."""
RIGHT = f'code=~"2..", grpc_status=~"0?|-", reason=~"-?", flags!~"{_LEFT}"'
"""Selects in PromQL what ``ended`` calls right."""
ELIGIBLE = (
    f'code!~"|-|0|4([013-9].|2[0-8])", grpc_status!~"1|{"|".join(sorted(OWN_GRPC, key=int))}", '
    f'reason!~"{"|".join(sorted(_OWN_REASONS))}", flags!~"{_LEFT}"'
)
"""Selects what an objective is for: neither a caller's own error, nor a caller that left."""


def ended(labels: Mapping[str, str]) -> tuple[Ended, str]:
    """How a unary call ended, and the reason; empty where none was given.

    Args:
        labels: ``code``, ``grpc_status``, ``reason`` and ``flags`` of its series.
    """
    code, grpc, reason, flags = (_or_none(labels.get(name, "")) for name in ("code", "grpc_status", "reason", "flags"))
    return _ended(code, grpc, reason, flags), reason


def _ended(code: str, grpc: str, reason: str, flags: str) -> Ended:
    if {"DC", "DR"} & set(flags.split(",")) or code in ("", "0"):
        return Ended.CANCELLED
    own_code = code.startswith("4") and code != "429"
    if own_code or grpc in OWN_GRPC or reason in _OWN_REASONS:
        return Ended.OWN_ERROR
    if grpc == "1":
        return Ended.CANCELLED
    if reason == "deadline" and code == "503":
        return Ended.REFUSED
    if reason:
        return BY_REASON.get(reason, Ended.FAILED)
    if code.startswith("2"):
        return Ended.RIGHT if grpc in ("", "0") else BY_GRPC.get(grpc, Ended.FAILED)
    return {"429": Ended.REFUSED, "504": Ended.EXPIRED}.get(code, Ended.FAILED)


def stream_ended(outcome: str) -> tuple[Ended, str] | None:
    """How requests of a gRPC stream ended that are counted under this outcome; None where others count them.

    Args:
        outcome: one of ``brim.gateway.counters.STREAM_OUTCOMES``.

    Raises:
        KeyError: it is none of them.
    """
    if outcome == ADMITTED:
        return None
    if outcome == "answered":
        return Ended.RIGHT, ""
    if outcome == "left":
        return Ended.CANCELLED, ""
    reason = outcome.removeprefix(HOST_PREFIX)
    if reason == outcome:
        # Refused by the gateway, or ended with an error that has no reason.
        return BY_REASON[outcome], "" if outcome == "failed" else outcome
    return ended({"code": str(HOST_ERRORS[reason]), "reason": reason})


def _or_none(value: str) -> str:
    return "" if value in NONE else value
