"""How an HTTP request travels, broken on purpose: its encoding, its framing, its head, and the writes to the socket."""

from __future__ import annotations

import gzip
import zlib
from random import Random

from brim.isolation.fuzz_bytes import LONG_TEXT, WHOLE_NUMBERS, mutated, split
from brim.isolation.fuzz_draft import HttpDraft, HttpKind, Stage

METHODS = ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "post", "P\u00d6ST", "", "X" * 300)
PARAMETERS = (
    *("binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"),
    *("binary_data", "binary_data_size", "classification", "shared_memory_region", "shared_memory_byte_size"),
    *("shared_memory_offset", "triton_enable_empty_final_response", "triton_x", "no_such_parameter", ""),
)
ACCEPTED = (
    "gzip",
    "deflate",
    "gzip;q=0",
    "gzip;q=-1",
    "*;q=0.1, gzip;q=2",
    "br",
    ";q=",
    "gzip;q=abc",
    ",,,",
    "identity, ,gzip",
)
CONTENT_TYPES = (
    "text/plain",
    "application/octet-stream",
    "multipart/form-data; boundary=x",
    "x",
    "",
    "application/json; charset=utf-16",
)
HEADERS_MANY = 1_000


def _content(draft: HttpDraft, draw: Random) -> None:
    draft.content = mutated(draft.content, draw)


def _header_length(draft: HttpDraft, draw: Random) -> None:
    right = int(draft.header_length or len(draft.content))
    near = right + draw.choice((-9, -1, 1, 2, 64))
    draft.header_length = str(
        draw.choice(
            (near, near, draw.choice(WHOLE_NUMBERS), 0, "many", "0x10", "", f" {right} ", f"{right}.0", f"+{right}")
        )
    )


def _compressed(draft: HttpDraft, draw: Random) -> None:
    encoding = draw.choice(("gzip", "deflate"))
    packed = gzip.compress(draft.payload, mtime=0) if encoding == "gzip" else zlib.compress(draft.payload)
    draft.payload = packed
    draft.headers.append(("Content-Encoding", encoding))


def _compressed_wrongly(draft: HttpDraft, draw: Random) -> None:
    _compressed(draft, draw)
    draft.payload = mutated(draft.payload, draw)


