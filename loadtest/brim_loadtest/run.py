"""A run from outside: starts the processes of a load test, reads what they say, and leaves none of them behind."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from brim.errors import BrimError, CouldNotTell, InputError, ServerFailed
from brim.measure.openloop_limits import Evidence
from brim.server.logs import log_tail
from brim.units import US_PER_S
from brim_loadtest.job import Job, Role
from brim_loadtest.tally import Tally

MOST_WORKERS = 64
START_TIMEOUT_S = 60.0
MARGIN_S = 120.0
"""On top of the schedule and the longest patience: starting, stopping, merging. After it a silent run is given up."""
STOP_TIMEOUT_S = 15.0
END_TIMEOUT_S = 10.0
LOG = "generator.log"
ERRORS: dict[str, type[BrimError]] = {one.code: one for one in (InputError, ServerFailed)}


@dataclass(frozen=True, slots=True)
class Progress:
    """What all workers had counted so far, ``second`` seconds into the run."""

    second: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave.

    Attributes:
        tally: of all workers.
        evidence: what was seen of the generator.
        lost: workers that ended without a tally.
        stopped: whether it was stopped before its end.
    """

    tally: Tally
    evidence: Evidence
    lost: int
    stopped: bool


def run(
    job: Job,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    every: Callable[[], None] = lambda: None,
) -> Ran:
    """Carry out a load test in processes of its own, all of which have ended when this returns or raises.

    An interrupt (SIGINT) while it runs stops the run and keeps what was counted.

    Args:
        job: the run.
        on_progress: told once a second.
        every: called a few times a second.

    Raises:
        InputError: there are too many workers.
        ServerFailed: nothing answers at the address.
        CouldNotTell: a process ended without its result.
    """
    if not 1 <= job.workers <= MOST_WORKERS:
        raise InputError(f"workers {job.workers}: must be 1 to {MOST_WORKERS}", hint="give one a core at most")
    log = Path(job.folder, LOG)
    with ExitStack() as stack:
        master = stack.enter_context(_Child(Role.ALONE if job.workers == 1 else Role.MASTER, job, log))
        if job.workers > 1:
            port = master.read(time.monotonic() + START_TIMEOUT_S)["port"]
            for _ in range(job.workers):
                stack.enter_context(_Child(Role.WORKER, job, log, port))
        until_s = time.monotonic() + (job.schedule.duration_us + job.patience_us) / US_PER_S + MARGIN_S
        try:
            return _listen(master, job, until_s, on_progress, every)
        except KeyboardInterrupt:
            master.process.terminate()
            try:
                return _listen(master, job, time.monotonic() + STOP_TIMEOUT_S, on_progress, every)
            except CouldNotTell:
                # It had not begun yet.
                raise KeyboardInterrupt from None


def _listen(
    master: _Child, job: Job, until_s: float, on_progress: Callable[[Progress], None], every: Callable[[], None]
) -> Ran:
    while True:
        said = master.read(until_s, every)
        if "counts" in said:
            on_progress(Progress(said["second"], said["counts"]))
        elif "result" in said:
            master.wait_for_end()
            return _ran(job, said["result"])


def _ran(job: Job, result: Mapping[str, Any]) -> Ran:
    return Ran(
        Tally.from_message(job.schedule, result["tally"]),
        Evidence(**result["evidence"]),
        int(result["lost"]),
        bool(result["stopped"]),
    )


class _Child:
    """One process of the run, ended with the block."""

    def __init__(self, role: Role, job: Job, log: Path, port: int | None = None) -> None:
        self._role = role
        self._job = job
        self._log = log
        self._port = port
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        words = [str(os.getpid()), *([] if self._port is None else [str(self._port)])]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "brim_loadtest", self._role.value, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
                # A Ctrl-C is for the parent, which stops the run in order.
                start_new_session=True,
            )
        assert self.process.stdin is not None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            # One that has ended is noticed when it is read from.
            with suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(self._job.as_json()) + "\n")
                self.process.stdin.close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(END_TIMEOUT_S)
        self._reader.join(END_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def read(self, until_s: float, every: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next thing that it says.

        Raises:
            BrimError: the error that it says instead.
            CouldNotTell: it says nothing until then, or ended.
        """
        line = ""
        while (left_s := until_s - time.monotonic()) > 0:
            every()
            try:
                line = self._lines.get(timeout=min(left_s, 0.2))
                break
            except queue.Empty:
                continue
        if not line:
            raise CouldNotTell(
                f"the load generator (pid {self.process.pid}) ended, or said nothing in time, before its result\n"
                f"the end of {self._log}:\n{log_tail(self._log)}",
                hint="was the machine out of memory?",
            )
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            error = said["error"]
            raise ERRORS.get(error["code"], CouldNotTell)(error["message"], hint=error["hint"])
        return said

    def wait_for_end(self) -> None:
        """Let it write Locust's page."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_TIMEOUT_S)


def _environment() -> dict[str, str]:
    """Ours without what would configure Locust behind our back."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
