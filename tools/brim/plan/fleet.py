"""What a simulated fleet says of itself, however it is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Epoch:
    """What became of requests in an epoch. A fluid has fractions of requests.

    Attributes:
        refused: at once: none was ready, or as many were in flight as may be.
        answered: of those in flight before, and of those admitted in the epoch.
        in_slo: that kept the objective. Each request counts once: a fluid knows it when the request comes, events when it ends.
    """

    refused: float = 0.0
    answered: float = 0.0
    in_slo: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the metrics pages of the ready replicas show.

    Attributes:
        waiting: requests that wait, over all.
        queue_us: mean time before execution of those answered of late.
        first_p90_us: 90th percentile of the time to the first token, or to the answer where there are no tokens.
        utilisation: of the devices, mean.
        kv_used: part of the KV cache, mean.
        answered_per_s: requests answered a second, of late.
    """

    waiting: float = 0.0
    queue_us: float | None = None
    first_p90_us: float | None = None
    utilisation: float = 0.0
    kv_used: float = 0.0
    answered_per_s: float = 0.0


class Fleet(Protocol):
    """Replicas in places, moved on epoch by epoch."""

    kind: NDArray[np.int64]
    """Of each place: 0 for a replica as it should be."""

    @property
    def in_flight(self) -> NDArray[np.float64]:
        """Requests in flight, of each place."""

    def step(self, arrivals: int, ready: NDArray[np.bool_]) -> Epoch:
        """Move on by an epoch in which so many requests come, which the ready places share."""

    def lose(self, places: NDArray[np.int64]) -> tuple[float, float]:
        """What is in flight there is lost: how many, and how many of those were counted as having kept the objective."""

    def look(self, ready: NDArray[np.bool_]) -> Seen:
        """What there is to see of the ready places."""

    def latency_us(self, share: float) -> float | None:
        """Latency, or time to the first token, that so large a part does not exceed; None without any."""
