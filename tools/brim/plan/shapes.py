"""Built-in traffic of a fleet. Pure; the same arguments give the same traffic."""

from __future__ import annotations

import math
from enum import StrEnum

from brim.errors import InputError
from brim.plan.traffic import HIGHEST_RATE, LONGEST_S, Loss, Slow, Traffic

DAY_POINTS = 96
"""A day is drawn in quarters of an hour, however long the trace is."""
FLASH_AT, FLASH_RISE_S, FLASH_SHARE = 0.25, 60.0, 0.25
"""A flash crowd begins after a quarter of the time, has all come within a minute (or a tenth of the time), and stays for a quarter."""
LOSS_AT = 0.5
SLOW_FACTOR = 4.0
LOST_SHARE = 1 / 3
"""Of the replicas that the peak needs: one zone of three."""


class Shape(StrEnum):
    """What a fleet's traffic looks like."""

    STEADY = "steady"
    """The rate throughout."""
    DIURNAL = "diurnal"
    """A day: from the rate at night to the peak at noon and back."""
    FLASH_CROWD = "flash-crowd"
    """The rate, then the peak within a minute, for a quarter of the time, and back."""
    REPLICA_LOSS = "replica-loss"
    """The peak throughout, and a third of its replicas lost in the middle."""
    SLOW_REPLICA = "slow-replica"
    """The peak throughout, and one replica that takes four times as long for the middle third."""
    STEADY_GROWTH = "steady-growth"
    """Evenly from the rate to the peak."""


def shaped(shape: Shape, rate_per_s: float, peak_per_s: float, duration_s: float, *, peak_replicas: int = 1) -> Traffic:
    """Traffic of this shape.

    Args:
        shape: which.
        rate_per_s: requests a second of the whole fleet at the least.
        peak_per_s: and at the most.
        duration_s: length of the trace.
        peak_replicas: that carry the peak, of which ``LOST_SHARE`` are lost in ``Shape.REPLICA_LOSS``.

    Raises:
        InputError: a value is out of range; all of them at once.
    """
    faults = [
        f"{name} is {value:g}; {least} {most:g} is expected"
        for name, value, least, most, fits in (
            ("the rate", rate_per_s, "above 0 and at most", HIGHEST_RATE, 0 < rate_per_s <= HIGHEST_RATE),
            (
                "the peak",
                peak_per_s,
                f"from the rate ({rate_per_s:g}) to",
                HIGHEST_RATE,
                rate_per_s <= peak_per_s <= HIGHEST_RATE,
            ),
            ("the duration in seconds", duration_s, "from 1 to", LONGEST_S, 1 <= duration_s <= LONGEST_S),
        )
        if not fits
    ]
    if faults:
        raise InputError("; ".join(faults), hint="--rate, --peak and --duration say what the traffic is")
    losses: tuple[Loss, ...] = ()
    slow: tuple[Slow, ...] = ()
    if shape is Shape.DIURNAL:
        places = [number / DAY_POINTS for number in range(DAY_POINTS + 1)]
        swing = (peak_per_s - rate_per_s) / 2
        points = [(place, rate_per_s + swing * (1 - math.cos(2 * math.pi * place))) for place in places]
    elif shape is Shape.FLASH_CROWD:
        rise = min(FLASH_RISE_S / duration_s, 0.1)
        ends = FLASH_AT + rise + FLASH_SHARE
        points = [
            (0.0, rate_per_s), (FLASH_AT, rate_per_s), (FLASH_AT + rise, peak_per_s), (ends, peak_per_s),
            (ends + rise, rate_per_s), (1.0, rate_per_s),
        ]  # fmt: skip
    elif shape is Shape.STEADY_GROWTH:
        points = [(0.0, rate_per_s), (1.0, peak_per_s)]
    else:
        level = rate_per_s if shape is Shape.STEADY else peak_per_s
        points = [(0.0, level), (1.0, level)]
        if shape is Shape.REPLICA_LOSS:
            losses = (Loss(LOSS_AT * duration_s, max(1, round(peak_replicas * LOST_SHARE))),)
        if shape is Shape.SLOW_REPLICA:
            slow = (Slow(duration_s / 3, duration_s * 2 / 3, 1, SLOW_FACTOR),)
    return Traffic(
        shape.value, tuple(place * duration_s for place, _ in points), tuple(rate for _, rate in points), losses, slow
    )
