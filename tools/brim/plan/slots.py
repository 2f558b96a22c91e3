"""Places for replicas: which are empty, starting, ready or draining. No request is known here."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


DRAINED = 1e-6
"""Requests in flight below which none is left of a fluid."""


class State(IntEnum):
    """Of one place."""

    EMPTY = 0
    STARTING = 1
    """It loads weights and warms up, is paid for, and gets nothing."""
    READY = 2
    DRAINING = 3
    """It gets nothing further, and ends with what it has."""


EMPTY, STARTING, READY, DRAINING = (int(state) for state in State)


class Slots:
    """A fixed number of places."""

    def __init__(self, most: int, ready: int) -> None:
        """The first ``ready`` of ``most`` places are ready."""
        self._state = np.full(most, EMPTY, np.int64)
        self._state[:ready] = READY
        self._ready_at_s = np.zeros(most)
        self._count()

    def count(self, *states: State) -> int:
        """Places in one of these states."""
        return sum(self._counts[state] for state in states)

    @property
    def paid(self) -> int:
        """Places that cost something."""
        return len(self._state) - self._counts[EMPTY]

    def settle(self, now_s: float, in_flight: NDArray[np.float64]) -> None:
        """Those whose time has come are ready; those that have drained are gone."""
        if self._counts[STARTING] or self._counts[DRAINING]:
            self._state[(self._state == STARTING) & (self._ready_at_s <= now_s)] = READY
            self._state[(self._state == DRAINING) & (in_flight < DRAINED)] = EMPTY
            self._count()

    def scale(self, wanted: int, now_s: float, startup_s: float) -> None:
        """Start or stop so many that ``wanted`` are starting or ready, as far as there are places.

        Those that drain already are not taken back: they have been told to go. What starts is stopped first.
        """
        has = self._counts[STARTING] + self._counts[READY]
        if wanted > has:
            self._start(np.flatnonzero(self._state == EMPTY)[: wanted - has], now_s, startup_s)
        elif wanted < has:
            starting = np.flatnonzero(self._state == STARTING)[::-1][: has - wanted]
            self._state[starting] = EMPTY
            self._state[np.flatnonzero(self.ready)[::-1][: has - wanted - len(starting)]] = DRAINING
            self._count()

    def lose(self, number: int, now_s: float, startup_s: float) -> Places:
        """The last ``number`` of the ready ones end, and are started again. Returns their places."""
        places: Places = np.flatnonzero(self.ready)[::-1][:number]
        self._start(places, now_s, startup_s)
        return places

    def _start(self, places: Places, now_s: float, startup_s: float) -> None:
        self._state[places] = STARTING
        self._ready_at_s[places] = now_s + startup_s
        self._count()

    def _count(self) -> None:
        """After a change. Another array of what is ready says that something has changed."""
        self._counts: list[int] = np.bincount(self._state, minlength=len(State)).tolist()
        ready: NDArray[np.bool_] = self._state == READY
        self.ready = ready
        """Which get requests; never changed in place."""
