"""What is known to end a bare tritonserver 24.10, or to hurt everybody in a batch there, before any model code runs.

No model can prevent it, so it is the business of what stands in front of the server. The fuzz leaves it out unless it is told
otherwise; each entry says what was measured. The rules are wider than the facts, since a mutation must not come close either.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from brim.isolation.fuzz_draft import HttpDraft
from brim.isolation.fuzz_grpc import GrpcDraft, parsed

DEEPEST = 10_000
JSON_VALUES_MOST = 1 << 21
DIMENSIONS_MOST = 1 << 31
INFINITE = 1 << 99
INFLATED_MOST = 1 << 20
BOMB_MIB = 200
_SHAPE = re.compile(rb'"shape"\s*:\s*\[([^\]]*)\]')
_ESCAPED = re.compile(rb"\\u00([0-7][0-9a-fA-F])")
_WEIGHT = re.compile(rb";q=[^,;\r\n]*([eEpPxX][-+]?\d|[\d.]{40})")
_WHOLE = re.compile(rb"\s*-?\d+\s*")


@dataclass(frozen=True, slots=True)
class Avoided:
    """One thing that is left out: its name, and what was measured on 24.10."""

    name: str
    fact: str


NESTED = Avoided(
    "nested",
    "JSON lists nested in `data` end the server with signal 11: 31,000 for BYTES (62 KB), 40,000 for numbers; "
    "some 250,000 brackets do anywhere (30,500 and 36,000 do not)",
)
LARGE = Avoided(
    "large",
    "JSON `data` under a shape whose sizes make a huge product ends the server with signal 6, whatever dimension it is in: "
    "[2147483647, 1, 8, 8] and [1, 8589934592, 8, 8] do; smaller ones cost their whole size in memory",
)
INFLATES = Avoided("inflates", "a compressed body costs its decompressed size in memory (+225 MB for one gzip bomb)")
WEIGHT = Avoided(
    "weight",
    "Accept-Encoding with a weight that a double cannot hold (gzip;q=1e999, gzip;q=1e-999) ends the server with signal 6",
)
WRAPS = Avoided(
    "wraps",
    "sizes whose product leaves 32 bits ([2^62, n], [4294967297, n], gRPC [-2^63, n]) pass and fail the whole batch",
)
TEXTS_LIE = Avoided(
    "texts_lie", "BYTES elements whose lengths do not add up fail every request of a python-backend batch"
)
AVOIDED = (NESTED, LARGE, INFLATES, WEIGHT, WRAPS, TEXTS_LIE)


def avoided_http(draft: HttpDraft) -> Avoided | None:
    """The first entry that a finished request falls under; None when it may be sent."""
    if _WEIGHT.search(draft.head) or any(_WEIGHT.search(piece) for piece in draft.writes):
        return WEIGHT
    bodies = [draft.content, b"".join(draft.writes)]
    if any(name == "Content-Encoding" for name, _ in draft.headers):
        bodies.append(_inflated(draft.payload))
        if len(bodies[-1]) > INFLATED_MOST:
            return INFLATES
    return next((found for body in bodies if (found := _avoided_body(body, draft.header_length))), None)


def _inflated(payload: bytes) -> bytes:
    """What a lenient reader gets out of it, up to a byte beyond the bound."""
    found = b""
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        try:
            found = max(found, zlib.decompressobj(bits).decompress(payload, INFLATED_MOST + 1), key=len)
        except zlib.error:
            continue
    return found


def _avoided_body(content: bytes, header_length: str | None) -> Avoided | None:
    if content.count(b"[") + content.count(b"{") > DEEPEST:
        return NESTED
    plain = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), content)
    for sizes in _SHAPE.findall(plain):
        numbers = [int(one) if len(one) < 99 else INFINITE for one in sizes.split(b",") if _WHOLE.fullmatch(one)]
        product = _product(numbers)
        if product > JSON_VALUES_MOST and b'"data"' in plain:
            return LARGE
        if product >= DIMENSIONS_MOST:
            return WRAPS
    return TEXTS_LIE if _texts_lie_http(content, header_length) else None


def _product(sizes: list[int]) -> int:
    """Of their amounts; a size of 0 does not hide the others."""
    return math.prod(max(1, abs(size)) for size in sizes)


def _texts_lie_http(content: bytes, header_length: str | None) -> bool:
    try:
        length = len(content) if header_length is None else int(header_length)
        document = json.loads(content[:length])
        at = length
        for one in document["inputs"]:
            size = one.get("parameters", {}).get("binary_data_size")
            if size is None:
                continue
            if one["datatype"] == "BYTES" and not _whole_texts(content[at : at + size], one["shape"]):
                return True
            at += size
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return False


def avoided_grpc(draft: GrpcDraft) -> Avoided | None:
    """The first entry that a finished call falls under; None when it may be sent."""
    message: Any = parsed(draft.data)
    if message is None:
        return None
    for one in message.inputs:
        if _product(list(one.shape)) >= DIMENSIONS_MOST:
            return WRAPS
    raw = message.raw_input_contents
    for one, data in zip(message.inputs, raw, strict=False):
        if one.datatype == "BYTES" and not _whole_texts(data, list(one.shape)):
            return TEXTS_LIE
    return None


def _whole_texts(data: bytes, shape: list[int]) -> bool:
    """Whether ``data`` is exactly so many elements as ``shape`` says, each behind its length in 4 bytes."""
    at = count = 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return at == len(data) and count == math.prod(shape)


def killers(model: str, name: str, datatype: str, shape: list[int]) -> list[tuple[str, bytes, list[tuple[str, str]]]]:
    """HTTP bodies with their headers, each of which ends or burdens a bare tritonserver 24.10. Some exceed the usual bound."""

    def body(sizes: list[int], data: str = "[1]") -> bytes:
        return (
            f'{{"inputs": [{{"name": {json.dumps(name)}, "datatype": "{datatype}", "shape": {sizes}, "data": {data}}}]}}'
        ).encode()

    rest = shape[1:]
    found: list[tuple[str, bytes, list[tuple[str, str]]]] = [
        (f"{LARGE.name}: first size {text}", body([size, *rest]), [])
        for text, size in (("2^31", 1 << 31), ("2^32+1", (1 << 32) + 1), ("2^63-1", (1 << 63) - 1))
    ]
    found.append((f"{LARGE.name}: last size 2^40", body([*shape[:-1], 1 << 40]), []))
    for depth in (60_000, 250_000):
        found.append((f"{NESTED.name}: {depth} lists in data", body(shape, "[" * depth + "1" + "]" * depth), []))
    found.append((f"{NESTED.name}: 250000 brackets", b"[" * 250_000, []))
    found.append((f"{INFLATES.name}: gzip of {BOMB_MIB} MiB", _bomb(), [("Content-Encoding", "gzip")]))
    found += [
        (f"{WEIGHT.name}: {weight}", body(shape), [("Accept-Encoding", f"gzip;q={weight}")])
        for weight in ("1e999", "1e-999")
    ]
    return found


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(BOMB_MIB)) + packer.flush()
