"""A replica of a language model: the scheduler that serves under several loads, simulated with steps of known time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits
from brim.engine.simulate import closed_loop, open_loop
from brim.engine.simulated import Simulated
from brim.engine.step_time import StepTime
from brim.engine.traffic import Call, poisson_times_us
from brim.plan.replica import Load, Replica, replica
from brim.units import US_PER_S

LOADS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Of the capacity."""
SEATFULS = 8
"""Texts of each run, as many times what has a seat at once."""
LEAST_CALLS = 120
SKIPPED = 0.25
"""Of each run, at its beginning: seats fill first."""

Draw = Callable[[int, np.random.Generator], list[Call]]
"""So many calls."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a text shall keep; at least one of them.

    Attributes:
        ttft_us: time to its first token.
        tpot_us: mean time of each further one.
        e2e_us: time to its last one.
    """

    ttft_us: float = math.inf
    tpot_us: float = math.inf
    e2e_us: float = math.inf

    @property
    def is_about_first(self) -> bool:
        """Whether it is the first token that may not be late; else the last."""
        return self.ttft_us < math.inf


def text_replica(
    draw: Draw,
    step_time: StepTime,
    limits: EngineLimits,
    policy: Policy,
    objective: Objective,
    *,
    jitter: float = 0.0,
    seed: int = 0,
) -> Replica:
    """Look at it.

    Args:
        draw: its traffic.
        step_time: how long steps take.
        limits: the engine's.
        policy: the scheduler's.
        objective: of a text.
        jitter: of steps' times.
        seed: of everything that is drawn.
    """
    count = max(LEAST_CALLS, SEATFULS * policy.max_sequences)
    calls = draw(count, np.random.default_rng([seed, 0]))
    saturated = closed_loop(calls, policy.max_sequences, step_time, limits, policy, jitter=jitter, seed=seed)
    capacity_per_s = _steady_throughput(saturated)
    loads = []
    for place, share in enumerate(LOADS):
        rate = share * capacity_per_s
        rng = np.random.default_rng([seed, place + 1])
        calls = draw(count, rng)
        sent_us = poisson_times_us(rate, count, rng)
        found = open_loop(calls, sent_us, step_time, limits, policy, jitter=jitter, seed=seed)
        loads.append(_load(found, calls, rate, policy, limits, objective))
    return replica(
        loads,
        capacity_per_s,
        full_batch=policy.max_sequences,
        saturated_in_flight=float(policy.max_sequences),
        saturated_utilisation=_utilisation(saturated),
        objective_us=objective.ttft_us if objective.is_about_first else objective.e2e_us,
    )


def _steady_throughput(found: Simulated) -> float:
    """Texts a second between the first and the last quarter of the ends."""
    ended = np.sort(found.last_us[found.complete])
    first, last = len(ended) // 4, len(ended) - 1 - len(ended) // 4
    return float(last - first) * US_PER_S / max(1, int(ended[last] - ended[first]))


def _utilisation(found: Simulated) -> float:
    return min(1.0, sum(found.step_us) / max(1, found.wall_us))


def _load(
    found: Simulated,
    calls: Sequence[Call],
    rate_per_s: float,
    policy: Policy,
    limits: EngineLimits,
    objective: Objective,
) -> Load:
    complete = found.complete
    skipped = np.zeros(len(complete), bool)
    skipped[: int(len(complete) * SKIPPED)] = True
    ttft_us = np.where(complete, found.first_us - found.sent_us, math.inf)
    e2e_us = np.where(complete, found.last_us - found.sent_us, math.inf)
    tpot_us = np.where(complete, (found.last_us - found.first_us) / np.maximum(1, found.tokens - 1), math.inf)
    latency_us = ttft_us if objective.is_about_first else e2e_us
    others = (tpot_us <= objective.tpot_us) & (e2e_us <= objective.e2e_us)
    limit_us = objective.ttft_us if objective.is_about_first else objective.e2e_us
    margin_us = np.where(complete & others, limit_us - np.where(complete, latency_us, 0.0), -math.inf)
    counted = complete & ~skipped
    waiting = _mean_waiting(found, policy.max_sequences)
    held = np.array([call.prompt_tokens + call.output_tokens / 2 for call in calls]) / limits.block_tokens
    span_us = float(found.sent_us[-1] - found.sent_us[0]) or 1.0
    return Load(
        rate_per_s,
        rate_per_s * float(e2e_us[counted].mean()) / US_PER_S,
        waiting,
        waiting / rate_per_s * US_PER_S,
        _utilisation(found),
        latency_us[counted],
        margin_us[~skipped],
        min(1.0, float((held[complete] * e2e_us[complete]).sum()) / span_us / limits.total_blocks),
    )


def _mean_waiting(found: Simulated, seats: int) -> float:
    """Texts in flight beyond the seats, the mean over the time in which they are sent."""
    begin, end = int(found.sent_us[int(len(found.sent_us) * SKIPPED)]), int(found.sent_us[-1])
    at_us = np.linspace(begin, end, 1000)
    sent, ended = np.sort(found.sent_us), np.sort(np.maximum(found.last_us, found.sent_us))
    held = np.searchsorted(sent, at_us, "right") - np.searchsorted(ended, at_us, "right")
    return float(np.maximum(0, held - seats).mean())
