"""One traffic through one fleet under one way to scale: epoch by epoch, whatever simulates the replicas."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.plan.fleet import Fleet, Seen
from brim.plan.outcome import Outcome
from brim.plan.scaled import Scaler
from brim.plan.slots import Slots, State
from brim.plan.traffic import Traffic
from brim.units import US_PER_S

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for every policy.

    Attributes:
        epoch_s: length of an epoch.
        startup_s: from the decision to have a replica to its first request: weights are loaded, it is warm.
        scrape_s: between two looks at the replicas' metrics, after each of which is decided how many there shall be.
        window_s: time over which waits and first tokens are averaged.
        gateway_per_s: requests a second that all gateways together pass on; more are refused there. None: no limit.
        share: part of the requests that shall keep the objective.
    """

    epoch_s: float
    startup_s: float
    scrape_s: float
    window_s: float
    gateway_per_s: float | None
    share: float


def edges_s(traffic: Traffic, epoch_s: float) -> Floats:
    """Beginnings of the epochs and the end of the last one, which may lie behind the end of the trace."""
    return epoch_s * np.arange(max(1, int(np.ceil(traffic.duration_s / epoch_s - 1e-9))) + 1)


def run(
    fleet: Fleet, slots: Slots, scaler: Scaler, traffic: Traffic, conditions: Conditions, *, seed: int = 0
) -> Outcome:
    """Run it through. The same arguments give the same outcome.

    Args:
        fleet: with nothing in flight.
        slots: of the fleet's places.
        scaler: decides at every scrape.
        traffic: what comes.
        conditions: of the fleet.
        seed: of the number of requests in each epoch.
    """
    edges = edges_s(traffic, conditions.epoch_s)
    arrivals = traffic.arrivals(edges, np.random.default_rng([seed, 7]))
    passes = None if conditions.gateway_per_s is None else int(conditions.gateway_per_s * conditions.epoch_s)
    factors = factors_of(traffic)
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    looks: deque[Seen] = deque(maxlen=max(1, round(conditions.window_s / conditions.scrape_s)))
    losses = deque(traffic.losses)
    lost = lost_kept = 0.0
    scrape_at_s = conditions.scrape_s
    for began_s, offered in zip(edges[:-1].tolist(), arrivals.tolist(), strict=True):
        while losses and losses[0].at_s <= began_s:
            places = slots.lose(losses.popleft().replicas, began_s, conditions.startup_s)
            amount, kept = fleet.lose(places)
            lost, lost_kept = lost + amount, lost_kept + kept
        slots.settle(began_s, fleet.in_flight)
        if traffic.slow:
            _slow_down(fleet, slots, traffic, factors, began_s)
        passed = offered if passes is None else min(offered, passes)
        epoch = fleet.step(passed, slots.ready)
        for name, value in zip(
            COLUMNS,
            (
                offered, offered - passed, epoch.refused, epoch.answered, epoch.in_slo, slots.paid,
                slots.count(State.READY), slots.count(State.STARTING),
            ),
            strict=True,
        ):  # fmt: skip
            columns[name].append(value)
        ended_s = began_s + conditions.epoch_s
        if ended_s + 1e-9 >= scrape_at_s:
            scrape_at_s += conditions.scrape_s
            looks.append(fleet.look(slots.ready))
            number = scaler.decide(slots, averaged(looks), round(ended_s * US_PER_S))
            slots.scale(number, ended_s, conditions.startup_s)
    return Outcome(
        edges,
        {name: np.array(values, np.float64) for name, values in columns.items()},
        lost=lost,
        lost_in_slo=lost_kept,
        in_flight=float(fleet.in_flight.sum()),
        p50_us=fleet.latency_us(0.5),
        p99_us=fleet.latency_us(0.99),
        share=conditions.share,
    )


COLUMNS = ("offered", "refused_gateway", "refused", "answered", "in_slo", "paid", "ready", "starting")
"""Of every epoch: requests, and replicas at its beginning."""


def factors_of(traffic: Traffic) -> tuple[float, ...]:
    """How many times as long as it should each kind of replica takes; the first is as it should be."""
    return (1.0, *sorted({slow.factor for slow in traffic.slow} - {1.0}))


def averaged(looks: deque[Seen]) -> Seen:
    """What waits and is used as last seen; the rate over all looks, which are as long as each other; times likewise, by the rate."""
    last = looks[-1]
    return Seen(
        waiting=last.waiting,
        queue_us=_mean([(look.queue_us, look.answered_per_s) for look in looks]),
        first_p90_us=_mean([(look.first_p90_us, look.answered_per_s) for look in looks]),
        utilisation=last.utilisation,
        kv_used=last.kv_used,
        answered_per_s=sum(look.answered_per_s for look in looks) / len(looks),
    )


def _mean(weighed: list[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighed if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _slow_down(fleet: Fleet, slots: Slots, traffic: Traffic, factors: tuple[float, ...], now_s: float) -> None:
    fleet.kind[:] = 0
    for slow in traffic.slow:
        if slow.at_s <= now_s < slow.until_s:
            fleet.kind[np.flatnonzero(slots.ready)[: slow.replicas]] = factors.index(slow.factor)
