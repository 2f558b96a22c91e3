"""What a replica has been seen to carry: how few replicas a load needs, where the time that callers wait does not tell.

A batching server lets callers wait however many replicas there are: for the batch before theirs, and for the queue delay. Where
that is near half of the limit, no number of replicas brings the pressure down to a part of it, and by the pressure alone a fleet
that a crowd has made large stays large. What does tell is what was answered: a rate a replica at which the fleet was calm is one
that fewer replicas carry as well.

A rate at which the fleet was in trouble since is not: of those the least is the most that a replica is taken to carry. So what a
loss, a slow replica or longer requests have shown counts at once, and stands for as long as what was carried does.

Pure: ``brim.plan.rules`` writes the same as Prometheus rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from operator import ge, le

from brim.units import US_PER_S

CALM = 0.75
"""Pressure up to which a fleet is calm. From it to the limit is the room for what scatters."""
TROUBLED = 1.0
KEPT_US = 3_600 * US_PER_S
"""How long it is remembered: a crowd, and the way down after it."""
SETTLED_US = 60 * US_PER_S
"""The rate is a mean over so long. The most replicas that were ready in it have answered it: what a replica carries is not
overrated when one has gone."""

Entries = tuple[tuple[int, float], ...]
"""Times and values. What an entry behind it outdoes is left out, so the first one is the extreme of all that is kept."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What has been seen of late.

    Attributes:
        ready: replicas that were ready; the most comes first.
        calm: requests a second and replica while the fleet was calm; the most comes first.
        troubled: the same at or above the limit; the least comes first.
    """

    ready: Entries = ()
    calm: Entries = ()
    troubled: Entries = ()

    def noted(
        self, now_us: int, *, ready: int, answered_per_s: float | None, pressure: float | None, complete: bool
    ) -> Carried:
        """With one more look at the fleet.

        Args:
            now_us: time of the look, later than those before.
            ready: replicas that answer.
            answered_per_s: requests answered a second, over all of them; None or NaN where nobody says.
            pressure: largest figure as a part of its limit; None when none is known.
            complete: every figure is there. Without it nothing shows that a fleet is calm.
        """
        of_ready = _with(self.ready, now_us, SETTLED_US, float(ready), ge)
        most = of_ready[0][1]
        calm, troubled = _kept(self.calm, now_us, KEPT_US), _kept(self.troubled, now_us, KEPT_US)
        if pressure is not None and answered_per_s is not None and isfinite(answered_per_s) and most > 0:
            one_per_s = answered_per_s / most
            if pressure >= TROUBLED:
                troubled = _with(troubled, now_us, KEPT_US, one_per_s, le)
            elif pressure <= CALM and complete:
                calm = _with(calm, now_us, KEPT_US, one_per_s, ge)
        return Carried(of_ready, calm, troubled)

    @property
    def per_s(self) -> float | None:
        """Requests a second that a replica has been seen to carry; None where nothing shows it."""
        if not self.calm:
            return None
        return min(value for entries in (self.calm, self.troubled) for _, value in entries[:1])


def _kept(entries: Entries, now_us: int, for_us: int) -> Entries:
    return tuple(entry for entry in entries if entry[0] > now_us - for_us)


def _with(entries: Entries, now_us: int, for_us: int, value: float, outdoes: Callable[[float, float], bool]) -> Entries:
    kept = tuple(entry for entry in _kept(entries, now_us, for_us) if not outdoes(value, entry[1]))
    return (*kept, (now_us, value))
