"""What ``brim bench overload`` serves, what it asks of it, and how long it looks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.gateway.admission import Admission, ClassBounds, class_bound, in_flight_bound
from brim.measure.known_time import KnownTime
from brim.service.schema import BatchTime

MODEL, SLOW, QUICK = "overload", "overload_slow", "overload_quick"
"""Of the case's batch time; one whose batches last long enough to act while one runs; one that takes no time."""
INTERACTIVE, BATCH = "interactive", "batch"
"""Classes of callers, the more important one first. A request that names none counts as interactive."""
SLOW_US = 1_500_000
DEFAULT_TIME = KnownTime(tau0_us=100_000, alpha_us=4_000, record=True)
"""A full batch takes 500 ms: ten times the capacity is 1,800 requests a second, which two cores can send, check and refuse."""
HEADROOM_US = 100_000
"""Of the objective, kept for what a request costs outside of waiting and batches."""


@dataclass(frozen=True, slots=True)
class Case:
    """The model, its objective, and the bounds that the gateway derives from both.

    Attributes:
        time: batch time of the model.
        slo_us: what an answer may take, from when it was due.
        slow_us: batch time of the slow model, whatever the rows.
    """

    time: KnownTime = DEFAULT_TIME
    slo_us: int = 2_000_000
    slow_us: int = SLOW_US

    @property
    def max_rows(self) -> int:
        """Rows of a full batch."""
        return self.time.max_batch

    @property
    def full_batch_us(self) -> int:
        """What a full batch takes."""
        return round(self.time.time_us(self.max_rows))

    @property
    def full_rate_per_s(self) -> float:
        """Answers a second of full batches without a gap."""
        return self.max_rows * 1e6 / self.full_batch_us

    @property
    def bound(self) -> int:
        """Most requests in flight."""
        return in_flight_bound(
            slo_us=self.slo_us,
            time=BatchTime(tau0_us=self.time.tau0_us, alpha_us=self.time.alpha_us),
            max_rows=self.max_rows,
            overhead_us=HEADROOM_US,
        )

    def models(self) -> dict[str, KnownTime]:
        """Every model that is served."""
        slow = replace(self.time, tau0_us=self.slow_us, alpha_us=0.0, checks_cancelled=True)
        return {MODEL: self.time, SLOW: slow, QUICK: replace(self.time, tau0_us=0, alpha_us=0.0, record=False)}

    def admitted(self) -> dict[str, Admission]:
        """The gateway's bounds on each, over both classes."""
        classes = tuple(
            ClassBounds(name, priority, class_bound(self.bound, self.max_rows, priority - 1))
            for priority, name in enumerate((INTERACTIVE, BATCH), start=1)
        )
        return {
            name: Admission(
                in_flight=self.bound,
                max_rows=time.max_batch,
                batch_time=BatchTime(tau0_us=time.tau0_us, alpha_us=time.alpha_us),
                classes=classes,
                objectives_us=(self.slo_us,),
            )
            for name, time in self.models().items()
        }


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        seconds: length of an open loop, and of a closed one.
        factors: offered load over capacity, callers of one kind.
        mix_factors: the same, half interactive and half batch.
        mix_lengths: so many times ``seconds`` they last: that nobody is refused who is important shows only in many.
        tries: measurements of an open loop whose generator was the limit.
        callers: of the closed loops, whose best rate tells the capacity; never above the bound.
        capacity_ratio: capacity over that rate.
        burst: requests at once.
        burst_rounds: bursts.
        leavers: callers that disconnect.
        leave_tries: until they did so while the batch before them ran.
        cost_rounds: comparisons with and without the gateway; 0 leaves that part out.
        cost_window_ms: of the load generator there, which takes three.
        cost_callers: of its closed loop for the highest throughput; one caller tells what a request takes longer.
    """

    seconds: float = 10.0
    factors: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)
    mix_factors: tuple[float, ...] = (0.8, 2.0)
    mix_lengths: float = 2.0
    tries: int = 2
    callers: tuple[int, ...] = (200, 300)
    capacity_ratio: float = 0.9
    burst: int = 1_000
    burst_rounds: int = 5
    leavers: int = 200
    leave_tries: int = 3
    cost_rounds: int = 5
    cost_window_ms: int = 500
    cost_callers: int = 32


DEFAULT_EFFORT = Effort()
