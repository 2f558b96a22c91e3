"""Routing x scaling x spares under one traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from brim.plan.fleet import Fleet as Simulated
from brim.plan.outcome import Outcome
from brim.plan.replica import Replica
from brim.plan.run import Conditions, run
from brim.plan.scaled import Scaler, Scaling
from brim.plan.scaling import Fleet, Thresholds
from brim.plan.slots import Slots
from brim.plan.traffic import Traffic

Make = Callable[[str, int], Simulated]
"""Routing policy and places -> a fleet with nothing in flight."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is compared.

    Attributes:
        routing: a policy of ``brim.router.policy``.
        scaling: when there are more or fewer replicas.
        spares: replicas kept warm beyond what is needed.
    """

    routing: str
    scaling: Scaling
    spares: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.routing}, {self.scaling.value}, {self.spares} spare"


@dataclass(frozen=True)
class Case:
    """A service and its traffic.

    Attributes:
        make: a simulated fleet.
        one: of its replicas.
        traffic: what comes.
        conditions: of the fleet.
        thresholds: of scaling.
        bounds: of the number of replicas; spares are each policy's own.
        utilisation_target: of scaling on utilisation.
        seed: of everything that is drawn.
    """

    make: Make
    one: Replica
    traffic: Traffic
    conditions: Conditions
    thresholds: Thresholds
    bounds: Fleet
    utilisation_target: float
    seed: int = 0

    @property
    def carried_per_s(self) -> float:
        """What one replica carries within the objective; 0 where no rate is low enough."""
        return self.one.carried_per_s(self.conditions.share)

    def replicas_for(self, rate_per_s: float) -> int | None:
        """How many carry a rate within the objective when it is spread evenly; None where no number does."""
        one = self.carried_per_s
        return max(1, math.ceil(rate_per_s / one - 1e-9)) if one else None

    def run(self, policy: Policy) -> Outcome:
        """Run it through a fleet that begins with what the first moment needs, and the spares."""
        bounds = replace(self.bounds, spares=policy.spares)
        most = bounds.max_replicas
        begin = max(bounds.min_replicas, self.replicas_for(self.traffic.rate_per_s[0]) or most)
        # Those that drain have places beside as many that are ready.
        slots = Slots(2 * most, min(most, begin + policy.spares))
        scaler = Scaler(policy.scaling, self.thresholds, bounds, self.utilisation_target)
        fleet = self.make(policy.routing, 2 * most)
        return run(fleet, slots, scaler, self.traffic, self.conditions, seed=self.seed)


def policies(routings: Iterable[str], scalings: Iterable[Scaling], spares: Iterable[int]) -> list[Policy]:
    """Every combination, each once."""
    return [
        Policy(routing, scaling, number)
        for routing in dict.fromkeys(routings)
        for scaling in dict.fromkeys(scalings)
        for number in dict.fromkeys(spares)
    ]


def best(outcomes: Sequence[tuple[Policy, Outcome]]) -> tuple[Policy, Outcome]:
    """Of those that meet the objective the cheapest, else the one that comes nearest."""
    return min(
        outcomes,
        key=lambda one: (not one[1].slo_met, one[1].replica_seconds if one[1].slo_met else -one[1].slo_attainment),
    )
