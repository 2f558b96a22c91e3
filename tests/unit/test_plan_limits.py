"""What one replica and many carry, and where the gateway or the scrape interval is the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.plan.compare import Policy, best, policies
from brim.plan.limits import limits_of, sentences
from brim.plan.scaled import Scaling
from brim.plan.shapes import Shape, shaped
from brim.units import US_PER_S
from tests.unit.plan_example import HOST_BOUND, case_of, replica_of

QUEUE = Policy("least_request", Scaling.QUEUE, 0)


def test_limits_are_where_the_simulation_says() -> None:
    case = case_of(HOST_BOUND, shaped(Shape.FLASH_CROWD, 2_800, 16_000, 1_200), epoch_s=1.0, startup_s=5.0)
    found = limits_of(case, QUEUE, gateway_per_s=6_000, gateways=2)
    one = replica_of(HOST_BOUND).carried_per_s(0.99)
    assert found.replica_per_s == one and found.fleet_per_s == pytest.approx(12 * one)
    assert found.replicas_for_peak == 5 and 4 * one < 16_000 <= 5 * one
    assert found.gateways_for_peak == 3
    assert found.gateway_limit_replicas == 2 and one <= 6_000 < 2 * one
    longest_us, missed_us = found.longest_scrape_us, found.missed_scrape_us
    assert longest_us is not None and missed_us is not None and longest_us < missed_us
    for scrape_us, meets in ((longest_us, True), (missed_us, False)):
        scrape_s = scrape_us / US_PER_S
        conditions = replace(case.conditions, scrape_s=scrape_s, window_s=max(60.0, 4 * scrape_s))
        assert replace(case, conditions=conditions).run(QUEUE).slo_met is meets
    said = sentences(found, objective="99 % within 100 ms", policy=QUEUE)
    assert len(said) == 4 and f"{one:,.0f} requests/s" in said[0] and "takes 5 GPUs" in said[1]
    assert "from 2 GPUs on: the peak needs 3 of them, and there are 2" in said[2]
    assert f"{longest_us / US_PER_S:g} s between" in said[3] and f"at {missed_us / US_PER_S:g} s" in said[3]


def test_scaling_that_reads_no_queues_has_no_scrape_interval() -> None:
    case = case_of(HOST_BOUND, shaped(Shape.STEADY, 2_000, 2_000, 60), replicas=1)
    found = limits_of(case, Policy("round_robin", Scaling.FIXED, 0), gateway_per_s=6_000, gateways=None)
    assert found.longest_scrape_us is found.missed_scrape_us is None


def test_the_best_policy_is_the_cheapest_of_those_that_meet_the_objective() -> None:
    case = case_of(HOST_BOUND, shaped(Shape.STEADY_GROWTH, 2_800, 9_000, 600), epoch_s=1.0, startup_s=5.0)
    compared = policies(["least_request"] * 2, [Scaling.UTILISATION, Scaling.QUEUE], [0, 2, 0])
    assert len(compared) == 4
    outcomes = [(policy, case.run(policy)) for policy in compared]
    chosen, outcome = best(outcomes)
    assert chosen == QUEUE and outcome.slo_met
    assert best([one for one in outcomes if not one[1].slo_met])[0] == Policy("least_request", Scaling.UTILISATION, 0)
