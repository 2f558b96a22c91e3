"""The python backend's stub processes: one an instance, children of the tritonserver.

The command line of a stub (24.10) is: the stub's program, the path ``<repository>/<model>/<version>/model.py``, the name of
its shared-memory region, sizes, the server's pid, the backend's folder, a number, the instance's name, ``DEFAULT``. A stub
that was killed stays a zombie, since Triton collects only the stubs that it has told to end (measured on 24.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

import psutil

PROGRAM = "triton_python_backend_stub"
SHOWN_NAME = PROGRAM[:15]
"""The kernel keeps 15 letters of a name, and a zombie has no command line to tell the rest."""


@dataclass(frozen=True, slots=True)
class Stub:
    """One stub process and the model whose code it runs."""

    model: str
    process: psutil.Process

    def has_gone(self) -> bool:
        """Whether it runs no more. Two looks at /proc, some 50 us."""
        try:
            return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def is_uncollected(self) -> bool:
        """Whether it has ended and its server has not asked how: Triton collects at once what it has told to end."""
        try:
            return self.process.is_running() and self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def model_of(command_line: Sequence[str], prefix: str) -> str | None:
    """The model that a stub of the server with this shared-memory prefix runs; None for any other command line."""
    for path, region in pairwise(command_line):
        if region.startswith(prefix) and len(PurePath(path).parts) > 2:
            return PurePath(path).parts[-3]
    return None


def stubs_of(server_pid: int, prefix: str) -> list[Stub]:
    """The living stubs of a server."""
    found = []
    for child in _children(server_pid):
        try:
            model = model_of(child.cmdline(), prefix)
        except psutil.Error:
            continue
        if model is not None:
            found.append(Stub(model, child))
    return found


def killed_stubs_of(server_pid: int) -> int:
    """How many stubs of a server have died without being told to, and still stand in the process table."""
    count = 0
    for child in _children(server_pid):
        try:
            count += child.status() == psutil.STATUS_ZOMBIE and child.name().startswith(SHOWN_NAME)
        except psutil.NoSuchProcess:
            continue
    return count


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
