"""What rounds of a comparison allow to say: a target is met, it is missed, or the noise forbids an answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

CONFIDENCE = 0.9
"""Least probability with which the interval of a spread must hold the true median."""


class Verdict(StrEnum):
    """Of one target."""

    MET = "met"
    MISSED = "missed"
    UNCLEAR = "unclear"


class ExitCode(IntEnum):
    """Of a benchmark: the answer is yes, it is no, it cannot be told."""

    YES = 0
    NO = 1
    COULD_NOT_TELL = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """The ratios of all rounds: their median, and an interval that holds the true median.

    Attributes:
        median: of the rounds.
        low: lower end of the interval.
        high: upper end.
        confidence: probability, 0..1, with which the interval holds the median that endless rounds would give, whatever
            the distribution of a round (sign test). Below ``CONFIDENCE`` there are too few rounds to say anything.
        rounds: how many.
    """

    median: float
    low: float
    high: float
    confidence: float
    rounds: int


def spread_of(values: Sequence[float]) -> Spread:
    """The narrowest interval of order statistics with ``CONFIDENCE``; all of the values where they are too few for it.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no round, no spread")
    ordered, count = sorted(values), len(values)
    dropped = max((k for k in range((count + 1) // 2) if _confidence(count, k) >= CONFIDENCE), default=0)
    low, high = ordered[dropped], ordered[count - 1 - dropped]
    return Spread(statistics.median(ordered), low, high, _confidence(count, dropped), count)


def _confidence(count: int, dropped: int) -> float:
    """That the median lies between the values left when ``dropped`` are taken off either end."""
    outside = sum(math.comb(count, k) for k in range(dropped + 1)) / float(2**count)
    return max(0.0, 1.0 - 2.0 * outside)


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio must be: ``least``, ``most``, or both."""

    ratio: str
    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        """``<= 1.10`` or ``>= 0.90``."""
        words = [f">= {self.least:.2f}"] if self.least > -math.inf else []
        return " and ".join(words + ([f"<= {self.most:.2f}"] if self.most < math.inf else []))


def judge(target: Target, spread: Spread) -> Verdict:
    """Met when the whole interval is inside the target, missed when the whole interval is outside."""
    if spread.confidence < CONFIDENCE:
        return Verdict.UNCLEAR
    if target.least <= spread.low and spread.high <= target.most:
        return Verdict.MET
    if spread.high < target.least or spread.low > target.most:
        return Verdict.MISSED
    return Verdict.UNCLEAR


def exit_code(verdicts: Iterable[Verdict]) -> ExitCode:
    """One missed target makes the answer no; else one unclear makes it unclear."""
    found = set(verdicts)
    if Verdict.MISSED in found:
        return ExitCode.NO
    return ExitCode.COULD_NOT_TELL if Verdict.UNCLEAR in found else ExitCode.YES
