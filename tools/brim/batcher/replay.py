"""The batcher thread, its payloads and the instances, event by event: every setting, any traffic.

A *payload* is a batch under construction or on its way: it is built by the batcher, scheduled, and taken by an instance.
With prefetching (no queue policy) up to twice as many payloads as instances are built ahead; without, one is built only
when an instance is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count

import numpy as np

from brim.batcher.arrivals import ClosedLoop, OpenLoop, Traffic
from brim.batcher.machine import Execute, Machine
from brim.batcher.queue import Queue
from brim.batcher.record import Record
from brim.batcher.result import End
from brim.batcher.rule import NEVER, Reason, Sleep
from brim.batcher.settings import Settings

TICK_US = 500_000
"""How long the batcher thread sleeps at most (core ``dynamic_batch_scheduler.cc``, ``default_wait_microseconds``)."""
PREFETCHED_PER_INSTANCE = 2
"""Payloads that are built ahead (core ``rate_limiter.cc``, ``PayloadSlotAvailable``)."""


@dataclass(slots=True, eq=False)
class Payload:
    """A batch on its way.

    Attributes:
        requests: their numbers.
        rows: of all of them.
        oldest_us: when the oldest of them entered the queue.
        shape: that they share.
        reason: why it was launched.
        closed: the batcher adds nothing to it.
        sealed: a request of another shape came behind it: it is not merged with a later payload.
        begun: an instance has taken it or has tried to merge it: the batcher adds nothing to it.
    """

    requests: list[int] = field(default_factory=list)
    rows: int = 0
    oldest_us: int = NEVER
    shape: Hashable = None
    reason: Reason = Reason.DRAINED
    closed: bool = False
    sealed: bool = False
    begun: bool = False


class Sleeps(Enum):
    """What the batcher thread waits for."""

    START = auto()
    """The time at which it begins to look."""
    REQUEST = auto()
    """The queue is empty."""
    SLOT = auto()
    """No further payload may be built, or none would take the next request."""
    COMPANY = auto()
    """The delay of what waits, or enough rows."""


class Replay:
    """One run: ``run`` once; or, without a traffic, ``send`` and ``advance`` as time goes on."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        traffic: Traffic | None,
        execute: Execute,
        rng: np.random.Generator,
        *,
        on_end: Callable[[int, int], None] | None = None,
    ) -> None:
        """Nothing happens yet.

        Args:
            settings: the batcher.
            machine: overheads, release and lost wake-ups.
            traffic: open or closed loop; None: requests of one row come as they are sent.
            execute: how long batches take.
            rng: for think times and lost wake-ups.
            on_end: told of a request's number and when its caller knows of its end, when it ends.
        """
        self._settings, self._machine, self._traffic, self._execute, self._rng = (
            settings,
            machine,
            traffic,
            execute,
            rng,
        )
        self._rule = settings.rule
        self._queue = Queue(settings.default_policy, settings.level_policies)
        self._slots = PREFETCHED_PER_INSTANCE * settings.instances
        self._is_plain = not isinstance(traffic, OpenLoop) or traffic.is_plain
        # Any arrival makes the batcher look where shapes have to be compared.
        self._wakes_always = isinstance(traffic, OpenLoop) and traffic.shapes is not None
        self._payload = Payload()
        self._scheduled: deque[Payload] = deque()
        self._idle = settings.instances
        self._running: list[tuple[int, int, Payload | None]] = []
        self._number = count()
        self._sends: list[tuple[int, int]] = []
        self._arriving: deque[tuple[int, int]] = deque()
        self._front_end_free_us = -NEVER
        self._sleeps, self._asleep_since_us, self._wake_us = Sleeps.REQUEST, 0, NEVER
        self._rows_counted = self._rows_wanted = 0
        self._unsent = self._executing = 0
        self.record = Record(on_end)

    @property
    def waiting(self) -> int:
        """Of requests that come as they are sent: those that no instance has taken and nobody has refused."""
        return self.record.in_flight - self._executing

    def run(self) -> Record:
        """Until nothing is left to happen."""
        self._begin()
        self.advance(NEVER)
        return self.record

    def send(self, at_us: int) -> int:
        """A request is sent, not before anything that has happened. Returns its number."""
        index = self.record.send(at_us)
        heappush(self._sends, (at_us, index))
        return index

    def advance(self, until_us: int) -> None:
        """Everything that happens before ``until_us``."""
        sends, arriving, running = self._sends, self._arriving, self._running
        while True:
            now = min(
                sends[0][0] if sends else NEVER,
                arriving[0][0] if arriving else NEVER,
                self._wake_us,
                running[0][0] if running else NEVER,
            )
            if now >= until_us:
                return
            if sends and sends[0][0] == now:
                _, index = heappop(sends)
                self._front_end_free_us = max(now, self._front_end_free_us) + self._machine.request_us
                arriving.append((self._front_end_free_us, index))
            elif arriving and arriving[0][0] == now:
                self._arrive(now)
            elif self._wake_us == now:
                self._wake(now)
            else:
                _, _, payload = heappop(running)
                if payload is not None:
                    self._answer(payload, now)
                else:
                    self._release(now)

    def _begin(self) -> None:
        traffic = self._traffic
        if isinstance(traffic, ClosedLoop):
            self._unsent = traffic.requests
            for _ in range(min(traffic.callers, traffic.requests)):
                self._send(0)
            return
        if traffic is None:
            return
        sent = np.asarray(traffic.sent_us, np.int64)
        self._arriving.extend(zip(self._machine.entered_us(sent).tolist(), range(len(sent)), strict=True))
        self.record.begin(sent.tolist())
        self._asleep_since_us = self._arriving[0][0]
        if traffic.held_until_us is not None:
            self._sleeps, self._wake_us = Sleeps.START, traffic.held_until_us

    def _send(self, at_us: int) -> None:
        self._unsent -= 1
        self.send(at_us)

    # Requests come in.

    def _arrive(self, now: int) -> None:
        """Everything that arrives at this time is queued before the batcher notices any of it."""
        notices = False
        while self._arriving and self._arriving[0][0] == now:
            _, index = self._arriving.popleft()
            rows, shape, priority, timeout_us, cancelled_us = self._asks(index)
            if not self._settings.batches:
                self._scheduled.append(Payload([index], rows, now, shape, Reason.UNBATCHED, closed=True, sealed=True))
                continue
            # Counted before it may be refused, and not taken back then: as upstream does it.
            self._rows_counted += rows
            level = self._settings.level(priority)
            if self._queue.enter(
                index,
                rows=rows,
                shape=shape,
                level=level,
                now_us=now,
                asked_timeout_us=timeout_us,
                cancelled_us=cancelled_us,
            ):
                notices = True
            else:
                self._fail(index, End.REFUSED, now)
        if not self._settings.batches:
            self._take_all(now)
        elif notices and self._sleeps is not Sleeps.START and self._is_woken():
            self._look(now)
        elif self._sleeps is Sleeps.REQUEST and self._wake_us == NEVER and len(self._queue):
            passed_us = -(-(now - self._asleep_since_us) // TICK_US) * TICK_US
            self._wake_us = self._asleep_since_us + max(passed_us, TICK_US)

    def _asks(self, index: int) -> tuple[int, Hashable, int, int, int]:
        traffic = self._traffic
        if self._is_plain or not isinstance(traffic, OpenLoop):
            return 1, None, 0, 0, NEVER
        return (
            1 if traffic.rows is None else traffic.rows[index],
            None if traffic.shapes is None else traffic.shapes[index],
            0 if traffic.priorities is None else traffic.priorities[index],
            0 if traffic.timeouts_us is None else traffic.timeouts_us[index],
            NEVER if traffic.cancelled_us is None else traffic.cancelled_us[index],
        )

    def _is_woken(self) -> bool:
        """Whether an arrival wakes the batcher (core ``dynamic_batch_scheduler.cc``, ``Enqueue``)."""
        payload = self._payload
        return self._has_slot() and (
            self._wakes_always or payload.closed or payload.begun or self._rows_counted >= self._rows_wanted
        )

    def _has_slot(self) -> bool:
        if self._settings.prefetches:
            return len(self._scheduled) < self._slots
        return self._idle > len(self._scheduled)

    # The batcher thread.

    def _wake(self, now: int) -> None:
        """The batcher's own time has come."""
        if self._sleeps is Sleeps.SLOT and not self._has_slot():
            # These stay counted: as upstream does it.
            self._queue.reject_expired(now)
            self._drop(now)
            self._wake_us = now + TICK_US
        else:
            self._look(now)

    def _look(self, now: int) -> None:
        """The batcher builds payloads until it has to wait; idle instances take them, which lets it look again."""
        self._build(now)
        while self._idle and self._scheduled:
            self._take(now)
            self._build(now)

    def _build(self, now: int) -> None:
        while True:
            if self._payload.closed or self._payload.begun:
                self._payload, self._rows_wanted = Payload(), 0
            if not len(self._queue):
                return self._sleep(Sleeps.REQUEST, now, NEVER)
            if not self._has_slot():
                return self._sleep(Sleeps.SLOT, now, NEVER if self._settings.prefetches else now + TICK_US)
            payload = self._payload
            decision = self._rule.decide(self._queue.scan(now), now, open_rows=payload.rows, open_shape=payload.shape)
            self._rows_counted -= self._drop(now)
            if isinstance(decision, Sleep):
                self._rows_wanted = decision.wanted
                return self._sleep(Sleeps.COMPANY, now, decision.until_us)
            if decision.wanted is not None:
                self._rows_wanted = decision.wanted
            payload.closed |= decision.closed
            payload.sealed |= decision.sealed
            if decision.requests:
                self._fill(payload, decision.requests, decision.rows, decision.reason)
            elif not payload.closed and len(self._queue):
                # Upstream's thread goes round and round here until an instance has taken the payload.
                return self._sleep(Sleeps.SLOT, now, NEVER)

    def _sleep(self, sleeps: Sleeps, now: int, wake_us: int) -> None:
        self._sleeps, self._asleep_since_us, self._wake_us = sleeps, now, wake_us

    def _fill(self, payload: Payload, requests: int, rows: int, reason: Reason | None) -> None:
        taken = self._queue.take(requests)
        is_new = not payload.requests
        payload.requests += [request.index for request in taken]
        payload.rows += rows
        payload.shape = taken[0].shape
        payload.oldest_us = min(payload.oldest_us, min(request.entered_us for request in taken))
        payload.reason = reason or payload.reason
        self._rows_counted -= rows
        if is_new:
            self._scheduled.append(payload)

    def _drop(self, now: int) -> int:
        """Tell the callers of requests that the queue gave up. Returns the rows of those."""
        expired, cancelled = self._queue.gone()
        for request in expired:
            self._fail(request.index, End.EXPIRED, now)
        for request in cancelled:
            self.record.end(request.index, End.CANCELLED, request.cancelled_us)
        return sum(request.rows for request in (*expired, *cancelled))

    # The instances.

    def _take_all(self, now: int) -> None:
        while self._idle and self._scheduled:
            self._take(now)

    def _take(self, now: int) -> None:
        """An instance takes the first payload, and those behind it that have waited for longer than the delay and fit."""
        payload = self._scheduled.popleft()
        payload.begun = True
        while self._scheduled and self._rule.delay_us and not payload.sealed:
            behind = self._scheduled[0]
            if behind.sealed or now - behind.oldest_us <= self._rule.delay_us:
                break
            behind.begun = True
            if payload.rows + behind.rows > self._rule.max_rows or behind.shape != payload.shape:
                break
            self._scheduled.popleft()
            payload.requests += behind.requests
            payload.rows += behind.rows
        self._idle -= 1
        ended_us, compute_us = self._execute(payload.rows, now)
        self._executing += len(payload.requests)
        self.record.batch(now, ended_us, compute_us, payload.rows, len(payload.requests), payload.reason)
        heappush(self._running, (ended_us, next(self._number), payload))

    def _answer(self, payload: Payload, now: int) -> None:
        machine = self._machine
        self._executing -= len(payload.requests)
        for index in payload.requests:
            self.record.end(index, End.ANSWERED, now + machine.overhead_us)
        self._callers_go_on(len(payload.requests), now)
        if machine.release_row_us:
            heappush(self._running, (now + machine.release_row_us * payload.rows, next(self._number), None))
        else:
            self._release(now)

    def _fail(self, index: int, end: End, now: int) -> None:
        self.record.end(index, end, now + self._machine.overhead_us)
        self._callers_go_on(1, now)

    def _callers_go_on(self, callers: int, now: int) -> None:
        """Callers of a closed loop know how their requests ended, think, and send the next ones."""
        callers = min(callers, self._unsent)
        if not callers or not isinstance(self._traffic, ClosedLoop):
            return
        mean_us = self._traffic.think_us
        thinking = self._rng.exponential(mean_us, callers).tolist() if mean_us else [0] * callers
        for think_us in thinking:
            self._send(now + self._machine.overhead_us + round(think_us))

    def _release(self, now: int) -> None:
        """An instance is ready again: it takes what is scheduled, and the batcher looks unless it has looked too early."""
        self._idle += 1
        if not self._settings.batches:
            self._take_all(now)
            return
        looked_early = self._looked_early()
        if self._scheduled:
            self._take(now)
        if not looked_early:
            self._look(now)
        elif not len(self._queue):
            self._sleep(Sleeps.REQUEST, now, NEVER)
        elif self._sleeps is not Sleeps.SLOT:
            self._sleep(Sleeps.SLOT, now, now + TICK_US)

    def _looked_early(self) -> bool:
        """Whether the batcher was woken by the end of an execution, and found no idle instance yet."""
        chance = self._machine.lost_wakeup
        if not chance or self._settings.prefetches or self._idle - 1 > len(self._scheduled):
            return False
        return bool(self._rng.random() < chance)
