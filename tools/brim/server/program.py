"""Ending a program that was started beside the server: the gateway's Envoy, the picker, Prometheus."""

from __future__ import annotations

import subprocess

KILLED_TIMEOUT_S = 10.0


def end_program(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Ask it to end, and end it when it does not within so long.

    Raises:
        subprocess.TimeoutExpired: it is there ``KILLED_TIMEOUT_S`` after it was killed, held by the kernel.
    """
    try:
        process.terminate()
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait(KILLED_TIMEOUT_S)
