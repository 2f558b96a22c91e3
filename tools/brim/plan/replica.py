"""What one replica does with the requests that it holds: everything as a function of how many are in flight on it.

A replica is looked at once, in the simulator of its batcher or its scheduler, under Poisson arrivals at several loads. Each
load is a knot: so many requests were in flight on average, so many were answered a second, so long it took them. A replica
that holds x requests is then taken to answer as fast as one that holds x on average: the pointwise stationary fluid flow
approximation (Wang, Tipper and Banerjee 1996, A new approximation for transient queueing networks, IEEE INFOCOM). It suits
batches, whose queue is back at its average after a few of them.

Beyond the last load everything is bound by the capacity: further requests wait, first come, first served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brim.units import US_PER_S

LOADS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.86, 0.91, 0.95)
"""Of the capacity, at which a replica is looked at."""
RANKS: NDArray[np.float64] = np.concatenate([np.linspace(0, 0.95, 96), np.linspace(0.95, 1, 101)[1:]])
"""Quantiles of latencies that are kept of each load, close to each other where objectives are."""
MARGIN_RANKS = 1 - RANKS[::-1]
"""The same of what is left to the objective."""
LONGEST_US = 1e15
"""Stands for what never comes."""
BEYOND = 40
"""Knots beyond the last load, up to where the last answer is too late."""
LEAST_STEP = 1e-9
"""By which the requests in flight grow from knot to knot at the least."""
FAR = 1e12
"""In flight at the last knot, so that every line goes on."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """One replica under a steady load.

    Attributes:
        rate_per_s: requests sent a second.
        in_flight: requests in it, the mean over time.
        waiting: of those, how many are not being executed: what its queue gauge shows.
        queue_us: time before execution, the mean over requests.
        utilisation: part of the time in which the device computed.
        latency_us: of each request the time that waiting longer makes longer: until its answer, or its first token.
        margin_us: of each request how much longer it could have waited within the objective; minus infinity where another
            objective was missed, or it was refused.
        kv_used: part of the KV cache that was held, the mean over steps; 0 for a tensor model.
    """

    rate_per_s: float
    in_flight: float
    waiting: float
    queue_us: float
    utilisation: float
    latency_us: Floats
    margin_us: Floats
    kv_used: float = 0.0


@dataclass(frozen=True)
class Replica:
    """The knots, one entry of each array a knot. Lines go between them. ``in_slo`` never rises, and but for the utilisation
    nothing falls.

    Attributes:
        capacity_per_s: requests answered a second when many wait.
        full_batch: requests that execute together at the most.
        objective_us: of ``Load.latency_us``.
        in_flight: requests in it.
        rate_per_s: requests answered a second.
        waiting, queue_us, utilisation, kv_used: as in ``Load``.
        latency_us, margin_us: shape ``[knots, len(RANKS)]``, ascending quantiles at ``RANKS`` and at ``MARGIN_RANKS``.
        in_slo: part of the requests arriving then that keep the objective.
    """

    capacity_per_s: float
    full_batch: int
    objective_us: float
    in_flight: Floats
    rate_per_s: Floats
    waiting: Floats
    queue_us: Floats
    utilisation: Floats
    kv_used: Floats
    latency_us: Floats
    margin_us: Floats
    in_slo: Floats

    def at(self, name: str, in_flight: Floats) -> Floats:
        """A figure of replicas that hold so many requests each."""
        column: Floats = np.interp(in_flight, self.in_flight, getattr(self, name))
        return column

    def carried_per_s(self, share: float) -> float:
        """Highest rate at which so large a part of the requests keeps the objective; 0 where no rate does.

        Never more than the highest load that was looked at: closer to the capacity queues grow for as long as one looks.
        """
        if self.in_slo[0] < share:
            return 0.0
        # Ascending for the search: from the last knot to the first.
        in_flight = float(np.interp(-share, -self.in_slo, self.in_flight, right=float(self.in_flight[-1])))
        steady_per_s = float(self.rate_per_s[self.rate_per_s < self.capacity_per_s].max())
        return min(steady_per_s, float(self.at("rate_per_s", np.array(in_flight))))

    def slowed(self, factor: float) -> Replica:
        """The same replica, taking so many times as long for everything."""
        margin_us = self.objective_us - factor * (self.objective_us - self.margin_us)
        return replace(
            self,
            capacity_per_s=self.capacity_per_s / factor,
            rate_per_s=self.rate_per_s / factor,
            queue_us=self.queue_us * factor,
            latency_us=self.latency_us * factor,
            margin_us=margin_us,
            in_slo=_in_slo(margin_us),
        )


def replica(
    loads: Sequence[Load],
    capacity_per_s: float,
    *,
    full_batch: int,
    saturated_in_flight: float,
    saturated_utilisation: float,
    objective_us: float,
) -> Replica:
    """Join the loads, and go on beyond them.

    Args:
        loads: ascending in rate, all below the capacity.
        capacity_per_s: requests answered a second when many wait.
        full_batch: requests that execute together at the most.
        saturated_in_flight: so many in flight give the capacity.
        saturated_utilisation: part of the time in which the device computes then.
        objective_us: of ``Load.latency_us``.
    """
    in_flight = [0.0]
    for load in loads:
        # Chance may leave a higher load with fewer in flight.
        in_flight.append(max(load.in_flight, in_flight[-1] * (1 + LEAST_STEP) + LEAST_STEP))
    last = in_flight[-1]
    full = max(saturated_in_flight, last * 1.02)
    room_us = max(0.0, float(loads[-1].margin_us.max())) + 1
    beyond = [*(full + capacity_per_s * room_us / US_PER_S * np.linspace(0, 1, BEYOND)), FAR]
    # Of the knots: first the empty replica, which is as the lowest load but for what it holds; then the loads; then the last
    # load with what waits beyond it.
    of = [loads[0], *loads, *[loads[-1]] * len(beyond)]
    more = np.concatenate([np.zeros(len(loads) + 1), np.array(beyond) - last])
    more_us = more * (US_PER_S / capacity_per_s)
    busy = np.full(len(beyond), saturated_utilisation)
    empty = np.concatenate([[0.0], np.ones(len(of) - 1)])
    margin_us = np.array([_quantiles(load.margin_us, MARGIN_RANKS) - us for load, us in zip(of, more_us, strict=True)])
    return Replica(
        capacity_per_s,
        full_batch,
        objective_us,
        np.array([*in_flight, *beyond]),
        np.array([0.0, *(load.rate_per_s for load in loads), *[capacity_per_s] * len(beyond)]),
        np.maximum.accumulate(_column(of, "waiting") * empty + more),
        np.maximum.accumulate(_column(of, "queue_us") * empty + more_us),
        # The only figure that may fall: where others prepare the device's work, fuller batches leave it idle for longer.
        np.concatenate([_column(of, "utilisation")[: len(in_flight)] * empty[: len(in_flight)], busy]),
        np.maximum.accumulate(_column(of, "kv_used") * empty),
        np.array([_quantiles(load.latency_us, RANKS) + us for load, us in zip(of, more_us, strict=True)]),
        margin_us,
        _in_slo(margin_us),
    )


def _column(loads: Sequence[Load], name: str) -> Floats:
    return np.array([getattr(load, name) for load in loads], np.float64)


def _quantiles(values: Floats, ranks: Floats) -> Floats:
    quantiles: Floats = np.quantile(np.maximum(values, -LONGEST_US), ranks, method="inverted_cdf")
    return quantiles


def _in_slo(margin_us: Floats) -> Floats:
    """Of each row of quantiles, the part that is 0 or more; later rows never have more of it than earlier ones."""
    missed = [float(np.interp(0, row, MARGIN_RANKS, left=0.0, right=1.0)) for row in margin_us]
    kept: Floats = np.minimum.accumulate(1 - np.array(missed))
    return kept
