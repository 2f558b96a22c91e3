"""Read and write config.pbtxt: protobuf text of Triton's ``ModelConfig``, with the place of every field.

Whether a text is accepted is decided by protobuf's own parser. A small schema-guided scanner runs beside it: it knows
where each field stands, goes on after a fault, and says what the writer of the file probably meant. It also refuses the
few spellings that Python's parser takes and the C++ parser inside tritonserver 2.51.0 (24.10) does not (``+8``,
``1_000``, ``0b1``, an unknown escape, a NUL in a string, a no-break space: each tried on that server), because a file
has to load there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.faults import NOT_UTF8, TOO_DEEP, UNEXPECTED, Faults
from brim.config.places import Place, Positions, Source
from brim.config.scanner import scan
from brim.findings import Finding, Severity, has_errors

MAX_FINDINGS = 50
"""Reading stops after this many faults: a binary file should not print a page a byte."""

MAX_BYTES = 4 * 1024 * 1024
"""Largest text that is read."""

_PROTOBUF_PLACE = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that was read: its message (None when protobuf refuses it), where each field stands, and every fault."""

    message: ModelConfig | None
    positions: Positions
    findings: list[Finding]


def parse(text: str | bytes, file: str) -> Parsed:
    """Read a configuration. Faults come back as findings, all of them at once; nothing is raised for a bad text.

    Args:
        text: protobuf text; bytes must be UTF-8.
        file: the name that the findings carry.
    """
    if len(text) > MAX_BYTES:
        said = f"the text has {len(text)} bytes, at most {MAX_BYTES} are read"
        return Parsed(None, Positions(), [Finding(TOO_DEEP, Severity.ERROR, file, 1, 1, said)])
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return Parsed(None, Positions(), [_not_utf8(error, file)])
    faults = Faults(file, MAX_FINDINGS)
    positions = scan(Source(text), faults)
    findings = faults.findings
    message: ModelConfig | None
    try:
        message = text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, ValueError) as error:
        # A ValueError escapes protobuf where it shows an integer of thousands of digits in its own message.
        message = None
        if not has_errors(findings):
            findings.append(_protobuf_fault(error, file))
    return Parsed(message, positions, sorted(findings, key=lambda finding: (finding.line, finding.column)))


def write(message: ModelConfig) -> str:
    """The configuration as text: schema order, short lists, maps sorted by key, UTF-8 kept readable. Equal when read back."""
    return text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True, use_index_order=True)


def _not_utf8(error: UnicodeDecodeError, file: str) -> Finding:
    before = error.object[: error.start].decode("utf-8")
    place = Source(before).place(len(before))
    said = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        said += ": the file is UTF-16"
    hint = "save the file as UTF-8; if it holds accents from an older encoding, convert it (iconv -t UTF-8)"
    return Finding(NOT_UTF8, Severity.ERROR, file, *place, said, hint)


def _protobuf_fault(error: Exception, file: str) -> Finding:
    matched = _PROTOBUF_PLACE.match(str(error))
    place = Place(int(matched[1]), int(matched[2])) if matched else Place(1, 1)
    said = (matched[3] if matched else str(error)).rpartition("': ")[2]
    return Finding(UNEXPECTED, Severity.ERROR, file, *place, f"protobuf refuses the text here: {said}")
