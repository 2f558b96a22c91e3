"""Run traffic through a batcher: events in the order of time, nothing left to chance but what the seed decides.

The server's threads are taken to need no time, and to act in this order when several could at one time: requests arrive,
then the batcher looks at what it was waiting for, then one execution ends. When the batcher is free to look it goes on
until nothing more can be launched, before an idle instance takes the first payload (which has to be woken for that); an
instance that has just finished takes the next payload before the batcher, which has to be woken for that, looks again.
"""

from __future__ import annotations

import numpy as np

from brim.batcher.arrivals import ClosedLoop, OpenLoop, Times, Traffic
from brim.batcher.machine import Execute, Machine
from brim.batcher.plain import replay_plain, replay_unbatched
from brim.batcher.replay import Replay
from brim.batcher.result import Batches, End, Result
from brim.batcher.settings import Settings
from brim.errors import InputError


def simulate(settings: Settings, machine: Machine, traffic: Traffic, *, seed: int = 0, general: bool = False) -> Result:
    """What becomes of the traffic. The same arguments give the same result.

    Traffic of single rows that are all alike, without a queue policy, takes a short cut that gives the same result.

    Args:
        settings: the batcher.
        machine: what executes.
        traffic: open or closed loop.
        seed: for jitter, think times and lost wake-ups.
        general: take no short cut.

    Raises:
        InputError: a request has more rows than a batch may have.
    """
    if isinstance(traffic, OpenLoop) and traffic.rows is not None and max(traffic.rows) > settings.max_rows:
        raise InputError(
            f"a request has {max(traffic.rows)} rows, and a batch takes {settings.max_rows} (max_batch_size)",
            hint="Triton refuses such a request before it is queued",
        )
    jitter, chance = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    execute = machine.execution(settings.max_rows, jitter)
    if general or not _has_short_cut(settings, machine, traffic):
        return Replay(settings, machine, traffic, execute, chance).run().result(settings.instances)
    if isinstance(traffic, OpenLoop):
        return _open(settings, machine, traffic, execute)
    return _closed(settings, machine, traffic, execute)


def _has_short_cut(settings: Settings, machine: Machine, traffic: Traffic) -> bool:
    if isinstance(traffic, OpenLoop) and not traffic.is_plain:
        return False
    if not settings.batches:
        # What the batcher would be held for does not matter without one.
        return isinstance(traffic, OpenLoop)
    if not settings.prefetches or machine.release_row_us:
        return False
    return isinstance(traffic, OpenLoop) or not traffic.think_us


def _open(settings: Settings, machine: Machine, traffic: OpenLoop, execute: Execute) -> Result:
    sent_us = np.asarray(traffic.sent_us, np.int64)
    entered_us = machine.entered_us(sent_us).tolist()
    if settings.batches:
        batches = replay_plain(
            entered_us, settings.rule, settings.instances, execute, held_until_us=traffic.held_until_us
        )
    else:
        batches = replay_unbatched(entered_us, settings.instances, execute, release_us=machine.release_row_us)
    return _all_answered(sent_us, batches, settings, machine)


def _closed(settings: Settings, machine: Machine, traffic: ClosedLoop, execute: Execute) -> Result:
    callers, request_us, overhead_us = min(traffic.callers, traffic.requests), machine.request_us, machine.overhead_us
    sent_us = [0] * callers
    entered_us = [request_us * (place + 1) for place in range(callers)]
    front_end_free_us = request_us * callers
    unsent = traffic.requests - callers

    def on_answered(rows: int, now_us: int) -> None:
        nonlocal unsent, front_end_free_us
        at_us = now_us + overhead_us
        for _ in range(min(rows, unsent)):
            front_end_free_us = max(at_us, front_end_free_us) + request_us
            sent_us.append(at_us)
            entered_us.append(front_end_free_us)
            unsent -= 1

    batches = replay_plain(
        entered_us, settings.rule, settings.instances, execute, held_until_us=None, on_answered=on_answered
    )
    return _all_answered(np.array(sent_us, np.int64), batches, settings, machine)


def _all_answered(sent_us: Times, batches: Batches, settings: Settings, machine: Machine) -> Result:
    """Batches hold the requests in their order."""
    return Result(
        sent_us,
        np.repeat(batches.ended_us, batches.requests) + machine.overhead_us,
        np.full(len(sent_us), End.ANSWERED, np.int64),
        batches,
        settings.instances,
    )
