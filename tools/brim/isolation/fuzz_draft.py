"""An HTTP request in the making.

It is made in stages, and each mutation belongs to one: what it says (``JSON``), the bytes of that (``CONTENT``), how they
travel (``TRANSFER``), and the bytes of the head with the writes to the socket (``WIRE``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import Any

from brim.isolation.wire import HEADER_LENGTH, WireTensor, json_values


class Stage(IntEnum):
    """When a mutation is applied."""

    JSON = 0
    CONTENT = 1
    TRANSFER = 2
    WIRE = 3


@dataclass(slots=True)
class HttpDraft:
    """A request in the making.

    Attributes:
        row: of the pool, whose answer it should get.
        tensors: the right inputs.
        outputs: names of the model's outputs.
        document: the JSON part; what stands in front of ``binary``.
        binary: the binary tensors.
        request_line: method, path, version.
        headers: names and values in order; names may repeat.
        content: JSON and binary, once the first stage is over.
        header_length: what the request says of the length of its JSON; None leaves the header out.
        payload: the body as it travels: ``content``, encoded.
        framing: the header that says where the body ends.
        head: bytes of the head, once the third stage is over.
        writes: all bytes, one piece a write.
    """

    row: int
    tensors: tuple[WireTensor, ...]
    outputs: tuple[str, ...]
    document: Any
    binary: bytes
    request_line: list[str]
    headers: list[tuple[str, str]]
    content: bytes = b""
    header_length: str | None = None
    payload: bytes = b""
    framing: list[tuple[str, str]] = field(default_factory=list)
    head: bytes = b""
    writes: list[bytes] = field(default_factory=list)

    def finish(self, stage: Stage) -> None:
        """Turn what ``stage`` leaves into what the next one works on."""
        if stage is Stage.JSON:
            text = self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()
            self.content = text + self.binary
            if self.binary:
                self.header_length = str(len(text))
        elif stage is Stage.CONTENT:
            self.payload = self.content
        elif stage is Stage.TRANSFER:
            framing = self.framing or [("Content-Length", str(len(self.payload)))]
            told = [] if self.header_length is None else [(HEADER_LENGTH, self.header_length)]
            lines = [" ".join(self.request_line)]
            lines += [f"{name}: {value}" if name else value for name, value in (*self.headers, *framing, *told)]
            self.head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass")
        elif not self.writes:
            self.writes = [self.head + self.payload]


def right_draft(
    model: str, row: int, tensors: tuple[WireTensor, ...], outputs: tuple[str, ...], as_json: bool, request_id: str
) -> HttpDraft:
    """A request that has nothing wrong."""
    inputs: list[dict[str, Any]] = []
    for tensor in tensors:
        described: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if as_json:
            described["data"] = json_values(tensor)
        else:
            described["parameters"] = {"binary_data_size": len(tensor.data)}
        inputs.append(described)
    document = {"id": request_id, "parameters": {"binary_data_output": not as_json}, "inputs": inputs}
    binary = b"" if as_json else b"".join(tensor.data for tensor in tensors)
    line = ["POST", f"/v2/models/{model}/infer", "HTTP/1.1"]
    return HttpDraft(row, tensors, outputs, document, binary, line, [("Host", "localhost")])


@dataclass(frozen=True, slots=True)
class HttpKind:
    """One way to break a request. ``keeps`` says that its meaning stays: a 200 must then carry the row's own answer."""

    name: str
    stage: Stage
    change: Callable[[HttpDraft, Random], None]
    keeps: bool = False
