"""What one caller sends, what it may expect, and what came back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.isolation.wire import HttpMessage, WireTensor, grpc_message, http_json_message, http_message
from brim.measure.plan import Protocol
from brim.service.samples import Row

ROWS_SHOWN = 4
"""Row numbers in the name of a request that has many."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the request got when it was alone: outputs, or an error with this status."""

    outputs: Row | None
    status: str = ""


class Leaving(StrEnum):
    """How a caller goes away without waiting."""

    CLOSE = "closes its socket"
    RESET = "resets its connection"
    HALF = "goes in the middle of its body"
    CANCEL = "cancels its call"
    DEADLINE = "has a short deadline"


@dataclass(frozen=True, slots=True)
class Request:
    """One request to one model.

    Attributes:
        model: whom it is for.
        protocol: how it travels.
        what: what is special about it, for people; empty for a good row.
        tensors: its inputs. Ignored where ``raw`` is given.
        raw: the whole message instead, for bodies that no encoder writes.
        expected: what it gets alone; None until it has been asked alone.
        marker: a text that no other request carries; empty where none is looked for.
        leaving: how it goes away; None for a caller that waits.
        leaves_after_us: when, after sending.
        as_json: over HTTP, whether the values travel as JSON and not in binary form.
        rows: numbers of the good rows that it holds, in their pool; empty where it has rows of its own.
        breaks: whether it breaks the protocol, so that the server may close its connection: it gets one of its own.
    """

    model: str
    protocol: Protocol
    what: str = ""
    tensors: tuple[WireTensor, ...] = ()
    raw: HttpMessage | bytes | None = None
    expected: Expected | None = None
    marker: str = ""
    leaving: Leaving | None = None
    leaves_after_us: int = 0
    as_json: bool = False
    rows: tuple[int, ...] = ()
    breaks: bool = False

    def http(self, request_id: str) -> HttpMessage:
        """The message over HTTP."""
        if isinstance(self.raw, HttpMessage):
            return self.raw
        return (http_json_message if self.as_json else http_message)(self.tensors, request_id)

    def grpc(self, request_id: str) -> bytes:
        """The message over gRPC."""
        return self.raw if isinstance(self.raw, bytes) else grpc_message(self.model, self.tensors, request_id)

    def content(self) -> str:
        """What it holds, for people."""
        if self.what:
            return f"{self.what}, marker {self.marker}" if self.marker else self.what
        if not self.rows:
            return "a good row"
        numbers = ", ".join(map(str, self.rows[:ROWS_SHOWN]))
        more = ", ..." if len(self.rows) > ROWS_SHOWN else ""
        return f"row {numbers}" if len(self.rows) == 1 else f"{len(self.rows)} rows: {numbers}{more}"

    def name(self) -> str:
        """Protocol and content, for people."""
        return f"{self.protocol.value}, {self.content()}"


@dataclass(frozen=True, slots=True)
class Came:
    """What came back for one request: outputs, an error, nothing in time (``hung``), or the caller had gone (``left``).

    Attributes:
        outputs: output name -> tensor.
        error: the text of an error, as long as it was.
        status: HTTP status or gRPC code of an error; ``lost`` when the connection ended without an answer.
        echoed: the request id in the answer; None where the answer had none to echo.
        hung: no answer within the bound.
        left: the caller went away first.
    """

    outputs: Row | None = None
    error: str = ""
    status: str = ""
    echoed: str | None = None
    hung: bool = False
    left: bool = False
