"""The comparison of routing policies on simulated replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brim.bench.routing import FLEET, Line, Traffic, compare, draw, misses
from brim.bench.routing_fleet import Prompted, Routed, route
from brim.engine.lifecycle import End
from brim.router.policy import POLICIES
from brim.router.view import Settings
from tests.conftest import Brim

TRAFFIC = Traffic(requests=60)


def routed(policy: str, prompted: Sequence[Prompted]) -> Routed:
    return route(prompted, FLEET, policy, Settings(block_tokens=16))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_text_is_complete_and_nothing_depends_on_chance(policy: str) -> None:
    prompted = draw(TRAFFIC, 3)
    first, second = routed(policy, prompted), routed(policy, prompted)
    assert first == second
    assert [one.tokens for one in first.seen] == [one.output_tokens for one in prompted]
    assert {one.end for one in first.seen} == {End.STOP}
    assert all(one.first_us > one.sent_us for one in first.seen)
    assert sum(first.shares.values()) == len(prompted)


def test_who_comes_again_finds_what_it_left() -> None:
    # One beginning, one request at a time: where it goes a second time, all but its own tokens are there.
    prompted = [Prompted(number * 2_000_000, 0, 512, 64, 4) for number in range(4)]
    assert routed("prefix_aware", prompted).hit_tokens == 3 * 512
    assert routed("round_robin", prompted).hit_tokens == 512


def test_prompts_that_share_beginnings_are_answered_sooner_where_these_are_known() -> None:
    lines = {line.policy: line for line in compare(Traffic(requests=300), seed=1)}
    aware = lines.pop("prefix_aware")
    assert all(aware.hit_ratio > line.hit_ratio and aware.ttft_p50_us < line.ttft_p50_us for line in lines.values())
    assert aware.imbalance <= 1.05 * lines["least_request"].imbalance


def test_a_miss_is_named() -> None:
    good = Line("prefix_aware", 0.9, 10_000, 20_000, 100.0, 1.05, 0.34, 10)
    least = replace(good, policy="least_request", ttft_p50_us=20_000, ttft_p99_us=40_000, imbalance=1.02)
    robin = replace(least, policy="round_robin")
    assert misses([good, least, robin]) == []
    (found,) = misses([replace(good, ttft_p99_us=40_000), least, replace(robin, ttft_p99_us=50_000)])
    assert "ttft_p99_us of prefix_aware" in found and "least_request" in found
    (found,) = misses([replace(good, imbalance=1.08), least, robin])
    assert "imbalance of prefix_aware is 1.080" in found


def test_the_command_writes_what_it_shows(brim: Brim, tmp_path: Path) -> None:
    done = brim("bench", "routing", "--points", "30", "--seed", "2", "--out", tmp_path, "--json")
    data = json.loads(done.out)["data"]
    assert done.code == (1 if data["misses"] else 0)
    assert [line["policy"] for line in data["lines"]] == ["prefix_aware", "least_request", "round_robin"]
    assert json.loads((tmp_path / "routing.json").read_text(encoding="utf-8"))["lines"] == data["lines"]
    assert brim("bench", "routing", "--rounds", "3").code == 2
