"""Sentences of mixed length, built from real words so that the tokenizer gives exactly the lengths that were drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from tokenizers import Tokenizer

SHORTEST, LONGEST = 5, 256
"""Tokens of a sentence, special tokens included; a draw outside is drawn again."""
MEDIAN, SIGMA = 34.0, 0.7
"""Of the lognormal lengths: a mean of about 44 tokens, as chat messages and sentences of the web have it."""
SPECIAL_TOKENS = 2


def lengths(count: int, seed: int) -> list[int]:
    """``count`` lognormal lengths in ``SHORTEST..LONGEST`` tokens, the same for the same seed."""
    draw = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        length = round(draw.lognormvariate(math.log(MEDIAN), SIGMA))
        if SHORTEST <= length <= LONGEST:
            drawn.append(length)
    return drawn


def one_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words of the vocabulary that are one token each wherever they stand: letters only, three at least."""
    words = sorted(word for word in tokenizer.get_vocab() if len(word) > 2 and word.isascii() and word.isalpha())
    encoded = tokenizer.encode_batch(words, add_special_tokens=False)
    return [word for word, encoding in zip(words, encoded, strict=True) if encoding.tokens == [word]]


def sentences(tokenizer: Tokenizer, wanted: Sequence[int], seed: int) -> list[str]:
    """One sentence for each wanted length, special tokens included.

    Raises:
        ValueError: a length leaves no room for a word, or the tokenizer gives another length than was built.
    """
    words = one_token_words(tokenizer)
    draw = random.Random(seed)
    if not words or any(length <= SPECIAL_TOKENS for length in wanted):
        raise ValueError(f"{len(words)} one-token words, lengths {min(wanted, default=0)}..: nothing can be built")
    texts = [" ".join(draw.choices(words, k=length - SPECIAL_TOKENS)) for length in wanted]
    found = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    if found != list(wanted):
        wrong = next(place for place, length in enumerate(wanted) if found[place] != length)
        raise ValueError(f"sentence {wrong} has {found[wrong]} tokens, built for {wanted[wrong]}")
    return texts
