"""Waking one greenlet at a time, to some ten microseconds (``brim.measure.openloop_run.Alarm`` is the same for asyncio).

gevent's own timers come up to a millisecond late, because epoll counts in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Self

import gevent

from brim.measure.openloop_run import CLOCK_MONOTONIC, TFD_TIMER_ABSTIME

READABLE = 1
SOON_NS = 1
"""A time that is long past; 0 would switch the timer off."""


class Alarm:
    """A Linux timer file descriptor (``timerfd_create(2)``) that one greenlet waits for."""

    def __init__(self) -> None:
        """Nothing is opened before the ``with`` block."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = -1

    def __enter__(self) -> Self:
        """Open the timer."""
        self._file = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._watcher = gevent.get_hub().loop.io(self._file, READABLE)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._watcher.close()
        os.close(self._file)

    def wait_until(self, at_s: float) -> None:
        """Return when ``time.monotonic`` shows this, or when it is rung."""
        self._set(max(SOON_NS, round(at_s * 1e9)))
        gevent.get_hub().wait(self._watcher)
        with suppress(BlockingIOError):
            os.read(self._file, 8)

    def ring(self) -> None:
        """End the waiting now."""
        self._set(SOON_NS)

    def _set(self, at_ns: int) -> None:
        # struct itimerspec: interval (none), then the time itself.
        value = (ctypes.c_long * 4)(0, 0, *divmod(at_ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
