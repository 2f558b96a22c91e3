"""Text as it comes: no split characters, the same text however tokens are grouped, stop strings that never show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.engine.detokenise import TextStream, byte_table
from brim.errors import ModelFileError

BYTES = tuple(bytes([value]) for value in range(256))
"""A table with one token a byte."""


def groups(tokens: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    places = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [tokens[begin:end] for begin, end in pairwise(places)]


def read(stream: TextStream, pieces: Sequence[Sequence[int]]) -> list[str]:
    return [*(stream.push(piece) for piece in pieces), stream.finish()]


def plain(text: str, stops: Sequence[str]) -> str:
    """The rule, character by character: the text ends before the stop string that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))]
    return text


def test_token_bytes_from_a_public_report(cases: Path) -> None:
    case = json.loads((cases / "32_token_bytes.json").read_text(encoding="utf-8"))
    table = [bytes.fromhex(piece) for piece in case["tokens_hex"]]
    stream = TextStream(table)
    deltas = read(stream, [[token] for token in range(len(table))])
    assert "".join(deltas) == case["expected_text"]
    assert [delta for delta in deltas[:-1] if "\ufffd" in delta] == []
    whole = TextStream(table)
    assert whole.push(range(len(table))) + whole.finish() == case["expected_text"]


@given(
    st.binary(max_size=60),
    st.lists(st.integers(0, 60), max_size=8),
    st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_the_text_does_not_depend_on_how_its_tokens_came(data: bytes, cuts: list[int], stops: list[str]) -> None:
    expected = plain(data.decode("utf-8", "replace"), stops)
    assert "".join(read(TextStream(BYTES, stops), groups(data, cuts))) == expected
    assert "".join(read(TextStream(BYTES, stops), [[byte] for byte in data])) == expected


@given(
    st.text(alphabet="ab<|>", max_size=40),
    st.lists(st.text(alphabet="ab<|>", min_size=1, max_size=6), min_size=1, max_size=4),
)
def test_no_part_of_a_stop_string_shows(text: str, stops: list[str]) -> None:
    expected = plain(text, stops)
    shown = ""
    stream = TextStream(BYTES, stops)
    for byte in text.encode():
        shown += stream.push([byte])
        assert expected.startswith(shown)
    assert shown + stream.finish() == expected
    assert stream.stopped == (expected != text)
    if stream.stopped:
        assert stream.push(b"more") == ""


def test_what_cannot_become_a_stop_string_any_more_is_shown_at_once() -> None:
    stream = TextStream(BYTES, ["STOP"])
    assert [stream.push([byte]) for byte in b"a STep"] == ["a", " ", "", "", "STe", "p"]


def test_a_row_of_the_model_that_is_no_token_stands_for_no_text() -> None:
    assert read(TextStream(BYTES), [[97, 256], [100_000], [98]]) == ["a", "", "b", ""]


def test_special_tokens_are_empty_and_parts_of_characters_are_kept() -> None:
    vocabulary = {b"hi": 0, b"<|end|>": 1, b"\xc3": 2, b"\xa9": 3}
    said = {0: "hi", 1: "", 2: "\ufffd", 3: ""}
    table = byte_table(vocabulary, lambda lists: [said[token] for (token,) in lists])
    assert table == (b"hi", b"", b"\xc3", b"\xa9")
    assert "".join(read(TextStream(table), [[0], [2], [3], [1]])) == "hi\u00e9"


def test_a_vocabulary_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"1 of 2 tokens .* 1 is .* and reads 'hi'"):
        byte_table({b"a": 0, b"\xe2\x96\x81hi": 1}, lambda lists: ["a", "hi"])
