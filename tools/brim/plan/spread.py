"""What a routing policy comes to when requests are fluid: how many of an epoch's requests each replica gets.

Policies that count what they have in flight send each request to the replica with the least of it, so the fluid fills the
replicas to one level, as water does. ``queue_depth`` adds what waits there, which in replicas of one kind is a function of
what is in flight, so its level is the same one; and ``prefix_aware`` does likewise where no two prompts begin alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from brim.errors import InputError
from brim.router.policy import POLICIES

ROUND_ROBIN = "round_robin"
HALVINGS = 50
"""Of the range in which a level lies."""

Floats = NDArray[np.float64]
Kinds = NDArray[np.int64]
Taken = Callable[[float], Floats]
"""In flight at the end of an epoch -> what a replica of each kind holds before it and gets in it, together."""
Spread = Callable[[float, Floats, Kinds, Taken], Floats]
"""Requests, what each replica that is ready has in flight and its kind, ``Taken`` -> requests of each."""


def spread_of(policy: str) -> Spread:
    """The fluid limit of a policy of ``brim.router.policy``.

    Raises:
        InputError: there is no such policy.
    """
    if policy not in POLICIES:
        raise InputError(f"no routing policy {policy!r}", hint=f"known: {', '.join(POLICIES)}")
    return _even if policy == ROUND_ROBIN else _level


def _even(requests: float, in_flight: Floats, kinds: Kinds, taken: Taken) -> Floats:
    return np.full(len(in_flight), requests / len(in_flight))


def _level(requests: float, in_flight: Floats, kinds: Kinds, taken: Taken) -> Floats:
    """Fill to the level at which all replicas that get something end with as many in flight."""
    if (kinds == kinds[0]).all():
        return _filled(requests, in_flight)
    low, high = 0.0, float(in_flight.max()) + requests
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if np.maximum(0.0, taken(middle)[kinds] - in_flight).sum() < requests:
            low = middle
        else:
            high = middle
    sent = np.maximum(0.0, taken(high)[kinds] - in_flight)
    return sent * (requests / sent.sum()) if requests else sent


def _filled(requests: float, in_flight: Floats) -> Floats:
    """Replicas of one kind: those that end alike have had alike."""
    ascending = np.sort(in_flight)
    # With the first n filled to one level it is levels[n - 1]; the right n is the last whose own replica lies below its level.
    levels = (np.cumsum(ascending) + requests) / np.arange(1, len(ascending) + 1)
    level = levels[np.flatnonzero(ascending <= levels)[-1]]
    sent: Floats = np.maximum(0.0, level - in_flight)
    return sent
