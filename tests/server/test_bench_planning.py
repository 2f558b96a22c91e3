"""The planner held against replicas: what it predicts of given arrivals, and the benchmark on real servers, briefly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim.bench.fleet_place import DEFAULT_TIME, Case
from brim.bench.planning import Effort, planning, predicted
from brim.paths import Project

LONE_US = DEFAULT_TIME.tau0_us + DEFAULT_TIME.alpha_us


def test_lone_requests_take_a_batch_of_one_and_what_is_beside_it() -> None:
    due = [place * 1_000_000 for place in range(5)]
    found = predicted(Case(), 3, due, 100_000, 7_000)
    assert found.p50_us == LONE_US + 7_000
    assert found.goodput_per_s == pytest.approx(5 / 4)
    assert predicted(Case(), 3, due, 80_000, 7_000).goodput_per_s == 0


def test_replicas_share_what_comes_at_once() -> None:
    at_once = [0] * DEFAULT_TIME.max_batch * 3
    three, one = (predicted(Case(), count, at_once, 150_000, 0) for count in (3, 1))
    assert three.p50_us < one.p50_us and three.goodput_per_s > 2 * one.goodput_per_s


def test_fleets_are_measured_and_predicted(checkout: Path, tmp_path: Path) -> None:
    case = Case(time=replace(DEFAULT_TIME, tau0_us=20_000, alpha_us=500.0))
    effort = Effort(replicas=(2,), loads=(0.3,), rounds=1, seconds=1.5)
    found = planning(case, effort, cache=Project(checkout).cache, folder=tmp_path)
    assert [judged.target.most for judged in found.ratios] == [0.15, 0.15]
    for name in ("p50", "goodput"):
        (planned,), (measured,) = (found.figures[f"{name}_2_at_0.3_{whose}"] for whose in ("planned", "measured"))
        assert planned > 0 and measured > 0
