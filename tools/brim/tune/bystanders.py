"""How much of the machine other programs used while something was measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

BYSTANDERS = 0.3
"""Part of the machine that others may use before a run is doubted."""
IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Fields of the machine's times that are no use, or are counted in another one already."""


class Bystanders:
    """Cores that others used; None until the block has ended, and where it was too short to tell."""

    cores: float | None = None


@contextmanager
def watch_bystanders() -> Iterator[Bystanders]:
    """Watch the machine while the block runs. What this process and everything below it use is not counted."""
    seen = Bystanders()
    began, busy_s, own_s = time.monotonic(), _busy_s(), _own_s()
    yield seen
    took = time.monotonic() - began
    if took > 0:
        seen.cores = max(0.0, (_busy_s() - busy_s) - (_own_s() - own_s)) / took


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(getattr(times, field) for field in times._fields if field not in IDLE))


def _own_s() -> float:
    """Of this process, its children that have ended, and those that live."""
    own = psutil.Process()
    times = own.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            below = child.cpu_times()
            total += below.user + below.system
    return total
