"""Texts from an engine to their callers: one thread owns the engine, another one the callers' lines.

The engine's thread steps and never waits for a caller; what a step produced goes through a short queue to the delivery
thread, which puts tokens together into text (``brim.engine.detokenise``), sends it, ends texts at their stop strings, and
asks after every step who has gone. Submitting, and everything else that touches the scheduler, happens under one lock that
nobody holds during a step, so a refusal does not wait for one.

When the engine is lost, everyone who lives is told so, and whoever comes meanwhile; it is started again at once, then after
pauses, ``RESTARTS`` times within ``RESTARTS_WITHIN_S`` at most. After that the model refuses everybody, and says why.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brim.engine.detokenise import TextStream
from brim.engine.engine import Engine
from brim.engine.lifecycle import Delta, End, Ended, Event, Reason, Request
from brim.engine.scheduler import Scheduler
from brim.retries import Budget

MOST_UNDELIVERED_STEPS = 4
"""Steps that may wait for delivery; the engine then waits, too, so that memory is bounded."""
MOST_CANARIES = 8
"""Refused canaries that wait for anybody's next tokens at once."""
NO_ROOM = frozenset({Reason.ROOM_FULL, Reason.SHED, Reason.DEADLINE})
"""Refusals that say that there is much to do."""
END_WAIT_S = 30.0
"""Longest wait for the threads when the host closes: a step or a delivery under way is finished first."""
LOOK_EVERY_S = 1.0
"""How often the delivery thread looks who has gone, and what is to be published, while no step brings news."""
ASK_AGAIN_US = 100_000
"""A caller is asked after a step whether it has gone, and not more often than this: each answer is a message to the server and
one back, which beside small models' short steps would take longer than the steps."""
RESTARTS, RESTARTS_WITHIN_S = 5, 600.0
_LOST = "the engine was lost, and another one is being started; try again in some seconds"
_DOWN = "the engine was lost and could not be started again; the server's log tells why, and loading the model anew is what is left"


@dataclass(frozen=True, slots=True)
class Piece:
    """What a caller is sent at once.

    Attributes:
        text: what is new, or all of it where the caller wants no stream.
        tokens: output tokens behind it.
        end: set with the last piece, and only there.
        reason: of a refusal, and of a failure that has one.
        message: where the end is an error: what to tell the caller.
    """

    text: str
    tokens: int
    end: End | None = None
    reason: Reason | None = None
    message: str = ""


class Line(Protocol):
    """A caller's end of a request. Only the delivery thread uses it, but for a request that is refused at once."""

    def send(self, piece: Piece) -> None:
        """Hand a piece over without waiting for the caller to read it."""

    def gone(self) -> bool:
        """Whether the caller has left."""


@dataclass(slots=True)
class _Call:
    request: Request
    line: Line
    stream: bool
    text: TextStream
    unsent: list[str] = field(default_factory=list)
    tokens: int = 0
    """Output tokens since the last piece."""
    canary: bool = False
    asked_us: int = 0
    """When it was last looked whether the caller has gone, on a clock that never goes back."""


