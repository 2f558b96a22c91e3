"""The launch rule: which of the waiting requests make the next batch, or how long to wait for more.

Symbols:

- *open*: rows that the payload under construction already holds. A payload stays open after it has been handed to the
  instances, until one takes it; so a batch can still grow while every instance is busy.
- *taken*: requests and rows of the queue that this scan adds, *size* = open + taken.
- *preferred*: the preferred sizes, ascending; *largest* is the last of them. An omitted list means ``[max_rows]``.
- *delay*: how long a request may wait for company; 0 serves what waits.
- *exceeded*: the oldest taken request has waited for the delay. Never with delay 0.
- *closed*: nothing more is added to the payload, the next request begins another one.

The rule (core ``dynamic_batch_scheduler.cc``, ``GetDynamicBatch``):

1. Scan the queue in its order. Stop, *send now*, before a request that would make the size exceed ``max_rows`` or that
   has another shape.
2. Every time the size equals a preferred one, remember it; the last one stays. When the size would jump past the largest
   preferred size and none is remembered, the size before the jump counts.
3. Remembered, and not exceeded: launch the remembered size at once.
4. Else send now, or size >= largest: launch everything taken, and close. Exceeded, or delay 0: launch everything taken.
5. Else an open payload that holds no preferred size takes what waits, since it may be executed any moment.
6. Else sleep until the delay of the oldest, the closest queue timeout, or until *wanted* rows wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

NEVER = 1 << 62
"""A time in microseconds that does not come."""


class Reason(StrEnum):
    """Why a batch was launched with the rows that it has."""

    FULL = "full"
    """It has ``max_rows`` rows, or the next request would exceed them."""
    PREFERRED = "preferred"
    """It has a preferred size, or the next request would jump past the largest one."""
    DELAY = "delay"
    """Its oldest request has waited for the delay."""
    DRAINED = "drained"
    """The delay is 0, and this was everything that waited."""
    SHAPE = "shape"
    """The next request has another shape."""
    UNBATCHED = "unbatched"
    """The configuration has no dynamic batching: every request is a batch."""


class Waiting(NamedTuple):
    """What the rule sees of a waiting request.

    Attributes:
        rows: 1..max_rows.
        shape: requests share a batch when these are equal.
        entered_us: when it entered the queue.
        expires_us: when the queue timeout ends; ``NEVER`` without one.
    """

    rows: int
    shape: Hashable
    entered_us: int
    expires_us: int


class Launch(NamedTuple):
    """Move the first ``requests`` of the scan into the payload.

    Attributes:
        requests: may be 0: the open payload takes nothing of what waits.
        rows: of those requests.
        reason: None when an open payload only grows: the reason of its first launch stands.
        closed: whether the payload is closed now.
        sealed: whether the scan ended at another shape: such a payload is not merged with later ones.
        wanted: rows that have to wait before the batcher should look again; None leaves the earlier value.
    """

    requests: int
    rows: int
    reason: Reason | None
    closed: bool
    sealed: bool = False
    wanted: int | None = None


class Sleep(NamedTuple):
    """Look again at ``until_us``, or when ``wanted`` rows wait."""

    until_us: int
    wanted: int


@dataclass(frozen=True)
class LaunchRule:
    """What the configuration says about launching.

    Attributes:
        max_rows: most rows of a batch, 1 at least.
        preferred: preferred sizes in rows, ascending, not empty.
        delay_us: ``max_queue_delay_microseconds``.
    """

    max_rows: int
    preferred: tuple[int, ...]
    delay_us: int

    @cached_property
    def largest(self) -> int:
        """The largest preferred size."""
        return self.preferred[-1]

    @cached_property
    def _is_preferred(self) -> frozenset[int]:
        return frozenset(self.preferred)

    def decide(
        self, queue: Iterable[Waiting], now_us: int, *, open_rows: int = 0, open_shape: Hashable = None
    ) -> Launch | Sleep:
        """Apply the rule once.

        Args:
            queue: the waiting requests in their order; read only as far as the scan goes.
            now_us: the time.
            open_rows: rows of the open payload, 0 when it is new.
            open_shape: shape of its requests; without meaning when it is new.
        """
        size, taken, shape = open_rows, 0, open_shape
        remembered: tuple[int, int] | None = None
        closed, send_now = False, None
        oldest_us = expires_us = NEVER
        for rows, its_shape, entered_us, its_expiry_us in queue:
            if size:
                if size + rows > self.largest and (remembered is None or remembered[1] == open_rows):
                    remembered, closed = (taken, size), True
                if size + rows > self.max_rows:
                    send_now = Reason.FULL
                    break
                if its_shape != shape:
                    send_now = Reason.SHAPE
                    break
            else:
                shape = its_shape
            size += rows
            taken += 1
            oldest_us = min(oldest_us, entered_us)
            expires_us = min(expires_us, its_expiry_us)
            if size in self._is_preferred:
                remembered = taken, size
        sealed = send_now is Reason.SHAPE
        exceeded = bool(self.delay_us) and taken > 0 and now_us - oldest_us >= self.delay_us
        if remembered is not None and remembered[1] > open_rows and not exceeded:
            taken, size = remembered
            reason = Reason.FULL if size == self.max_rows else Reason.PREFERRED
            return Launch(taken, size - open_rows, reason, closed or not self.delay_us, sealed)
        if taken == 0:
            return Launch(0, 0, None, closed, sealed)
        if send_now is not None or size >= self.largest:
            return Launch(taken, size - open_rows, self._why(size, send_now, exceeded), True, sealed)
        if exceeded:
            return Launch(taken, size - open_rows, Reason.DELAY, False)
        if not self.delay_us:
            return Launch(taken, size - open_rows, Reason.DRAINED, False)
        wanted = self.preferred[bisect_right(self.preferred, size)] - open_rows
        if open_rows and open_rows not in self._is_preferred:
            return Launch(taken, size - open_rows, None, False, wanted=wanted)
        return Sleep(min(oldest_us + self.delay_us, expires_us), wanted)

    def _why(self, size: int, send_now: Reason | None, exceeded: bool) -> Reason:
        if size == self.max_rows:
            return Reason.FULL
        return send_now or (Reason.DELAY if exceeded else Reason.PREFERRED)
