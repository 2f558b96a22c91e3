"""The callers of one worker: they send when a request is due, whether or not earlier ones were answered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import gevent
import gevent.event

from brim.measure.accounting import Outcome, Reply
from brim.measure.histogram import Latencies
from brim.measure.openloop import SENT_IN_A_ROW
from brim.measure.openloop_limits import LAG_PERCENTILE, Evidence
from brim.units import US_PER_S, us_to_ms
from brim_loadtest.alarm import Alarm
from brim_loadtest.job import Job
from brim_loadtest.line import Line
from brim_loadtest.schedule import SLOW_BODY_US, Arrival
from brim_loadtest.shapes import Behaviour
from brim_loadtest.tally import Ended, Tally

if TYPE_CHECKING:
    # Locust's import patches the whole process.
    from locust.event import Events

TICK_S = 0.01
STOP_GRACE_S = 1.0
"""What is under way when a run is stopped may still be answered so long; then its callers leave."""
LONGEST_TEXT = 200


class Callers:
    """One part of a schedule, from its first request to the last answer."""

    def __init__(self, job: Job, lines: Mapping[bool, Line], events: Events, *, worker: int) -> None:
        """Nothing is sent yet.

        Args:
            job: the run.
            lines: over HTTP (False) and gRPC (True), as far as the schedule needs them.
            events: Locust's, which are told of every request that has ended.
            worker: whose part it is, from 0.
        """
        self.tally = Tally(job.schedule)
        self.under_way: set[gevent.Greenlet[..., None]] = set()
        self._most_under_way = 0
        self._job = job
        self._lines = lines
        self._events = events
        self._worker = worker
        self._begin_s = 0.0
        self._stop = gevent.event.Event()
        self._alarm: Alarm | None = None
        self._lag = Latencies()
        self._loop_cores: float | None = None
        self._wall_us: int | None = None

    @property
    def evidence(self) -> Evidence:
        """What was seen of this generator."""
        lag_us = self._lag.percentile_us(LAG_PERCENTILE)
        return Evidence(self._loop_cores, lag_us, self._most_under_way, wall_us=self._wall_us)

    def stop(self) -> None:
        """Send nothing more; what is under way is given ``STOP_GRACE_S``."""
        self._stop.set()
        if self._alarm is not None:
            self._alarm.ring()

    def run(self, begin_s: float) -> None:
        """Send everything when it is due, and wait for the last answer.

        Args:
            begin_s: the beginning, on ``time.monotonic``, which all processes of the machine share.
        """
        self._begin_s = begin_s
        watching = gevent.spawn(self._watch)
        began = (time.monotonic(), time.thread_time())
        try:
            with Alarm() as alarm:
                self._alarm = alarm
                try:
                    self._send(alarm)
                finally:
                    self._alarm = None
            self._wait_for_the_last()
        finally:
            gevent.killall(list(self.under_way))
            watching.kill()
            wall_s = time.monotonic() - began[0]
            self._loop_cores = (time.thread_time() - began[1]) / wall_s if wall_s > 0 else None
            self._wall_us = self._now_us()

    def _now_us(self) -> int:
        return round((time.monotonic() - self._begin_s) * US_PER_S)

    def _send(self, alarm: Alarm) -> None:
        in_a_row = 0
        for arrival in self._job.schedule.arrivals(self._worker, self._job.workers):
            if not self._stop.is_set() and self._now_us() < arrival.due_us:
                alarm.wait_until(self._begin_s + arrival.due_us / US_PER_S)
                in_a_row = 0
            elif in_a_row >= SENT_IN_A_ROW:
                gevent.sleep(0)
                in_a_row = 0
            if self._stop.is_set():
                return
            in_a_row += 1
            # A caller whose patience ended before it could be sent was never seen by the server either.
            if len(self.under_way) >= self._job.in_flight_each or self._now_us() >= self._patience_us(arrival):
                self.tally.add_unsent(arrival)
                continue
            one = gevent.spawn(self._one, arrival)
            self.under_way.add(one)
            one.rawlink(self.under_way.discard)
            self._most_under_way = max(self._most_under_way, len(self.under_way))

    def _wait_for_the_last(self) -> None:
        """Each of them ends by itself when its caller's patience does."""
        while self.under_way and not self._stop.wait(TICK_S):
            pass
        gevent.wait(list(self.under_way), timeout=STOP_GRACE_S)

    def _patience_us(self, arrival: Arrival) -> int:
        """Until when its caller waits, from the beginning of the run."""
        return arrival.clock_us + self._job.patience_us

    def _waits_us(self, arrival: Arrival) -> int:
        """How long its caller still waits, now that the request is sent."""
        if arrival.behaviour is Behaviour.LEAVING:
            return arrival.leaves_us
        return max(0, self._patience_us(arrival) - self._now_us())

    def _one(self, arrival: Arrival) -> None:
        sent_us = self._now_us() + (SLOW_BODY_US if arrival.behaviour is Behaviour.SLOW else 0)
        patience = gevent.Timeout.start_new(self._waits_us(arrival) / US_PER_S)
        try:
            ended = self._lines[arrival.over_grpc].ask(arrival)
        except gevent.Timeout:
            own = self._job.leaving or arrival.behaviour is Behaviour.LEAVING
            ended = Ended(Reply(Outcome.CANCELLED if own else Outcome.TIMED_OUT))
        except gevent.GreenletExit:
            ended = Ended(Reply(Outcome.CANCELLED), stopped=True)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with it, a request that was sent has an outcome
            ended = Ended(Reply(Outcome.FAILED, f"{type(error).__name__}: {error}"[:LONGEST_TEXT]))
        finally:
            patience.cancel()
        done_us = self._now_us()
        self.tally.add(arrival, sent_us, done_us, ended)
        self._tell_locust(arrival, max(0, done_us - arrival.clock_us), ended)

    def _tell_locust(self, arrival: Arrival, latency_us: int, ended: Ended) -> None:
        """For its page: by class. A caller that left has neither succeeded nor failed."""
        outcome = ended.reply.outcome
        # Locust keeps a line for every text, so only those that the tally keeps are told.
        known = ended.reason if ended.reason in self.tally.classes[arrival.caller].reasons else ""
        if outcome is not Outcome.CANCELLED:
            self._events.request.fire(  # type: ignore[no-untyped-call]
                request_type="gRPC" if arrival.over_grpc else "HTTP",
                name=self._job.schedule.callers[arrival.caller].label,
                response_time=us_to_ms(latency_us),
                response_length=ended.answer_bytes,
                exception=None if outcome is Outcome.ANSWERED else known or outcome.value,
                context={},
            )

    def _watch(self) -> None:
        """Note how late the event loop's timers come."""
        while True:
            expected_s = time.monotonic() + TICK_S
            gevent.sleep(TICK_S)
            self._lag.record(max(0, round((time.monotonic() - expected_s) * US_PER_S)))
