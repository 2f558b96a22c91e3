"""A child that ends when its parent does, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 0.1


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

    For a process whose parent's thread may end earlier than the parent: a thread of its own waits for the parent's end.
    Without it a stub of Triton 24.10 stays for ever when the server is killed (seen). It has to be quick: once the server is
    collected, the stub looks for it every 300 ms, and then takes itself apart, which may never end and lets no Python code run
    meanwhile (python_backend r24.10, ``src/pb_stub.cc``; stubs stayed where this thread looked once a second).
    """
    parent = os.getppid()

    def watch() -> None:
        try:
            ended = select.poll()
            ended.register(os.pidfd_open(parent), select.POLLIN)
            ended.poll()
        except OSError:  # a sandbox without it, or the parent has gone
            while os.getppid() == parent:
                time.sleep(LOOK_EVERY_S)
        try:
            first()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="brim-parent", daemon=True).start()
