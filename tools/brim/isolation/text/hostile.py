"""Requests that a server must refuse, or must at least keep to their own callers."""

from __future__ import annotations

from brim.isolation.text.call import Call
from brim.measure.text.stream import Ask

PROMPT = b"Once upon a time"
BIG_TOKENS = 10_000_000
OVERSIZE_BYTES = 400_000
MANY_STOPS = 10_000
NESTED = 20_000


def hostile_calls() -> list[Call]:
    """Each broken in one way. What it gets alone is yet unknown."""
    broken: dict[str, Ask] = {
        "an empty prompt": Ask(b"", {"max_tokens": 4}),
        "a prompt that is not UTF-8": Ask(b"caf\xc3", {"max_tokens": 4}),
        "a prompt with a lone surrogate": Ask(b"\xed\xa0\x80", {"max_tokens": 4}),
        "a prompt of 400,000 bytes": Ask(b"word " * (OVERSIZE_BYTES // 5), {"max_tokens": 4}),
        "more tokens than any model takes": Ask(PROMPT, {"max_tokens": BIG_TOKENS}),
        "no tokens": Ask(PROMPT, {"max_tokens": 0}),
        "a temperature of NaN": Ask(PROMPT, {"temperature": float("nan"), "max_tokens": 4}),
        "a negative temperature": Ask(PROMPT, {"temperature": -1, "max_tokens": 4}),
        "an infinite penalty": Ask(PROMPT, {"presence_penalty": float("inf"), "max_tokens": 4}),
        "a top_p of 2": Ask(PROMPT, {"top_p": 2, "max_tokens": 4}),
        "an unknown option": Ask(PROMPT, {"top_kk": 3, "max_tokens": 4}),
        "two texts": Ask(PROMPT, {"n": 2, "max_tokens": 4}),
        "10,000 stop strings": Ask(PROMPT, {"stop": [f"s{number}" for number in range(MANY_STOPS)], "max_tokens": 4}),
        "an empty stop string": Ask(PROMPT, {"stop": [""], "max_tokens": 4}),
        "a stop string that is a number": Ask(PROMPT, {"stop": [7], "max_tokens": 4}),
        "a seed that is a text": Ask(PROMPT, {"seed": "today", "max_tokens": 4}),
        "a stop token out of the vocabulary": Ask(PROMPT, {"stop_token_ids": [2**40], "max_tokens": 4}),
        "options that are no JSON": Ask(PROMPT, b'{"max_tokens": 4'),
        "options that are a list": Ask(PROMPT, b"[4]"),
        "options that are not UTF-8": Ask(PROMPT, b'{"stop": "\xff"}'),
        "options nested 20,000 deep": Ask(PROMPT, b'{"stop":' + b"[" * NESTED + b"]" * NESTED + b"}"),
    }
    return [Call(ask, what) for what, ask in broken.items()]
