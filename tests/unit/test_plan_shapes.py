"""Where scaling on queues keeps the objective and scaling on utilisation does not: what the simulator finds, pinned.

A batching server is busy long before it is full, so how busy its device is says little about how full it is: the same target
either never asks for more, or asks for all that may be had.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.plan.scaled import Scaling
from brim.plan.scaling import Thresholds, thresholds_of
from brim.plan.shapes import Shape, shaped
from brim.service.load import load_service
from tests.conftest import ROOT
from tests.unit.plan_example import DEVICE_BOUND, HOST_BOUND, SHARE, case_of, outcome, replica_of

RISING = [Shape.DIURNAL, Shape.FLASH_CROWD, Shape.STEADY_GROWTH]
PEAK_PER_S = 16_000
STARTUP_S = 15.0


@pytest.mark.parametrize("shape", RISING)
def test_fuller_batches_leave_a_device_idle_that_others_prepare_work_for(shape: Shape) -> None:
    """At the usual target of 0.8 utilisation never asks for more: it falls as the load grows."""
    one = replica_of(HOST_BOUND)
    busy = one.utilisation[one.rate_per_s > 0.3 * one.capacity_per_s]
    assert (np.diff(busy) <= 0.001).all() and busy[-1] < 0.8
    case = case_of(HOST_BOUND, shaped(shape, 2_800, PEAK_PER_S, 3_600), epoch_s=1.0, startup_s=STARTUP_S)
    on_queues = outcome(case, scaling=Scaling.QUEUE)
    on_utilisation = outcome(case, scaling=Scaling.UTILISATION)
    assert on_queues.slo_attainment >= SHARE and on_queues.slo_met
    assert on_utilisation.slo_attainment < 0.6 and on_utilisation.of["paid"].max() == 1


@pytest.mark.parametrize("shape", RISING)
@pytest.mark.parametrize("target", [0.8, 0.95])
def test_no_target_of_a_device_that_is_always_busy_is_right(shape: Shape, target: float) -> None:
    """Below 0.91 everything that may be had is paid for; above it nothing is ever added."""
    traffic = shaped(shape, 2_500, PEAK_PER_S, 3_600)
    case = case_of(DEVICE_BOUND, traffic, epoch_s=1.0, startup_s=STARTUP_S, max_replicas=16, utilisation_target=target)
    on_queues = outcome(case, scaling=Scaling.QUEUE, spares=1)
    on_utilisation = outcome(case, scaling=Scaling.UTILISATION, spares=1)
    assert on_queues.slo_met
    if target > 0.91:
        assert not on_utilisation.slo_met
    else:
        assert on_utilisation.replica_seconds > 2 * on_queues.replica_seconds


def test_a_bound_of_one_batch_does_not_hide_an_overload_from_the_queue() -> None:
    """Callers are refused, so that little waits however many come: what waits is held against what may."""
    service = load_service(ROOT / "services" / "image_classifier.yaml")
    bounded = service.model_copy(update={"batching": service.batching.model_copy(update={"in_flight_bound": 100})})
    traffic = shaped(Shape.STEADY_GROWTH, 3_000, PEAK_PER_S, 1_800)
    case = case_of(HOST_BOUND, traffic, epoch_s=1.0, startup_s=STARTUP_S, bound=100)
    found = outcome(replace(case, thresholds=thresholds_of(bounded)))
    assert found.slo_met
    blind = outcome(replace(case, thresholds=Thresholds(waiting=50)))
    assert not blind.slo_met and blind.of["paid"].max() == 1


def test_spares_save_what_a_loss_costs_while_others_start() -> None:
    traffic = shaped(Shape.REPLICA_LOSS, PEAK_PER_S, PEAK_PER_S, 1_800, peak_replicas=6)
    case = case_of(DEVICE_BOUND, traffic, epoch_s=1.0, max_replicas=16)
    cold = [outcome(case, spares=spares).cold_start_missed for spares in (0, 1, 2)]
    assert cold[0] > 10_000 > 1 > max(cold[1:])


def test_a_slow_replica_costs_more_when_requests_take_turns() -> None:
    traffic = shaped(Shape.SLOW_REPLICA, PEAK_PER_S, PEAK_PER_S, 900)
    case = case_of(DEVICE_BOUND, traffic, epoch_s=1.0, replicas=7)
    turns, least = (outcome(case, routing, Scaling.FIXED) for routing in ("round_robin", "least_request"))
    assert 1 - turns.slo_attainment > 2 * (1 - least.slo_attainment)
