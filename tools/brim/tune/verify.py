"""Measuring a setting: the climb to the highest rate that is answered in time, then the expected and the peak rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from brim.batcher.arrivals import Times
from brim.errors import InputError
from brim.tune.demand import Demand
from brim.tune.predict import Predictor
from brim.tune.run import Load, Purpose, Run
from brim.tune.rungs import climb, rate_of, rung_of
from brim.tune.setting import Setting
from brim.units import US_PER_S

MOST_SETTINGS = 5
"""Different settings on the real server at most, the default among them."""
STEP = 1.06
"""Rates that are measured are so far apart."""
SLO_LENGTHS = 6
"""A run lasts as many times the objective's latency: overload needs time to show."""
SHORTEST_US, LONGEST_US = 2 * US_PER_S, 5 * US_PER_S
LONGEST_EXPECTED_US = 10 * US_PER_S
ENOUGH_REQUESTS = 200
LEAST_REQUESTS = 20
FIRST_TRIES, FURTHER_TRIES = 6, 2
HOPELESS = 1.3
"""A rate so far above what was answered in time is not sent: its backlog would only have to be waited for."""

Send = Callable[[Load], Run]
"""Sends a load to a server that runs, or through the simulator."""


class Bench(Protocol):
    """Where settings are measured."""

    def open(self, setting: Setting) -> AbstractContextManager[Send]:
        """A server with this setting, for as long as the block lasts."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        run_us: length of a run.
        repeats: how often each setting is measured; in turns, so that a slow drift of the machine falls on all alike.
        settings: different settings at most.
        ceiling_per_s: the highest rate that is sent.
    """

    run_us: int
    repeats: int = 2
    settings: int = MOST_SETTINGS
    ceiling_per_s: float = 4_000.0

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: all faults at once.
        """
        faults = [
            f"{name} {value}: must be {least} to {most}"
            for name, value, least, most in (
                ("run_us", self.run_us, 100_000, 60 * US_PER_S),
                ("repeats", self.repeats, 1, 5),
                ("settings", self.settings, 1, MOST_SETTINGS),
                ("ceiling_per_s", self.ceiling_per_s, 1, 1_000_000),
            )
            if not least <= value <= most
        ]
        if faults:
            raise InputError("; ".join(faults), hint="correct these values")


def usual_run_us(slo_us: int) -> int:
    """Length of a run where none is asked for."""
    return min(max(SHORTEST_US, SLO_LENGTHS * slo_us), LONGEST_US)


class Arrivals:
    """The arrivals of every rate that is measured: the same for all settings, others for every repeat."""

    def __init__(self, demand: Demand, effort: Effort, seed: int) -> None:
        """Nothing is drawn yet."""
        self._demand, self._effort, self._seed = demand, effort, seed
        self._known: dict[tuple[float, int, int], Times] = {}

    def load(self, purpose: Purpose, repeat: int, rate_per_s: float) -> Load:
        """What is sent at a rate."""
        length_us = self._effort.run_us
        if purpose is Purpose.EXPECTED:
            length_us = min(
                max(length_us, round(ENOUGH_REQUESTS / rate_per_s * US_PER_S)), max(length_us, LONGEST_EXPECTED_US)
            )
        # Rates that lie close to one another share one drawing, stretched in time: else a burst more or less would decide
        # which of two neighbouring rates is answered in time.
        drawn_per_s = float(2 ** round(math.log2(rate_per_s)))
        count = max(LEAST_REQUESTS, round(drawn_per_s * length_us / US_PER_S))
        key = drawn_per_s, repeat, count
        if key not in self._known:
            self._known[key] = self._demand.arrivals_us(drawn_per_s, count, self._seed + 1_000 * (repeat + 1))
        stretched = np.rint(self._known[key] * (drawn_per_s / rate_per_s)).astype(np.int64)
        return Load(purpose, repeat, rate_per_s, stretched)


def measure_setting(
    send: Send, arrivals: Arrivals, demand: Demand, effort: Effort, *, repeat: int, is_first: bool, start_per_s: float
) -> list[Run]:
    """All runs of one setting in one repeat.

    Args:
        send: what answers.
        arrivals: what is sent.
        demand: objective and traffic.
        effort: how much.
        repeat: which repeat.
        is_first: whether the setting was not measured before: then the climb may take longer.
        start_per_s: where the climb begins: the capacity that is expected; 0 when none is, and nothing is climbed.
    """
    runs: list[Run] = []

    def at(purpose: Purpose, rate_per_s: float) -> Run:
        runs.append(send(arrivals.load(purpose, repeat, rate_per_s)))
        return runs[-1]

    ceiling = _floor_rung(effort.ceiling_per_s)
    if start_per_s > 0:
        climb(
            lambda rung: at(Purpose.CLIMB, rate_of(rung, STEP)).in_slo_ratio >= demand.share,
            min(rung_of(start_per_s, STEP), ceiling),
            lowest=rung_of(start_per_s / 16, STEP),
            highest=ceiling,
            tries=FIRST_TRIES if is_first else FURTHER_TRIES,
        )
    passed = [run.rate_per_s for run in runs if run.in_slo_ratio >= demand.share]
    bearable_per_s = HOPELESS * max(passed) if passed else (min(run.rate_per_s for run in runs) if runs else None)
    usual_per_s = expected_per_s(demand, start_per_s)
    for purpose, rate_per_s in ((Purpose.EXPECTED, usual_per_s), (Purpose.PEAK, demand.needed_per_s)):
        wanted = purpose is Purpose.EXPECTED or rate_per_s > usual_per_s
        bearable = bearable_per_s is None or rate_per_s <= bearable_per_s
        if wanted and bearable and rate_per_s <= effort.ceiling_per_s:
            at(purpose, rate_per_s)
    return runs


def _floor_rung(rate_per_s: float) -> int:
    rung = rung_of(rate_per_s, STEP)
    return rung if rate_of(rung, STEP) <= rate_per_s else rung - 1


def expected_per_s(demand: Demand, capacity_per_s: float) -> float:
    """The expected rate as it is measured. Where so few requests come that they would take too long, callers are as good as
    alone, and at a somewhat higher rate far below capacity they still are."""
    return max(demand.rate_per_s, min(LEAST_REQUESTS * US_PER_S / LONGEST_EXPECTED_US, capacity_per_s / 4))


def simulated(predictor: Predictor, setting: Setting) -> Send:
    """The simulator in a server's place."""

    def send(load: Load) -> Run:
        seen = predictor.through(setting, load.sent_us, load.rate_per_s)
        offered = len(load.sent_us)
        return Run(
            setting=setting,
            purpose=load.purpose,
            repeat=load.repeat,
            rate_per_s=load.rate_per_s,
            duration_us=load.duration_us,
            offered=offered,
            answered=offered,
            in_slo=round(seen.in_slo_ratio * offered),
            p50_us=seen.p50_us,
            p99_us=seen.p99_us,
            latency_us=seen.latency_us,
            mean_batch=seen.mean_batch,
        )

    return send
