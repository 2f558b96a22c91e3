"""What executes batches, and what surrounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brim.batcher.arrivals import Times
from brim.batcher.batch_time import BatchTime, jitter_factors, time_table
from brim.batcher.rule import NEVER
from brim.errors import InputError
from brim.units import US_PER_S

LONGEST_US = 3600 * US_PER_S
LARGEST_JITTER = 3.0
LOST_WAKEUP = 0.5
"""Share of lost wake-ups: 61 of 120 with one request waiting, 99 of 120 with twenty (24.10, two busy cores)."""

Execute = Callable[[int, int], tuple[int, int]]
"""``(rows, taken_us) -> (ended_us, compute_us)``, called once a batch in the order in which instances take them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What executes batches, and what surrounds it.

    Attributes:
        batch_time: tau(b).
        jitter: standard deviation of the logarithm of each batch's time, which has tau(b) as its mean; 0 for none.
        prepare_us: an instance's work on a batch before it needs the device.
        prepare_row_us: the same for every row of it.
        serialised: all instances share one device: they prepare at the same time and compute one after the other.
        overhead_us: what a request takes outside the queue and the batch: network, parsing, writing.
        request_us: what requests take one after the other before they are queued: a front end that one processor runs.
        release_row_us: for every row of a batch, time between its answers and the instance's being ready for the next.
        lost_wakeup: without prefetching, the share of executions whose end wakes the batcher before the instance is
            registered as idle. It then sleeps until a request arrives, another instance ends or 500 ms have passed.
    """

    batch_time: BatchTime
    jitter: float = 0.0
    prepare_us: int = 0
    prepare_row_us: int = 0
    serialised: bool = False
    overhead_us: int = 0
    request_us: int = 0
    release_row_us: int = 0
    lost_wakeup: float = LOST_WAKEUP

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            InputError: all of them at once.
        """
        faults = [
            f"{name} is {value}; 0..{most} is expected"
            for name, value, most in (
                ("jitter", self.jitter, LARGEST_JITTER),
                ("prepare_us", self.prepare_us, LONGEST_US),
                ("prepare_row_us", self.prepare_row_us, LONGEST_US),
                ("overhead_us", self.overhead_us, LONGEST_US),
                ("request_us", self.request_us, LONGEST_US),
                ("release_row_us", self.release_row_us, LONGEST_US),
                ("lost_wakeup", self.lost_wakeup, 1),
            )
            if not 0 <= value <= most
        ]
        if faults:
            raise InputError("; ".join(faults), hint="times are in microseconds, jitter and lost_wakeup are ratios")

    def execution(self, max_rows: int, rng: np.random.Generator) -> Execute:
        """How long batches take from here on: chance and the device's lock go from one batch to the next."""
        table = time_table(self.batch_time, max_rows)
        factors = jitter_factors(self.jitter, rng) if self.jitter else None
        preparing = [self.prepare_us + self.prepare_row_us * rows for rows in range(max_rows + 1)]
        serialised, device_free_us = self.serialised, -NEVER

        def execute(rows: int, taken_us: int) -> tuple[int, int]:
            nonlocal device_free_us
            compute_us = table[rows]
            if factors is not None:
                compute_us = max(1, round(compute_us * next(factors)))
            ready_us = taken_us + preparing[rows]
            if not serialised:
                return ready_us + compute_us, compute_us
            device_free_us = max(ready_us, device_free_us) + compute_us
            return device_free_us, compute_us

        return execute

    def entered_us(self, sent_us: Times) -> Times:
        """When requests sent at these ascending times are queued."""
        if not self.request_us:
            return sent_us
        passed = self.request_us * np.arange(len(sent_us))
        entered_us: Times = np.maximum.accumulate(sent_us - passed) + passed + self.request_us
        return entered_us
