"""A fleet as fluid: of every replica the number of requests in flight, all of them moved on together, epoch by epoch.

Of an epoch the end is solved for: x' + epoch * rate(x') = x + admitted. So it may be long beside a batch, nothing becomes
negative, more requests never leave fewer in flight, and what is not in flight at the end has been answered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brim.plan.fleet import Epoch, Seen
from brim.plan.replica import RANKS, Replica
from brim.plan.spread import Spread

HALVINGS = 40
"""Of the part of an epoch's requests that is admitted."""
P90 = int(np.searchsorted(RANKS, 0.9))

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Places = NDArray[np.int64]


class FluidFleet:
    """Replicas in places."""

    def __init__(self, kinds: Sequence[Replica], most: int, bound: float, epoch_s: float, spread: Spread) -> None:
        """Nothing is in flight, and every place has the first kind of replica.

        Args:
            kinds: of replicas; ``kind`` holds places in it.
            most: places.
            bound: most requests in flight, for each replica that is ready: on whichever they are, further ones are refused, as the
                gateway does (docs/replicas.md).
            epoch_s: length of an epoch.
            spread: how requests are spread over the replicas.
        """
        self._kinds, self._bound, self._spread = kinds, bound, spread
        self.in_flight: Floats = np.zeros(most)
        self.kind: Places = np.zeros(most, np.int64)
        self._taken = [kind.in_flight + epoch_s * kind.rate_per_s for kind in kinds]
        self._weights = [np.zeros(len(kind.in_flight)) for kind in kinds]

    def step(self, arrivals: int, ready: Mask) -> Epoch:
        """Move on by an epoch."""
        busy = np.flatnonzero(ready | (self.in_flight > 0))
        if not len(busy):
            return Epoch(refused=float(arrivals))
        refused = 0.0
        before, kinds, takes = self.in_flight[busy], self.kind[busy], ready[busy]
        sent = np.zeros(len(busy))
        if not takes.any():
            refused = float(arrivals)
        elif arrivals:
            sent[takes] = self._spread(arrivals, before[takes], kinds[takes], self._taken_by)
        admitted, after = self._admit(before, sent, kinds, self._bound * float(takes.sum()))
        in_slo = 0.0
        for number in _numbers(kinds):
            of, kind = kinds == number, self._kinds[number]
            in_slo += float(admitted[of] @ kind.at("in_slo", after[of]))
            self._weigh(number, after[of], admitted[of])
        self.in_flight[busy] = after
        refused += float((sent - admitted).sum())
        return Epoch(refused, float((before + admitted - after).sum()), in_slo)

    def lose(self, places: Places) -> tuple[float, float]:
        """What was in flight there is lost: how much, and how much of it would have kept the objective."""
        lost = self.in_flight[places]
        kept = sum(
            float(held * self._kinds[kind].at("in_slo", np.array(held)))
            for held, kind in zip(lost, self.kind[places], strict=True)
        )
        self.in_flight[places] = 0.0
        return float(lost.sum()), kept

    def look(self, ready: Mask) -> Seen:
        """What the metrics pages of the ready replicas show."""
        places = np.flatnonzero(ready)
        if not len(places):
            return Seen()
        figures = {
            name: np.zeros(len(places)) for name in ("waiting", "queue_us", "utilisation", "kv_used", "rate_per_s")
        }
        p90_us = np.zeros(len(places))
        for number in _numbers(self.kind[places]):
            of, kind = self.kind[places] == number, self._kinds[number]
            held = self.in_flight[places][of]
            for name, column in figures.items():
                column[of] = kind.at(name, held)
            p90_us[of] = np.interp(held, kind.in_flight, kind.latency_us[:, P90])
        rates = figures["rate_per_s"]
        answered_per_s = float(rates.sum())
        weights = rates / answered_per_s if answered_per_s else np.full(len(places), 1 / len(places))
        return Seen(
            waiting=float(figures["waiting"].sum()),
            queue_us=float(weights @ figures["queue_us"]),
            first_p90_us=float(weights @ p90_us),
            utilisation=float(figures["utilisation"].mean()),
            kv_used=float(figures["kv_used"].mean()),
            answered_per_s=answered_per_s,
        )

    def latency_us(self, share: float) -> float | None:
        """What so large a part of the admitted requests does not exceed; None without any."""
        values, weights = [], []
        gaps = np.diff(RANKS, prepend=0.0)
        for kind, seen in zip(self._kinds, self._weights, strict=True):
            some = seen > 0
            values.append(kind.latency_us[some].ravel())
            weights.append((seen[some, None] * gaps).ravel())
        latencies, heavy = np.concatenate(values), np.concatenate(weights)
        if not len(latencies):
            return None
        order = np.argsort(latencies, kind="stable")
        passed = np.cumsum(heavy[order])
        return float(latencies[order][min(len(order) - 1, int(np.searchsorted(passed, share * passed[-1])))])

    def _admit(self, before: Floats, sent: Floats, kinds: Places, most: float) -> tuple[Floats, Floats]:
        """What of the sent is admitted, the same part of each replica's, and what is in flight after it: ``most``, or what was
        there already and was not answered."""
        after = self._after(before + sent, kinds)
        if after.sum() <= most:
            return sent, after
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            part = (low + high) / 2
            if self._after(before + part * sent, kinds).sum() <= most:
                low = part
            else:
                high = part
        admitted = low * sent
        return admitted, self._after(before + admitted, kinds)

    def _after(self, taken: Floats, kinds: Places) -> Floats:
        """In flight at the end of an epoch, by what was there before it and came in it."""
        after = np.empty_like(taken)
        for number in _numbers(kinds):
            of = kinds == number
            after[of] = np.interp(taken[of], self._taken[number], self._kinds[number].in_flight)
        return after

    def _taken_by(self, in_flight: float) -> Floats:
        """Of each kind, what a replica holds before an epoch and gets in it, by what it holds at the end."""
        return np.array(
            [np.interp(in_flight, kind.in_flight, of) for kind, of in zip(self._kinds, self._taken, strict=True)]
        )

    def _weigh(self, number: int, in_flight: Floats, admitted: Floats) -> None:
        """Requests that were admitted to replicas that hold so many are those of the knots on both sides, in part."""
        knots, weights = self._kinds[number].in_flight, self._weights[number]
        left = np.clip(np.searchsorted(knots, in_flight, "right") - 1, 0, len(knots) - 2)
        part = (in_flight - knots[left]) / (knots[left + 1] - knots[left])
        weights += np.bincount(left, admitted * (1 - part), len(knots))
        weights += np.bincount(left + 1, admitted * part, len(knots))


def _numbers(kinds: Places) -> list[int]:
    """Each once; mostly there is one."""
    first = int(kinds[0])
    return [first] if (kinds == first).all() else sorted(set(kinds.tolist()))
