"""Places for replicas: which are empty, starting, ready or draining. No request is known here."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


class State(IntEnum):
    """Of one place."""

    EMPTY = 0
    STARTING = 1
    """It loads weights and warms up, is paid for, and gets nothing."""
    READY = 2
    DRAINING = 3
    """It gets nothing further, and ends with what it has."""


class Slots:
    """A fixed number of places."""

    def __init__(self, most: int, ready: int) -> None:
        """The first ``ready`` of ``most`` places are ready."""
        self.state = np.full(most, State.EMPTY, np.int64)
        self.state[:ready] = State.READY
        self._ready_at_s = np.zeros(most)

    def count(self, *states: State) -> int:
        """Places in one of these states."""
        return int(sum(np.count_nonzero(self.state == state) for state in states))

    @property
    def paid(self) -> int:
        """Places that cost something."""
        return int(np.count_nonzero(self.state))

    @property
    def ready(self) -> NDArray[np.bool_]:
        """Which get requests."""
        is_ready: NDArray[np.bool_] = self.state == State.READY
        return is_ready

    def settle(self, now_s: float, in_flight: NDArray[np.float64]) -> None:
        """Those whose time has come are ready; those that have drained are gone."""
        self.state[(self.state == State.STARTING) & (self._ready_at_s <= now_s)] = State.READY
        self.state[(self.state == State.DRAINING) & (in_flight < 1e-6)] = State.EMPTY

    def scale(self, wanted: int, now_s: float, startup_s: float) -> None:
        """Start or stop so many that ``wanted`` are starting or ready, as far as there are places.

        Those that drain already are not taken back: they have been told to go. What starts is stopped first.
        """
        has = self.count(State.STARTING, State.READY)
        if wanted > has:
            self._start(np.flatnonzero(self.state == State.EMPTY)[: wanted - has], now_s, startup_s)
        elif wanted < has:
            starting = np.flatnonzero(self.state == State.STARTING)[::-1][: has - wanted]
            self.state[starting] = State.EMPTY
            ready = np.flatnonzero(self.state == State.READY)[::-1][: has - wanted - len(starting)]
            self.state[ready] = State.DRAINING

    def lose(self, number: int, now_s: float, startup_s: float) -> Places:
        """The last ``number`` of the ready ones end, and are started again. Returns their places."""
        places: Places = np.flatnonzero(self.ready)[::-1][:number]
        self._start(places, now_s, startup_s)
        return places

    def _start(self, places: Places, now_s: float, startup_s: float) -> None:
        self.state[places] = State.STARTING
        self._ready_at_s[places] = now_s + startup_s
