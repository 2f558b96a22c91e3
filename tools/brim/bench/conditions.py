"""Under what conditions a benchmark ran: the machine, the versions, and how much of it others used meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil

from brim.limits import DEFAULT_TRITON_RELEASE
from brim.runtime.session import cores


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of a whole benchmark.

    Attributes:
        processor: as the system names it.
        cores: that this process may use.
        load_average_before: one-minute load of the machine at the start.
        load_average_after: the same at the end.
        other_cores: cores that processes outside the benchmark used, on average, while it ran.
        versions: of what was measured.
    """

    processor: str
    cores: int
    load_average_before: float
    load_average_after: float
    other_cores: float
    versions: dict[str, str]

    def as_json(self) -> dict[str, object]:
        """For the envelope."""
        return asdict(self)

    def __str__(self) -> str:
        """For the head of a table."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.processor}, {self.cores} cores; load average {self.load_average_before:.2f} before and "
            f"{self.load_average_after:.2f} after; others used {self.other_cores:.2f} cores meanwhile; {versions}"
        )


class Watch:
    """Notes the conditions from its start to ``stop``."""

    def __init__(self) -> None:
        """Begin."""
        self._load = os.getloadavg()[0]
        self._at_s = time.monotonic()
        self._own = _OwnTime()
        self._busy_s = _busy_s()

    def note(self) -> None:
        """Count what children have used so far; call it before a child ends."""
        self._own.note()

    def stop(self) -> Conditions:
        """The conditions since the start."""
        self.note()
        elapsed_s = max(time.monotonic() - self._at_s, 1e-9)
        others_s = _busy_s() - self._busy_s - self._own.used_s
        return Conditions(
            processor=_processor(),
            cores=cores(),
            load_average_before=self._load,
            load_average_after=os.getloadavg()[0],
            other_cores=max(0.0, others_s / elapsed_s),
            versions={
                "Triton": DEFAULT_TRITON_RELEASE,
                "ONNX Runtime": ort.__version__,
                "numpy": np.__version__,
                "Python": platform.python_version(),
            },
        )


class _OwnTime:
    """Processor seconds of this process and its descendants, those that have ended and been waited for included."""

    def __init__(self) -> None:
        self._start_s = self._now_s()
        self.used_s = 0.0

    def note(self) -> None:
        self.used_s = max(self.used_s, self._now_s() - self._start_s)

    @staticmethod
    def _now_s() -> float:
        own = psutil.Process()
        total = 0.0
        for process in (own, *own.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total


def _busy_s() -> float:
    times = psutil.cpu_times()
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return float(whole - times.idle - getattr(times, "iowait", 0.0))


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
