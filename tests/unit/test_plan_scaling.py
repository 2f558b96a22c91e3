"""Scaling by example: what is wanted, how fast, and how many stay warm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.plan.scaling import (
    Fleet,
    Memory,
    Signals,
    Thresholds,
    paced,
    spares,
    thresholds_of,
    wanted,
    wanted_by_utilisation,
)
from brim.service.load import find_services
from brim.units import US_PER_S

AT = Thresholds(waiting=50, queue_us=12_500)
TOKENS = Thresholds(waiting=16, queue_us=500_000, ttft_p90_us=1_000_000, kv_usage=0.8)
FLEET = Fleet(2, 20, spares=1)
CALM = Signals(4, 4, 4, waiting=0, queue_us=0, answered_per_s=100, utilisation=0.5)


@pytest.mark.parametrize(
    ("seen", "replicas"),
    [
        ({}, 2),
        ({"answered_per_s": 0, "queue_us": None}, 2),
        ({"waiting": 1}, 2),
        ({"waiting": 60}, 4),  # 0.3 of the limit: three would do at twice that, and one is kept warm
        ({"waiting": 140}, 4),
        ({"waiting": 160}, 5),  # at 0.8 of the limit all four are needed, so there is no spare
        ({"waiting": 240}, 6),
        ({"waiting": 1e308, "ready": 0}, 4),
        ({"waiting": 1e308}, 9),
        ({"waiting": 10_000}, 9),  # twice what is ready, and the spare
        ({"queue_us": 25_000}, 9),
        ({"present": 9, "waiting": 10_000}, 9),  # what is starting counts: the same backlog does not double it again
        ({"present": 3, "ready": 3, "reporting": 2, "waiting": 0}, 3),
        ({"waiting": float("nan")}, 4),
        ({"queue_us": None}, 4),
        ({"ready": 0, "reporting": 0}, 4),
    ],
)
def test_tensor_models(seen: dict[str, float], replicas: int) -> None:
    assert wanted(replace(CALM, **seen), AT, FLEET).replicas == replicas  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "replicas"),
    [
        ({}, 2),
        ({"kv_usage": 0.72}, 5),
        ({"ttft_p90_us": 1_500_000}, 7),
        ({"ttft_p90_us": None}, 4),
        ({"kv_usage": None}, 4),
        ({"answered_per_s": 0, "ttft_p90_us": None, "queue_us": None}, 2),
    ],
)
def test_token_models(seen: dict[str, float], replicas: int) -> None:
    calm = replace(CALM, ttft_p90_us=100_000, kv_usage=0.1)
    assert wanted(replace(calm, **seen), TOKENS, FLEET).replicas == replicas  # type: ignore[arg-type]


def test_a_fleet_at_its_limit_sheds_batch_traffic_before_the_objective_is_missed() -> None:
    assert not wanted(replace(CALM, waiting=290), AT, FLEET).shed_batch
    assert wanted(replace(CALM, waiting=300), AT, FLEET).shed_batch
    full = Fleet(1, 4, spares=0)
    assert wanted(replace(CALM, waiting=300), AT, full) == replace(
        wanted(replace(CALM, waiting=300), AT, FLEET), replicas=4
    )


def test_an_idle_fleet_has_one_and_its_spares() -> None:
    fleet = Fleet(1, 20, spares=2)
    assert [wanted(replace(CALM, waiting=waiting), AT, fleet).replicas for waiting in (0, 1)] == [3, 3]


def test_utilisation_asks_for_the_same_whatever_has_come() -> None:
    busy = replace(CALM, utilisation=1.0)
    assert [wanted_by_utilisation(replace(busy, waiting=waiting), FLEET).replicas for waiting in (0, 100, 10_000)] == [
        5
    ] * 3
    assert wanted_by_utilisation(replace(CALM, utilisation=0.85), FLEET).replicas == 4
    assert wanted_by_utilisation(replace(CALM, utilisation=None), FLEET).replicas == 4


def test_up_at_once_and_down_one_by_one_after_a_while() -> None:
    memory, present, numbers = Memory(), 2, {}
    course = {0: 2, 15: 8, **dict.fromkeys(range(30, 700, 15), 4)}
    for at_s, number in course.items():
        want = replace(wanted(CALM, AT, FLEET), replicas=number)
        present, memory = paced(want, present, FLEET, memory, at_s * US_PER_S)
        numbers[at_s] = present
    assert numbers[15] == 8
    changes = [(at_s, number) for at_s, number in numbers.items() if number != numbers.get(at_s - 15)]
    assert changes == [(0, 2), (15, 8), (315, 7), (375, 6), (435, 5), (495, 4)]


def test_nothing_is_taken_away_before_a_window_has_been_seen() -> None:
    want = replace(wanted(CALM, AT, FLEET), replicas=2)
    assert paced(want, 8, FLEET, Memory(), 1_000_000 * US_PER_S)[0] == 8
    assert paced(want, 30, FLEET, Memory(), 0)[0] == 20


def test_spares_are_what_traffic_grows_by_while_one_loads() -> None:
    assert spares(load_time_us=0, growth_per_s2=100, replica_per_s=10) == 1
    assert spares(load_time_us=60 * US_PER_S, growth_per_s2=50, replica_per_s=1_000) == 3
    assert spares(load_time_us=60 * US_PER_S, growth_per_s2=50.5, replica_per_s=1_000) == 4
    with pytest.raises(InputError, match="replica_per_s is 0"):
        spares(load_time_us=1, growth_per_s2=1, replica_per_s=0)


def test_thresholds_follow_from_the_service_file(checkout: Path) -> None:
    image, text = (find_services(checkout / "services", [name])[0] for name in ("image_classifier", "text_generation"))
    assert thresholds_of(image) == Thresholds(waiting=50, queue_us=12_500)
    assert thresholds_of(text) == TOKENS
    bounded = image.model_copy(update={"batching": image.batching.model_copy(update={"in_flight_bound": 40})})
    assert thresholds_of(bounded).waiting == 10, "half of the 40 executes, and no more than the other half waits"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Thresholds(waiting=0), "waiting is 0"),
        (lambda: Thresholds(waiting=1, relaxed=1), "relaxed"),
        (lambda: Thresholds(waiting=1, most_growth=1), "most_growth"),
        (lambda: Fleet(3, 2), "min_replicas is 3, max_replicas 2"),
        (lambda: Fleet(spares=-1), "spares is -1"),
        (lambda: Fleet(down_step=0), "down_step"),
    ],
)
def test_contradictions_are_refused(made: object, said: str) -> None:
    assert callable(made)
    with pytest.raises(InputError, match=said):
        made()
