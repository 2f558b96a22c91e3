"""Requests that a server must refuse, or must at least keep to their own callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

from brim.isolation.text.call import Call
from brim.measure.text.stream import Ask

PROMPT = b"Once upon a time"
BIG_TOKENS = 10_000_000
OVERSIZE_BYTES = 400_000
MANY_STOPS = 10_000
NESTED = 20_000


@dataclass(frozen=True, slots=True)
class BrokenAsk(Ask):
    """A request whose message is broken after it was made.

    Attributes:
        breaks: changes a ``ModelInferRequest``.
    """

    breaks: Callable[[Any], None] = lambda request: None

    def message(self, model: str) -> bytes:
        """The broken request as it travels."""
        request = service_pb2.ModelInferRequest.FromString(Ask.message(self, model))
        self.breaks(request)
        return bytes(request.SerializeToString())


def _without_prompt(request: Any) -> None:
    del request.inputs[0], request.raw_input_contents[0]


def _two_prompts(request: Any) -> None:
    request.inputs[0].shape[:] = [2]
    request.raw_input_contents[0] *= 2


def _no_prompts(request: Any) -> None:
    request.inputs[0].shape[:] = [0]
    request.raw_input_contents[0] = b""


def _numbers(request: Any) -> None:
    request.inputs[0].datatype = "INT64"
    request.raw_input_contents[0] = bytes(8)


def _lies(request: Any) -> None:
    request.raw_input_contents[0] = b"\xff\xff\xff\x7f" + PROMPT


def _cut(request: Any) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][:-3]


def _unknown(request: Any) -> None:
    request.inputs[1].name = "sampling_parametres"


def _twice(request: Any) -> None:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])


BROKEN = {
    "no prompt at all": _without_prompt,
    "two prompts in one request": _two_prompts,
    "a prompt of no element": _no_prompts,
    "a prompt of numbers": _numbers,
    "a prompt whose length lies": _lies,
    "a prompt that is cut": _cut,
    "an unknown input": _unknown,
    "an input twice": _twice,
}
"""Messages that say something else than what they hold."""


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
    broken |= {what: BrokenAsk(PROMPT, {"max_tokens": 4}, breaks=breaks) for what, breaks in BROKEN.items()}
    return [Call(ask, what) for what, ask in broken.items()]