class Host:
    """The scheduler, its engine, and the callers."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        table: Sequence[bytes],
        *,
        restart: Callable[[], None] | None = None,
        end_engine: Callable[[], None] = lambda: None,
        on_step: Callable[[], None] = lambda: None,
        on_error: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Start both threads.

        Args:
            engine: the scheduler's; from now on only the host's own thread steps it.
            scheduler: from now on used under the host's lock only.
            table: bytes of each token, by number (``brim.engine.detokenise.byte_table``).
            restart: makes the engine anew when it was lost, empty and with the same limits; called by the host's own thread,
                and raises when that did not work. Without it the first loss is the last.
            end_engine: called when the host closes, so that it need not wait for a step.
            on_step: called by the delivery thread after the news of each step, and from time to time without one.
            on_error: told what went wrong, with its traceback; never anything of a caller's.
        """
        self._engine, self._scheduler, self._table = engine, scheduler, table
        self._restart, self._end_engine = restart, end_engine
        self._on_step, self._on_error = on_step, on_error
        self._budget = Budget(RESTARTS, RESTARTS_WITHIN_S)
        self._lock = threading.Condition()
        self._calls: dict[str, _Call] = {}
        self._news: queue.Queue[list[Event] | None] = queue.Queue(MOST_UNDELIVERED_STEPS)
        self._canaries: list[_Call] = []
        self._closing = False
        self._threads = [
            threading.Thread(target=self._own_engine, name="brim-engine", daemon=True),
            threading.Thread(target=self._deliver, name="brim-delivery", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request, line: Line, *, stream: bool, canary: bool = False) -> None:
        """Take a request, or send its refusal at once. Never waits for a step.

        Args:
            request: as its caller sent it.
            line: its caller's.
            stream: pieces as they come, or one at the end.
            canary: asks whether texts go on. Where there is no room for it, anybody's next tokens are its answer.

        Raises:
            ValueError: a living request has the same id.
        """
        call = _Call(request, line, stream, TextStream(self._table, request.sampling.stop), canary=canary)
        with self._lock:
            events = self._scheduler.submit(request)
            others = [(self._calls.pop(event.request_id), event) for event in events if event.request_id in self._calls]
            refused = [event for event in events if event.request_id == request.id]
            if not refused:
                self._calls[request.id] = call
                self._lock.notify_all()
        for other, event in [*others, *((call, event) for event in refused)]:
            if isinstance(event, Ended):
                self._end(other, event)

    @property
    def living(self) -> int:
        """Requests that have not ended."""
        with self._lock:
            return len(self._calls)

    @property
    def takes(self) -> bool:
        """Whether there is an engine, and a request has a chance."""
        with self._lock:
            return self._scheduler.takes

    def close(self, message: str = "the model is being unloaded") -> None:
        """End every request as failed, and both threads. Safe to call twice. The engine itself is the caller's to close."""
        with self._lock:
            again, self._closing = self._closing, True
            ended = self._scheduler.abandon(Reason.DRAINING, message)
            self._lock.notify_all()
        if not again:
            self._end_engine()
            self._news.put(ended)
            self._news.put(None)
        for thread in self._threads:
            thread.join(END_WAIT_S)

    # The engine's thread

    def _own_engine(self) -> None:
        while not self._closing:
            try:
                self._step_on()
            except Exception:  # noqa: BLE001 - whatever it is, no caller may wait for ever
                if self._closing:
                    return
                self._on_error(f"the engine is lost: {traceback.format_exc()}")
                self._give_up_requests(Reason.ENGINE_LOST, _LOST)
                if not self._started_again() and not self._closing:
                    self._on_error(_DOWN)
                    self._give_up_requests(Reason.ENGINE_DOWN, _DOWN)
                    return

    def _step_on(self) -> None:
        """Step until the host closes."""
        while True:
            with self._lock:
                while not self._closing and not self._scheduler.has_work:
                    self._lock.wait()
                if self._closing:
                    return
                events = self._scheduler.feed()
            step = self._engine.step()
            with self._lock:
                events += self._scheduler.collect(step)
            self._news.put(events)

    def _give_up_requests(self, reason: Reason, message: str) -> None:
        with self._lock:
            if self._closing:
                return
            ended = self._scheduler.abandon(reason, message)
        self._news.put(ended)

    def _started_again(self) -> bool:
        """Whether there is an engine again, after as many tries as the budget allows."""
        while self._restart is not None and (pause_s := self._budget.spend(time.monotonic())) is not None:
            with self._lock:
                if self._lock.wait_for(lambda: self._closing, pause_s):
                    return False
            try:
                self._restart()
            except Exception:  # noqa: BLE001 - it is tried again, and told when there is no more to try
                self._on_error(f"the engine could not be started again: {traceback.format_exc()}")
                continue
            with self._lock:
                if not self._closing:
                    self._scheduler.resume()
            return True
        return False

    # The delivery thread

    def _deliver(self) -> None:
        while (events := self._next_news()) is not None:
            try:
                self._pass_on(events)
                self._drop_the_gone()
                self._on_step()
            except Exception:  # noqa: BLE001 - one fault must not silence every caller
                self._on_error(f"delivery failed: {traceback.format_exc()}")
        self._send_to_canaries(Piece("", 0, End.FAILED, None, "no text goes on any more"))

    def _next_news(self) -> list[Event] | None:
        try:
            return self._news.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            return []

    def _pass_on(self, events: Sequence[Event]) -> None:
        """What one step brought. A caller gets one piece of it, its end included."""
        added: list[_Call] = []
        self._answer_canaries(events)
        for event in events:
            with self._lock:
                call = self._calls.get(event.request_id)
                if call is not None and isinstance(event, Ended):
                    del self._calls[event.request_id]
            if call is None:
                continue
            if isinstance(event, Ended):
                self._end(call, event)
            elif not call.text.stopped:
                self._add(call, event)
                added.append(call)
        for call in added:
            if call.stream and call.unsent:
                self._send(call, Piece("".join(call.unsent), call.tokens))

    def _add(self, call: _Call, delta: Delta) -> None:
        call.tokens += len(delta.tokens)
        text = call.text.push(delta.tokens)
        if text:
            call.unsent.append(text)
        if call.text.stopped:
            self._finish_stopped(call)

    def _finish_stopped(self, call: _Call) -> None:
        with self._lock:
            ended = self._scheduler.stop(call.request.id)
            if ended:
                self._calls.pop(call.request.id, None)
        # Without an event the text has ended in the same step, and that end is on its way.
        for event in ended:
            if isinstance(event, Ended):
                self._end(call, event)

    def _answer_canaries(self, events: Sequence[Event]) -> None:
        failed = next((event for event in events if isinstance(event, Ended) and event.end is End.FAILED), None)
        if failed is not None:
            self._send_to_canaries(Piece("", 0, End.FAILED, failed.reason, failed.message))
        elif any(isinstance(event, Delta) for event in events):
            self._send_to_canaries(Piece("", 0, End.STOP))

    def _send_to_canaries(self, piece: Piece) -> None:
        with self._lock:
            calls, self._canaries = self._canaries, []
        for call in calls:
            self._send(call, piece)

    def _waits_as_canary(self, call: _Call, ended: Ended) -> bool:
        if not call.canary or ended.reason not in NO_ROOM:
            return False
        with self._lock:
            fits = len(self._canaries) < MOST_CANARIES and not self._closing
            if fits:
                self._canaries.append(call)
            return fits

    def _end(self, call: _Call, ended: Ended) -> None:
        if self._waits_as_canary(call, ended):
            return
        if ended.end not in (End.STOP, End.LENGTH):
            self._send(call, Piece("", 0, ended.end, ended.reason, ended.message))
            return
        call.unsent.append(call.text.finish())
        self._send(call, Piece("".join(call.unsent), call.tokens, End.STOP if call.text.stopped else ended.end))

    def _send(self, call: _Call, piece: Piece) -> None:
        call.unsent, call.tokens = [], 0
        try:
            call.line.send(piece)
        except Exception:  # noqa: BLE001 - a line that broke is its caller's loss alone
            self._on_error(f"a piece could not be sent: {traceback.format_exc()}")
            if piece.end is None:
                self._cancel(call)

    def _drop_the_gone(self) -> None:
        now_us = time.monotonic_ns() // 1_000
        with self._lock:
            due = [call for call in self._calls.values() if now_us - call.asked_us >= ASK_AGAIN_US]
        for call in due:
            call.asked_us = now_us
            if call.line.gone():
                self._cancel(call)

    def _cancel(self, call: _Call) -> None:
        with self._lock:
            events = self._scheduler.cancel(call.request.id)
            if events:
                self._calls.pop(call.request.id, None)
        # Without an event the text has ended already, and that end is on its way: the last response must still go out.
        for event in events:
            if isinstance(event, Ended):
                self._end(call, event)
