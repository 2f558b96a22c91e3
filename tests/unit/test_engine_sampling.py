"""Sampling options as callers send them: read by name, refused by name, all faults at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brim.engine.engine import Sampling
from brim.engine.option_ranges import LONGEST_STOP, MOST_STOPS
from brim.engine.sampling import read_options
from brim.errors import InputError


def options(given: object = None, **parameters: Any) -> Sampling:
    return read_options(None if given is None else json.dumps(given).encode(), parameters, vocabulary=1000)


def refusal(given: object = None, **parameters: Any) -> str:
    with pytest.raises(InputError) as caught:
        options(given, **parameters)
    return caught.value.message


def test_every_option_arrives() -> None:
    given = {
        "max_tokens": 5,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": 2**64 - 1,
        "ignore_eos": True,
        "stop_token_ids": [3, 3, 4],
        "stop": ["a", "b", "a"],
        "n": 1,
    }
    expected = Sampling(5, 2, 0.5, 0.25, 7, 0.125, 1.5, -1, 2, 2**64 - 1, True, (3, 4), ("a", "b"))
    assert options(given) == expected
    lists = {key: given.pop(key) for key in ("stop", "stop_token_ids")}
    assert options(lists, **given) == expected


def test_without_options_there_are_vllms_defaults_and_a_seed_of_its_own() -> None:
    first, second = options(), options({})
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k, first.stop) == (16, 1.0, 1.0, 0, ())
    assert first.seed != second.seed
    assert options({"seed": None, "stop": None, "top_k": -1}).top_k == 0


def test_numbers_that_a_transport_made_text_of() -> None:
    found = options(temperature="0.7", max_tokens="8", top_p="1e-1", seed="12")
    assert (found.temperature, found.max_tokens, found.top_p, found.seed) == (0.7, 8, 0.1, 12)
    assert options(max_tokens=8.0).max_tokens == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, "ten", 1.5, True, None, [1], 2**31, 10**400, "9" * 61, "")),
        *(("temperature", value) for value in (-1, -0.001, 101, "hot", True, None, {}, 10**400)),
        *(("top_p", value) for value in (0, 1.01, -1)),
        *(("top_k", value) for value in (-2, 1001)),
        *(("min_p", value) for value in (1, -0.1)),
        *(("presence_penalty", value) for value in (2.1, -2.1)),
        *(("repetition_penalty", value) for value in (0, -1)),
        *(("seed", value) for value in (-1, 2**64, 0.5)),
        *(("ignore_eos", value) for value in (1, "true", None)),
        *(("stop", value) for value in ("", [""], [1], {}, "x" * (LONGEST_STOP + 1), ["a"] * (MOST_STOPS + 1))),
        *(("stop_token_ids", value) for value in ([1000], [-1], [True], ["1"], [1.0])),
        *(("n", value) for value in (0, 2, 10**9)),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    message = refusal({name: value})
    assert name in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "text", ['{"temperature": NaN}', '{"temperature": Infinity}', '{"top_p": -Infinity}', '{"top_p": 1e999}']
)
def test_what_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"temperature is|top_p is"):
        read_options(text.encode(), {}, vocabulary=10)


@pytest.mark.parametrize(
    "text",
    [b"{bad", b"[]", b"3", b"null", b"\xff", b"[" * 50_000, b'{"a": ' * 50_000, b'{"seed": ' + b"9" * 5_000 + b"}"],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match=r"sampling_parameters|seed"):
        read_options(text, {}, vocabulary=10)


def test_unknown_options_are_never_dropped() -> None:
    assert "'top_kk'; did you mean top_k" in refusal({"top_kk": 3})
    assert "logit_bias is not supported" in refusal(logit_bias="{}")
    assert "unknown option 'x" in refusal({"x" * 5_000: 1})


def test_all_faults_at_once() -> None:
    message = refusal({"temperature": -1, "top_kk": 1, "min_tokens": 20, "n": 3}, top_p=9)
    for part in ("temperature is -1", "top_kk", "min_tokens (20) is above max_tokens (16)", "n is 3", "top_p is 9"):
        assert part in message


def test_an_option_in_two_places_is_refused() -> None:
    assert "'seed' is given twice" in refusal({"seed": 1}, seed=1)
