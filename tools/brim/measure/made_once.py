"""One process at a time makes a tool in the cache; the others wait, and find it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from brim.errors import CouldNotTell

LOCK_TIMEOUT_S = 900.0
LOCK_POLL_S = 0.2


@contextmanager
def locked(path: Path, tool: str, on_progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock while the block runs.

    Args:
        path: the lock file; its folder exists.
        tool: what is being made, for messages.
        on_progress: told when another process holds the lock.

    Raises:
        CouldNotTell: another process holds it for longer than ``LOCK_TIMEOUT_S``.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w") as handle:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CouldNotTell(
                        f"{path}: another process has been preparing {tool} for {LOCK_TIMEOUT_S:.0f} s",
                        hint="end that process, then run again",
                    ) from None
                if not told:
                    on_progress(f"waiting for another process that is preparing {tool}")
                    told = True
                time.sleep(LOCK_POLL_S)
        yield
