"""Choosing among measured points: limits are inclusive, ties are decided, and nothing is never the best of the bad."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.tune.choose import Aim, Point, choose


@pytest.fixture
def sweep(cases: Path) -> list[Point[int]]:
    with (cases / "18_sweep.csv").open(newline="") as file:
        return [
            Point(int(row["Concurrency"]), float(row["Inferences/Second"]), int(row["p99 latency"]))
            for row in csv.DictReader(file)
        ]


def test_the_lower_latency_decides_a_tie(sweep: list[Point[int]]) -> None:
    choice = choose(sweep, limit_us=20_000)
    assert choice.point is not None
    assert (choice.point.of, choice.point.throughput_per_s, choice.point.latency_us) == (8, 655, 12_400)


def test_none_is_an_answer_and_names_the_closest(sweep: list[Point[int]]) -> None:
    choice = choose(sweep, limit_us=5_000)
    assert choice.point is None
    assert (choice.closest.of, choice.closest.latency_us) == (1, 6_100)
    assert "6.1 ms" in choice.why and "5 ms" in choice.why


@pytest.mark.parametrize(("limit_us", "chosen"), [(12_400, 8), (12_399, 4), (6_100, 1), (6_099, None)])
def test_a_limit_is_met_by_its_own_value(sweep: list[Point[int]], limit_us: int, chosen: int | None) -> None:
    point = choose(sweep, limit_us=limit_us).point
    assert (point.of if point else None) == chosen


def test_the_least_latency_keeps_the_floor(sweep: list[Point[int]]) -> None:
    for aim, floor, chosen in (
        (Aim.LATENCY, 600, 8),
        (Aim.LATENCY, 0, 1),
        (Aim.LATENCY, 655, 8),
        (Aim.THROUGHPUT, 600, 8),
    ):
        point = choose(sweep, limit_us=20_000, least_per_s=floor, aim=aim).point
        assert point is not None
        assert point.of == chosen


def test_a_floor_that_nothing_reaches_in_time(sweep: list[Point[int]]) -> None:
    choice = choose(sweep, limit_us=20_000, least_per_s=660)
    assert choice.point is None
    assert choice.closest.throughput_per_s == 655
    assert "660" in choice.why


def test_what_is_within_noise_counts_as_equal_and_the_first_wins() -> None:
    points = [Point("simple", 970.0, 1_050), Point("better", 1_000.0, 1_000), Point("slow", 1_000.0, 1_300)]
    for tie, latency_tie, chosen in ((0.0, 0.0, "better"), (0.05, 0.0, "better"), (0.05, 0.1, "simple")):
        point = choose(points, limit_us=2_000, tie=tie, latency_tie=latency_tie).point
        assert point is not None
        assert point.of == chosen


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(InputError, match="no measured point"):
        choose([], limit_us=1)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 50),
    st.integers(0, 50),
)
def test_the_choice_is_within_every_limit_and_beaten_by_none(
    values: list[tuple[int, int]], limit_us: int, floor: int
) -> None:
    points = [Point(number, float(rate), latency) for number, (rate, latency) in enumerate(values)]
    fit = [point for point in points if point.latency_us <= limit_us and point.throughput_per_s >= floor]
    chosen = choose(points, limit_us=limit_us, least_per_s=floor).point
    assert (chosen is None) == (not fit)
    if chosen is not None:
        assert chosen in fit
        assert max((point.throughput_per_s, -point.latency_us) for point in fit) == (
            chosen.throughput_per_s,
            -chosen.latency_us,
        )


def test_of_those_that_miss_the_limit_the_simplest_of_the_fastest_is_the_closest() -> None:
    points = [Point("simple", 10, 110), Point("waiting", 12, 105), Point("slow", 9, 300)]
    assert choose(points, limit_us=100, latency_tie=0.2).closest.of == "simple"
    assert choose(points, limit_us=100).closest.of == "waiting"
