"""A bench without a server: a machine that tuning does not know, behind the simulator, with a count of what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from brim.batcher.arrivals import OpenLoop
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.service.schema import Service
from brim.tune.demand import demand_of
from brim.tune.grid import Grid
from brim.tune.predict import Predictor, Served, settings_for
from brim.tune.run import Load, Run
from brim.tune.setting import Setting
from brim.tune.verify import Send, simulated


def service(**changes: object) -> Service:
    """A service of one tensor; keys are those of the service file."""
    base: dict[str, object] = {
        "name": "known",
        "model": {"onnx": "known.onnx"},
        "inputs": [{"name": "X", "dtype": "FP32", "shape": [4]}],
        "outputs": [{"name": "Y", "dtype": "FP32", "shape": [4]}],
        "slo": {"latency_ms": 100},
        "traffic": {"rate_per_s": 300, "peak_per_s": 600},
    }
    return Service.model_validate({**base, **changes})


def served(tau0_us: float, alpha_us: float, **changes: object) -> Served:
    """A machine with tau(b) = tau0 + alpha b."""
    made = Served(tuple(tau0_us + alpha_us * rows for rows in range(1, 101)), overhead_us=300)
    return replace(made, **changes)  # type: ignore[arg-type]


SMALL = Grid(
    tuple(
        Setting(preferred, delay_us, instances)
        for preferred in ((), (25,), (50,))
        for delay_us in (0, 2_000, 10_000, 30_000)
        for instances in (1, 2)
    ),
    generated=24,
    refused={},
)
"""Candidates that take a moment."""


class FakeBench:
    """The real machine is ``truth``; ``slower`` multiplies its batch times repeat by repeat."""

    def __init__(
        self, of: Service, truth: Served, *, slower: tuple[float, ...] = (), base: Settings | None = None
    ) -> None:
        self.truth, self.slower = truth, slower
        self.base = base or Settings(of.max_batch_size)
        self.demand = demand_of(of)
        self.opened: list[Setting] = []
        self.loads: list[Load] = []

    @property
    def settings(self) -> set[Setting]:
        """Different settings that were measured."""
        return set(self.opened)

    @contextmanager
    def open(self, setting: Setting) -> Iterator[Send]:
        self.opened.append(setting)
        yield lambda load: self._send(setting, load)

    def _send(self, setting: Setting, load: Load) -> Run:
        self.loads.append(load)
        factor = self.slower[load.repeat % len(self.slower)] if self.slower else 1.0
        truth = replace(self.truth, time_us=tuple(factor * time_us for time_us in self.truth.time_us))
        run = simulated(Predictor(truth, self.demand, self.base, seed=99), setting)(load)
        batches = simulate(
            settings_for(self.base, setting), truth.machine(setting), OpenLoop(load.sent_us), seed=99
        ).batches
        sizes, counts = np.unique(batches.rows, return_counts=True)
        # What goes before an execution is not in Triton's time of it; waiting for another instance is.
        taken = batches.ended_us - batches.taken_us - truth.prepare_us
        return replace(
            run,
            executions_by_size=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
            execution_us_by_size={int(size): float(taken[batches.rows == size].mean()) for size in sizes},
        )
