"""Values that sampling options may have: for whoever reads them over the wire, and for whoever checks a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_TOKENS = 2**31 - 1
"""Engines count tokens in 32 bits."""
LARGEST_SEED = 2**64 - 1
MOST_STOPS = 16
LONGEST_STOP = 256
"""Characters. What could still become a stop string is held back, so a long one delays the text."""
MOST_STOP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Range:
    """Values that an option may have: from ``low`` to ``high``, whole numbers only where ``whole``."""

    low: float
    high: float
    whole: bool = False
    above_low: bool = False
    below_high: bool = False

    def holds(self, value: object) -> bool:
        """Whether it is a number, finite and inside. A truth value is no number."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        above = value > self.low if self.above_low else value >= self.low
        return above and (value < self.high if self.below_high else value <= self.high)

    def __str__(self) -> str:
        """As it stands in a message."""
        low, high = (str(int(bound)) if self.whole else f"{bound:g}" for bound in (self.low, self.high))
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} {'above' if self.above_low else 'from'} {low} {'and below' if self.below_high else 'to'} {high}"


RANGES = {
    "max_tokens": Range(1, MOST_TOKENS, whole=True),
    "min_tokens": Range(0, MOST_TOKENS, whole=True),
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above_low=True),
    "top_k": Range(0, MOST_TOKENS, whole=True),
    "min_p": Range(0, 1, below_high=True),
    "repetition_penalty": Range(0, 100, above_low=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "seed": Range(0, LARGEST_SEED, whole=True),
}
"""Of the fields of ``Sampling``. Beyond them an engine overflows, or divides by what is nearly nothing."""
