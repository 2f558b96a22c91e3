"""What one replica does, as fluid and request by request; and fleets of them, both ways."""

from __future__ import annotations

import numpy as np
import pytest

from brim.batcher.arrivals import OpenLoop, poisson
from brim.batcher.simulate import simulate
from brim.plan.batch_replica import batch_replica
from brim.plan.outcome import Outcome
from brim.plan.run import edges_s
from brim.plan.scaled import Scaling
from brim.plan.traffic import Loss, Slow, Traffic
from tests.unit.plan_example import (
    DEVICE_BOUND,
    HOST_BOUND,
    SETTINGS,
    assert_conserved,
    case_of,
    outcome,
    replica_of,
)  # fmt: skip

KNOWN_PER_S = 100 / 0.030
"""Full batches of 100 rows in 10 ms + 0.2 ms a row."""


def steady(rate_per_s: float, length_s: float, **more: object) -> Traffic:
    return Traffic("steady", (0.0, length_s), (rate_per_s, rate_per_s), **more)  # type: ignore[arg-type]


def test_a_replica_has_the_capacity_of_full_batches() -> None:
    one = replica_of(DEVICE_BOUND)
    assert one.capacity_per_s == pytest.approx(KNOWN_PER_S, rel=0.01)
    assert replica_of(HOST_BOUND).capacity_per_s == pytest.approx(100 / 0.0265, rel=0.01)
    for name in ("in_flight", "rate_per_s", "waiting", "queue_us"):
        assert (np.diff(getattr(one, name)) >= 0).all(), name
    assert (np.diff(one.in_slo) <= 0).all() and one.in_slo[0] == 1 and one.in_slo[-1] == 0
    assert (np.diff(one.latency_us, axis=1) >= 0).all()


def test_what_it_carries_is_what_the_simulator_of_the_batcher_answers_in_time() -> None:
    tight_us = 50_000
    one = batch_replica(SETTINGS, DEVICE_BOUND, tight_us)
    for share in (0.99, 0.999):
        rate = one.carried_per_s(share)
        assert 0.5 * KNOWN_PER_S < rate < 0.95 * KNOWN_PER_S
        for factor, fits in ((0.95, True), (1.04, False)):
            sent_us = poisson(rate * factor, 60_000, np.random.default_rng(3))
            latency_us = simulate(SETTINGS, DEVICE_BOUND, OpenLoop(sent_us)).latency_us
            assert bool((latency_us <= tight_us).mean() >= share) is fits, (share, factor)


def test_a_slow_replica_is_the_same_one_in_slow_motion() -> None:
    one = replica_of(DEVICE_BOUND)
    slow = one.slowed(2.0)
    assert slow.capacity_per_s == one.capacity_per_s / 2
    assert slow.carried_per_s(0.99) < one.carried_per_s(0.99) / 2
    assert one.slowed(1000.0).carried_per_s(0.99) == 0


def both(case_arguments: dict[str, object], routing: str, scaling: Scaling = Scaling.FIXED) -> tuple[Outcome, Outcome]:
    found = [
        outcome(case_of(DEVICE_BOUND, **case_arguments, one_by_one=one_by_one), routing, scaling)  # type: ignore[arg-type]
        for one_by_one in (False, True)
    ]
    for one in found:
        assert_conserved(one)
    return found[0], found[1]


@pytest.mark.parametrize("routing", ["round_robin", "queue_depth"])
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_fluid_and_events_agree_on_a_steady_fleet(routing: str, load: float) -> None:
    traffic = steady(3 * load * KNOWN_PER_S, 5)
    fluid, events = both({"traffic": traffic, "replicas": 3}, routing)
    assert fluid.total("offered") == events.total("offered")
    assert fluid.slo_attainment == pytest.approx(events.slo_attainment, abs=0.02)
    assert fluid.p50_us is not None and fluid.p50_us == pytest.approx(events.p50_us, rel=0.15)
    assert fluid.p99_us is not None and fluid.p99_us == pytest.approx(events.p99_us, rel=0.2)
    assert fluid.in_flight == pytest.approx(events.in_flight, abs=0.35 * fluid.in_flight + 20)


def test_fluid_and_events_agree_on_overload() -> None:
    """More comes than is answered: both refuse the same part, and what is in flight stays at the bound."""
    fluid, events = both({"traffic": steady(2 * 1.5 * KNOWN_PER_S, 6), "replicas": 2}, "least_request")
    assert fluid.total("refused") > 0.2 * fluid.total("offered")
    assert fluid.total("refused") == pytest.approx(events.total("refused"), rel=0.08)
    assert fluid.total("answered") == pytest.approx(events.total("answered"), rel=0.04)


def test_fluid_and_events_agree_on_a_slow_replica() -> None:
    """Which is where routing by turns and by what is in flight part."""
    length_s = 6.0
    traffic = steady(3 * 0.5 * KNOWN_PER_S, length_s, slow=(Slow(0.0, length_s, 1, 4.0),))
    kept = {}
    for routing in ("round_robin", "least_request"):
        fluid, events = both({"traffic": traffic, "replicas": 3}, routing)
        assert fluid.slo_attainment == pytest.approx(events.slo_attainment, abs=0.06), routing
        kept[routing] = events.slo_attainment
    assert kept["round_robin"] < kept["least_request"] - 0.1


def test_fluid_and_events_agree_on_growth_that_is_scaled() -> None:
    traffic = Traffic("growth", (0.0, 4.0, 8.0, 12.0), (800.0, 800.0, 5_000.0, 5_000.0))
    fluid, events = both(
        {"traffic": traffic, "startup_s": 1.0, "scrape_s": 0.5, "max_replicas": 4}, "least_request", Scaling.QUEUE
    )
    assert fluid.replica_seconds == pytest.approx(events.replica_seconds, rel=0.25)
    assert fluid.of["ready"][-1] == pytest.approx(events.of["ready"][-1], abs=1)
    assert fluid.slo_attainment == pytest.approx(events.slo_attainment, abs=0.1)


def test_what_is_in_flight_on_a_lost_replica_is_lost_and_it_starts_again() -> None:
    traffic = steady(3 * 0.8 * KNOWN_PER_S, 6, losses=(Loss(2.0, 1),))
    fluid, events = both({"traffic": traffic, "replicas": 3, "startup_s": 1.0}, "least_request")
    assert 10 < events.lost < 300 and 10 < fluid.lost < 300
    for found in (fluid, events):
        assert found.of["ready"].min() == 2 and found.of["ready"][-1] == 3
        assert found.cold_seconds == pytest.approx(1.0, abs=0.26)


def test_a_gateway_that_passes_less_than_comes_refuses_the_rest() -> None:
    found = outcome(case_of(DEVICE_BOUND, steady(2_000, 30), replicas=2, gateway_per_s=1_500), scaling=Scaling.FIXED)
    assert found.total("refused_gateway") == pytest.approx(500 * 30, rel=0.05)
    assert found.total("refused") == 0


def test_a_thousand_replicas_and_a_million_a_second() -> None:
    traffic = Traffic("large", (0.0, 120.0, 600.0), (200_000.0, 1_000_000.0, 1_000_000.0))
    case = case_of(DEVICE_BOUND, traffic, max_replicas=1_000, epoch_s=0.5)
    found = outcome(case, spares=60)
    assert len(edges_s(traffic, 0.5)) == 1_201
    assert_conserved(found)
    assert found.total("offered") > 5e8
    assert 300 < found.of["ready"].max() <= 1_000
