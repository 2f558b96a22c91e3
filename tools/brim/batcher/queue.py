"""The queue before the launch rule: priority levels, each with a bound, timeouts and what becomes of the late.

Source: core ``scheduler_utils.cc``, ``PriorityQueue`` and ``PolicyQueue``. Nothing here happens by itself: a request that
has expired or whose caller has gone keeps its place, and counts against the bound, until a scan comes to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from brim.batcher.rule import NEVER, Waiting


class TimeoutAction(StrEnum):
    """What becomes of a request whose queue timeout has passed."""

    REJECT = "reject"
    """It is answered with an error."""
    DELAY = "delay"
    """It goes behind everything of its level that has not expired."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """``ModelQueuePolicy`` of the configuration.

    Attributes:
        max_queue_size: a request is refused when so many requests of its level wait (what executes is not counted);
            0 is no bound.
        default_timeout_us: queue timeout of every request; 0 is none.
        allow_timeout_override: a request's own timeout counts where it is shorter than the default; so it does nothing
            when the default is 0.
        timeout_action: what becomes of an expired request.
    """

    max_queue_size: int = 0
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    timeout_action: TimeoutAction = TimeoutAction.REJECT

    @property
    def bounds_anything(self) -> bool:
        """Whether the policy switches prefetching off, whatever its action."""
        return bool(self.max_queue_size or self.default_timeout_us or self.allow_timeout_override)

    def timeout_us(self, asked_us: int) -> int:
        """Queue timeout of a request that asked for ``asked_us`` (0: for none); 0 is none."""
        if self.allow_timeout_override and 0 < asked_us < self.default_timeout_us:
            return asked_us
        return self.default_timeout_us


@dataclass(slots=True)
class Queued:
    """A waiting request: its number, and what decides about it.

    Attributes:
        index: number of the request in its traffic.
        rows: rows of its batch dimension.
        shape: requests share a batch when these are equal.
        entered_us: when it entered the queue.
        expires_us: when its queue timeout ends; ``NEVER`` without one.
        cancelled_us: when its caller goes; ``NEVER`` for one who stays.
    """

    index: int
    rows: int
    shape: Hashable
    entered_us: int
    expires_us: int
    cancelled_us: int


class _Level:
    """One priority level: those in time, and behind them those that have expired under ``TimeoutAction.DELAY``."""

    __slots__ = ("late", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: deque[Queued] = deque()
        self.late: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.late)


class Queue:
    """All levels, the highest (the smallest number) first, first in first out inside a level."""

    def __init__(self, default_policy: QueuePolicy, level_policies: Mapping[int, QueuePolicy]) -> None:
        """Levels without a policy of their own have the default one."""
        self._default_policy = default_policy
        self._policies = dict(level_policies)
        self._levels: dict[int, _Level] = {}
        self._order: list[_Level] = []
        self._expired: list[Queued] = []
        self._cancelled: list[Queued] = []
        self._size = 0

    def __len__(self) -> int:
        """Requests in the queue, the expired and the cancelled that no scan has met yet among them."""
        return self._size

    def enter(
        self,
        index: int,
        *,
        rows: int,
        shape: Hashable,
        level: int,
        now_us: int,
        asked_timeout_us: int,
        cancelled_us: int,
    ) -> bool:
        """Add a request. False when the bound of its level refuses it."""
        into = self._levels.get(level)
        if into is None:
            into = self._add_level(level)
        policy = into.policy
        if policy.max_queue_size and len(into) >= policy.max_queue_size:
            return False
        timeout_us = policy.timeout_us(asked_timeout_us)
        expires_us = now_us + timeout_us if timeout_us else NEVER
        into.waiting.append(Queued(index, rows, shape, now_us, expires_us, cancelled_us))
        self._size += 1
        return True

    def _add_level(self, level: int) -> _Level:
        added = self._levels[level] = _Level(self._policies.get(level, self._default_policy))
        self._order = [self._levels[number] for number in sorted(self._levels)]
        return added

    def scan(self, now_us: int) -> Iterator[Waiting]:
        """The requests in order, as far as the reader goes. Those found expired or cancelled on the way are dealt with."""
        for level in self._order:
            waiting, place = level.waiting, 0
            while place < len(waiting):
                request = waiting[place]
                if now_us < request.expires_us and now_us < request.cancelled_us:
                    yield Waiting(request.rows, request.shape, request.entered_us, request.expires_us)
                    place += 1
                else:
                    del waiting[place]
                    self._dispose(level, request, now_us)
            for request in level.late:
                yield Waiting(request.rows, request.shape, request.entered_us, NEVER)

    def _dispose(self, level: _Level, request: Queued, now_us: int) -> None:
        if now_us >= request.cancelled_us:
            self._cancelled.append(request)
        elif level.policy.timeout_action is TimeoutAction.DELAY:
            level.late.append(request)
            return
        else:
            self._expired.append(request)
        self._size -= 1

    def take(self, count: int) -> list[Queued]:
        """Remove the first ``count`` requests of the last scan.

        Raises:
            IndexError: the queue has fewer.
        """
        taken: list[Queued] = []
        for level in self._order:
            for part in (level.waiting, level.late):
                while part and len(taken) < count:
                    taken.append(part.popleft())
        if len(taken) < count:
            raise IndexError(f"{count} requests asked of a queue of {len(taken)}")
        self._size -= count
        return taken

    def reject_expired(self, now_us: int) -> None:
        """Reject every expired request of every level whose action is to reject, wherever it stands."""
        for level in self._order:
            if level.policy.timeout_action is not TimeoutAction.REJECT:
                continue
            late = [request for request in level.waiting if now_us >= request.expires_us]
            if late:
                level.waiting = deque(request for request in level.waiting if now_us < request.expires_us)
                self._expired += late
                self._size -= len(late)

    def gone(self) -> tuple[list[Queued], list[Queued]]:
        """The requests that have expired, and those that were cancelled, since the last call."""
        expired, cancelled = self._expired, self._cancelled
        self._expired, self._cancelled = [], []
        return expired, cancelled
