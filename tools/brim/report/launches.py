"""Why batches are launched: servers do not tell, so the simulator that chose the setting is asked once more."""

from __future__ import annotations

import numpy as np

from brim.batcher.arrivals import OpenLoop, bursty, poisson
from brim.batcher.batch_time import MeasuredBatchTime, Point
from brim.batcher.machine import Machine
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.limits import BATCH_LIMIT
from brim.report.choice import Choice
from brim.report.curves import rate_text

REQUESTS = 10_000
"""A simulation; as many as ``brim simulate`` has by itself."""
SEED = 0
LOADS = ("low", "moderate", "high")


def launch_reasons(choice: Choice) -> dict[str, dict[str, int]]:
    """Load in words -> launch reason -> batches, of the choice at the loads of its behaviour; empty where these are unknown.

    Raises:
        InputError: the file's machine cannot be simulated.
    """
    setting, machine, behaviour = choice.choice, choice.machine, choice.behaviour
    if setting is None or machine is None or behaviour is None or not machine.points:
        return {}
    settings = Settings(
        BATCH_LIMIT,
        preferred=setting.preferred,
        delay_us=setting.max_queue_delay_us,
        instances=setting.instances,
    )
    simulated = Machine(
        MeasuredBatchTime([Point(point.rows, max(1.0, point.time_us)) for point in machine.points]),
        jitter=machine.jitter,
        prepare_us=machine.prepare_us,
        serialised=machine.serialised,
        overhead_us=machine.overhead_us,
    )
    draw = bursty if choice.traffic.arrival == "bursty" else poisson
    found = {}
    for name in LOADS:
        load = getattr(behaviour, name)
        if load is not None:
            sent_us = draw(load.rate_per_s, REQUESTS, np.random.default_rng(SEED))
            result = simulate(settings, simulated, OpenLoop(sent_us), seed=SEED)
            found[f"{name}: {rate_text(load.rate_per_s)}"] = {
                reason: count for reason, count in result.launches().items() if count
            }
    return found
