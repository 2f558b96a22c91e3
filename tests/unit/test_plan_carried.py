"""What replicas have carried: remembered, contradicted, forgotten, and the way down of services that always wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.plan.carried import CALM, KEPT_US, SETTLED_US, Carried
from brim.plan.scaling import Fleet, Signals, Thresholds, wanted
from brim.plan.shapes import Shape, shaped
from brim.units import US_PER_S
from tests.unit.plan_example import SHARE, SLO_US, case_of, outcome, replica_of

MINUTE_US = 60 * US_PER_S
AT = Thresholds(waiting=50, queue_us=25_000)
FLEET = Fleet(1, 20, spares=1)
USUAL = Signals(8, 8, 8, waiting=0, queue_us=14_000, answered_per_s=800)
"""At 0.56 of the limit, as it always is."""


def seen(*looks: tuple[int, float | None, float | None], complete: bool = True) -> Carried:
    """One look a minute: ready replicas, answers a second of all of them, pressure."""
    found = Carried()
    for minute, (ready, answered_per_s, pressure) in enumerate(looks):
        found = found.noted(
            minute * MINUTE_US, ready=ready, answered_per_s=answered_per_s, pressure=pressure, complete=complete
        )
    return found


@pytest.mark.parametrize(
    ("looks", "per_s"),
    [
        ([], None),
        ([(2, 200.0, CALM)], 100.0),
        ([(2, 200.0, 0.5), (4, 200.0, 0.4)], 100.0),
        ([(2, 200.0, 0.5), (2, 300.0, 0.9)], 100.0),  # neither calm nor in trouble
        ([(2, 200.0, 0.5), (2, 300.0, 1.0)], 100.0),
        ([(2, 200.0, 0.5), (2, 120.0, 1.5)], 60.0),
        ([(2, 120.0, 1.5), (2, 200.0, 0.5)], 60.0),
        ([(2, 120.0, 1.5), (2, 80.0, 1.5), (2, 200.0, 0.5)], 40.0),
        ([(2, 120.0, 1.5)], None),
        ([(0, 120.0, 0.5), (2, None, 0.5), (2, float("nan"), 0.5), (2, 100.0, None)], None),
    ],
)
def test_the_most_that_was_calm_and_no_more_than_the_least_that_was_not(
    looks: list[tuple[int, float | None, float | None]], per_s: float | None
) -> None:
    assert seen(*looks).per_s == per_s


def test_without_every_figure_nothing_is_calm() -> None:
    assert seen((2, 200.0, 0.5), complete=False).per_s is None


def test_a_replica_that_has_gone_has_answered_a_part_as_well() -> None:
    def at(after_us: int) -> float | None:
        both = Carried().noted(0, ready=2, answered_per_s=100, pressure=0.9, complete=True)
        return both.noted(after_us, ready=1, answered_per_s=100, pressure=0.5, complete=True).per_s

    assert at(SETTLED_US - 1) == 50
    assert at(SETTLED_US) == 100


def test_what_was_carried_and_what_was_not_are_forgotten() -> None:
    def later(carried: Carried) -> Carried:
        return carried.noted(KEPT_US, ready=1, answered_per_s=10, pressure=0.1, complete=True)

    assert later(seen((1, 100.0, 0.5))).per_s == 10
    assert later(seen((1, 5.0, 1.5))).per_s == 10


def test_what_is_remembered_is_bounded() -> None:
    carried = Carried()
    for second in range(0, 3 * KEPT_US // US_PER_S, 60):
        # Both fall and rise, so that every look may be an extreme of those to come.
        carried = carried.noted(
            second * US_PER_S, ready=1, answered_per_s=1e6 - second, pressure=0.5, complete=True
        ).noted(second * US_PER_S + 1, ready=1, answered_per_s=second, pressure=1.5, complete=True)
    assert len(carried.calm) <= KEPT_US // MINUTE_US and len(carried.troubled) <= KEPT_US // MINUTE_US
    assert len(carried.ready) <= 1


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({}, 8),  # by the pressure alone: 8 * 0.56 / 0.5
        ({"carried_per_s": 400.0}, 4),  # 800 / (0.9 * 400) is above two, and one is kept warm
        ({"carried_per_s": 445.0}, 3),
        ({"carried_per_s": 1e9}, 2),
        ({"carried_per_s": 100.0}, 8),
        ({"carried_per_s": 0.0}, 8),
        ({"carried_per_s": 400.0, "answered_per_s": 0.0}, 2),
        ({"carried_per_s": 400.0, "answered_per_s": None}, 8),
        ({"carried_per_s": 400.0, "reporting": 7}, 8),
        ({"carried_per_s": 400.0, "queue_us": None}, 8),
        ({"carried_per_s": 400.0, "queue_us": 20_000}, 4),  # 0.8: neither more
        ({"carried_per_s": 400.0, "queue_us": 25_000}, 9),  # at the limit nothing but the figures counts
        ({"present": 2, "ready": 2, "reporting": 2, "carried_per_s": 800.0}, 2),  # nor a spare more for the usual wait
        ({"present": 2, "ready": 2, "reporting": 2}, 3),
    ],
)
def test_the_load_counts_below_the_limit(changes: dict[str, float | None], replicas: int) -> None:
    assert wanted(replace(USUAL, **changes), AT, FLEET).replicas == replicas  # type: ignore[arg-type]


ALWAYS_WAITS = Machine(AffineBatchTime(28_000, 50))
"""Of 28 ms whatever it carries: callers wait for half of that, 0.56 of the limit of the example, on any number of replicas."""


@pytest.mark.parametrize("spares", [0, 1])
def test_after_a_crowd_a_fleet_whose_callers_always_wait_is_small_again(spares: int) -> None:
    traffic = shaped(Shape.FLASH_CROWD, 2_000, 12_000, 3_600)
    case = case_of(ALWAYS_WAITS, traffic, epoch_s=1.0, max_replicas=12, startup_s=15.0)
    found = outcome(case, spares=spares)
    ready = found.of["ready"]
    assert found.slo_attainment >= SHARE
    assert ready.max() >= 5
    assert ready[-1] <= ready[0] + 2
    # Up once for the crowd, and down again: nobody is taken away whom the load still needs.
    lowered = int((ready[1:] < ready[:-1]).argmax())
    assert (ready[lowered + 1 :] <= ready[lowered]).all()


def test_the_example_waits_as_it_says() -> None:
    one = replica_of(ALWAYS_WAITS)
    parts = one.queue_us[(one.rate_per_s > 0.05 * one.capacity_per_s) & (one.rate_per_s < 0.8 * one.capacity_per_s)]
    assert len(parts) > 2 and parts.min() > 0.5 * SLO_US / 4
