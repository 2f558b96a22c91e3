"""One process of a run, on Locust's runners: a master and its workers talk by Locust's own messages.

All that a process says goes to its parent, as lines of JSON on stdout. Importing this module imports Locust, which patches
the process with gevent.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gevent
import gevent.event
from locust import User, task
from locust.env import Environment
from locust.html import get_html_report
from locust.rpc.protocol import Message
from locust.runners import LocalRunner, MasterRunner, WorkerRunner
from locust.stats import stats_history

from brim.errors import BrimError, CouldNotTell
from brim.measure.openloop_limits import Evidence
from brim.server.endpoint import LOOPBACK
from brim.units import US_PER_S
from brim_loadtest.callers import STOP_GRACE_S, Callers
from brim_loadtest.grpc_line import GrpcLine, check_cooperative
from brim_loadtest.http_line import HttpLine
from brim_loadtest.job import Job, Role
from brim_loadtest.line import Line
from brim_loadtest.payload import References
from brim_loadtest.schedule import SLOW_BODY_US
from brim_loadtest.shapes import Behaviour, Travel
from brim_loadtest.tally import Tally, merged

READY, BEGIN, STOP, COUNT, DONE = "brim_ready", "brim_begin", "brim_stop", "brim_count", "brim_done"
"""Locust messages: READY, COUNT and DONE go to the master, BEGIN and STOP to the workers."""
PAGE = "locust.html"
READY_TIMEOUT_S = 60.0
LEAD_S = 0.5
"""Between the last worker's word that it is ready and the first request."""
MARGIN_S = 20.0
END_MARGIN_S = 5.0
COUNT_EVERY_S = 1.0
QUIT_TIMEOUT_S = 3.0


def say(what: dict[str, Any]) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def as_json(error: BrimError) -> dict[str, Any]:
    """The error, in the form in which ``run`` reads it."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


class CallersUser(User):
    """Locust's user: all callers of one worker. There is one a worker, since callers of an open loop wait for nobody."""

    job: ClassVar[Job]
    callers: Callers | None = None
    begin: ClassVar[gevent.event.AsyncResult[float]]

    def on_start(self) -> None:
        """Open the connections, and say so."""
        try:
            self._prepare()
        except BrimError as error:
            self._say(READY, as_json(error))
            raise
        self._say(READY, {})

    def _prepare(self) -> None:
        references = References(self.job.payload)
        travel = self.job.schedule.travel
        self.lines: dict[bool, Line] = {}
        if travel is not Travel.GRPC or self.job.schedule.misbehaviour is Behaviour.SLOW:
            self.lines[False] = HttpLine(self.job, references)
        if travel is not Travel.HTTP:
            check_cooperative()
            self.lines[True] = GrpcLine(self.job, references)
        for line in self.lines.values():
            line.open()
        # What is here now stays; looking it over again and again would hold up requests that are due.
        gc.collect()
        gc.freeze()
        runner = self.environment.runner
        assert isinstance(runner, LocalRunner | WorkerRunner)
        callers = Callers(self.job, self.lines, self.environment.events, worker=runner.worker_index)
        self.callers = CallersUser.callers = callers

    @task
    def call(self) -> None:
        """Run this worker's part of the schedule, and hand in what was counted."""
        callers = self.callers
        assert callers is not None
        begin_s = self.begin.get()
        counting = gevent.spawn(self._count, callers)
        try:
            callers.run(begin_s)
        finally:
            counting.kill()
            self._say(COUNT, callers.tally.progress() | {"under_way": 0})
            self._say(DONE, {"tally": callers.tally.as_message(), "evidence": callers.evidence.as_json()})
            for line in self.lines.values():
                line.close()
        gevent.event.Event().wait()

    def _count(self, callers: Callers) -> None:
        while True:
            gevent.sleep(COUNT_EVERY_S)
            self._say(COUNT, callers.tally.progress() | {"under_way": len(callers.under_way)})

    def _say(self, kind: str, what: dict[str, Any]) -> None:
        runner = self.environment.runner
        assert runner is not None
        runner.send_message(kind, what)


class Worker:
    """What a process does that sends: it waits for the master's words."""

    def __init__(self, environment: Environment) -> None:
        """Listen."""
        runner = environment.runner
        assert runner is not None
        runner.register_message(BEGIN, self._begin)
        runner.register_message(STOP, self._stop)

    def _begin(self, environment: Environment, msg: Message) -> None:
        CallersUser.begin.set(float(msg.data["begin_s"]))

    def _stop(self, environment: Environment, msg: Message) -> None:
        if CallersUser.callers is not None:
            CallersUser.callers.stop()


