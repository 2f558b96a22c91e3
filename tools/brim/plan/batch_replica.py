"""A replica of a tensor model: Triton's batcher under several loads, simulated."""

from __future__ import annotations

import numpy as np

from brim.batcher.arrivals import ClosedLoop, OpenLoop, poisson
from brim.batcher.machine import Machine
from brim.batcher.result import Result
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.plan.replica import LOADS, Load, Replica, replica
from brim.units import US_PER_S

REQUESTS = 12_000
BATCHES = 150
"""Full batches of requests at the least that a load is looked at for."""
SKIPPED = 0.1
"""Of each run, at its beginning."""
SATURATING = 3
"""Full batches in flight for every instance, which give the capacity."""


def batch_replica(settings: Settings, machine: Machine, objective_us: int, *, seed: int = 0) -> Replica:
    """Look at it.

    Args:
        settings: the batcher's.
        machine: what executes batches.
        objective_us: of the latency.
        seed: of arrivals and jitter.
    """
    count = max(REQUESTS, BATCHES * settings.max_rows)
    callers = SATURATING * settings.max_rows * settings.instances
    saturated = simulate(settings, machine, ClosedLoop(callers, max(count, 20 * callers)), seed=seed)
    capacity_per_s = _steady_throughput(saturated)
    devices = 1 if machine.serialised else settings.instances
    loads = []
    for place, share in enumerate(LOADS):
        rate = share * capacity_per_s
        sent_us = poisson(rate, count, np.random.default_rng([seed, place]))
        ran = simulate(settings, machine, OpenLoop(sent_us), seed=seed)
        loads.append(_load(ran, rate, objective_us, devices))
    return replica(
        loads,
        capacity_per_s,
        full_batch=settings.max_rows,
        saturated_in_flight=2.0 * settings.max_rows * settings.instances,
        saturated_utilisation=_utilisation(saturated, devices),
        objective_us=objective_us,
    )


def _steady_throughput(result: Result) -> float:
    """Rows a second between the first and the last tenth of the batches."""
    ended, rows = (
        np.sort(result.batches.ended_us),
        result.batches.rows[np.argsort(result.batches.ended_us, kind="stable")],
    )
    first, last = len(ended) // 10, len(ended) - 1 - len(ended) // 10
    if last <= first:
        return result.throughput
    return float(rows[first + 1 : last + 1].sum()) * US_PER_S / max(1, int(ended[last] - ended[first]))


def _utilisation(result: Result, devices: int) -> float:
    return min(1.0, float(result.batches.compute_us.sum()) / (result.wall_us * devices))


def _load(result: Result, rate_per_s: float, objective_us: int, devices: int) -> Load:
    """What one run shows; without a queue policy every request is answered, in the order of sending."""
    skipped = int(len(result.sent_us) * SKIPPED)
    taken_us = np.repeat(result.batches.taken_us, result.batches.requests)
    queued_us = np.maximum(0, taken_us - result.sent_us)[skipped:].astype(np.float64)
    latency_us = (result.ended_us - result.sent_us)[skipped:].astype(np.float64)
    queue_us = float(queued_us.mean())
    return Load(
        rate_per_s,
        rate_per_s * float(latency_us.mean()) / US_PER_S,
        rate_per_s * queue_us / US_PER_S,
        queue_us,
        _utilisation(result, devices),
        latency_us,
        objective_us - latency_us,
    )
