"""When an objective is being missed fast enough to tell somebody: burn rates over two windows each.

The error budget is the part of the requests that may miss the objective: 1 - percentile. The *burn* is how many times faster than that it
is being used. One alert looks at a long window, so that a moment does not wake anybody, and at a short one, so that it ends soon after the
trouble does (Google, The Site Reliability Workbook, chapter 5, whose windows and factors these are: 2 % of a month's budget in an
hour, 5 % in six).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.errors import InputError
from brim.plan.series import RATE_WINDOW_S
from brim.service.schema import Service

MOST_BAD = 0.5
"""Part of the requests that, when it misses the objective, tells somebody whatever the budget: of a budget of 10 % no burn is above 10."""
EVALUATED_EVERY_S = 15
"""As often as pages are usually read. Windows of hours are not for free, and nothing here is in such a hurry as scaling."""
LEAST_RATE_S = 5.0
"""Window of a rate that still sees two changes of a histogram that comes every second."""
MOST_DIVISION = 600


@dataclass(frozen=True, slots=True)
class Pace:
    """One pair of windows.

    Attributes:
        name: in labels and in the alert's name.
        short_s: window that ends the alert.
        long_s: window that begins it.
        most_burn: factor above which both have to be.
        lasting_s: for so long.
        severity: of the alert.
    """

    name: str
    short_s: float
    long_s: float
    most_burn: float
    lasting_s: float
    severity: str


FAST = Pace("fast", short_s=300, long_s=3_600, most_burn=14.4, lasting_s=60, severity="page")
SLOW = Pace("slow", short_s=1_800, long_s=21_600, most_burn=6, lasting_s=300, severity="warning")


@dataclass(frozen=True, slots=True)
class Timing:
    """Every time in the rules.

    Attributes:
        paces: of the burn.
        rate_s: window of all other rates.
        every_s: between two evaluations.
        lasting_by: divides how long the other alerts wait.
    """

    paces: tuple[Pace, ...] = (FAST, SLOW)
    rate_s: float = RATE_WINDOW_S
    every_s: float = EVALUATED_EVERY_S
    lasting_by: float = 1

    @property
    def windows_s(self) -> list[float]:
        """Those of the burn, ascending."""
        return sorted({window for pace in self.paces for window in (pace.short_s, pace.long_s)})

    def lasting(self, seconds: float) -> str:
        """How long an alert waits that normally waits so many seconds."""
        return duration(seconds / self.lasting_by)

    def divided_by(self, by: float) -> Timing:
        """The same rules for a demonstration or a test: every time is so many times shorter, within what rates can see.

        Raises:
            InputError: ``by`` is not 1 to ``MOST_DIVISION``.
        """
        if not 1 <= by <= MOST_DIVISION:
            raise InputError(f"times divided by {by:g}: expected 1 to {MOST_DIVISION}", hint="60 makes minutes seconds")
        paces = tuple(
            replace(
                pace,
                short_s=max(LEAST_RATE_S, pace.short_s / by),
                long_s=max(LEAST_RATE_S, pace.long_s / by),
                lasting_s=pace.lasting_s / by,
            )
            for pace in self.paces
        )
        return Timing(paces, max(LEAST_RATE_S, self.rate_s / by), max(1.0, self.every_s / by), self.lasting_by * by)


TIMING = Timing()


def budget(service: Service) -> float:
    """Part of the requests that may miss the objective."""
    return round(1 - service.slo.percentile / 100, 9)


def burn_limit(service: Service, pace: Pace) -> float:
    """Burn above which an alert fires. It can be reached whatever the percentile is: so many requests can be bad."""
    return min(pace.most_burn, MOST_BAD / budget(service))


def duration(seconds: float) -> str:
    """As Prometheus writes it, in the largest unit that needs no fraction: ``1h``, ``5m``, ``90s``, ``1500ms``."""
    value_ms = max(1, round(seconds * 1_000))
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if value_ms % size_ms == 0:
            return f"{value_ms // size_ms}{unit}"
    return f"{value_ms}ms"
