"""What each check asks, as plans: calls in sending order. How they are judged is the same for all (``text.judge``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from brim.isolation.text.call import Alone, Call
from brim.isolation.text.prompts import words
from brim.measure.text.stream import Ask

STARTS_US = 50_000
"""Longest random pause of a caller before it asks."""
MOST_PIECES = 12
"""After so many at the latest a caller that counts them goes."""
LONG_WORDS = 1_200
LONG_SHARE = 0.05
REFUSED_SHARE = 0.3
SECRET_DIGITS = 8
SECRET_TOKENS = 12
LONGEST_STOP = 6


@dataclass(frozen=True, slots=True)
class Material:
    """What a check may use.

    Attributes:
        pool: good calls, each with what it must get.
        draw: random numbers of this check alone.
        count: about how many calls to make.
        callers: how many callers there are.
        alone_us: how long a good call takes alone, the median.
    """

    pool: Sequence[Call]
    draw: np.random.Generator
    count: int
    callers: int
    alone_us: int


def good(material: Material, count: int) -> list[Call]:
    """``count`` good calls in shuffled order, again and again, each begun at a moment of its own."""
    pool, draw = material.pool, material.draw
    rounds = -(-count // len(pool))
    order = np.concatenate([draw.permutation(len(pool)) for _ in range(rounds)])[:count]
    return [replace(pool[int(number)], starts_us=int(draw.integers(STARTS_US))) for number in order]


def shuffled(calls: Sequence[Call], draw: np.random.Generator) -> list[Call]:
    """The same in another order."""
    return [calls[int(number)] for number in draw.permutation(len(calls))]


def leaver(call: Call, latest_us: int, draw: np.random.Generator) -> Call:
    """The same call by a caller that goes: at a moment, or after a number of pieces."""
    if draw.random() < 0.5:
        return replace(call, leaves_us=int(draw.integers(1, latest_us + 2)))
    return replace(call, leaves_pieces=int(draw.integers(1, MOST_PIECES + 1)))


def with_leavers(material: Material) -> list[Call]:
    """As many callers that go as callers that stay."""
    half = max(1, material.count // 2)
    latest_us = round(1.5 * material.alone_us)
    leavers = [leaver(call, latest_us, material.draw) for call in good(material, half)]
    return shuffled([*leavers, *good(material, half)], material.draw)


def among(material: Material, others: Sequence[Call], share: float) -> list[Call]:
    """Good calls with others in between: ``share`` of all, and each of the others at least once."""
    draw = material.draw
    rounds = max(1, round(material.count * share / len(others))) if others else 0
    mixed = [*good(material, material.count), *(call for _ in range(rounds) for call in others)]
    return shuffled(mixed, draw)


def with_long_prompts(material: Material) -> list[Call]:
    """Good calls, and between them prompts of ``LONG_WORDS`` words that nobody has asked before: anything is their own."""
    draw = material.draw
    long = [
        Call(Ask(words(LONG_WORDS, draw).encode(), {"temperature": 0, "max_tokens": 2}), "a long prompt")
        for _ in range(max(1, round(material.count * LONG_SHARE)))
    ]
    return shuffled([*good(material, material.count), *long], draw)


def secret_calls(material: Material) -> list[Call]:
    """Callers who each have a secret in their prompt, and callers who fish for one with the same beginning.

    A third repeats its secret, a third has it in an option that is refused, a third has none; those draw without a seed,
    so any text is theirs as long as nobody's secret shows in it.
    """
    draw = material.draw
    lowest, highest = 10 ** (SECRET_DIGITS - 1), 10**SECRET_DIGITS
    drawn = draw.choice(highest - lowest, size=2 * (material.count // 3 + 1), replace=False)
    secrets = [str(lowest + int(number)) for number in drawn]
    beginning = "Here is the secret number, and here it is again. The secret number is"
    hot = {"temperature": 1.0, "max_tokens": SECRET_TOKENS}
    calls = []
    for number in range(0, len(secrets), 2):
        told, refused = secrets[number], secrets[number + 1]
        prompt = f"{beginning} {told}. The secret number is {told}. The secret number is".encode()
        calls += [
            Call(Ask(prompt, {"temperature": 0, "max_tokens": SECRET_TOKENS}), secret=told),
            Call(Ask(beginning.encode(), {**hot, f"o{refused}": refused}), "a secret that is refused", secret=refused),
            Call(Ask(beginning.encode(), hot), "fishes for a secret"),
        ]
    return shuffled(calls, draw)


def same_ids(material: Material) -> list[Call]:
    """Pairs of different calls that carry the same request id, side by side."""
    calls = good(material, max(2, material.count // 2 * 2))
    return [
        replace(call, ask=replace(call.ask, request_id=f"twice-{number // 2}"), starts_us=0)
        for number, call in enumerate(calls)
    ]


def with_stops(material: Material) -> list[Call]:
    """The texts of the pool, each cut by parts of itself: at many places, across the borders of tokens."""
    draw = material.draw
    calls = []
    for call in good(material, material.count):
        text = call.alone.text if call.alone else ""
        if len(text) < 2:
            continue
        begin = int(draw.integers(len(text)))
        stop = text[begin : begin + int(draw.integers(1, LONGEST_STOP + 1))]
        # At the very end it can stand for an unfinished character, which is none before the end.
        if "\ufffd" in stop:
            continue
        never = f"{stop}\u2603 never"
        options = call.ask.options if not isinstance(call.ask.options, bytes) else {}
        ask = replace(call.ask, options={**options, "stop": [stop, never]})
        alone = Alone(text[: text.index(stop)], "stop", input_tokens=call.alone.input_tokens if call.alone else None)
        calls.append(replace(call, ask=ask, what=f"stops at {stop!r}", alone=alone))
    return calls
