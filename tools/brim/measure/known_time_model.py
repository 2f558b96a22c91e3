"""The model of ``known_time``: it runs inside Triton's python backend, alone, without anything of Brim.

One execution of b rows sleeps for ``prepare_us``, waits for the lock that all instances share, and holds it for tau(b).
Instances are processes of their own, so the lock is one on a file (``flock(2)``), which the kernel lets go when a process
ends, however it ends.
"""

import ctypes
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

PR_SET_TIMERSLACK = 29
LEAST_SLACK_NS = 1
SPIN_NS = 80_000
"""A sleeping thread gets a processor 20 to 100 us after its time, so the last bit is waited for awake."""


def sleep_until(deadline_ns: int) -> None:
    """Return when the monotonic clock shows this. ``time.sleep`` is ``clock_nanosleep`` from Python 3.11 on."""
    left_ns = deadline_ns - time.monotonic_ns()
    if left_ns > SPIN_NS:
        time.sleep((left_ns - SPIN_NS) / 1e9)
    while time.monotonic_ns() < deadline_ns:
        pass


class TritonPythonModel:
    """Y = 2 X, after a time that is known."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters of the configuration and open the lock."""
        # The kernel rounds a sleep up by 50 us unless a thread asks for less.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, LEAST_SLACK_NS, 0, 0, 0)
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {name: value["string_value"] for name, value in parameters.items()}
        self.prepare_ns = int(settings["prepare_us"]) * 1_000
        self.tau0_ns = int(settings["tau0_us"]) * 1_000
        self.alpha_ns = round(float(settings["alpha_us"]) * 1_000)
        self.step_rows = int(settings["step_rows"])
        folder = Path(args["model_repository"], args["model_version"])
        self.lock = os.open(folder / settings["lock_file"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.record = -1
        if settings["record_file"]:
            # Appended lines this short are written whole, whichever process writes them.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.record = os.open(folder / settings["record_file"], flags, 0o600)
        self.checks_cancelled = settings["checks_cancelled"] == "1"
        self.instance = args["model_instance_name"]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request with twice its own input, once the whole batch's time is over."""
        began_ns = time.monotonic_ns()
        inputs = [
            None
            if self.checks_cancelled and request.is_cancelled()
            else pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for request in requests
        ]
        if all(x is None for x in inputs):
            return [self._answer(x) for x in inputs]
        rows = sum(len(x) for x in inputs if x is not None)
        charged = -(-rows // self.step_rows) * self.step_rows
        sleep_until(began_ns + self.prepare_ns)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            locked_ns = time.monotonic_ns()
            sleep_until(locked_ns + self.tau0_ns + self.alpha_ns * charged)
            free_ns = time.monotonic_ns()
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            # A device begins its next run by itself. Here another process has to, which may have been woken on this very
            # processor: it comes before the answers of this batch.
            os.sched_yield()
        if self.record >= 0:
            line = {
                "instance": self.instance,
                "rows": rows,
                "began_ns": began_ns,
                "locked_ns": locked_ns,
                "free_ns": free_ns,
            }
            os.write(self.record, (json.dumps(line) + "\n").encode())
        return [self._answer(x) for x in inputs]

    @staticmethod
    def _answer(x: Any) -> Any:
        if x is None:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)])

    def finalize(self) -> None:
        """Close the files."""
        os.close(self.lock)
        if self.record >= 0:
            os.close(self.record)
