"""How often something that fails is tried again, and after which pauses. Whoever asks brings the clock."""

from __future__ import annotations

from collections import deque

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 4.0
"""With a start of some seconds, the last pause still keeps a canary within 10 s."""


class Budget:
    """How many attempts are left, and how long to wait before the next. Knows no clock; it is told the time."""

    def __init__(self, most: int, within_s: float) -> None:
        """Nothing is spent yet; ``most`` attempts within any ``within_s`` are granted."""
        self.most, self.within_s = most, within_s
        self._spent: deque[float] = deque()

    def spend(self, now_s: float) -> float | None:
        """Take one attempt: the pause before it, or None when none is left. ``now_s`` never goes back."""
        while self._spent and now_s - self._spent[0] >= self.within_s:
            self._spent.popleft()
        before = len(self._spent)
        if before >= self.most:
            return None
        self._spent.append(now_s)
        return 0.0 if before == 0 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (before - 1))
