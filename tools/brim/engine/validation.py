"""What an engine does not check, checked before a request comes near it: everything that is wrong, at once.

openvino-genai takes an id twice, tokens outside the vocabulary and lengths beyond its cache without a word, and draws from
whatever a NaN makes of the probabilities; what it does then reaches its neighbours. Options as they come over the wire,
unknown ones and ``n`` among them, are read by ``brim.engine.sampling``; here is what must hold whoever made the request.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from brim.engine.admission import misfit
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.lifecycle import Request
from brim.engine.option_ranges import LONGEST_STOP, MOST_STOP_TOKENS, MOST_STOPS, RANGES
from brim.findings import Finding, Severity

MOST_FINDINGS = 30
LONGEST_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

DUPLICATE_ID, EMPTY_PROMPT, BAD_TOKEN, TOO_LONG = "GEN001", "GEN002", "GEN003", "GEN004"
BAD_OPTION, BAD_STOP, BAD_STOP_TOKEN, CONTRADICTION = "GEN010", "GEN011", "GEN012", "GEN013"


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
