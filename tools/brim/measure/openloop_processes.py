"""One schedule shared by several generator processes, for rates that one core cannot send.

Process k of n sends arrivals k, k + n, k + 2n ... All begin at one moment of the machine's monotonic clock, and their
accounts merge into one. A process is ``python -m brim.measure.openloop_worker``: one line of JSON in, one line out.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from brim.errors import BrimError, CouldNotTell, InputError, ServerFailed
from brim.measure.accounting import Account, Objective
from brim.measure.callers import Row
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult, merged_results
from brim.measure.openloop_limits import Evidence
from brim.measure.openloop_run import messages
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

READY_TIMEOUT_S = 60.0
LEAD_S = 0.2
MARGIN_S = 30.0
END_TIMEOUT_S = 5.0
MOST_PROCESSES = 64
READY = "ready"
ERRORS: dict[str, type[BrimError]] = {one.code: one for one in (InputError, ServerFailed)}


def run_in_processes(
    endpoint: Endpoint,
    protocol: Protocol,
    model: str,
    rows: Sequence[Row],
    due_offsets_us: Iterable[int],
    plan: OpenLoopPlan,
    *,
    processes: int,
) -> OpenLoopResult:
    """``run_open_loop`` from so many processes.

    Args:
        endpoint: the server.
        protocol: how the requests travel.
        model: whom they are for.
        rows: what they carry.
        due_offsets_us: when they are due.
        plan: how callers behave; its ``in_flight_limit`` is shared out.
        processes: generators; one a core, and a core left for whatever else runs here.

    Raises:
        InputError: ``processes`` is out of range, or as for ``run_open_loop``.
        ServerFailed: nothing answers at the address.
        CouldNotTell: a process ended without an answer.
    """
    if not 1 <= processes <= MOST_PROCESSES:
        raise InputError(f"processes {processes}: must be 1 to {MOST_PROCESSES}", hint="give one a core at most")
    whole = messages(endpoint, protocol, model, rows)
    due = list(due_offsets_us)
    part = replace(plan, in_flight_limit=max(1, plan.in_flight_limit // processes))
    jobs = [Job(endpoint, protocol, whole, due[number::processes], part) for number in range(processes)]
    return merged_results(plan, run_jobs(jobs))


@dataclass(frozen=True, slots=True)
class Job:
    """What one generator process sends: messages in turn, each when it is due."""

    endpoint: Endpoint
    protocol: Protocol
    messages: Sequence[bytes]
    due_us: Sequence[int]
    plan: OpenLoopPlan


def run_jobs(jobs: Sequence[Job]) -> list[OpenLoopResult]:
    """Jobs that may differ in everything, each in a process of its own, all with one beginning. A result each.

    Raises:
        ServerFailed: nothing answers at the address.
        CouldNotTell: a process ended without an answer.
    """
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_Worker(job_as_json(job.endpoint, job.protocol, job.messages, job.due_us, job.plan)))
            for job in jobs
        ]
        ready_until = time.monotonic() + READY_TIMEOUT_S
        for worker in workers:
            worker.read(ready_until, READY)
        begin_s = time.monotonic() + LEAD_S
        for worker in workers:
            worker.write(json.dumps(begin_s))
        last_us = max(max(job.due_us, default=0) + job.plan.timeout_us for job in jobs)
        until = begin_s + last_us / US_PER_S + MARGIN_S
        return [
            result_from_json(worker.read(until, "result"), job.plan) for worker, job in zip(workers, jobs, strict=True)
        ]


class _Worker:
    """A generator process, ended with the block."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> _Worker:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brim.measure.openloop_worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self.reader.start()
        self.write(json.dumps(self.job))
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(END_TIMEOUT_S)
        self.reader.join(END_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                _close(pipe)

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.lines.put(line)
        self.lines.put("")

    def write(self, line: str) -> None:
        """One line to the process. One that has ended is noticed when its answer is read."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def read(self, until_s: float, what: str) -> Any:
        """What the process says under this name.

        Raises:
            BrimError: the error that it says instead.
            CouldNotTell: it says nothing until then, or ended.
        """
        try:
            line = self.lines.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            line = ""
        if not line:
            raise CouldNotTell(
                f"a generator process (pid {self.process.pid}) ended, or did not answer in time, before its {what}",
                hint="its own words are above; was the machine out of memory?",
            )
        said = json.loads(line)
        if "error" in said:
            error = said["error"]
            raise ERRORS.get(error["code"], CouldNotTell)(error["message"], hint=error["hint"])
        return said[what]


def _close(pipe: IO[str]) -> None:
    with suppress(BrokenPipeError):
        pipe.close()


def job_as_json(
    endpoint: Endpoint, protocol: Protocol, whole: Sequence[bytes], due_us: Sequence[int], plan: OpenLoopPlan
) -> dict[str, Any]:
    """What a worker is told to do."""
    return {
        "endpoint": endpoint.as_json(),
        "protocol": protocol.value,
        "messages": [base64.b64encode(one).decode() for one in whole],
        "due_us": list(due_us),
        "plan": asdict(plan),
    }


def job_from_json(job: dict[str, Any]) -> tuple[Endpoint, Protocol, list[bytes], list[int], OpenLoopPlan]:
    """What ``job_as_json`` gave."""
    plan = dict(job["plan"])
    objective = plan.pop("objective")
    return (
        Endpoint(**job["endpoint"]),
        Protocol(job["protocol"]),
        [base64.b64decode(one) for one in job["messages"]],
        job["due_us"],
        OpenLoopPlan(**plan, objective=None if objective is None else Objective(**objective)),
    )


def result_as_json(result: OpenLoopResult) -> dict[str, Any]:
    """What a worker answers."""
    return {
        "accounts": [account.as_json() for account in result.accounts],
        "evidence": result.evidence.as_json(),
        "server_alive": result.server_alive,
    }


def result_from_json(document: dict[str, Any], plan: OpenLoopPlan) -> OpenLoopResult:
    """What ``result_as_json`` gave."""
    accounts = tuple(Account.from_json(account) for account in document["accounts"])
    return OpenLoopResult(plan, accounts, Evidence(**document["evidence"]), bool(document["server_alive"]))
