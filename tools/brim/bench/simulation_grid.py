"""The grid on which the simulator is held against the real server: batch times, settings, loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from brim.batcher.arrivals import ClosedLoop
from brim.batcher.machine import Machine
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.limits import BATCH_LIMIT
from brim.measure.known_time import KnownTime
from brim.units import US_PER_S

DELAY_US = 20_000
FULL_BATCHES_WAITING = 4
SATURATED_REQUESTS = 20_000


@dataclass(frozen=True, slots=True)
class Curve:
    """A batch time of the model of known batch time; long ones, so that a hundred rows a batch need no high rate.

    Attributes:
        name: for tables.
        time: tau(b).
    """

    name: str
    time: KnownTime

    def model(self, setting: Setting) -> KnownTime:
        """The model of this batch time under a setting."""
        return replace(self.time, instances=setting.instances, preferred=setting.preferred, delay_us=setting.delay_us)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is set of the batcher."""

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    instances: int = 1

    @property
    def model_name(self) -> str:
        """Name of the model that has it."""
        sizes = "_".join(map(str, self.preferred)) or "none"
        return f"preferred_{sizes}_delay_{self.delay_us}_instances_{self.instances}"

    @property
    def settings(self) -> Settings:
        """The same for the simulator."""
        return Settings(BATCH_LIMIT, preferred=self.preferred, delay_us=self.delay_us, instances=self.instances)

    def __str__(self) -> str:
        """For people."""
        sizes = f"preferred {list(self.preferred)}" if self.preferred else "no preferred"
        delay = f"delay {self.delay_us // 1_000} ms" if self.delay_us else "no delay"
        return f"{sizes}, {delay}, {self.instances} instance{'s' if self.instances > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the grid, before it has a rate.

    Attributes:
        curve: the batch time.
        setting: of the batcher.
        load: offered rate over the capacity that the simulator predicts, 0..1.
    """

    curve: Curve
    setting: Setting
    load: float


CURVES = (
    Curve("small fixed, large slope", KnownTime(tau0_us=10_000, alpha_us=900)),
    Curve("large fixed, small slope", KnownTime(tau0_us=80_000, alpha_us=200)),
    Curve("steps of 32 rows", KnownTime(tau0_us=10_000, alpha_us=700, step_rows=32)),
)
PLAIN = Setting()
SETTINGS = (
    PLAIN,
    Setting((100,), DELAY_US),
    Setting((32, 64), DELAY_US),
    Setting((100,), DELAY_US, instances=2),
)
LOADS = (0.2, 0.5, 0.85)


def grid(points: int | None = None) -> list[Case]:
    """All cases, curve by curve; with ``points`` so many, spread over curves, settings and loads."""
    cases = [Case(*values) for values in product(CURVES, SETTINGS, LOADS)]
    if points is None or points >= len(cases):
        return cases
    # Steps that have no factor in common with the number of cases meet each of them once, and no dimension in order.
    step = next(step for step in range(len(cases) * 7 // 10, len(cases) + 2) if gcd(step, len(cases)) == 1)
    return [cases[number] for number in sorted(turn * step % len(cases) for turn in range(points))]


def by_curve(cases: Sequence[Case]) -> Iterator[tuple[Curve, list[Case]]]:
    """The cases of each curve that has any."""
    for curve in dict.fromkeys(case.curve for case in cases):
        yield curve, [case for case in cases if case.curve == curve]


def capacity_per_s(setting: Setting, machine: Machine) -> float:
    """Requests a second at saturation, as the simulator predicts them: more callers than the instances can have at once."""
    callers = FULL_BATCHES_WAITING * BATCH_LIMIT * setting.instances
    return simulate(setting.settings, machine, ClosedLoop(callers, SATURATED_REQUESTS)).throughput


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        requests: of a point at least; a percentile needs them.
        least_s: length of a point at least.
        repeats: runs of each batch size in the designed run.
        executions: executions of each of them.
        lone_requests: requests that meet nobody, for what a request costs beside queue and batch.
        tries: of a point whose generator was the limit.
        budget_s: nothing is measured a second time after so long.
        again: of the worst points, measured once more to tell noise from a fault of the model.
    """

    requests: int = 2_500
    least_s: float = 7.0
    repeats: int = 3
    executions: int = 5
    lone_requests: int = 30
    tries: int = 4
    budget_s: float = 560.0
    again: int = 4

    def duration_us(self, rate_per_s: float) -> int:
        """Length of a point at this rate."""
        return round(max(self.least_s, self.requests / rate_per_s) * US_PER_S)


DEFAULT_EFFORT = Effort()
