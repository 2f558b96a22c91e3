"""Simulated traffic of a token model: when requests come, how long their prompts and texts are. Seeded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from brim.engine.lifecycle import RequestClass
from brim.errors import InputError
from brim.units import US_PER_S

MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """A request that will be made.

    Attributes:
        prompt_tokens: of its prompt.
        output_tokens: of its text, which ends by itself then.
        max_tokens: what it asks for at most; blocks are promised for it.
        kind: its class.
        shared_tokens: leading tokens of the prompt that all such calls have in common (a system prompt).
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    kind: RequestClass = RequestClass.INTERACTIVE
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal distribution of token counts, cut to ``least``..``most``.

    Attributes:
        mean: of the distribution before it is cut.
        sigma: standard deviation of the logarithm; 0 for one length.
        least: shortest.
        most: longest.
    """

    mean: float
    sigma: float
    least: int = 1
    most: int = 2048

    def __post_init__(self) -> None:
        """Refuse what is no distribution.

        Raises:
            InputError: a value is not finite or out of its range.
        """
        if not (0 < self.mean < math.inf and 0 <= self.sigma <= 10 and 1 <= self.least <= self.most):
            raise InputError(
                f"lengths of mean {self.mean}, sigma {self.sigma}, from {self.least} to {self.most} tokens",
                hint="the mean is above 0, sigma is 0 to 10, and 1 <= least <= most",
            )

    def draw(self, count: int, rng: np.random.Generator) -> list[int]:
        """So many lengths."""
        location = math.log(self.mean) - self.sigma**2 / 2
        lengths = np.rint(rng.lognormal(location, self.sigma, count)).clip(self.least, self.most)
        return [int(length) for length in lengths]


SHAREGPT_PROMPTS = Lengths(161.31, 1.2, 4, 2048)
SHAREGPT_TEXTS = Lengths(337.99, 1.0, 4, 2048)
"""Chats like those of the ShareGPT data set, whose means are 161.31 and 337.99 tokens (Kwon et al. 2023, Efficient Memory
Management for Large Language Model Serving with PagedAttention, section 6.1). The shape is lognormal; the spreads are ours."""


def draw_calls(
    count: int,
    prompts: Lengths,
    texts: Lengths,
    rng: np.random.Generator,
    *,
    context_tokens: int,
    batch_share: float = 0.0,
    max_tokens: int | None = None,
) -> list[Call]:
    """Calls that fit a model's context; a text is shortened where they would not.

    Args:
        count: how many.
        prompts: of the prompts, which leave room for one token at least.
        texts: of the texts.
        rng: the only source of chance.
        context_tokens: most tokens of prompt and text together.
        batch_share: share of the batch class, 0 to 1.
        max_tokens: what every caller asks for at most; None for callers who know how long their texts will be.

    Raises:
        InputError: a value is out of its range.
    """
    if not (0 <= count <= MOST_REQUESTS and 0 <= batch_share <= 1 and context_tokens > 1):
        raise InputError(
            f"{count} calls, {batch_share} of them batch, in a context of {context_tokens} tokens",
            hint=f"0 to {MOST_REQUESTS} calls, a share from 0 to 1, and a context of 2 tokens or more are expected",
        )
    calls: list[Call] = []
    drawn = zip(prompts.draw(count, rng), texts.draw(count, rng), rng.random(count).tolist(), strict=True)
    for prompt, text, place in drawn:
        prompt = min(prompt, context_tokens - 1)
        most = min(context_tokens - prompt, max_tokens or text)
        kind = RequestClass.BATCH if place < batch_share else RequestClass.INTERACTIVE
        calls.append(Call(prompt, min(text, most), most, kind))
    return calls


def poisson_times_us(rate: float, count: int, rng: np.random.Generator) -> list[int]:
    """Times of so many arrivals of a Poisson process, ``rate`` a second, from 0.

    Raises:
        InputError: the rate is not above 0.
    """
    if not 0 < rate < math.inf:
        raise InputError(f"a rate of {rate} a second; above 0 is expected", hint="for a burst, send all at time 0")
    return [int(time) for time in np.cumsum(rng.exponential(US_PER_S / rate, count))]
