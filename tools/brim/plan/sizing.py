"""What a comparison begins with when nobody says it: how many replicas there may be, and how many are warm."""

from __future__ import annotations

import math

import numpy as np

from brim.plan.scaling import spares
from brim.plan.traffic import MOST_REPLICAS, Traffic
from brim.units import US_PER_S

ROOM = 2
"""Replicas that there may be, for each that the peak needs."""
LEAST_STARTUP_S = 1.0
"""Over which growth is looked at."""


def growth_per_s2(traffic: Traffic, over_s: float) -> float:
    """Steepest growth of the rate over any stretch of so many seconds, for each of them."""
    points_s, rates = np.array(traffic.at_s), np.array(traffic.rate_per_s)
    # The steepest stretch of straight lines begins or ends at a point. Of two points at one time the later one counts where a
    # stretch ends, and the earlier one where it begins.
    ends_s = np.concatenate([points_s, np.minimum(points_s + over_s, points_s[-1])])
    ends = np.concatenate([rates, np.interp(ends_s[len(points_s) :], points_s, rates)])
    begins_s = ends_s - over_s
    begins = np.interp(begins_s, points_s, rates)
    at_point = np.searchsorted(points_s, begins_s, "left")
    exact = (at_point < len(points_s)) & (points_s[np.minimum(at_point, len(points_s) - 1)] == begins_s)
    begins[exact] = rates[at_point[exact]]
    return max(0.0, float((ends - begins).max())) / over_s


def warm_spares(traffic: Traffic, replica_per_s: float, startup_s: float) -> int:
    """Replicas to keep warm: for what the traffic grows by while one starts, and for the largest loss."""
    over_s = max(startup_s, LEAST_STARTUP_S)
    lost = max((loss.replicas for loss in traffic.losses), default=0)
    if not replica_per_s:
        return max(1, lost)
    growing = spares(
        load_time_us=over_s * US_PER_S, growth_per_s2=growth_per_s2(traffic, over_s), replica_per_s=replica_per_s
    )
    return min(MOST_REPLICAS, max(growing, lost))


def most_replicas(traffic: Traffic, replica_per_s: float, warm: int) -> int:
    """Replicas that there may be: with room for what was missed."""
    needed = math.ceil(traffic.peak_per_s / replica_per_s) if replica_per_s else 1
    return min(MOST_REPLICAS, ROOM * needed + warm)
