"""How long a step may take before its engine counts as hung.

Its own recent steps tell best, and none may be seen yet. A step's length goes with its tokens: on two shared cores a token
of a prefill takes some 2 ms, so ``token_s`` leaves room for a machine fifty times as slow or as busy.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from brim.units import US_PER_S

RECENT_STEPS = 200


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest wait for a step.

    Attributes:
        least_s: granted to every step,
        token_s: and so much more for every token that a step may have;
        times: or so many times the longest of the last ``RECENT_STEPS`` steps, if that is more.
        most_s: never more than this.
    """

    least_s: float = 10.0
    token_s: float = 0.1
    times: float = 20.0
    most_s: float = 300.0
    _recent_us: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS), repr=False)

    def saw(self, took_us: int) -> None:
        """One more step."""
        self._recent_us.append(took_us)

    def limit_s(self, step_tokens: int) -> float:
        """For the next step of an engine whose steps have so many tokens at most."""
        seen_s = self.times * max(self._recent_us, default=0) / US_PER_S
        return min(self.most_s, max(self.least_s + self.token_s * step_tokens, seen_s))
