"""What Envoy answers by itself, in the words and codes of both protocols, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from brim.engine.lifecycle import End, Reason
from brim.gateway.xds import NOT, REASON_HEADER, RETRY_AFTER_S, Document, header_to_add

DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE = "4", "8", "14"
HOST_ERRORS: dict[str, int] = {
    **{reason.value: 503 for reason in Reason},
    **dict.fromkeys((Reason.ROOM_FULL.value, Reason.SHED.value), 429),
    **dict.fromkeys((Reason.TOO_LONG_FOR_CONTEXT.value, Reason.TOO_LONG_FOR_CACHE.value), 400),
    End.EXPIRED.value: 504,
    End.FAILED.value: 500,
}
"""What a language model's host says: the word in front of an error's text, and the HTTP status of it here."""
_AS_ERROR: Document = {"json_format": {"error": "%LOCAL_REPLY_BODY%", "reason": f"%RESP({REASON_HEADER})%"}}
_WAS_ADMITTED: Document = {
    "metadata_filter": {
        "matcher": {"filter": "brim", "path": [{"key": "slot"}], "value": {"present_match": True}},
        "match_if_key_not_found": False,
    }
}


def local_replies() -> list[Document]:
    """What Envoy answers by itself, in the words and codes of both protocols."""
    # Envoy says 503 by itself when a bound is reached, which for a balancer means a sick server; this one is busy.
    busy = "the model has as many requests in flight as it can answer in time"
    again = header_to_add("retry-after", str(RETRY_AFTER_S))
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


def _json_errors() -> Document:
    """The gateway's own refusals in the shape of Triton's errors. In gRPC the text itself is the status message."""
    return {"filter": _came_as(grpc=False), "body_format_override": _AS_ERROR}


def _too_large(*, grpc: bool) -> Document:
    only = {"and_filter": {"filters": [*_status_is(413), _came_as(grpc=grpc)]}}
    reason = header_to_add(REASON_HEADER, "too_large")
    if grpc:  # by itself it would become UNKNOWN
        return {"filter": only, "headers_to_add": [reason, header_to_add("grpc-status", RESOURCE_EXHAUSTED)]}
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
        headers_to_add = [*headers, header_to_add(REASON_HEADER, reason)]
        reply: Document = {"filter": only, "status_code": status, "body": {"inline_string": text}}
        if grpc:
            reply["headers_to_add"] = [*headers_to_add, header_to_add("grpc-status", grpc_status)]
        else:
            reply |= {"headers_to_add": headers_to_add, "body_format_override": _AS_ERROR}
        found.append(reply)
    return found


def _came_as(*, grpc: bool) -> Document:
    header: Document = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        **({} if grpc else NOT),
    }
    return {"header_filter": {"header": header}}
