"""Watching a generator: limits end it, nothing of it stays, and its load is timed from its own words. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from brim.errors import CouldNotTell
from brim.measure import generator
from brim.measure.generator import Finished, run_watched

GIB = 1024**3
PATIENCE_S = 30


def run(script: str, folder: Path, *, time_limit_s: float = PATIENCE_S, memory: int = GIB) -> Finished:
    command = [sys.executable, "-u", "-c", script]
    return run_watched(command, folder, time_limit_s=time_limit_s, memory_limit_bytes=memory)


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_output_is_kept_and_load_is_timed(tmp_path: Path) -> None:
    script = """
import sys, time
print("Request concurrency: 4")
end = time.monotonic() + 0.5
while time.monotonic() < end: pass
print("  Client: ")
print("a word", file=sys.stderr)
time.sleep(0.3)
sys.exit(7)
"""
    done = run(script, tmp_path)
    assert (done.status, done.ended) == (7, "")
    assert done.stdout == (tmp_path / "stdout.txt").read_text() == "Request concurrency: 4\n  Client: \n"
    assert done.stderr == "a word\n"
    assert done.usage.loaded_us >= 490_000
    assert done.usage.cores is not None
    assert done.usage.cores > 0
    assert done.usage.machine_busy is not None
    assert 0 <= done.usage.machine_busy <= 1
    assert done.usage.peak_rss_bytes > 0


def test_a_generator_that_never_loads_has_no_time_under_load(tmp_path: Path) -> None:
    done = run("print('error: no')", tmp_path)
    assert (done.usage.loaded_us, done.usage.cores) == (0, None)


def test_memory_ends_it(tmp_path: Path) -> None:
    script = "import time\nkept = b'x' * (200 << 20)\nprint('Request Rate: 1')\ntime.sleep(600)"
    done = run(script, tmp_path, memory=100 << 20)
    assert "MiB of memory" in done.ended
    assert done.status == -signal.SIGTERM


@pytest.mark.parametrize("deaf", ["parent", "child"])
def test_time_ends_it_and_its_children(deaf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not hear SIGTERM."""
    monkeypatch.setattr(generator, "END_TIMEOUT_S", 2.0)
    script = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if {deaf == "child"}:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
print(child.pid)
time.sleep(600)
"""
    done = run(script, tmp_path, time_limit_s=5)
    assert "ended after" in done.ended
    assert done.status == -(signal.SIGTERM if deaf == "child" else signal.SIGKILL)
    assert is_gone(int(done.stdout))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CouldNotTell, match="could not be started"):
        run_watched([str(tmp_path / "absent")], tmp_path, time_limit_s=1, memory_limit_bytes=GIB)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_us_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from brim.measure.generator import run_watched
inner = "import os, time; print(os.getpid()); time.sleep(600)"
run_watched([sys.executable, "-u", "-c", inner], Path({str(tmp_path)!r}), time_limit_s=600, memory_limit_bytes={GIB})
"""
    outer = subprocess.Popen([sys.executable, "-c", script], env=dict(os.environ), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        kept = tmp_path / "stdout.txt"
        while not (kept.is_file() and kept.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        pid = int(kept.read_text())
        outer.send_signal(number)
        outer.wait(PATIENCE_S)
        assert is_gone(pid)
    finally:
        if outer.poll() is None:
            outer.kill()
            outer.wait(PATIENCE_S)
