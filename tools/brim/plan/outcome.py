"""What became of a traffic under one policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.units import US_PER_S

MOST_POINTS = 240
"""Of each line over time that an answer holds."""
WINDOW_S = 60.0
"""Of the worst time."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        edges_s: beginnings of the epochs, and the end.
        of: by name, one entry an epoch: requests ``offered``, refused by the gateways (``refused_gateway``) and for want of
            room on a replica (``refused``), ``answered``, ``in_slo``; replicas paid for (``paid``), ``ready``, ``starting``.
        lost: requests in flight on replicas that were lost.
        lost_in_slo: of those, what ``in_slo`` holds all the same.
        in_flight: requests at the end.
        p50_us, p99_us: of the latency, or the time to the first token; None without an answer.
        share: part of the requests that shall keep the objective.
    """

    edges_s: Floats
    of: Mapping[str, Floats]
    lost: float
    lost_in_slo: float
    in_flight: float
    p50_us: float | None
    p99_us: float | None
    share: float

    def total(self, name: str) -> float:
        """Over all epochs."""
        return float(self.of[name].sum())

    @property
    def slo_attainment(self) -> float:
        """Part of the offered requests that kept the objective: who is refused or lost has not. 1 where none came."""
        offered = self.total("offered")
        return max(0.0, (self.total("in_slo") - self.lost_in_slo) / offered) if offered else 1.0

    @property
    def slo_met(self) -> bool:
        """Whether those are as many as they shall be."""
        return self.slo_attainment >= self.share

    @property
    def replica_seconds(self) -> float:
        """What it costs: replicas that start or drain are paid for too."""
        return float(self.of["paid"] @ np.diff(self.edges_s))

    @property
    def cold_start_missed(self) -> float:
        """Requests that missed the objective while a replica was starting: what more that were warm would have saved."""
        missed = np.maximum(0.0, self.of["offered"] - self.of["in_slo"])
        return float(missed[self.of["starting"] > 0].sum())

    @property
    def cold_seconds(self) -> float:
        """Time in which at least one replica was starting."""
        return float(np.diff(self.edges_s)[self.of["starting"] > 0].sum())

    @property
    def worst_minute(self) -> float:
        """The least part that kept the objective, of any minute in which requests came."""
        minutes = (self.edges_s[:-1] // WINDOW_S).astype(np.int64)
        offered, kept = (np.bincount(minutes, self.of[name]) for name in ("offered", "in_slo"))
        some = offered > 0
        return float(np.minimum(1.0, kept[some] / offered[some]).min()) if some.any() else 1.0

    def over_time(self) -> dict[str, list[float]]:
        """Lines over time, ``MOST_POINTS`` points each at the most: means, and for the objective the part of the offered."""
        count = len(self.edges_s) - 1
        bins = np.arange(count) * min(count, MOST_POINTS) // count
        sizes = np.bincount(bins)
        width_s = float(self.edges_s[1] - self.edges_s[0])
        sums = {name: np.bincount(bins, values) for name, values in self.of.items()}
        offered = sums["offered"]
        kept = np.divide(sums["in_slo"], offered, out=np.ones_like(offered), where=offered > 0)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return {
            "at_s": self.edges_s[first].tolist(),
            "rate_per_s": (offered / sizes / width_s).tolist(),
            "ready": (sums["ready"] / sizes).tolist(),
            "paid": (sums["paid"] / sizes).tolist(),
            "slo_attainment": np.minimum(1.0, kept).tolist(),
        }

    def as_json(self) -> dict[str, Any]:
        """The figures: integer microseconds, ratios 0..1, whole requests."""
        return {
            "slo_attainment": self.slo_attainment,
            "slo_met": self.slo_met,
            "worst_minute": self.worst_minute,
            "p50_us": None if self.p50_us is None else round(self.p50_us),
            "p99_us": None if self.p99_us is None else round(self.p99_us),
            "goodput_per_s": (self.total("in_slo") - self.lost_in_slo) / float(self.edges_s[-1]),
            **{name: round(self.total(name)) for name in ("offered", "answered", "refused", "refused_gateway")},
            "lost": round(self.lost),
            "in_flight": round(self.in_flight),
            "replica_seconds": self.replica_seconds,
            "most_replicas": int(self.of["paid"].max()),
            "mean_replicas": self.replica_seconds / float(self.edges_s[-1]),
            "cold_start_missed": round(self.cold_start_missed),
            "cold_start_us": round(self.cold_seconds * US_PER_S),
        }
