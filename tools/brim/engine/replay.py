"""One loop for simulated and for real time: calls are sent when they are due, the scheduler is fed, the engine steps.

Who runs it gives the engine and the clock. With ``FakeEngine`` and a clock that steps move it is the simulator
(``brim.engine.simulate``), with an engine and the machine's clock the closed process that the simulator is held against
(``brim.engine.drive``). Both hear a call that comes while a step runs at the time at which it was due, before what the step
brought, and it waits for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

from brim.engine import metrics as m
from brim.engine.admission import Policy
from brim.engine.engine import Engine
from brim.engine.lifecycle import Delta, Ended, Event, Request
from brim.engine.scheduler import Scheduler
from brim.engine.simulated import Seen, Simulated, simulated
from brim.engine.step_log import StepLog
from brim.engine.step_time import StepShape
from brim.errors import InputError


class Clock(Protocol):
    """Microseconds from the beginning of a run, never going back."""

    def now_us(self) -> int:
        """What time it is."""

    def wait_until(self, at_us: int) -> None:
        """Nothing is to be done before."""

    def stepped(self, took_us: int) -> None:
        """A step has ended, of which the engine says that it took so long."""


class Replay:
    """A traffic on its way through the scheduler and an engine that nobody else uses. Good for one traffic."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        clock: Clock,
        request: Callable[[int], Request],
    ) -> None:
        """Nothing is sent yet.

        Args:
            engine: without sequences.
            policy: the scheduler's.
            clock: at 0.
            request: number of a call -> what is sent. Its id is the number.

        Raises:
            InputError: the policy does not fit the engine.
        """
        self._engine, self._clock, self._request = engine, clock, request
        self._heard_us = 0
        self._log = StepLog(1)
        self._scheduler = Scheduler(engine, policy, lambda: self._heard_us, step_log=self._log)
        self._due: list[tuple[int, int]] = []
        self._seen: dict[int, Seen] = {}
        self._on_end: Callable[[int], None] = lambda at_us: None
        self._shapes: list[StepShape] = []
        self._steps: list[int] = []
        self._most_blocks = 0

    def open_loop(self, sent_us: Sequence[int]) -> Simulated:
        """Call n is sent at its time, whatever became of the others.

        Raises:
            InputError: the times do not ascend.
        """
        if any(a > b for a, b in pairwise(sent_us)):
            raise InputError("the times of the calls do not ascend", hint="sort the times")
        for index, at_us in enumerate(sent_us):
            heappush(self._due, (at_us, index))
        return self._finish()

    def closed_loop(self, calls: int, callers: int) -> Simulated:
        """So many callers, each of whom sends the next call when their last one has ended.

        Raises:
            InputError: there is no caller.
        """
        if callers < 1:
            raise InputError(
                f"{callers} callers; 1 or more is expected", hint="callers are those who send one call at a time"
            )
        following = iter(range(callers, calls))

        def send_next(at_us: int) -> None:
            index = next(following, None)
            if index is not None:
                heappush(self._due, (at_us, index))

        self._on_end = send_next
        for index in range(min(callers, calls)):
            heappush(self._due, (0, index))
        return self._finish()

    def _finish(self) -> Simulated:
        while self._due or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._clock.wait_until(self._due[0][0])
            self._submit_until(self._clock.now_us())
            if self._scheduler.has_work:
                self._step()
        return simulated(
            list(self._seen.values()),
            self._shapes,
            self._steps,
            self._most_blocks,
            round(self._scheduler.metrics.value(m.PREEMPTIONS)),
        )

    def _step(self) -> None:
        began_us = self._clock.now_us()
        self._heard_us = max(self._heard_us, began_us)
        self._hear(self._scheduler.feed())
        step = self._engine.step()
        self._clock.stepped(step.took_us)
        ended_us = self._clock.now_us()
        self._submit_until(ended_us)
        self._heard_us = max(self._heard_us, ended_us)
        self._hear(self._scheduler.collect(step))
        newest = next(iter(self._log))
        self._shapes.append(newest.shape)
        self._steps.append(max(1, self._clock.now_us() - began_us))
        self._most_blocks = max(self._most_blocks, newest.used_blocks)

    def _submit_until(self, until_us: int) -> None:
        while self._due and self._due[0][0] <= until_us:
            at_us, index = heappop(self._due)
            self._heard_us = max(self._heard_us, at_us)
            self._seen[index] = Seen(at_us)
            self._hear(self._scheduler.submit(self._request(index)))

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            seen = self._seen[int(event.request_id)]
            if isinstance(event, Delta):
                seen.take(len(event.tokens), self._heard_us)
            elif isinstance(event, Ended):
                seen.end, seen.reason = event.end, event.reason
                self._on_end(self._heard_us)