class Master:
    """What the process does that tells when to begin, and puts together what was counted."""

    def __init__(self, environment: Environment, job: Job) -> None:
        """Listen."""
        runner = environment.runner
        assert isinstance(runner, LocalRunner | MasterRunner)
        self._runner = runner
        self._environment = environment
        self._job = job
        self._ready: set[str] = set()
        self._counts: dict[str, dict[str, int]] = {}
        self._done: dict[str, dict[str, Any]] = {}
        self._fault: dict[str, Any] | None = None
        self._changed = gevent.event.Event()
        self._stopped = False
        self._begin_s = 0.0
        runner.register_message(READY, self._on_ready)
        runner.register_message(COUNT, self._on_count)
        runner.register_message(DONE, self._on_done)
        environment.events.test_stopping.add_listener(self._on_stopping)  # type: ignore[no-untyped-call]

    def run(self) -> None:
        """The whole run; its last line to the parent has the result, or a worker's error.

        Raises:
            CouldNotTell: not all workers were ready in time.
        """
        workers = self._job.workers
        if isinstance(self._runner, MasterRunner):
            connected = self._runner.clients
            self._until(lambda: len(connected.ready) >= workers, READY_TIMEOUT_S)
        gevent.spawn(stats_history, self._runner)
        self._runner.start(workers, spawn_rate=min(100, workers))
        self._until(lambda: len(self._ready) >= workers, READY_TIMEOUT_S)
        if self._fault is not None:
            say({"error": self._fault})
            return
        if len(self._ready) < workers and not self._stopped:
            raise CouldNotTell(
                f"{len(self._ready)} of {workers} load generators were ready after {READY_TIMEOUT_S:g} s",
                hint="use fewer --workers, or a machine with more cores",
            )
        self._begin_s = time.monotonic() + LEAD_S
        self._runner.send_message(BEGIN, {"begin_s": self._begin_s})
        counting = gevent.spawn(self._count)
        longest_us = self._job.schedule.duration_us + SLOW_BODY_US + self._job.patience_us
        self._until(lambda: len(self._done) >= workers, longest_us / US_PER_S + MARGIN_S)
        if self._stopped:
            self._runner.send_message(STOP, None)
            stop_by_s = time.monotonic() + STOP_GRACE_S + END_MARGIN_S
            while len(self._done) < workers and time.monotonic() < stop_by_s:
                self._changed.wait(0.1)
                self._changed.clear()
        counting.kill()
        say(self._result())

    def stop(self) -> None:
        """Send nothing more, and hand in what was counted so far."""
        self._stopped = True
        self._changed.set()

    def quit(self) -> None:
        """End the workers, and write Locust's own page."""
        with gevent.Timeout(QUIT_TIMEOUT_S, False):
            self._runner.quit()
        page = get_html_report(self._environment, show_download_link=False)  # type: ignore[no-untyped-call]
        Path(self._job.folder, PAGE).write_text(page, encoding="utf-8")

    def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not reached() and not self._stopped and self._fault is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            # Locust says nothing when a worker connects.
            self._changed.wait(min(left_s, 0.1))
            self._changed.clear()

    def _result(self) -> dict[str, Any]:
        schedule = self._job.schedule
        whole = merged(schedule, (Tally.from_message(schedule, one["tally"]) for one in self._done.values()))
        seen = [Evidence(**one["evidence"]) for one in self._done.values()]
        evidence = Evidence(
            loop_cores=max((one.loop_cores for one in seen if one.loop_cores is not None), default=None),
            lag_us=max((one.lag_us for one in seen if one.lag_us is not None), default=None),
            most_under_way=sum(one.most_under_way for one in seen),
            processes=self._job.workers,
            wall_us=max((one.wall_us for one in seen if one.wall_us is not None), default=None),
        )
        return {
            "result": {
                "tally": whole.as_message(),
                "evidence": evidence.as_json(),
                "lost": self._job.workers - len(self._done),
                "stopped": self._stopped,
            }
        }

    def _count(self) -> None:
        """Tell the parent once a second how far all workers are."""
        second = 0
        while True:
            second += 1
            gevent.sleep(max(0.0, self._begin_s + second - time.monotonic()))
            counts = list(self._counts.values())
            names = dict.fromkeys(name for one in counts for name in one)
            say({"second": second, "counts": {name: sum(one.get(name, 0) for one in counts) for name in names}})

    def _on_ready(self, environment: Environment, msg: Message) -> None:
        self._fault = msg.data.get("error", self._fault)
        self._ready.add(msg.node_id)
        self._changed.set()

    def _on_count(self, environment: Environment, msg: Message) -> None:
        self._counts[msg.node_id] = msg.data

    def _on_done(self, environment: Environment, msg: Message) -> None:
        self._done[msg.node_id] = msg.data
        self._changed.set()

    def _on_stopping(self, **_: Any) -> None:
        """Somebody has pressed stop on Locust's page."""
        self.stop()


def run_node(role: Role, job: Job, master_port: int | None) -> None:
    """Do one process's part of a run.

    Args:
        role: which part.
        job: the run.
        master_port: where the master of a worker listens.
    """
    CallersUser.job = job
    CallersUser.begin = gevent.event.AsyncResult()
    environment = Environment(user_classes=[CallersUser], locustfile="brim_loadtest", stop_timeout=0)
    if role is Role.WORKER:
        assert master_port is not None
        runner = environment.create_worker_runner(LOOPBACK, master_port)
        Worker(environment)
        runner.greenlet.join()
        return
    if role is Role.ALONE:
        environment.create_local_runner()
        Worker(environment)
    else:
        say({"port": environment.create_master_runner(LOOPBACK, 0).server.port})
    master = Master(environment, job)
    gevent.signal_handler(signal.SIGTERM, _told_to_stop, master, os.getppid())
    web = environment.create_web_ui(LOOPBACK, job.web_port) if job.web_port is not None else None
    try:
        master.run()
    finally:
        master.quit()
        if web is not None:
            web.stop()  # type: ignore[no-untyped-call]


def _told_to_stop(master: Master, parent: int) -> None:
    if os.getppid() != parent:
        # Nobody reads the result any more.
        os._exit(1)
    master.stop()
