"""What the gateway notes of single requests, for who follows them: when they came and went, and what became of them.

Only requests are noted whose id begins as the owner of the log says, so nobody else's request is in it, and as many lines are
written as the owner sends requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.gateway.counters import LAST_TIME
from brim.gateway.xds import REASON_HEADER, TYPE, Document

ID_HEADER = "x-request-id"
"""Envoy leaves a caller's own as it is, sends it on, and gives one to a request that has none."""
FLUSH_MS = 100
"""How long Envoy may keep lines back."""
MOST_BYTES = 64 << 20
"""That are read of a log."""
_TIMES = {"out_ns": "US_TX_BEG", "back_ns": "US_RX_BEG", "done_ns": "DS_TX_END"}


@dataclass(frozen=True, slots=True)
class Passage:
    """A request on its way through the gateway.

    Attributes:
        request_id: as its caller said.
        began_ns: when its head was there, on the clock of this machine's wall time.
        out_ns: from then until its first byte went to the server; None when none did.
        back_ns: from then until the first byte of the server's answer; None when there was none.
        done_ns: from then until the last byte of the answer was given to the caller's connection; None when none was.
        status: of the answer, as HTTP has it.
        reason: why the gateway itself refused it; empty when it did not.
        flags: Envoy's own words for what went wrong; empty when nothing did.
    """

    request_id: str
    began_ns: int
    out_ns: int | None
    back_ns: int | None
    done_ns: int | None
    status: int
    reason: str
    flags: str


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Where requests are noted whose id begins with ``prefix``."""

    path: Path
    prefix: str

    def logger(self) -> Document:
        """As Envoy's configuration has it."""
        whose = {"header_filter": {"header": {"name": ID_HEADER, "string_match": {"prefix": self.prefix}}}}
        line = {
            "request_id": f"%REQ({ID_HEADER})%",
            "began_ns": "%START_TIME(%s%9f)%",
            **{name: f"%COMMON_DURATION(DS_RX_BEG:{point}:ns)%" for name, point in _TIMES.items()},
            "status": "%RESPONSE_CODE%",
            "reason": f"%RESP({REASON_HEADER})%",
            "flags": "%RESPONSE_FLAGS%",
        }
        return {
            "name": "envoy.access_loggers.file",
            "filter": {"and_filter": {"filters": [LAST_TIME, whose]}},
            "typed_config": {
                "@type": f"{TYPE}extensions.access_loggers.file.v3.FileAccessLog",
                "path": str(self.path),
                "log_format": {"json_format": line},
            },
        }

    def passages(self) -> dict[str, Passage]:
        """What is noted so far, by the request's id. A line that is not whole yet is left out."""
        try:
            with self.path.open("rb") as file:
                lines = file.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return {}
        found = (_passage(line) for line in lines)
        return {passage.request_id: passage for passage in found if passage is not None}


def _passage(line: str) -> Passage | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return Passage(
        request_id=str(said["request_id"]),
        began_ns=int(said["began_ns"]),
        **{name: _number(said[name]) for name in _TIMES},
        status=_number(said["status"]) or 0,
        reason=_text(said["reason"]),
        flags=_text(said["flags"]),
    )


def _number(value: Any) -> int | None:
    """What Envoy could not tell is null, or a dash."""
    return None if value in (None, "-", "") else int(value)


def _text(value: Any) -> str:
    return "" if value in (None, "-") else str(value)
