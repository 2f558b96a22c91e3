"""What a run writes down while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from brim.batcher.result import REASONS, Batches, End, Result
from brim.batcher.rule import Reason

PLACES = {reason: place for place, reason in enumerate(REASONS)}
NOT_ENDED = -1


class Record:
    """Requests by their numbers, batches in the order in which they were taken."""

    def __init__(self, on_end: Callable[[int, int], None] | None = None) -> None:
        """Empty. ``on_end`` is told of each request's number and time when it ends."""
        self._on_end = on_end
        self._open = 0
        self._sent: list[int] = []
        self._ended: list[int] = []
        self._ends: list[int] = []
        self._batches: list[tuple[int, int, int, int, int, int]] = []

    def begin(self, sent_us: Sequence[int]) -> None:
        """Requests 0, 1, 2, ... are sent at these times."""
        self._sent = list(sent_us)
        self._ended = [0] * len(self._sent)
        self._ends = [NOT_ENDED] * len(self._sent)
        self._open = len(self._sent)

    def send(self, at_us: int) -> int:
        """One more request. Returns its number."""
        self._sent.append(at_us)
        self._ended.append(0)
        self._ends.append(NOT_ENDED)
        self._open += 1
        return len(self._sent) - 1

    def end(self, index: int, end: End, at_us: int) -> None:
        """A request ends, once."""
        assert self._ends[index] == NOT_ENDED, (index, end)
        self._ends[index] = end
        self._ended[index] = at_us
        self._open -= 1
        if self._on_end is not None:
            self._on_end(index, at_us)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self._open

    def taken_since(self, batch: int) -> list[tuple[int, int, int]]:
        """Of the batches from that number on: when they were taken, how long they computed, how many requests they have."""
        return [(taken_us, compute_us, requests) for taken_us, _, compute_us, _, requests, _ in self._batches[batch:]]

    def batch(self, taken_us: int, ended_us: int, compute_us: int, rows: int, requests: int, reason: Reason) -> None:
        """An instance takes a batch."""
        self._batches.append((taken_us, ended_us, compute_us, rows, requests, PLACES[reason]))

    def result(self, instances: int) -> Result:
        """Everything so far."""
        assert NOT_ENDED not in self._ends, self._ends.index(NOT_ENDED)
        columns = np.array(self._batches, np.int64).reshape(-1, 6).T
        return Result(
            np.array(self._sent, np.int64),
            np.array(self._ended, np.int64),
            np.array(self._ends, np.int64),
            Batches(*columns),
            instances,
        )
