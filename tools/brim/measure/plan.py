"""What to measure: the load, the values to visit, and when a figure counts as stable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from brim.errors import InputError

LEAST_TRIALS = 3
"""perf_analyzer compares its last three windows: with fewer trials it never reports (seen with release 2.60.0)."""
MOST_THREADS = 16
"""perf_analyzer's own default."""
WINDOW_STRETCH = 1.2
"""A window of N ms takes 1.2 N ms of wall time (seen with release 2.60.0)."""


class Mode(StrEnum):
    """``concurrency`` is a closed loop of N callers; ``rate`` an open loop of R requests a second."""

    CONCURRENCY = "concurrency"
    RATE = "rate"


class Protocol(StrEnum):
    """How the requests travel."""

    HTTP = "http"
    GRPC = "grpc"


class Distribution(StrEnum):
    """Gaps between requests in rate mode."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement plan.

    Attributes:
        mode: closed or open loop.
        values: concurrencies (whole numbers) or rates (requests a second), one point each, in this order.
        protocol: HTTP or gRPC.
        distribution: arrival gaps, rate mode only.
        input_data: perf_analyzer's JSON file of rows; random tensors when absent.
        shapes: sizes of the variable dimensions of each input, without the batch dimension.
        window_ms: length of one measurement window.
        stability_percent: the last three windows must agree within this.
        max_trials: windows at most, 3 at least.
        max_threads: threads of the generator; chosen for this machine when absent.
        percentile: latency percentile that must be stable; reported beside 50, 90, 95 and 99.
        memory_limit_bytes: the generator is ended above this. In an open loop beyond capacity its requests pile up
            without bound, and so do the server's.
        percentiles: further latency percentiles (99.9). They come from an export of every request with its tensors,
            which is large and slows the generator; without any, nothing is exported.
    """

    mode: Mode
    values: tuple[float, ...]
    protocol: Protocol = Protocol.GRPC
    distribution: Distribution = Distribution.POISSON
    input_data: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    window_ms: int = 2_000
    stability_percent: float = 10.0
    max_trials: int = 10
    max_threads: int | None = None
    percentile: int = 99
    memory_limit_bytes: int = 1024**3
    percentiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what perf_analyzer would refuse, or would answer with nothing.

        Raises:
            InputError: with every fault at once.
        """
        faults = []
        if not self.values:
            faults.append("values is empty: at least one concurrency or rate is needed")
        faults += [f"value {value:g}: must be above 0" for value in self.values if not value > 0]
        if self.mode is Mode.CONCURRENCY:
            faults += [f"concurrency {value:g}: must be a whole number" for value in self.values if value % 1]
        if self.max_trials < LEAST_TRIALS:
            faults.append(
                f"max_trials {self.max_trials}: must be {LEAST_TRIALS} or more, or perf_analyzer never reports: it "
                f"compares its last {LEAST_TRIALS} windows"
            )
        if self.window_ms < 1:
            faults.append(f"window_ms {self.window_ms}: must be 1 or more")
        if not 1 <= self.percentile <= 99:
            faults.append(f"stable percentile {self.percentile}: must be 1 to 99, which is what perf_analyzer takes")
        faults += [f"percentile {p:g}: must be above 0 and at most 100" for p in self.percentiles if not 0 < p <= 100]
        if not self.stability_percent > 0:
            faults.append(f"stability_percent {self.stability_percent:g}: must be above 0")
        if self.max_threads is not None and self.max_threads < 1:
            faults.append(f"max_threads {self.max_threads}: must be 1 or more")
        if self.input_data is not None and not self.input_data.is_file():
            faults.append(f"input_data {self.input_data}: there is no such file")
        if faults:
            raise InputError(
                "the measurement plan cannot be carried out: " + "; ".join(faults), hint="correct these values"
            )

    def threads(self, cores: int) -> int:
        """Threads for the generator on a machine of so many cores that the server shares.

        perf_analyzer's default of 16 starves a small machine and one thread starves the generator; on two cores two
        gave the most. Half the cores, 2 at least, 16 at most.
        """
        return self.max_threads or max(2, min(cores // 2, MOST_THREADS))

    def time_limit_s(self) -> float:
        """How long one perf_analyzer run may take: its windows, as much again for slow answers, and start and end."""
        return 2 * WINDOW_STRETCH * self.max_trials * self.window_ms / 1_000 + 60

    def fingerprint(self) -> str:
        """Twelve hex digits that change with everything but ``values``; a point is only reused under the same ones."""
        data = self.input_data.read_bytes() if self.input_data else b""
        parts = {
            "mode": self.mode,
            "protocol": self.protocol,
            "distribution": self.distribution if self.mode is Mode.RATE else "",
            "input_data": hashlib.sha256(data).hexdigest(),
            "shapes": {name: list(shape) for name, shape in sorted(self.shapes.items())},
            "window_ms": self.window_ms,
            "stability_percent": self.stability_percent,
            "max_trials": self.max_trials,
            "max_threads": self.max_threads,
            "percentile": self.percentile,
            "percentiles": list(self.percentiles),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
