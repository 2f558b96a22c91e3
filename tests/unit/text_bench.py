"""An engine without a model whose steps take as long as a fit says, on a clock that they move."""

from __future__ import annotations

from brim.engine.engine import EngineLimits
from brim.engine.fake import FakeEngine
from brim.engine.step_time import StepShape, StepTime

REAL = StepTime(9_000, 1_000, 0.9, 900, 0.02)
LIMITS = EngineLimits(512, 32, 256, 2048, 49_152)


class StepClock:
    """Time that steps and waiting move; the engine tells of its steps by itself."""

    def __init__(self) -> None:
        self._now_us = 0

    def now_us(self) -> int:
        return self._now_us

    def wait_until(self, at_us: int) -> None:
        self._now_us = max(self._now_us, at_us)

    def stepped(self, took_us: int) -> None:
        """The engine has moved it."""

    def move(self, took_us: int) -> None:
        self._now_us += took_us


def engine_on_clock(limits: EngineLimits = LIMITS, step_time: StepTime = REAL) -> tuple[FakeEngine, StepClock]:
    clock = StepClock()

    def step_us(shape: StepShape) -> int:
        took_us = step_time.time_us(shape)
        clock.move(took_us)
        return took_us

    return FakeEngine(limits, step_us), clock
