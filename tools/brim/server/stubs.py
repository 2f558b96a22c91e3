"""The python backend's stub processes: one an instance, children of the tritonserver.

The command line of a stub (24.10) is: the stub's program, the path ``<repository>/<model>/<version>/model.py``, the name of
its shared-memory region, two sizes, the server's pid, the backend's folder, a number, the instance's name, ``DEFAULT``. A stub
that was killed stays a zombie, since Triton collects only the stubs that it has told to end (measured on 24.10).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

import psutil

PROGRAM = "triton_python_backend_stub"
SHOWN_NAME = PROGRAM[:15]
"""The kernel keeps 15 letters of a name, and a zombie has no command line to tell the rest."""
INSTANCE_AFTER_REGION = 6
KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
"""Only with CONFIG_PROC_CHILDREN, which the kernels of the common distributions have."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What a stub is there for: one instance of one version of a model."""

    model: str
    version: str
    instance: str
    """Its name, such as ``text_embedding_0_1``; empty where the command line ends before it."""


@dataclass(frozen=True, slots=True)
class Stub:
    """One stub process; the duty of one that had died before anybody looked cannot be told any more (None)."""

    duty: Duty | None
    started_s: float
    process: psutil.Process

    @property
    def model(self) -> str:
        """Whose code it runs; empty when that cannot be told."""
        return self.duty.model if self.duty else ""

    def replaces(self, other: Stub) -> bool:
        """Whether it was started for the same instance later, as a load of a loaded model does."""
        return (
            self.duty is not None
            and bool(self.duty.instance)
            and self.duty == other.duty
            and self.started_s > other.started_s
        )

    def has_gone(self) -> bool:
        """Whether it runs no more. Two looks at /proc, some 50 us."""
        try:
            return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def is_uncollected(self) -> bool:
        """Whether it has ended and its server has not asked how.

        Also true for a moment of a stub that Triton has told to end and waits for: a process shows as a zombie as soon as
        its first thread has ended, and can be collected when the last one has, which gives the memory back before.
        """
        try:
            return self.process.is_running() and self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def duty_of(command_line: Sequence[str], prefix: str) -> Duty | None:
    """The duty of a stub of the server with this shared-memory prefix; None for any other command line."""
    for at, (path, region) in enumerate(pairwise(command_line), start=1):
        parts = PurePath(path).parts
        if region.startswith(prefix) and len(parts) > 2:
            name = command_line[at + INSTANCE_AFTER_REGION : at + INSTANCE_AFTER_REGION + 1]
            return Duty(parts[-3], parts[-2], name[0] if name else "")
    return None


def stubs_of(server_pid: int, prefix: str) -> list[Stub]:
    """The living stubs of a server."""
    stubs = (_stub(child, prefix) for child in _children(server_pid))
    return [stub for stub in stubs if stub is not None and stub.duty is not None]


def unseen_stubs_of(server_pid: int, prefix: str, seen: Collection[int]) -> list[Stub]:
    """The stubs of a server, living and dead, but for the process ids in ``seen``.

    Cheaper than ``stubs_of`` (1.3 ms beside a server of 100 threads, however many processes the machine has). One whose
    parent thread ends during the look can be missed, and is found by the next one.
    """
    found = []
    for pid in _listed_children(server_pid):
        if pid in seen:
            continue
        try:
            stub = _stub(psutil.Process(pid), prefix)
        except psutil.NoSuchProcess:
            continue
        if stub is not None:
            found.append(stub)
    return found


def killed_stubs_of(server_pid: int) -> int:
    """How many stubs of a server have died without being told to, and still stand in the process table."""
    return sum(_is_dead_stub(child) for child in _children(server_pid))


def _stub(process: psutil.Process, prefix: str) -> Stub | None:
    try:
        duty = duty_of(process.cmdline(), prefix)
        if duty is not None or _is_dead_stub(process):
            return Stub(duty, process.create_time(), process)
    except psutil.ZombieProcess:
        if _is_dead_stub(process):
            return Stub(None, process.create_time(), process)
    except psutil.Error:
        pass
    return None


def _is_dead_stub(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.name().startswith(SHOWN_NAME)
    except psutil.NoSuchProcess:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def _listed_children(pid: int) -> set[int]:
    """Ids of a process's children. The kernel keeps them by the thread that has made them."""
    if not KERNEL_LISTS_CHILDREN:
        return {child.pid for child in _children(pid)}
    found: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - half the cost of a Path each
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listed:  # noqa: PTH123
                found.update(map(int, listed.read().split()))
        except OSError:
            continue
    return found
