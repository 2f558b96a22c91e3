"""A child that ends when its parent does, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """For ``preexec_fn``, or to be called by the child itself: the kernel signals it when ``parent`` ends.

    The kernel goes by the thread that started the child, so that thread has to live as long as the parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def ask_kernel() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel
