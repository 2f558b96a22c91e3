"""Ways to scale a simulated fleet, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from brim.plan.carried import Carried
from brim.plan.fleet import Seen
from brim.plan.scaling import (
    Fleet,
    Memory,
    Signals,
    Thresholds,
    Want,
    paced,
    pressure_of,
    wanted,
    wanted_by_utilisation,
)
from brim.plan.slots import Slots, State


class Scaling(StrEnum):
    """Ways to scale."""

    QUEUE = "queue"
    """On who waits, for how long, the time to the first token, and the KV cache: ``brim.plan.scaling.wanted``."""
    UTILISATION = "utilisation"
    """On how busy the devices are, as many autoscalers do: ``brim.plan.scaling.wanted_by_utilisation``."""
    FIXED = "fixed"
    """Not at all."""


@dataclass(slots=True)
class Scaler:
    """One way with its memory. ``decide`` is asked at every scrape."""

    scaling: Scaling
    thresholds: Thresholds
    fleet: Fleet
    utilisation_target: float
    memory: Memory = field(default_factory=Memory)
    carried: Carried = field(default_factory=Carried)

    def decide(self, slots: Slots, seen: Seen, now_us: int) -> int:
        """How many replicas there shall be."""
        present, ready = slots.count(State.STARTING, State.READY), slots.count(State.READY)
        if self.scaling is Scaling.FIXED:
            return present
        known = ready > 0
        signals = Signals(
            present,
            ready,
            ready,
            waiting=seen.waiting if known else None,
            queue_us=seen.queue_us,
            ttft_p90_us=seen.first_p90_us,
            kv_usage=seen.kv_used if known else None,
            answered_per_s=seen.answered_per_s if known else None,
            utilisation=seen.utilisation if known else None,
        )
        want = self._waited(signals, now_us) if self.scaling is Scaling.QUEUE else self._busy(signals)
        number, self.memory = paced(want, present, self.fleet, self.memory, now_us)
        return number

    def _waited(self, signals: Signals, now_us: int) -> Want:
        pressure, complete = pressure_of(signals, self.thresholds)
        self.carried = self.carried.noted(
            now_us,
            ready=signals.ready,
            answered_per_s=signals.answered_per_s,
            pressure=pressure,
            complete=complete,
        )
        return wanted(replace(signals, carried_per_s=self.carried.per_s), self.thresholds, self.fleet)

    def _busy(self, signals: Signals) -> Want:
        """Utilisation knows no spares: they are kept beside what it asks for."""
        spares = self.fleet.spares
        needed = replace(signals, present=max(1, signals.present - spares))
        want = wanted_by_utilisation(needed, self.fleet, self.utilisation_target)
        return replace(want, replicas=min(self.fleet.max_replicas, want.replicas + spares))
