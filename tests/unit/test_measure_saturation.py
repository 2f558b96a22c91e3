"""The rule that tells a saturated generator from a saturated server, over figures recorded on two cores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.measure.plan import Mode
from brim.measure.saturation import Evidence, judge

RECORDED = json.loads((Path(__file__).parent / "data" / "measure" / "saturation.json").read_text(encoding="utf-8"))


def evidence(given: dict[str, Any]) -> Evidence:
    return Evidence(**{**given, "mode": Mode(given["mode"])})


SLOW_GENERATOR = Evidence(
    mode=Mode.CONCURRENCY,
    value=100,
    throughput=1671,
    latency_us=60_000,
    server_us=9_000,
    duty=0.4,
    generator_cores=0.95,
    usable_cores=1,
    machine_busy=0.7,
)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['what']} @{case['evidence']['value']:g}")
def test_recorded_figures(case: dict[str, Any]) -> None:
    verdict = judge(evidence(case["evidence"]))
    assert verdict.generator_bound is case["generator_bound"]
    assert verdict.reason


def test_recorded_figures_hold_both_answers() -> None:
    assert {case["generator_bound"] for case in RECORDED} == {True, False}


def test_a_stalled_server_is_not_the_generators_fault() -> None:
    """The bounded queue's stall leaves the instances idle, but the callers are in the server."""
    stalls = [evidence(case["evidence"]) for case in RECORDED if "stall" in case["what"]]
    assert stalls
    for stall in stalls:
        assert stall.duty is not None
        assert stall.duty < 0.5
        assert stall.callers_in_server == pytest.approx(stall.value, rel=0.15)
        assert not judge(stall).generator_bound


def test_each_condition_is_needed() -> None:
    assert judge(SLOW_GENERATOR).generator_bound
    assert not judge(replace(SLOW_GENERATOR, duty=0.9)).generator_bound
    assert not judge(replace(SLOW_GENERATOR, generator_cores=0.3)).generator_bound
    assert not judge(replace(SLOW_GENERATOR, server_us=50_000)).generator_bound


def test_what_is_unknown_does_not_acquit() -> None:
    assert judge(replace(SLOW_GENERATOR, duty=None)).generator_bound
    assert judge(replace(SLOW_GENERATOR, generator_cores=None, machine_busy=1.0)).generator_bound
    unknown = replace(SLOW_GENERATOR, generator_cores=None, machine_busy=None)
    assert not judge(unknown).generator_bound


def test_throughput_that_stays_with_more_callers_counts() -> None:
    inside = replace(SLOW_GENERATOR, server_us=50_000)
    assert judge(replace(inside, earlier_throughput=1700)).generator_bound
    assert not judge(replace(inside, earlier_throughput=900)).generator_bound


def test_open_loop() -> None:
    open_loop = replace(SLOW_GENERATOR, mode=Mode.RATE, value=4000, throughput=3000)
    assert judge(open_loop).generator_bound
    assert not judge(replace(open_loop, throughput=3990)).generator_bound
    assert not judge(replace(open_loop, generator_cores=0.2)).generator_bound
    assert judge(replace(open_loop, generator_cores=0.2, sent_rate=3100)).generator_bound
    assert not judge(replace(open_loop, generator_cores=0.2, sent_rate=3100, duty=0.97)).generator_bound


def test_little_and_shares() -> None:
    assert SLOW_GENERATOR.callers_in_server == pytest.approx(1671 * 9_000 / 1e6)
    assert SLOW_GENERATOR.outside_ratio == pytest.approx(1 - 9 / 60)
    assert replace(SLOW_GENERATOR, latency_us=None).outside_ratio is None
    assert replace(SLOW_GENERATOR, server_us=None).callers_in_server is None
    assert replace(SLOW_GENERATOR, server_us=70_000).outside_ratio == 0
