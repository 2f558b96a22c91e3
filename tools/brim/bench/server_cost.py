"""Processor time of a running server: the tritonserver process and its python stubs."""

from __future__ import annotations

import psutil

from brim.errors import ServerFailed
from brim.units import US_PER_S


def cpu_us(pid: int, *, children: bool = True) -> int:
    """User and system time so far of a process, and of its children (a server's stubs), in microseconds.

    Raises:
        ServerFailed: one of them is gone.
    """
    try:
        server = psutil.Process(pid)
        total_s = 0.0
        for process in (server, *(server.children(recursive=True) if children else ())):
            times = process.cpu_times()
            total_s += times.user + times.system
    except psutil.Error as error:
        raise ServerFailed(
            f"the processor time of process {pid} cannot be read: {error}", hint="look at the server's log"
        ) from error
    return round(total_s * US_PER_S)
