"""What the tuner is tried on: a model whose batch time is known, a service, and the settings of the exhaustive sweep.

Half of an execution's fixed time passes before the lock that instances share, as work on the processor before a GPU's. So
a second instance helps, and a delay that keeps the batches of two instances full helps once more; small preferred sizes
and three instances without a delay give away half of the throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

import brim
from brim.batcher.settings import Settings
from brim.measure.callers import Row
from brim.measure.known_time import INPUT, OUTPUT, WIDTH, KnownTime
from brim.service.schema import Service
from brim.tune import verify
from brim.tune.demand import Demand, demand_of
from brim.tune.predict import Predictor, Served
from brim.tune.search import LOOKS, capacity
from brim.tune.setting import Setting
from brim.units import US_PER_S, us_to_ms

MODEL = "known"
TRUTH = KnownTime(tau0_us=20_000, alpha_us=1_000, prepare_us=20_000)
SLO_US = 300_000
PREFERRED: tuple[tuple[int, ...], ...] = ((), (20,), (40,), (60,), (80,))
DELAYS_US = (0, 20_000, 60_000, 120_000)
INSTANCES = (1, 2, 3)
OVERHEAD_US = 1_000
"""Of a request beside queue and batch, roughly: a climb that begins a little off takes a run more."""
ROWS: Sequence[Row] = [{INPUT: np.full((1, WIDTH), value, np.float32)} for value in range(10)]


def sweep_settings() -> tuple[Setting, ...]:
    """The exhaustive sweep: 60 settings."""
    return tuple(Setting(*values) for values in product(PREFERRED, DELAYS_US, INSTANCES))


@dataclass(frozen=True)
class Case:
    """Batch time, objective and traffic, and what is swept.

    Attributes:
        truth: batch time; its settings are replaced by those that are measured.
        slo_us: latency of the objective, at the 99th percentile.
        rate_per_s: expected rate; far below capacity.
        peak_per_s: at the worst.
        settings: of the sweep.
    """

    truth: KnownTime = TRUTH
    slo_us: int = SLO_US
    rate_per_s: float = 300.0
    peak_per_s: float = 400.0
    settings: tuple[Setting, ...] = sweep_settings()

    @cached_property
    def service(self) -> Service:
        """What the tuner is given; its current setting is the default."""
        tensor = {"dtype": "FP32", "shape": [WIDTH]}
        return Service.model_validate(
            {
                "name": MODEL,
                # Never read: the repository holds the model of known time under this name.
                "model": {"onnx": f"{MODEL}.onnx"},
                "inputs": [{"name": INPUT, **tensor}],
                "outputs": [{"name": OUTPUT, **tensor}],
                "slo": {"latency_ms": us_to_ms(self.slo_us)},
                "traffic": {"rate_per_s": self.rate_per_s, "peak_per_s": self.peak_per_s},
            }
        )

    @property
    def demand(self) -> Demand:
        """Objective and traffic, as the tuner has them."""
        return demand_of(self.service)

    @property
    def climb_only(self) -> Demand:
        """The same with a rate and a peak that nothing can send, so that a measurement is the climb alone."""
        return replace(self.demand, rate_per_s=math.inf, peak_per_s=math.inf)

    @cached_property
    def machine(self) -> Predictor:
        """The simulator with the truth, which the tuner does not have: where the climbs of the sweep begin."""
        rows = range(1, self.truth.max_batch + 1)
        served = Served(
            tuple(self.truth.time_us(count) for count in rows),
            overhead_us=OVERHEAD_US,
            prepare_us=self.truth.prepare_us,
        )
        return Predictor(served, self.demand, self.base, seed=0)

    def expected_per_s(self, setting: Setting, ceiling_per_s: float) -> float:
        """Capacity of a setting as the simulator has it; a quarter of full batches' where it sees none."""
        full_per_s = US_PER_S * self.truth.max_batch / self.truth.time_us(self.truth.max_batch)
        found = capacity(self.machine, setting, LOOKS[1], ceiling_per_s=ceiling_per_s)
        return found or min(full_per_s / 4, ceiling_per_s)

    @property
    def base(self) -> Settings:
        """The model's configuration for the simulator."""
        return Settings(self.truth.max_batch)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        tune_repeats: how often the tuner measures each of its settings.
        tune_budget_s: time after which the tuner measures no setting again, as ``brim tune --budget-s``.
        tune_settings: different settings that the tuner measures at most.
        tau_budget_us: time for the designed run.
        run_us: length of a run of the sweep and of the tuner; the tuner's usual one when None.
        final_run_us: length of a run of the final comparison.
        finalists: settings of the sweep that are measured again beside the choice.
        rounds: of the final comparison.
        ceiling_per_s: the highest rate that is sent.
    """

    tune_repeats: int = 2
    tune_budget_s: float = 300.0
    tune_settings: int = verify.MOST_SETTINGS
    tau_budget_us: int = 15_000_000
    run_us: int | None = None
    final_run_us: int = 3 * US_PER_S
    finalists: int = 3
    rounds: int = 6
    ceiling_per_s: float = 4_000.0

    def tuning(self, slo_us: int) -> verify.Effort:
        """The tuner's."""
        return verify.Effort(
            self.run_us or verify.usual_run_us(slo_us),
            repeats=self.tune_repeats,
            settings=self.tune_settings,
            ceiling_per_s=self.ceiling_per_s,
        )

    def final(self) -> verify.Effort:
        """Of the final comparison."""
        return verify.Effort(self.final_run_us, repeats=1, ceiling_per_s=self.ceiling_per_s)


def parameters(case: Case, effort: Effort, seed: int) -> dict[str, Any]:
    """What a run folder is made for: two measurements under the same of these may stand side by side. The number of
    rounds is not among them, so that an answer that is unclear can be given more."""
    made = asdict(effort)
    del made["rounds"]
    return {
        "brim": brim.__version__,
        "batch_time": asdict(case.truth),
        "slo_us": case.slo_us,
        "rate_per_s": case.rate_per_s,
        "peak_per_s": case.peak_per_s,
        "settings": [setting.as_json() for setting in case.settings],
        "effort": made,
        "seed": seed,
    }
