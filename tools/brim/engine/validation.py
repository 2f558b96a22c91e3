"""What an engine does not check, checked before a request comes near it: everything that is wrong, at once.

openvino-genai takes an id twice, tokens outside the vocabulary and lengths beyond its cache without a word, and draws from
whatever a NaN makes of the probabilities; what it does then reaches its neighbours. Options as they come over the wire,
unknown ones and ``n`` among them, are read by ``brim.engine.sampling``; here is what must hold whoever made the request.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass

from brim.engine.admission import misfit
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.lifecycle import Request
from brim.engine.sampling import LARGEST_SEED, LONGEST_STOP, MOST_STOP_TOKENS, MOST_STOPS
from brim.findings import Finding, Severity

MOST_FINDINGS = 30
LONGEST_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
MOST_TOKENS = 2**31 - 1
"""Engines count tokens in 32 bits."""

DUPLICATE_ID, EMPTY_PROMPT, BAD_TOKEN, TOO_LONG = "GEN001", "GEN002", "GEN003", "GEN004"
BAD_OPTION, BAD_STOP, BAD_STOP_TOKEN, CONTRADICTION = "GEN010", "GEN011", "GEN012", "GEN013"


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
        low, high = (f"{bound:.0f}" if self.whole else f"{bound:g}" for bound in (self.low, self.high))
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


def request_findings(request: Request, limits: EngineLimits, living: Container[str] = ()) -> list[Finding]:
    """Everything that is wrong with a request; ``MOST_FINDINGS`` at most.

    Args:
        request: as it would be submitted.
        limits: of the engine.
        living: ids in use.
    """
    faults = [*_request_faults(request, limits, living), *_sampling_faults(request.sampling, limits.vocabulary)]
    return [Finding(code, Severity.ERROR, "request", 0, 0, text) for code, text in faults[:MOST_FINDINGS]]


def _request_faults(request: Request, limits: EngineLimits, living: Container[str]) -> Iterator[tuple[str, str]]:
    if request.id in living:
        yield DUPLICATE_ID, f"the id {_shown(request.id)} belongs to a request that has not ended"
    tokens = request.tokens
    if not tokens:
        yield EMPTY_PROMPT, "the prompt has no tokens; 1 or more is expected"
    wrong = [place for place, token in enumerate(tokens) if not _is_token(token, limits.vocabulary)]
    if wrong:
        yield (
            BAD_TOKEN,
            f"token {wrong[0]} of the prompt is {_shown(tokens[wrong[0]])}"
            + (f", and {len(wrong) - 1} more are wrong" if len(wrong) > 1 else "")
            + f"; the model's tokens are whole numbers from 0 to {limits.vocabulary - 1}",
        )
    if RANGES["max_tokens"].holds(request.sampling.max_tokens):
        misfits = misfit(request, limits)
        if misfits is not None:
            yield TOO_LONG, misfits[1]


def _sampling_faults(sampling: Sampling, vocabulary: int) -> Iterator[tuple[str, str]]:
    for name, range_ in RANGES.items():
        value = getattr(sampling, name)
        if not range_.holds(value):
            yield BAD_OPTION, f"{name} is {_shown(value)}; {range_} is expected"
    if not isinstance(sampling.ignore_eos, bool):
        yield BAD_OPTION, f"ignore_eos is {_shown(sampling.ignore_eos)}; true or false is expected"
    both = all(RANGES[name].holds(getattr(sampling, name)) for name in ("min_tokens", "max_tokens"))
    if both and sampling.min_tokens > sampling.max_tokens:
        yield CONTRADICTION, f"min_tokens is {sampling.min_tokens}, above max_tokens, which is {sampling.max_tokens}"
    if len(sampling.stop) > MOST_STOPS:
        yield BAD_STOP, f"stop has {len(sampling.stop)} strings; at most {MOST_STOPS} are taken"
    for place, stop in enumerate(sampling.stop[:MOST_STOPS]):
        if not isinstance(stop, str) or not 1 <= len(stop) <= LONGEST_STOP:
            yield BAD_STOP, f"stop[{place}] is {_shown(stop)}; a string of 1 to {LONGEST_STOP} characters is expected"
    if len(sampling.stop_token_ids) > MOST_STOP_TOKENS:
        yield BAD_STOP_TOKEN, f"stop_token_ids has {len(sampling.stop_token_ids)}; at most {MOST_STOP_TOKENS} are taken"
    for place, token in enumerate(sampling.stop_token_ids[:MOST_STOP_TOKENS]):
        if not _is_token(token, vocabulary):
            yield BAD_STOP_TOKEN, f"stop_token_ids[{place}] is {_shown(token)}; 0 to {vocabulary - 1} is expected"


def _is_token(token: object, vocabulary: int) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
