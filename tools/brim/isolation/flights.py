"""When each request of an exchange left and when it was answered, so that it can be told who was beside whom."""

from __future__ import annotations

from array import array
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from brim.isolation.request import Request

NOT_LANDED = -1


class Flights:
    """Requests by their number in sending order, with both times. Three words a request, however many there are."""

    def __init__(self) -> None:
        """Time 0 is now."""
        self.requests: list[Request] = []
        self._began_us = array("q")
        self._ended_us = array("q")
        self._zero_ns = perf_counter_ns()

    def now_us(self) -> int:
        """Time since the first moment."""
        return (perf_counter_ns() - self._zero_ns) // 1_000

    def leave(self, request: Request) -> int:
        """A request is being sent; its number."""
        self.requests.append(request)
        self._began_us.append(self.now_us())
        self._ended_us.append(NOT_LANDED)
        return len(self.requests) - 1

    def land(self, number: int) -> None:
        """Its answer came, or its caller waits no longer."""
        self._ended_us[number] = self.now_us()

    def began_us(self, number: int) -> int:
        """When it was sent."""
        return self._began_us[number]

    def took_us(self, number: int) -> int:
        """From sending to its end; to now where it has none yet."""
        ended = self._ended_us[number]
        return (self.now_us() if ended == NOT_LANDED else ended) - self._began_us[number]

    def span_us(self) -> int:
        """From the first request to the last end."""
        began, ended = self._times()
        return int(ended.max() - began.min()) if len(began) else 0

    def in_flight(self, at_us: int) -> npt.NDArray[np.int64]:
        """Numbers of those that were on their way at that moment."""
        began, ended = self._times()
        return np.flatnonzero((began <= at_us) & (ended > at_us))

    def landed_since(self, at_us: int) -> bool:
        """Whether any has had its end after that moment."""
        return max(self._ended_us[:], default=NOT_LANDED) > at_us

    def beside(self, number: int) -> npt.NDArray[np.int64]:
        """Numbers of those that were on their way at some time while ``number`` was: nearest end first."""
        began, ended = self._times()
        met = (began < ended[number]) & (ended > began[number])
        met[number] = False
        others = np.flatnonzero(met)
        return others[np.argsort(np.abs(ended[others] - ended[number]), kind="stable")]

    def released_us(self, at_us: int) -> npt.NDArray[np.int64]:
        """How long after ``at_us`` each of those that were on their way then had its end."""
        _, ended = self._times()
        return ended[self.in_flight(at_us)] - at_us

    def _times(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        # Slices are copies: an array that numpy looks into could not grow, and another thread may be at it.
        ended = np.frombuffer(self._ended_us[:], np.int64).copy()
        began = np.frombuffer(self._began_us[:], np.int64)[: len(ended)]
        ended[ended == NOT_LANDED] = self.now_us()
        return began, ended
