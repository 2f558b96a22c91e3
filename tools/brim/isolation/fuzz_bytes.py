"""Mutations that know nothing of a format, and the odd values that every format is tried with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

MOST_EDITS = 8
LONG_TEXT = 30_000
"""A name or an id so long that it is most of a body, and no more."""
DEEP = 9_000
"""Nested brackets: many times what any request has, and far below what ends a tritonserver (``fuzz_avoid``)."""

WHOLE_NUMBERS = (
    *(-(1 << 63), -(1 << 31), -256, -2, -1, 0, 1, 2, 7, 99, 100, 101, 255, 256, 65_535, 65_536),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 53) + 1),
    *((1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64),
)
ODD_TEXTS = (
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "../../etc/passwd",
        "%00",
        "%s%n",
        "<b>&amp;</b>",
        "'; --",
        "\r\nX: y",
        "\u202e\u0000",
    ),
    *("\ud800", "\U0010ffff", "é" * 50, "null", "NaN", "1", "-1", "true", "{}", "[]"),
)


def odd_text(draw: Random) -> str:
    """A text that a careless reader stumbles over: empty, long, controls, half a surrogate pair, words of other formats."""
    if draw.random() < 0.2:
        return draw.choice("ax\u00e9\u6f22") * draw.randint(1, LONG_TEXT // 3)
    return draw.choice(ODD_TEXTS)


def odd_value(draw: Random) -> Any:
    """Any JSON value that a field does not expect."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: draw.choice((None, True, False)),
        lambda: draw.choice(WHOLE_NUMBERS),
        lambda: draw.choice((0.0, -0.0, 1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf"))),
        lambda: 10 ** draw.randint(20, 900),
        lambda: odd_text(draw),
        lambda: draw.choice(([], {}, [[]], [None], [{}], {"": {}}, {"a": [1, "b"]})),
        lambda: [draw.choice(WHOLE_NUMBERS) for _ in range(draw.randint(1, 5))],
        lambda: nested(draw),
    )
    return draw.choice(makers)()


def nested(draw: Random, core: Any = 1, most: int = 200) -> Any:
    """``core`` inside so many lists and objects that ``json.dumps`` still writes it."""
    for _ in range(draw.randint(1, most)):
        core = [core] if draw.random() < 0.7 else {"a": core}
    return core


def _flip_bits(data: bytearray, draw: Random) -> None:
    for _ in range(draw.randint(1, MOST_EDITS)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _overwrite(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data))
    size = draw.randint(1, min(64, len(data) - at))
    data[at : at + size] = draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size)))


def _insert(data: bytearray, draw: Random) -> None:
    at = draw.randint(0, len(data))
    data[at:at] = draw.choice(
        (b"\x00", b"\xff\xfe", b'"', b"}", b"[", b",", b"\r\n", draw.randbytes(draw.randint(1, 300)))
    )


def _remove(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data))
    del data[at : at + draw.randint(1, max(1, len(data) // 4))]


def _duplicate(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data))
    piece = bytes(data[at : at + draw.randint(1, 200)])
    data[at:at] = piece * draw.randint(1, 20)


def _cut(data: bytearray, draw: Random) -> None:
    del data[draw.randint(0, len(data)) :]


def _extend(data: bytearray, draw: Random) -> None:
    data += draw.choice((bytes, draw.randbytes))(draw.randint(1, 2_000))


def _twice(data: bytearray, draw: Random) -> None:
    data += bytes(data)


def _shuffle(data: bytearray, draw: Random) -> None:
    middle = draw.randint(0, len(data))
    data[:] = data[middle:] + data[:middle]


_EDITS = (_flip_bits, _flip_bits, _overwrite, _insert, _remove, _duplicate, _cut, _extend, _twice, _shuffle)


def mutated(data: bytes, draw: Random) -> bytes:
    """``data`` with one to three faults: flipped bits, bytes overwritten, put in, taken out, repeated, cut, turned round."""
    changed = bytearray(data or b"\x00")
    for _ in range(draw.randint(1, 3)):
        if changed:
            draw.choice(_EDITS)(changed, draw)
    return bytes(changed)


def split(data: bytes, draw: Random, most: int = 12) -> list[bytes]:
    """``data`` in up to ``most`` pieces, cut anywhere; pieces may be one byte long, none is empty."""
    places = sorted({draw.randint(1, max(1, len(data) - 1)) for _ in range(draw.randint(1, most))})
    edges = [0, *places, len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    return [piece for piece in pieces if piece]
