"""A small fleet to plan for: what a batch takes, one replica, and a case made of both."""

from __future__ import annotations

from functools import cache

from brim.batcher.batch_time import AffineBatchTime, SlowedBatchTime
from brim.batcher.machine import Machine
from brim.batcher.settings import Settings
from brim.plan.batch_replica import batch_replica
from brim.plan.compare import Case, Make, Policy
from brim.plan.events import EventFleet
from brim.plan.fluid import FluidFleet
from brim.plan.outcome import Outcome
from brim.plan.replica import Replica
from brim.plan.run import Conditions, factors_of
from brim.plan.scaled import Scaling
from brim.plan.scaling import Fleet, Thresholds
from brim.plan.spread import spread_of
from brim.plan.traffic import Traffic

SLO_US = 100_000
SHARE = 0.99
BOUND = 300
SETTINGS = Settings(100)
DEVICE_BOUND = Machine(AffineBatchTime(10_000, 200))
HOST_BOUND = Machine(AffineBatchTime(10_000, 100), prepare_row_us=65)
"""As measured: an instance prepares each row before the device has anything to do (docs/simulator.md)."""


@cache
def replica_of(machine: Machine) -> Replica:
    return batch_replica(SETTINGS, machine, SLO_US)


def fluid(machine: Machine, traffic: Traffic, epoch_s: float, bound: float = BOUND) -> Make:
    kinds = [replica_of(machine).slowed(factor) for factor in factors_of(traffic)]
    return lambda policy, places: FluidFleet(kinds, places, bound, epoch_s, spread_of(policy))


def events(machine: Machine, traffic: Traffic, epoch_s: float, bound: float = BOUND, *, seed: int = 0) -> Make:
    machines = [
        machine if factor == 1 else Machine(SlowedBatchTime(machine.batch_time, factor))
        for factor in factors_of(traffic)
    ]
    return lambda policy, places: EventFleet(SETTINGS, machines, places, bound, epoch_s, policy, SLO_US, seed=seed)


def case_of(
    machine: Machine,
    traffic: Traffic,
    *,
    replicas: int | None = None,
    max_replicas: int = 12,
    startup_s: float = 30.0,
    scrape_s: float = 5.0,
    epoch_s: float = 0.25,
    gateway_per_s: float | None = None,
    bound: float = BOUND,
    one_by_one: bool = False,
    seed: int = 0,
    utilisation_target: float = 0.8,
) -> Case:
    """``replicas`` is how many there are from the beginning to the end, whatever comes."""
    make = (events if one_by_one else fluid)(machine, traffic, epoch_s, bound)
    return Case(
        make,
        replica_of(machine),
        traffic,
        Conditions(epoch_s, startup_s, scrape_s, 60.0, gateway_per_s, SHARE),
        Thresholds(waiting=SETTINGS.max_rows / 2, queue_us=SLO_US / 4),
        Fleet(min_replicas=replicas or 1, max_replicas=replicas or max_replicas),
        utilisation_target,
        seed,
    )


def outcome(case: Case, routing: str = "least_request", scaling: Scaling = Scaling.QUEUE, spares: int = 0) -> Outcome:
    return case.run(Policy(routing, scaling, spares))


def assert_conserved(found: Outcome) -> None:
    """Offered = answered + refused + lost + in flight, and nothing is below 0."""
    assert all((values >= -1e-6).all() for values in found.of.values())
    ended = sum(found.total(name) for name in ("answered", "refused", "refused_gateway"))
    offered = found.total("offered")
    assert abs(ended + found.lost + found.in_flight - offered) <= 1e-6 * max(1.0, offered)
    assert found.in_flight >= 0
    assert 0 <= found.slo_attainment <= 1
