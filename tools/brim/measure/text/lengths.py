"""How long prompts and texts are: one length, a distribution, or recorded pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from brim.engine.lifecycle import RequestClass
from brim.engine.traffic import SHAREGPT_PROMPTS, SHAREGPT_TEXTS, Call, Lengths, draw_calls
from brim.errors import InputError

SHAREGPT = "sharegpt"
LOGNORMAL = "lognormal:"
EXPECTED = f"a number of tokens, {SHAREGPT}, or {LOGNORMAL}MEAN,SIGMA"
MOST_BYTES = 64 * 1024**2
"""Of a file of pairs."""
FAULTS_SHOWN = 20


class Mix(Protocol):
    """Something that calls are drawn from."""

    def draw(self, count: int, rng: np.random.Generator, *, context_tokens: int, batch_share: float) -> list[Call]:
        """So many calls, which ask for exactly the text that they get."""

    def as_json(self) -> object:
        """What a run is told apart by."""


@dataclass(frozen=True, slots=True)
class Distributions:
    """Lengths of prompts and texts, drawn apart from each other."""

    prompts: Lengths
    texts: Lengths

    def draw(self, count: int, rng: np.random.Generator, *, context_tokens: int, batch_share: float) -> list[Call]:
        """So many calls; a text is shortened where the context would not hold it (``brim.engine.traffic.draw_calls``)."""
        return draw_calls(count, self.prompts, self.texts, rng, context_tokens=context_tokens, batch_share=batch_share)

    def as_json(self) -> object:
        """Both, by their parameters."""
        return [[one.mean, one.sigma, one.least, one.most] for one in (self.prompts, self.texts)]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Recorded lengths, prompt and text together, drawn with replacement."""

    pairs: Sequence[tuple[int, int]]

    def draw(self, count: int, rng: np.random.Generator, *, context_tokens: int, batch_share: float) -> list[Call]:
        """So many calls.

        Raises:
            InputError: pairs that the context does not hold.
        """
        over = sum(prompt + text > context_tokens for prompt, text in self.pairs)
        if over:
            raise InputError(
                f"{over} of {len(self.pairs)} pairs have more than {context_tokens} tokens together",
                hint="that is context_tokens of the service file: leave them out, or raise it",
            )
        chosen = rng.integers(len(self.pairs), size=count).tolist()
        batch = rng.random(count) < batch_share
        return [
            Call(prompt, text, text, RequestClass.BATCH if of_batch else RequestClass.INTERACTIVE)
            for (prompt, text), of_batch in zip(map(self.pairs.__getitem__, chosen), batch.tolist(), strict=True)
        ]

    def as_json(self) -> object:
        """All of them."""
        return [list(pair) for pair in self.pairs]


def lengths_of(given: str, option: str, *, sharegpt: Lengths, context_tokens: int) -> Lengths:
    """A length or a distribution as it is typed.

    Args:
        given: ``128``, ``sharegpt`` or ``lognormal:161,1.2``.
        option: whose value it is, for the error.
        sharegpt: what that word stands for.
        context_tokens: of the model; no prompt or text is drawn longer than leaves one token for the other.

    Raises:
        InputError: it is none of these, or out of range.
    """
    most = context_tokens - 1
    if given == SHAREGPT:
        return sharegpt
    hint = f"{EXPECTED} is expected, at most {most} tokens each (context_tokens of the service file less one)"
    mean, sigma = given, "0"
    if given.startswith(LOGNORMAL):
        mean, _, sigma = given.removeprefix(LOGNORMAL).partition(",")
    elif not given.isascii() or not given.isdigit():
        raise InputError(f"{option} {given}: not a length", hint=hint)
    try:
        if not 1 <= float(mean) <= most:
            raise InputError(f"{option} {given}: {mean} is not from 1 to {most}", hint=hint)
        return Lengths(float(mean), float(sigma), 1, most)
    except ValueError as error:
        raise InputError(f"{option} {given}: MEAN and SIGMA are numbers", hint=hint) from error


def mix_of(prompts: str, texts: str, *, context_tokens: int) -> Distributions:
    """What ``--prompts`` and ``--texts`` say.

    Raises:
        InputError: one of them is no distribution.
    """
    return Distributions(
        lengths_of(prompts, "--prompts", sharegpt=SHAREGPT_PROMPTS, context_tokens=context_tokens),
        lengths_of(texts, "--texts", sharegpt=SHAREGPT_TEXTS, context_tokens=context_tokens),
    )


def read_pairs(path: Path) -> Pairs:
    """JSON lines of ``{"prompt_tokens": 120, "output_tokens": 64}``. Other keys are passed over, empty lines too.

    Raises:
        InputError: the file cannot be read, is too large, has no pair, or has faults: all of them at once.
    """
    hint = 'expected is {"prompt_tokens": 120, "output_tokens": 64} on each line, both whole numbers from 1'
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are read", hint=hint)
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint=hint) from error
    pairs, faults = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            pair = (document["prompt_tokens"], document["output_tokens"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            faults.append(f"{path}:{number}: {type(error).__name__}: {error}")
            continue
        if all(type(length) is int and length >= 1 for length in pair):
            pairs.append(pair)
        else:
            faults.append(f"{path}:{number}: {pair}")
    if faults or not pairs:
        more = [f"and {len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
        raise InputError("\n".join([*faults[:FAULTS_SHOWN], *more]) or f"{path}: there is no pair", hint=hint)
    return Pairs(pairs)
