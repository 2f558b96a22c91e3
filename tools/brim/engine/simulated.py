"""What became of a simulated traffic of a token model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.engine.lifecycle import End, Reason
from brim.engine.step_time import StepShape
from brim.units import US_PER_S

OUTCOMES = tuple(End)
"""``Simulated.ends`` holds places in this tuple."""
Integers = NDArray[np.int64]


@dataclass(slots=True)
class Seen:
    """What became of one call so far."""

    sent_us: int
    first_us: int = -1
    last_us: int = -1
    tokens: int = 0
    end: End | None = None
    reason: Reason | None = None

    def take(self, tokens: int, at_us: int) -> None:
        """So many tokens came."""
        if tokens:
            self.tokens += tokens
            self.first_us = at_us if self.first_us < 0 else self.first_us
            self.last_us = at_us


@dataclass(frozen=True)
class Simulated:
    """What became of a traffic: one entry of each array a call, in the order in which they were sent.

    Attributes:
        sent_us: when it was sent.
        first_us: when its first token came; -1 without one.
        last_us: when its last token came, or its end; -1 for one that was refused.
        tokens: how many came.
        ends: place of its end in ``OUTCOMES``.
        reasons: refusals by reason.
        shapes: what each step ran.
        step_us: how long each step took.
        wall_us: from 0 to the last end.
        most_blocks: most KV blocks held at once.
        preemptions: seats lost to others.
    """

    sent_us: Integers
    first_us: Integers
    last_us: Integers
    tokens: Integers
    ends: Integers
    reasons: dict[str, int]
    shapes: Sequence[StepShape]
    step_us: Sequence[int]
    wall_us: int
    most_blocks: int
    preemptions: int

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which texts are complete."""
        return np.isin(self.ends, [OUTCOMES.index(End.STOP), OUTCOMES.index(End.LENGTH)])

    @property
    def ttft_us(self) -> Integers:
        """Time to first token of every complete text."""
        return self.first_us[self.complete] - self.sent_us[self.complete]

    @property
    def e2e_us(self) -> Integers:
        """Time to the last token of every complete text."""
        return self.last_us[self.complete] - self.sent_us[self.complete]

    @property
    def tpot_us(self) -> NDArray[np.float64]:
        """(End-to-end - TTFT) / (tokens - 1) of every complete text of two tokens or more."""
        several = self.complete & (self.tokens > 1)
        gaps: NDArray[np.float64] = (self.last_us[several] - self.first_us[several]) / (self.tokens[several] - 1)
        return gaps

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all texts over the whole time."""
        return float(self.tokens.sum()) * US_PER_S / max(1, self.wall_us)

    @property
    def mean_sequences(self) -> float | None:
        """Sequences that decoded, the mean over steps; None without a step."""
        return float(np.mean([shape.decoding for shape in self.shapes])) if self.shapes else None

    def in_time(self, ttft_us: float, tpot_us: float) -> NDArray[np.bool_]:
        """Which texts are complete and kept both objectives; infinity is none."""
        tpot = np.zeros(len(self.tokens))
        tpot[self.complete & (self.tokens > 1)] = self.tpot_us
        good: NDArray[np.bool_] = self.complete & (self.first_us - self.sent_us <= ttft_us) & (tpot <= tpot_us)
        return good

    def goodput_per_s(self, ttft_us: float, tpot_us: float) -> float:
        """Complete texts a second that kept both objectives; infinity is none."""
        return float(self.in_time(ttft_us, tpot_us).sum()) * US_PER_S / max(1, self.wall_us)

    def as_json(self) -> dict[str, Any]:
        """Integer microseconds, ratios 0..1, None for what does not exist."""
        values = {"ttft": self.ttft_us, "tpot": self.tpot_us, "e2e": self.e2e_us}
        return {
            **{
                f"{name}_p{percent}_us": _nearest_rank(np.sort(of), percent)
                for name, of in values.items()
                for percent in (50, 90, 99)
            },
            "offered": len(self.ends),
            **{end.value: int(np.count_nonzero(self.ends == place)) for place, end in enumerate(OUTCOMES)},
            "reasons": self.reasons,
            "tokens": int(self.tokens.sum()),
            "tokens_per_s": self.tokens_per_s,
            "mean_sequences": self.mean_sequences,
            "steps": len(self.step_us),
            "step_p50_us": _nearest_rank(np.sort(np.array(self.step_us, np.int64)), 50),
            "step_max_us": max(self.step_us, default=None),
            "most_blocks": self.most_blocks,
            "preemptions": self.preemptions,
            "wall_us": self.wall_us,
        }


def _nearest_rank(ascending: NDArray[Any], percent: float) -> int | None:
    """The smallest value that at least ``percent`` percent of all do not exceed; None without values."""
    if not len(ascending):
        return None
    return round(float(ascending[max(1, math.ceil(len(ascending) * percent / 100)) - 1]))


def simulated(
    seen: Sequence[Seen], shapes: Sequence[StepShape], steps: Sequence[int], most_blocks: int, preemptions: int
) -> Simulated:
    """Put together what became of each call; every one has its end."""

    def column(values: list[int]) -> Integers:
        return np.array(values, np.int64)

    reasons: dict[str, int] = {}
    for one in seen:
        if one.reason is not None:
            reasons[one.reason.value] = reasons.get(one.reason.value, 0) + 1
    return Simulated(
        column([one.sent_us for one in seen]),
        column([one.first_us for one in seen]),
        column([one.last_us for one in seen]),
        column([one.tokens for one in seen]),
        column([OUTCOMES.index(one.end) for one in seen if one.end is not None]),
        reasons,
        shapes,
        steps,
        max((max(one.sent_us, one.last_us) for one in seen), default=0),
        most_blocks,
        preemptions,
    )
