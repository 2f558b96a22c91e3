"""What is refused before it comes near an engine, and that the options as read over the wire lie in the same ranges."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from brim.engine.engine import EngineLimits, Sampling
from brim.engine.lifecycle import Request
from brim.engine.option_ranges import LARGEST_SEED, LONGEST_STOP, MOST_STOP_TOKENS, MOST_STOPS, RANGES
from brim.engine.sampling import read_options
from brim.engine.validation import MOST_FINDINGS, request_findings
from brim.errors import InputError

LIMITS = EngineLimits(total_blocks=20, block_tokens=16, step_tokens=64, context_tokens=256, vocabulary=1000)
GOOD = Request("a", (1, 2, 999), Sampling(max_tokens=8, temperature=0.7, seed=3))


def codes(request: Request, **more: Any) -> list[str]:
    return [finding.code for finding in request_findings(request, LIMITS, **more)]


def sampled(**options: Any) -> Request:
    return replace(GOOD, sampling=replace(GOOD.sampling, **options))


def test_a_good_request_has_no_findings() -> None:
    assert codes(GOOD, living={"b"}) == []
    assert codes(replace(GOOD, tokens=(0,) * 248)) == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(GOOD, tokens=()), "GEN002"),
        (replace(GOOD, tokens=(1, -1)), "GEN003"),
        (replace(GOOD, tokens=(1000,)), "GEN003"),
        (replace(GOOD, tokens=(True,)), "GEN003"),
        (replace(GOOD, tokens=(2**400,)), "GEN003"),
        (replace(GOOD, tokens=(1.0,)), "GEN003"),  # type: ignore[arg-type]
        (replace(GOOD, tokens=(1,) * 249), "GEN004"),
        (sampled(max_tokens=254), "GEN004"),
        *[
            (sampled(**{name: value}), "GEN010")
            for name in RANGES
            for value in (math.nan, math.inf, -math.inf, "1", None, True)
        ],
        *[(sampled(**{name: range_.low - 1}), "GEN010") for name, range_ in RANGES.items()],
        *[(sampled(**{name: range_.high * 2}), "GEN010") for name, range_ in RANGES.items()],
        (sampled(max_tokens=0), "GEN010"),
        (sampled(top_p=0), "GEN010"),
        (sampled(min_p=1), "GEN010"),
        (sampled(repetition_penalty=0), "GEN010"),
        (sampled(seed=LARGEST_SEED + 1), "GEN010"),
        (sampled(max_tokens=2.5), "GEN010"),
        (sampled(ignore_eos=1), "GEN010"),
        (sampled(stop=("",)), "GEN011"),
        (sampled(stop=("x" * (LONGEST_STOP + 1),)), "GEN011"),
        (sampled(stop=(7,)), "GEN011"),
        (sampled(stop=("x",) * 10_000), "GEN011"),
        (sampled(stop_token_ids=(1000,)), "GEN012"),
        (sampled(stop_token_ids=(1,) * (MOST_STOP_TOKENS + 1)), "GEN012"),
        (sampled(min_tokens=9), "GEN013"),
    ],
)
def test_each_fault_is_one_finding(request_: Request, code: str) -> None:
    findings = request_findings(request_, LIMITS)
    assert [finding.code for finding in findings] == [code]
    assert len(findings[0].message) < 400


def test_an_id_in_use_is_found() -> None:
    assert codes(GOOD, living={"a"}) == ["GEN001"]


def test_all_faults_are_told_at_once_and_not_without_end() -> None:
    bad = replace(sampled(temperature=math.nan, top_p=2, min_tokens=9, stop=("",), stop_token_ids=(-1,)), tokens=(-1,))
    assert codes(bad, living={"a"}) == ["GEN001", "GEN003", "GEN010", "GEN010", "GEN013", "GEN011", "GEN012"]
    endless = sampled(stop=("",) * MOST_STOPS, stop_token_ids=(-1,) * MOST_STOP_TOKENS)
    assert len(request_findings(endless, LIMITS)) == MOST_FINDINGS


def test_a_message_names_value_and_limit() -> None:
    texts = [f.message for f in request_findings(replace(sampled(top_p=3), tokens=(5, 1000, 2000)), LIMITS)]
    assert texts == [
        "token 1 of the prompt is 1000, and 1 more are wrong; the model's tokens are whole numbers from 0 to 999",
        "top_p is 3; a number above 0 to 1 is expected",
    ]


@pytest.mark.parametrize("name", [name for name in RANGES if name != "top_k"])
def test_options_over_the_wire_have_the_same_ranges(name: str) -> None:
    """``top_k`` differs: over the wire -1 means all tokens, as 0 does here."""
    low, high = RANGES[name].low, RANGES[name].high
    numbers = {low - 1, low, low + 1, 0, 1, high - 1, high, high + 1}
    others = {} if name in {"max_tokens", "min_tokens"} else {"max_tokens": 5}
    for value in numbers if RANGES[name].whole else numbers | {low + 1e-9, high - 1e-9, low - 1e-9, high + 1e-9}:
        if name == "min_tokens":
            others = {"max_tokens": max(1, min(int(value), 2**31 - 1))}
        options = json.dumps({name: value, **others}).encode()
        if RANGES[name].holds(value):
            assert getattr(read_options(options, {}, vocabulary=1000), name) == value
        else:
            with pytest.raises(InputError, match=name):
                read_options(options, {}, vocabulary=1000)


def test_a_limit_is_told_to_the_last_digit() -> None:
    (found,) = request_findings(sampled(seed=LARGEST_SEED + 1), LIMITS)
    assert "from 0 to 18446744073709551615" in found.message
