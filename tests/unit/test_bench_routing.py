"""The comparison of routing policies on simulated replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brim.bench.routing import BALANCE_MARGIN, FLEET, Line, Traffic, compare, draw, misses
from brim.bench.routing_fleet import Prompted, Routed, route
from brim.bench.routing_load import Seen
from brim.bench.routing_real import figures_of, ratios_of
from brim.engine.lifecycle import End
from brim.errors import CouldNotTell
from brim.measure.text.stream import Heard
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


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(requests=300, rate_per_s=20, shared_tokens=1_024),
        Traffic(requests=300, rate_per_s=30, shared_tokens=1_024),
        Traffic(requests=300, rate_per_s=80, shared_tokens=256),
        Traffic(requests=300, rate_per_s=60, zipf=1.2),
        Traffic(requests=300, rate_per_s=50, zipf=0.0),
    ],
    ids=lambda traffic: f"{traffic.rate_per_s}/s of {traffic.shared_tokens}, zipf {traffic.zipf}",
)
def test_whatever_the_load_the_picker_wins_and_stays_even(traffic: Traffic) -> None:
    """One request more on one of three replicas is half of the balance when there are two on each."""
    lines = {line.policy: line for line in compare(traffic, seed=2)}
    aware, least = lines["prefix_aware"], lines["least_request"]
    assert aware.ttft_p50_us < min(least.ttft_p50_us, lines["round_robin"].ttft_p50_us)
    assert aware.imbalance <= BALANCE_MARGIN * least.imbalance


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
    assert brim("bench", "routing", "--real", "--points", "3").code == 2
    assert brim("bench", "fleet", "--real").code == 2


def heard(sent_us: int, first_us: int | None, tokens: int = 2) -> Heard:
    if first_us is None:
        return Heard(sent_us, ended_us=sent_us + 9_000, error="503: unavailable")
    return Heard(sent_us, [(first_us, 1, "a"), (first_us + 500, tokens - 1, "b")], first_us + 500, "length")


def test_first_tokens_count_from_when_their_request_was_due() -> None:
    # The third of them fails, and the second is sent late.
    seen = Seen(
        [0, 100_000, 200_000],
        [heard(0, 40_000), heard(150_000, 180_000), heard(200_000, None)],
        60,
        80,
        [[1, 0, 0], [0, 4, 2]],
    )
    assert seen.ttft_us == [40_000, 80_000]
    figures = figures_of("one", seen)
    assert figures == {
        "one_ttft_p50_ms": 40.0,
        "one_ttft_p99_ms": 80.0,
        "one_hit_ratio": 0.75,
        "one_tokens_per_s": pytest.approx(4 / 0.209),
        "one_imbalance": 2.5,  # 1 over a third, and 4 over 2
        "one_over_even": 1.5,  # 1 over 1, and 4 over 2
        "one_failed": 1.0,
    }
    with pytest.raises(CouldNotTell, match="one completed no text of a round: 503"):
        figures_of("one", Seen([0], [heard(0, None)], 0, 10, [[1, 0, 0]]))


def test_real_rounds_are_compared_pair_by_pair() -> None:
    figures = {
        f"{policy}_{name}": [value * factor for value in values]
        for policy, factor in (("prefix_aware", 1), ("least_request", 2), ("round_robin", 4))
        for name, values in {
            "ttft_p50_ms": [10.0, 20.0],
            "ttft_p99_ms": [30.0, 30.0],
            "over_even": [2.0, 1.0],
            "failed": [0.0, 1.0],
        }.items()
    }
    assert {target.ratio: values for target, values in ratios_of(figures).items()} == {
        "TTFT p50: prefix_aware / least_request": [0.5, 0.5],
        "TTFT p99: prefix_aware / least_request": [0.5, 0.5],
        "TTFT p50: prefix_aware / round_robin": [0.25, 0.25],
        "TTFT p99: prefix_aware / round_robin": [0.25, 0.25],
        "most outstanding over the fewest possible: prefix_aware / least_request": [0.5, 0.5],
        "requests without a complete text": [0.0, 7.0],
    }
