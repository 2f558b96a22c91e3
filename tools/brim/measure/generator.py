"""Watching the load generator while it runs: its processor time, its memory, and when its load began and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from brim.errors import CouldNotTell
from brim.measure.attempt import clean_environment
from brim.server.embedded import die_with_parent
from brim.units import US_PER_S

LOAD_BEGINS = ("Request concurrency:", "Request Rate:")
LOAD_ENDS = ("  Client:",)
POLL_S = 0.05
END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run of the generator cost.

    Attributes:
        loaded_us: wall time from its first request to its last window.
        cores: processor time of the generator per wall time while it loaded, in cores; None when it could not be read
            (a container, or a run too short to be sampled twice).
        machine_busy: busy share (0..1) of all processors of the machine in that time.
        peak_rss_bytes: most resident memory of the generator.
    """

    loaded_us: int
    cores: float | None
    machine_busy: float | None
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A generator run that is over. ``ended`` says why we ended it; empty when it ended by itself."""

    status: int
    stdout: str
    stderr: str
    usage: Usage
    ended: str


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    own_s: float | None
    busy_s: float
    all_s: float


def run_watched(
    command: Sequence[str], folder: Path, *, time_limit_s: float, memory_limit_bytes: int, can_sample: bool = True
) -> Finished:
    """Run the generator in a process group of its own; end the group at a limit, and whenever this call is left.

    Args:
        command: the command line.
        folder: where ``stdout.txt`` and ``stderr.txt`` are kept.
        time_limit_s: wall time after which it is ended.
        memory_limit_bytes: resident memory above which it is ended.
        can_sample: False when the processes seen here are not the generator's own (a container).

    Raises:
        CouldNotTell: it cannot be started.
    """
    with (folder / "stderr.txt").open("wb") as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                env=clean_environment(),
                start_new_session=True,
                # In an open loop beyond capacity an orphan would fill the machine's memory.
                preexec_fn=die_with_parent(os.getpid()),
            )
        except OSError as error:
            raise CouldNotTell(
                f"perf_analyzer could not be started: {error}",
                hint="`brim doctor` tells which one is used, and from where",
            ) from error
        listener = _Listener(process, folder / "stdout.txt")
        try:
            usage, ended = _watch(process, listener, time_limit_s, memory_limit_bytes, can_sample)
        finally:
            _end_group(process)
            listener.thread.join(END_TIMEOUT_S)
    return Finished(
        status=process.returncode,
        stdout="".join(listener.lines),
        stderr=(folder / "stderr.txt").read_text(encoding="utf-8", errors="replace"),
        usage=usage,
        ended=ended,
    )


class _Listener:
    """Keeps what the generator prints, and notes when its load begins and ends."""

    def __init__(self, process: subprocess.Popen[str], copy: Path) -> None:
        self.lines: list[str] = []
        self.began = threading.Event()
        self.began_at_s: float | None = None
        self.ended_at_s: float | None = None
        self.thread = threading.Thread(target=self._listen, args=(process, copy), daemon=True)
        self.thread.start()

    def _listen(self, process: subprocess.Popen[str], copy: Path) -> None:
        assert process.stdout is not None
        with copy.open("w", encoding="utf-8", buffering=1) as kept, process.stdout:
            for line in process.stdout:
                now = time.monotonic()
                self.lines.append(line)
                kept.write(line)
                if self.began_at_s is None and line.startswith(LOAD_BEGINS):
                    self.began_at_s = now
                    self.began.set()
                elif self.ended_at_s is None and line.startswith(LOAD_ENDS):
                    self.ended_at_s = now


def _watch(
    process: subprocess.Popen[str],
    listener: _Listener,
    time_limit_s: float,
    memory_limit_bytes: int,
    can_sample: bool,
) -> tuple[Usage, str]:
    deadline = time.monotonic() + time_limit_s
    first: _Sample | None = None
    last: _Sample | None = None
    peak = 0
    ended = ""
    while process.poll() is None and not ended:
        if can_sample and listener.ended_at_s is None:
            rss, own_s = _of_group(process.pid)
            peak = max(peak, rss)
            if listener.began.is_set():
                last = _sample(own_s)
                first = first or last
        if peak > memory_limit_bytes:
            ended = (
                f"ended at {peak / 1024**2:.0f} MiB of memory (limit {memory_limit_bytes / 1024**2:.0f} MiB): "
                "requests pile up faster than they are answered"
            )
        elif time.monotonic() > deadline:
            ended = f"ended after {time_limit_s:.0f} s, the longest that its windows may take"
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    stopped_at_s = listener.ended_at_s or time.monotonic()
    loaded_s = max(0.0, stopped_at_s - (listener.began_at_s or stopped_at_s))
    return _usage(first, last, loaded_s, peak), ended


def _usage(first: _Sample | None, last: _Sample | None, loaded_s: float, peak: int) -> Usage:
    cores = machine_busy = None
    if first is not None and last is not None and last.at_s > first.at_s:
        if first.own_s is not None and last.own_s is not None:
            cores = max(0.0, (last.own_s - first.own_s) / (last.at_s - first.at_s))
        if last.all_s > first.all_s:
            # Sums of rounded times, whose quotient may be a hair above one.
            machine_busy = min(1.0, (last.busy_s - first.busy_s) / (last.all_s - first.all_s))
    return Usage(round(loaded_s * US_PER_S), cores, machine_busy, peak)


def _sample(own_s: float | None) -> _Sample:
    times = psutil.cpu_times()
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return _Sample(time.monotonic(), own_s, whole - idle, whole)


def _of_group(pid: int) -> tuple[int, float | None]:
    """Resident bytes and processor seconds of a process and its children (perf_analyzer on PATH may be a wrapper)."""
    rss, seconds = 0, 0.0
    try:
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            rss += one.memory_info().rss
            times = one.cpu_times()
            seconds += times.user + times.system
    except psutil.Error:
        return rss, None
    return rss, seconds


def _end_group(process: subprocess.Popen[str]) -> None:
    """End the generator's whole process group, which this module started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)
    # Also when the first of the group has ended: a child of it may not have.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_TIMEOUT_S)
