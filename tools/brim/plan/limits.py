"""What a service's fleet can carry, and what else becomes the limit: in figures, and in a sentence each."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from brim.plan.compare import Case, Policy
from brim.plan.scaled import Scaling
from brim.units import US_PER_S

SCRAPES_S = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Intervals that are tried."""
SCRAPES_A_RATE = 4
"""That a rate is taken over at least."""
GATEWAY_PER_S = 6_000.0
"""Requests a second that one gateway passes on: half of what a server without it answered over gRPC, with callers, gateway and
server on the same two cores (docs/benchmarks.md, overload)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Figures of a plan.

    Attributes:
        replica_per_s: requests a second that one replica carries within the objective.
        capacity_per_s: that it answers when many wait, whatever the objective.
        peak_per_s: of the traffic.
        replicas_for_peak: that carry the peak when it is spread evenly; None where no number does.
        max_replicas: that there may be.
        fleet_per_s: what those carry.
        gateway_per_s: that one gateway passes on.
        gateways: that there are; None: as many as are needed.
        gateways_for_peak: that the peak needs.
        gateway_limit_replicas: from so many replicas on, one gateway is the limit; None: where a replica carries nothing.
        scrape_us: between two looks of the autoscaler.
        longest_scrape_us: of the intervals tried, the longest up to which the objective is met; None: none, or not tried.
        missed_scrape_us: the first at which it is missed; None: none of those tried.
    """

    replica_per_s: float
    capacity_per_s: float
    peak_per_s: float
    replicas_for_peak: int | None
    max_replicas: int
    fleet_per_s: float
    gateway_per_s: float
    gateways: int | None
    gateways_for_peak: int
    gateway_limit_replicas: int | None
    scrape_us: int
    longest_scrape_us: int | None
    missed_scrape_us: int | None

    def as_json(self) -> dict[str, Any]:
        """As it stands in an answer."""
        return asdict(self)


def limits_of(case: Case, policy: Policy, *, gateway_per_s: float, gateways: int | None) -> Limits:
    """Find them.

    Args:
        case: a service and its traffic.
        policy: whose longest scrape interval is looked for; only scaling on queues has one.
        gateway_per_s: that one gateway passes on.
        gateways: that there are; None: as many as are needed.
    """
    one, most = case.carried_per_s, case.bounds.max_replicas
    longest_s, missed_s = _scrapes(case, policy)
    return Limits(
        one,
        case.one.capacity_per_s,
        case.traffic.peak_per_s,
        case.replicas_for(case.traffic.peak_per_s),
        most,
        one * most,
        gateway_per_s,
        gateways,
        max(1, math.ceil(case.traffic.peak_per_s / gateway_per_s)),
        math.floor(gateway_per_s / one) + 1 if one else None,
        round(case.conditions.scrape_s * US_PER_S),
        None if longest_s is None else round(longest_s * US_PER_S),
        None if missed_s is None else round(missed_s * US_PER_S),
    )


def _scrapes(case: Case, policy: Policy) -> tuple[float | None, float | None]:
    """The longest interval at which the objective is met, and the next one, at which it is not.

    Halved: where one meets it, all that are shorter are taken to do so.
    """
    if policy.scaling is not Scaling.QUEUE:
        return None, None
    tried_s = [at_s for at_s in SCRAPES_S if case.conditions.epoch_s <= at_s <= case.traffic.duration_s / 2]
    met, missed = -1, len(tried_s)
    while missed - met > 1:
        middle = (met + missed) // 2
        if _at(case, tried_s[middle]).run(policy).slo_met:
            met = middle
        else:
            missed = middle
    return tried_s[met] if met >= 0 else None, tried_s[missed] if missed < len(tried_s) else None


def _at(case: Case, scrape_s: float) -> Case:
    """The case with another interval; rates need some scrapes."""
    window_s = max(case.conditions.window_s, SCRAPES_A_RATE * scrape_s)
    return replace(case, conditions=replace(case.conditions, scrape_s=scrape_s, window_s=window_s))


def sentences(limits: Limits, *, objective: str, policy: Policy) -> list[str]:
    """One each: what one replica carries, what more carry, where the gateway is the limit, and where the scrape interval is.

    Args:
        limits: the figures.
        objective: in words, such as "99 % within 50 ms".
        policy: whose scrape interval it is.
    """
    return [
        _one(limits, objective),
        _many(limits),
        _gateway(limits),
        _scrape(limits, policy),
    ]


def _one(limits: Limits, objective: str) -> str:
    if not limits.replica_per_s:
        return f"One GPU carries nothing within the objective ({objective}), however little comes."
    return (
        f"One GPU carries {_rate(limits.replica_per_s)} requests/s within the objective ({objective});"
        f" it answers {_rate(limits.capacity_per_s)}/s when many wait."
    )


def _many(limits: Limits) -> str:
    if limits.replicas_for_peak is None:
        return f"No number of GPUs carries the peak of {_rate(limits.peak_per_s)}/s."
    enough = "more than there may be" if limits.replicas_for_peak > limits.max_replicas else "when spread evenly"
    return (
        f"The peak of {_rate(limits.peak_per_s)}/s takes {_gpus(limits.replicas_for_peak)}, {enough};"
        f" {limits.max_replicas} carry {_rate(limits.fleet_per_s)}/s."
    )


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _gateway(limits: Limits) -> str:
    needs = f"the peak needs {limits.gateways_for_peak} of them"
    has = "" if limits.gateways is None else f", and there are {limits.gateways}"
    if limits.gateway_limit_replicas is None:
        return f"One gateway passes {_rate(limits.gateway_per_s)}/s: {needs}{has}."
    return (
        f"One gateway passes {_rate(limits.gateway_per_s)}/s, so it is the limit from {_gpus(limits.gateway_limit_replicas)} on:"
        f" {needs}{has}."
    )


def _scrape(limits: Limits, policy: Policy) -> str:
    if policy.scaling is not Scaling.QUEUE:
        return "The scrape interval is no limit to a fleet that is not scaled on its queues."
    longest_us, missed_us = limits.longest_scrape_us, limits.missed_scrape_us
    if longest_us is None:
        return f"No scrape interval meets the objective on this trace ({policy})."
    met = f"With {policy}, the objective is met up to {longest_us / US_PER_S:g} s between two scrapes"
    if missed_us is None:
        return f"{met}, the longest that was tried."
    return f"{met}; at {missed_us / US_PER_S:g} s the scrape interval is the limit."
