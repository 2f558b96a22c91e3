"""What this machine has and lacks for serving, each with its remedy. Looks only; changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from brim.errors import BrimError
from brim.server import leftovers, wheel
from brim.server.container import require_engine
from brim.server.embedded import LEAST_SHM_BYTES

LEAST_DISK_BYTES = 2 * 1024**3
PROBE_TIMEOUT_S = 10


class State(StrEnum):
    """``absent`` is something optional that is not here; ``broken`` stops the two commands from working."""

    OK = "ok"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def _guarded(name: str, look: Callable[[], str], *, otherwise: State) -> Check:
    try:
        return Check(name, State.OK, look())
    except BrimError as error:
        return Check(name, otherwise, error.message, error.hint)


def _tritonserver() -> str:
    found = wheel.find_wheel()
    wheel.libpython_folder()
    return f"24.10 from {wheel.WHEEL} {found.version}, stub for Python {wheel.running_python()}"


def _shared_memory() -> Check:
    if not leftovers.SHM.is_dir():
        return Check("shared memory", State.BROKEN, "/dev/shm does not exist", "mount a tmpfs on it")
    free = shutil.disk_usage(leftovers.SHM).free
    enough = free >= LEAST_SHM_BYTES
    remedy = "" if enough else "remove old files there, or docker run --shm-size=1g"
    return Check("shared memory", State.OK if enough else State.BROKEN, f"{free // 2**20} MiB free in /dev/shm", remedy)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    enough = free >= LEAST_DISK_BYTES
    remedy = "" if enough else f"free at least {LEAST_DISK_BYTES // 2**30} GiB for weights and logs"
    return Check("disk", State.OK if enough else State.BROKEN, f"{free // 2**30} GiB free", remedy)


def _gpu() -> Check:
    remedy = "everything runs on the CPU without one"
    if shutil.which("nvidia-smi") is None:
        return Check("gpu", State.ABSENT, "no nvidia-smi", remedy)
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("gpu", State.ABSENT, f"nvidia-smi does not answer: {error}", remedy)
    if answer.returncode or not answer.stdout.strip():
        return Check("gpu", State.ABSENT, "nvidia-smi finds no GPU", remedy)
    return Check("gpu", State.OK, "; ".join(answer.stdout.strip().splitlines()))


def _engine() -> str:
    require_engine()
    return "a Docker engine answers"


def _leftovers() -> Check:
    running = [path.stem for path in leftovers.notes_folder().glob("brim_*.json")]
    detail = f"{len(running)} server(s) of this user are noted" if running else "no server of this user is running"
    return Check("servers", State.OK, detail)


def look(folder: Path) -> list[Check]:
    """Everything that serving depends on, for a checkout in ``folder``."""
    glibc = wheel.glibc_version()
    memory = psutil.virtual_memory()
    return [
        Check(
            "machine",
            State.OK,
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {memory.total // 2**30} GiB",
        ),
        Check(
            "python",
            State.OK,
            f"{platform.python_version()}, glibc {'.'.join(map(str, glibc)) if glibc else 'none'}",
        ),
        _guarded("tritonserver", _tritonserver, otherwise=State.BROKEN),
        _shared_memory(),
        _disk(folder),
        _leftovers(),
        _gpu(),
        _guarded("docker", _engine, otherwise=State.ABSENT),
    ]
