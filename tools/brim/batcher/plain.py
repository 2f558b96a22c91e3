"""Short cuts for plain traffic: single rows, all alike, no queue policy. The result is that of ``brim.batcher.replay``.

Arrivals are no events here. What waits is a range of the list of arrival times, and the batcher looks again at the
arrival that completes the rows it wants, found by its place in that list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

import numpy as np

from brim.batcher.machine import Execute
from brim.batcher.record import PLACES
from brim.batcher.replay import PREFETCHED_PER_INSTANCE, TICK_US
from brim.batcher.result import Batches
from brim.batcher.rule import NEVER, LaunchRule, Reason

FULL, PREFERRED, DELAY, DRAINED, UNBATCHED = (
    PLACES[reason] for reason in (Reason.FULL, Reason.PREFERRED, Reason.DELAY, Reason.DRAINED, Reason.UNBATCHED)
)
GALLOP = 128
"""Arrivals that are looked through before the whole list is."""


def replay_plain(
    entered_us: list[int],
    rule: LaunchRule,
    instances: int,
    execute: Execute,
    *,
    held_until_us: int | None,
    on_answered: Callable[[int, int], None] | None = None,
) -> Batches:
    """Run requests 0, 1, 2, ... that enter the queue at these times.

    Args:
        entered_us: ascending. ``on_answered`` may append to it, no earlier than the time that it is given.
        rule: the launch rule.
        instances: that execute.
        execute: how long batches take.
        held_until_us: the batcher begins to look then; None for the first arrival.
        on_answered: told of the rows of every batch, when they are answered.

    Returns:
        The batches; they hold the requests in their order.
    """
    most, delay_us, largest = rule.max_rows, rule.delay_us, rule.largest
    slots = PREFETCHED_PER_INSTANCE * instances
    sizes = set(rule.preferred)
    reached = [0] * (most + 1)
    following = [0] * (most + 1)
    for size in range(1, most + 1):
        reached[size] = size if size in sizes else reached[size - 1]
    for size in range(most - 1, -1, -1):
        following[size] = size + 1 if size + 1 in sizes else following[size + 1]
    scheduled: deque[list[int]] = deque()  # payloads: rows, reason, arrival of the first row
    running: list[tuple[int, int]] = []
    batches: list[tuple[int, int, int, int, int, int]] = []
    idle = instances
    head = 0  # the first request that is in no payload
    # The payload under construction: its rows (0 for a new one), itself, and the rows that must wait to go on with it.
    open_rows, wanted = 0, 0
    payload: list[int] = []
    # The batcher looks again at the arrival of request `trigger` or at `timer_us`. It went to sleep at `asleep_us` where
    # requests before `trigger` make its half-second tick count.
    trigger, timer_us, asleep_us = 0, NEVER, NEVER
    if held_until_us is not None:
        trigger, timer_us = NEVER, held_until_us
    lonely = not delay_us and on_answered is None and held_until_us is None
    lonely_reason = FULL if most == 1 else PREFERRED if 1 in sizes else DRAINED
    while True:
        count = len(entered_us)
        if lonely and idle == instances:
            # Nothing waits and nothing runs: a row that has been answered before the next one comes is all of its story.
            # Of those that arrive together the first is not alone.
            while head + 1 < count and entered_us[head] < entered_us[head + 1]:
                now = entered_us[head]
                ended_us, compute_us = execute(1, now)
                batches.append((now, ended_us, compute_us, 1, 1, lonely_reason))
                head += 1
                if ended_us >= entered_us[head]:
                    idle -= 1
                    running.append((ended_us, len(batches) - 1))
                    break
            trigger = head
        wake_us = entered_us[trigger] if trigger < count else NEVER
        if asleep_us != NEVER and timer_us == NEVER and head < count:
            ticks = -((asleep_us - entered_us[head]) // TICK_US)
            timer_us = asleep_us + TICK_US * (ticks if ticks > 0 else 1)
        if timer_us < wake_us:
            wake_us = timer_us
        ended = bool(running) and running[0][0] < wake_us
        if ended:
            now, batch = heappop(running)
        elif wake_us == NEVER:
            break
        else:
            now = wake_us
        reach = head + GALLOP
        if reach >= count or entered_us[reach] <= now:
            reach = count
        arrived = bisect_right(entered_us, now, head, reach)
        if ended:
            idle += 1
            if open_rows and not delay_us and len(scheduled) < slots:
                # With delay 0 an open payload takes every row as it arrives.
                payload[0] += arrived - head
                open_rows = payload[0]
                head = arrived
            if on_answered is not None:
                on_answered(batches[batch][3], now)
        takes = ended and bool(scheduled)
        while True:
            if takes:
                # An instance takes the first payload.
                first = scheduled.popleft()
                if first is payload:
                    open_rows, payload, wanted = 0, [], 0
                rows = first[0]
                while delay_us and scheduled and now - scheduled[0][2] > delay_us:
                    if scheduled[0] is payload:
                        open_rows, payload, wanted = 0, [], 0
                    if rows + scheduled[0][0] > most:
                        break
                    rows += scheduled.popleft()[0]
                idle -= 1
                ended_us, compute_us = execute(rows, now)
                heappush(running, (ended_us, len(batches)))
                batches.append((now, ended_us, compute_us, rows, rows, first[1]))
            takes = True
            # The batcher builds payloads until it has to wait.
            while True:
                rows = arrived - head
                if len(scheduled) >= slots:
                    trigger, timer_us, asleep_us = NEVER, NEVER, NEVER
                    break
                if not rows:
                    timer_us, asleep_us = NEVER, NEVER
                    if not delay_us:
                        trigger = head + following[open_rows] - open_rows - 1 if open_rows else head
                    elif wanted > 1:
                        trigger, asleep_us = head + wanted - 1, now
                    else:
                        trigger = head
                    break
                size = open_rows + rows
                if size > most:
                    size = most
                closes = False
                if delay_us and now - entered_us[head] >= delay_us:
                    reason, closes = FULL if size == most else DELAY, size >= largest
                elif reached[size] > open_rows:
                    size = reached[size]
                    reason, closes = FULL if size == most else PREFERRED, not delay_us
                elif not delay_us:
                    reason = DRAINED
                elif open_rows >= largest:
                    if open_rows < most:
                        size = open_rows + 1
                    reason, closes = FULL if size == most else PREFERRED, True
                elif open_rows and reached[open_rows] < open_rows:
                    wanted = following[size] - open_rows
                    reason = payload[1]
                else:
                    wanted = following[size] - open_rows
                    trigger, timer_us, asleep_us = head + wanted - 1, entered_us[head] + delay_us, NEVER
                    break
                if not open_rows:
                    payload = [size, reason, entered_us[head]]
                    scheduled.append(payload)
                elif size > open_rows:
                    payload[0], payload[1] = size, reason
                head += size - open_rows
                open_rows = size
                if closes:
                    open_rows, payload, wanted = 0, [], 0
            if not (idle and scheduled):
                break
    return _batches(batches)


def replay_unbatched(entered_us: list[int], instances: int, execute: Execute, *, release_us: int) -> Batches:
    """Every request is a batch, first come, first served.

    Args:
        entered_us: ascending.
        instances: that execute.
        execute: how long batches take.
        release_us: between the end of a batch and the instance's being ready.
    """
    ready_us = [-NEVER] * instances
    batches = []
    for arrived_us in entered_us:
        taken_us = max(arrived_us, ready_us[0])
        ended_us, compute_us = execute(1, taken_us)
        heapreplace(ready_us, ended_us + release_us)
        batches.append((taken_us, ended_us, compute_us, 1, 1, UNBATCHED))
    return _batches(batches)


def _batches(batches: list[tuple[int, int, int, int, int, int]]) -> Batches:
    return Batches(*np.array(batches, np.int64).reshape(-1, 6).T)
