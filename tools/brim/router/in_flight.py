"""What this router has sent and what has not ended, and what of it a replica's page cannot show yet."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import takewhile

MOST_ENDED = 1 << 16
"""Ends that are kept for one replica until its next page; of a page that is older by more, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one replica, for one request to be placed. See ``brim.router.view.Candidate``."""

    own: int = 0
    unseen: int = 0
    unseen_behind: int = 0
    unseen_tokens: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class _Sent:
    at_us: int
    tokens: int
    priority: int


@dataclass(slots=True)
class _Line:
    """One replica's requests, each by its number, in the order in which they were sent."""

    own: dict[int, _Sent] = field(default_factory=dict)
    unseen: dict[int, _Sent] = field(default_factory=dict)
    unseen_tokens: int = 0
    priorities: Counter[int] = field(default_factory=Counter)
    ended_us: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))
    scraped_us: int | None = None

    def show(self, number: int) -> None:
        sent = self.unseen.pop(number)
        self.unseen_tokens -= sent.tokens
        self.priorities[sent.priority] -= 1


class InFlight:
    """Requests by replica. Times never run backwards."""

    def __init__(self, settle_us: int = 0) -> None:
        """Nothing sent. ``settle_us``: see ``Settings``."""
        self._settle_us = settle_us
        self._lines: dict[str, _Line] = {}
        self._where: dict[int, str] = {}

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self._where)

    def send(self, number: int, name: str, *, tokens: int, priority: int, now_us: int) -> None:
        """A request goes to a replica.

        Raises:
            ValueError: a request of that number is under way.
        """
        if number in self._where:
            raise ValueError(f"request {number} is in flight already, to {self._where[number]}")
        line = self._lines.setdefault(name, _Line())
        self._where[number] = name
        line.own[number] = line.unseen[number] = _Sent(now_us, tokens, priority)
        line.unseen_tokens += tokens
        line.priorities[priority] += 1

    def end(self, number: int, now_us: int) -> None:
        """It has ended, however. Nothing happens when it has before, or when its replica has gone."""
        name = self._where.pop(number, None)
        if name is None:
            return
        line = self._lines[name]
        del line.own[number]
        if number in line.unseen:
            line.show(number)
        else:
            line.ended_us.append(now_us)

    def scrape(self, name: str, scraped_us: int) -> None:
        """A page that was asked for then shows what was sent before, and not what ended before. An older one tells nothing."""
        line = self._lines.setdefault(name, _Line())
        if line.scraped_us is not None and scraped_us < line.scraped_us:
            return
        line.scraped_us = scraped_us
        shown_us = scraped_us - self._settle_us
        # In the order in which they were sent.
        for number, _ in list(takewhile(lambda item: item[1].at_us <= shown_us, line.unseen.items())):
            line.show(number)
        while line.ended_us and line.ended_us[0] <= scraped_us:
            line.ended_us.popleft()

    def forget(self, name: str) -> None:
        """The replica has gone."""
        for number in self._lines.pop(name, _Line()).own:
            del self._where[number]

    def of(self, name: str, priority: int) -> Counted:
        """What counts for a request of that priority."""
        line = self._lines.get(name)
        if line is None:
            return Counted()
        behind = sum(count for level, count in line.priorities.items() if level > priority)
        return Counted(len(line.own), len(line.unseen), behind, line.unseen_tokens, len(line.ended_us))
