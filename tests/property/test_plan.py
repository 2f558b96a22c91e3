"""Properties of simulated fleets over arbitrary traffic, policies and sizes.

Hypothesis draws the seed of each example, which is built from that by chance (as in test_batcher_simulator.py).
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.plan.compare import Policy
from brim.plan.scaled import Scaling
from brim.plan.slots import Slots, State
from brim.plan.spread import spread_of
from brim.plan.traffic import Loss, Slow, Traffic
from tests.unit.plan_example import DEVICE_BOUND, HOST_BOUND, assert_conserved, case_of, outcome, replica_of

seeds = st.integers(0, 2**48).map(Random)
ROUTINGS = ("round_robin", "least_request", "queue_depth")


def any_traffic(chance: Random, *, top_per_s: float, length_s: float) -> Traffic:
    count = chance.randint(2, 6)
    at_s = sorted([0.0, length_s, *(chance.uniform(0, length_s) for _ in range(count - 2))])
    rates = [chance.choice([0.0, 1.0, chance.uniform(0, top_per_s)]) for _ in at_s]
    losses = [Loss(chance.uniform(0, length_s * 0.9), chance.randint(1, 4)) for _ in range(chance.randint(0, 2))]
    slow = [Slow(length_s / 4, length_s / 2, 1, 4.0)] if chance.random() < 0.3 else []
    return Traffic(
        "any", tuple(at_s), (*rates[:-1], rates[-1] + 1), tuple(sorted(losses, key=lambda loss: loss.at_s)), tuple(slow)
    )


def any_policy(chance: Random) -> Policy:
    return Policy(chance.choice(ROUTINGS), chance.choice(list(Scaling)), chance.randint(0, 3))


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_fluid_is_conserved_and_the_same_seed_gives_the_same(chance: Random) -> None:
    traffic = any_traffic(chance, top_per_s=40_000, length_s=120)
    case = case_of(
        chance.choice([DEVICE_BOUND, HOST_BOUND]),
        traffic,
        max_replicas=chance.randint(1, 12),
        epoch_s=chance.choice([0.1, 0.25, 1.0]),
        startup_s=chance.choice([0.0, 5.0, 60.0]),
        gateway_per_s=chance.choice([None, None, 3_000.0]),
        seed=chance.randint(0, 99),
    )
    policy = any_policy(chance)
    found = case.run(policy)
    assert_conserved(found)
    assert case.run(policy).as_json() == found.as_json()


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_events_are_conserved_and_the_same_seed_gives_the_same(chance: Random) -> None:
    traffic = any_traffic(chance, top_per_s=1_500, length_s=4)
    case = case_of(
        chance.choice([DEVICE_BOUND, HOST_BOUND]),
        traffic,
        max_replicas=chance.randint(1, 4),
        startup_s=chance.choice([0.0, 1.0]),
        scrape_s=0.5,
        one_by_one=True,
        seed=chance.randint(0, 99),
    )
    policy = any_policy(chance)
    found = case.run(policy)
    assert_conserved(found)
    assert case.run(policy).as_json() == found.as_json()


@settings(max_examples=12, deadline=None)
@given(seeds)
def test_more_replicas_never_worsen_the_part_in_time(chance: Random) -> None:
    traffic = any_traffic(chance, top_per_s=30_000, length_s=60)
    traffic = Traffic(traffic.name, traffic.at_s, traffic.rate_per_s)
    machine, routing = chance.choice([DEVICE_BOUND, HOST_BOUND]), chance.choice(ROUTINGS)
    seed = chance.randint(0, 99)
    kept = [
        outcome(case_of(machine, traffic, replicas=number, seed=seed), routing, Scaling.FIXED).slo_attainment
        for number in range(1, 9)
    ]
    assert all(more >= fewer - 1e-9 for fewer, more in pairwise(kept)), kept


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_spread_gives_out_all_requests_and_never_takes_any_back(chance: Random) -> None:
    count, kinds = chance.randint(1, 20), chance.randint(1, 2)
    replicas = [replica_of(DEVICE_BOUND), replica_of(DEVICE_BOUND).slowed(4.0)][:kinds]
    in_flight = np.array([chance.uniform(0, 400) for _ in range(count)])
    kind = np.array([chance.randrange(kinds) for _ in range(count)])
    requests = chance.choice([1.0, 50.0, 5_000.0])

    def taken(held: float) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([held + 0.25 * float(one.at("rate_per_s", np.array(held))) for one in replicas])

    for policy in ROUTINGS:
        sent = spread_of(policy)(requests, in_flight, kind, taken)
        assert (sent >= 0).all() and abs(sent.sum() - requests) <= 1e-6 * requests


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_places_for_replicas_are_never_taken_twice(chance: Random) -> None:
    most = chance.randint(1, 8)
    slots = Slots(most, chance.randint(0, most))
    now_s = 0.0
    for _ in range(30):
        now_s += chance.uniform(0, 10)
        wanted = chance.randint(0, most)
        slots.scale(wanted, now_s, chance.uniform(0, 20))
        has = slots.count(State.STARTING, State.READY)
        assert has == wanted or (has < wanted and slots.count(State.EMPTY) == 0)
        if chance.random() < 0.3:
            before = slots.paid
            slots.lose(chance.randint(1, 3), now_s, 5.0)
            assert slots.paid == before
        slots.settle(now_s, np.array([chance.choice([0.0, 5.0]) for _ in range(most)]))
        assert slots.paid + slots.count(State.EMPTY) == most
