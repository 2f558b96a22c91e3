"""What the gateway costs: the same model with and without it, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from brim.bench.overload_case import QUICK, Effort
from brim.bench.overload_place import Place
from brim.errors import CouldNotTell
from brim.measure.launcher import Launcher
from brim.measure.perf_analyzer import Run, any_stability, run_perf_analyzer
from brim.measure.plan import Mode, Plan, Protocol
from brim.server.endpoint import Endpoint

MEDIAN = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """One round over one protocol.

    Attributes:
        protocol: of the callers.
        direct_p50_us: of a lone caller, without the gateway.
        gateway_p50_us: the same with it.
        direct_per_s: answers a second for many callers, without the gateway.
        gateway_per_s: the same with it.
    """

    protocol: Protocol
    direct_p50_us: int
    gateway_p50_us: int
    direct_per_s: float
    gateway_per_s: float

    @property
    def added_us(self) -> int:
        """What a lone caller waits longer."""
        return self.gateway_p50_us - self.direct_p50_us

    @property
    def kept_ratio(self) -> float:
        """Of the throughput, what is left with the gateway."""
        return self.gateway_per_s / self.direct_per_s

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json``."""
        return asdict(self) | {"added_us": self.added_us, "kept_ratio": self.kept_ratio}


def measure_costs(
    place: Place, launcher: Launcher, effort: Effort, folder: Path, on_round: Callable[[int], None] = lambda _: None
) -> list[Cost]:
    """Every round over both protocols, direct first in every other one.

    Args:
        place: where.
        launcher: the load generator.
        effort: how long to look.
        folder: for its raw output.
        on_round: told after each, how many are over.

    Raises:
        CouldNotTell: the generator gave no figure.
    """
    found = []
    for number in range(effort.cost_rounds):
        for protocol in Protocol:
            found.append(_round(place, launcher, effort, folder / f"{number:02}-{protocol.value}", protocol, number))
        on_round(number + 1)
    return found


def _round(place: Place, launcher: Launcher, effort: Effort, folder: Path, protocol: Protocol, number: int) -> Cost:
    ways: dict[str, Endpoint] = {"direct": place.server.endpoint, "gateway": place.gateway.endpoint}
    order = list(ways) if number % 2 else list(reversed(ways))
    p50_us: dict[str, int] = {}
    per_s: dict[str, float] = {}
    for callers in (1, effort.cost_callers):
        for way in order:
            plan = any_stability(Plan(Mode.CONCURRENCY, (callers,), protocol=protocol, window_ms=effort.cost_window_ms))
            run = run_perf_analyzer(launcher, ways[way], QUICK, plan, callers, folder / f"{way}-{callers}")
            if callers == 1:
                p50_us[way] = _p50_us(run)
            else:
                # The first window holds the start.
                per_s[way] = mean(window.throughput for window in run.console.windows[1:])
    return Cost(protocol, p50_us["direct"], p50_us["gateway"], per_s["direct"], per_s["gateway"])


def _p50_us(run: Run) -> int:
    if run.figures is None or MEDIAN not in run.figures.latency_us or len(run.console.windows) < 2:
        raise CouldNotTell(f"the load generator gave no figure {run.ended}", hint=f"its output is in {run.folder}")
    return run.figures.latency_us[MEDIAN]