def _encoding_lies(draft: HttpDraft, draw: Random) -> None:
    said = draw.choice(("gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "", "GZIP", "x" * 500))
    draft.headers.append(("Content-Encoding", said))


def _accepts(draft: HttpDraft, draw: Random) -> None:
    draft.headers.append(("Accept-Encoding", draw.choice(ACCEPTED) * draw.choice((1, 1, 50))))


def _content_type(draft: HttpDraft, draw: Random) -> None:
    draft.headers.append(("Content-Type", draw.choice(CONTENT_TYPES)))


def _chunked(draft: HttpDraft, draw: Random) -> None:
    draft.payload = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in split(draft.payload, draw)) + b"0\r\n\r\n"
    draft.framing = [("Transfer-Encoding", "chunked")]


def _chunked_wrongly(draft: HttpDraft, draw: Random) -> None:
    pieces = [[b"%x" % len(one), one, b"\r\n"] for one in split(draft.payload or b"x", draw)]
    chosen = draw.choice(pieces)
    sizes = (
        b"-1",
        b"",
        b"zz",
        b"f" * 16,
        b"7" + b"f" * 15,
        b"0",
        b"%x" % (len(chosen[1]) + 1),
        b"%x" % max(0, len(chosen[1]) - 1),
    )
    if draw.random() < 0.8:
        chosen[0] = draw.choice(
            (*sizes, chosen[0] + b";a=b", b"0x" + chosen[0], b" " + chosen[0], b"0" * 3_000 + chosen[0])
        )
    else:
        chosen[2] = draw.choice((b"", b"\n", b"\r", b"xx"))
    last = draw.choice((b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"0\r\n", b"", b"00000\r\n\r\n"))
    draft.payload = b"".join(size + b"\r\n" + one + end for size, one, end in pieces) + last
    draft.framing = [
        ("Transfer-Encoding", draw.choice(("chunked", "chunked", "chunked, chunked", "xchunked", "gzip, chunked")))
    ]
    if draw.random() < 0.2:
        draft.framing.append(("Content-Length", str(len(draft.payload))))


def _content_length(draft: HttpDraft, draw: Random) -> None:
    right = len(draft.payload)
    said = draw.choice(
        (
            right - 1,
            right + 1,
            right // 2,
            right * 2,
            0,
            -1,
            f"+{right}",
            f"{right}, {right}",
            "x",
            "",
            1 << 64,
            1 << 62,
        )
    )
    draft.framing = draw.choice(
        (
            [("Content-Length", str(said))],
            [("Content-Length", str(right)), ("Content-Length", str(said))],
            [("X", "no length")],
        )
    )


def _method(draft: HttpDraft, draw: Random) -> None:
    draft.request_line[0] = draw.choice(METHODS)


def _path(draft: HttpDraft, draw: Random) -> None:
    path = draft.request_line[1]
    model = path.split("/")[3]
    draft.request_line[1] = draw.choice(
        (
            *(f"{path}/", f"{path}?x={'%' * draw.randint(1, 200)}", f"{path}#x", f"/{path}", path.upper(), path[:-1]),
            *(path.replace("infer", f"versions/{version}/infer") for version in ("1", "0", "-1", "9" * 30, "x", "")),
            *(f"/v2/models/{model}%00/infer", f"/v2/models/{model}x/infer", "/v2/models//infer", f"{path}/../infer"),
            *(
                f"/v2/models/{'m' * draw.choice((300, 3_000, 9_000))}/infer",
                f"http://localhost{path}",
                path[1:],
                "*",
                "",
            ),
            *(path.replace("infer", "generate"), path.replace("infer", "generate_stream"), path.replace("/", "%2f")),
        )
    )


def _version(draft: HttpDraft, draw: Random) -> None:
    draft.request_line[2] = draw.choice(
        ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9.9", "HTTP/1.1.1", "http/1.1", "", "X" * 200)
    )


def _headers(draft: HttpDraft, draw: Random) -> None:
    more: list[tuple[str, str]] = draw.choice(
        (
            [(f"X-{number}", "y") for number in range(HEADERS_MANY)],
            [("X-Long", "y" * LONG_TEXT)],
            [("X" * LONG_TEXT, "y")],
            [("", "no colon here")],
            [("", " folded onto the line before")],
            [("X", "\x00\x01"), ("Y", "\u00e9\u6f22")],
            [("Expect", draw.choice(("100-continue", "200-ok")))],
            [("Connection", draw.choice(("close", "upgrade", "keep-alive, close"))), ("Upgrade", "h2c")],
            [("Host", "other")],
            [("Range", "bytes=0-1"), ("If-None-Match", "*")],
            [("triton-x", "y"), ("traceparent", "00-" + "f" * 32 + "-xx-01")],
        )
    )
    at = draw.randint(0, len(draft.headers))
    draft.headers[at:at] = more


def _head_bytes(draft: HttpDraft, draw: Random) -> None:
    draft.head = mutated(draft.head, draw)


def _line_ends(draft: HttpDraft, draw: Random) -> None:
    draft.head = draft.head.replace(
        b"\r\n", draw.choice((b"\n", b"\r", b"\r\r\n", b"\r\n\r\n", b" \r\n")), draw.choice((1, -1))
    )


def _pieces(draft: HttpDraft, draw: Random) -> None:
    draft.writes = split(draft.head + draft.payload, draw)


def _pipelined(draft: HttpDraft, draw: Random) -> None:
    whole = draft.head + draft.payload
    draft.writes = [whole * 2] if draw.random() < 0.5 else [whole + mutated(whole, draw)]


def _cut_off(draft: HttpDraft, draw: Random) -> None:
    whole = draft.head + draft.payload
    draft.writes = [whole[: draw.randint(0, len(whole) - 1)]]


TRANSFER_KINDS = (
    HttpKind("bytes", Stage.CONTENT, _content),
    HttpKind("header_length", Stage.CONTENT, _header_length),
    HttpKind("compressed", Stage.TRANSFER, _compressed, keeps=True),
    HttpKind("compressed_wrongly", Stage.TRANSFER, _compressed_wrongly),
    HttpKind("encoding_lies", Stage.TRANSFER, _encoding_lies),
    HttpKind("accepts", Stage.TRANSFER, _accepts),
    HttpKind("content_type", Stage.TRANSFER, _content_type, keeps=True),
    HttpKind("chunked", Stage.TRANSFER, _chunked, keeps=True),
    HttpKind("chunked_wrongly", Stage.TRANSFER, _chunked_wrongly),
    HttpKind("content_length", Stage.TRANSFER, _content_length),
    HttpKind("method", Stage.TRANSFER, _method),
    HttpKind("path", Stage.TRANSFER, _path),
    HttpKind("version", Stage.TRANSFER, _version),
    HttpKind("headers", Stage.TRANSFER, _headers),
    HttpKind("head_bytes", Stage.WIRE, _head_bytes),
    HttpKind("line_ends", Stage.WIRE, _line_ends),
    HttpKind("pieces", Stage.WIRE, _pieces, keeps=True),
    HttpKind("pipelined", Stage.WIRE, _pipelined),
    HttpKind("cut_off", Stage.WIRE, _cut_off),
)
