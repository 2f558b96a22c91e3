"""A child that ends when its parent does, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 1.0


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


def end_with_parent(first: Callable[[], None]) -> None:
    """End this process soon after its parent has, having called ``first``.

    For a process whose parent's thread may end earlier than the parent: a thread of its own looks now and then. Without it
    a stub of Triton 24.10 stays for ever when the server is killed (seen).
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
        try:
            first()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="brim-parent", daemon=True).start()
