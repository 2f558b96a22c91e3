"""From tokens to text as it comes: no split characters, deltas that add up to the whole text, stop strings that never show.

A token is a run of bytes, and a character may begin in one token and end in the next. So tokens are put together as bytes,
from a table made once (asking the engine's own detokeniser for every token halves what a server delivers), and decoded by
Python's incremental decoder. What may still become a stop string is held back until it is known not to.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence

from brim.errors import ModelFileError

STRANGE_SHOWN = 5
"""Tokens that an error names."""


def byte_table(
    vocabulary: Mapping[bytes, int], decode: Callable[[Sequence[Sequence[int]]], Sequence[str]]
) -> tuple[bytes, ...]:
    """The bytes of every token, by number. Special tokens, which no text shows, are empty.

    Args:
        vocabulary: the bytes of each token as the tokenizer has them, to its number.
        decode: the tokenizer's own decoding of each of a list of token lists, special tokens left out.

    Raises:
        ModelFileError: for some token the tokenizer's own text is another one, so that a text put together from bytes
            would not be what the model means. Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) have none of those.
    """
    table = [b""] * (1 + max(vocabulary.values(), default=-1))
    pieces = sorted(vocabulary.items(), key=lambda entry: entry[1])
    strange = []
    for (piece, token), said in zip(pieces, decode([[token] for _, token in pieces]), strict=True):
        try:
            text = piece.decode("utf-8")
        except UnicodeDecodeError:
            # A part of a character: whatever the tokenizer says of it alone, in a text it stands beside the rest.
            table[token] = piece
            continue
        if said == text:
            table[token] = piece
        elif said:
            strange.append(f"{token} is {piece!r} and reads {said!r}")
    if strange:
        raise ModelFileError(
            f"{len(strange)} of {len(pieces)} tokens read otherwise than their bytes: {'; '.join(strange[:STRANGE_SHOWN])}",
            hint="this host takes models with a byte-level vocabulary; serve others with the profile vllm",
        )
    return tuple(table)


class TextStream:
    """One text in the making.

    The text ends before the stop string whose last character comes first; of two that end together, before the longer one.
    So the text does not depend on how its tokens were grouped on their way.
    """

    def __init__(self, table: Sequence[bytes], stop: Iterable[str] = ()) -> None:
        """Begin with nothing.

        Args:
            table: bytes by token, as ``byte_table`` gives them.
            stop: strings that end the text and are no part of it; none of them empty.
        """
        self._table = table
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string has come. Nothing is added any more."""

    def push(self, tokens: Iterable[int]) -> str:
        """What the tokens add to the text, as far as it can be shown.

        A model may have more rows than its tokenizer has tokens; such a row can be drawn, and stands for no text.
        """
        known = [self._table[token] for token in tokens if token < len(self._table)]
        return self._show(self._decoder.decode(b"".join(known)), final=False)

    def finish(self) -> str:
        """What was held back: no token comes any more. An unfinished character becomes U+FFFD."""
        return self._show(self._decoder.decode(b"", True), final=True)

    def _show(self, more: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        self._held += more
        found = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            cut = min(found)[1]
        else:
            cut = len(self._held) - (0 if final else self._open_end())
        shown, self._held = self._held[:cut], "" if self.stopped else self._held[cut:]
        return shown

    def _open_end(self) -> int:
        """Characters at the end of what is held that a stop string begins with."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if self._held.endswith(tuple(stop[:length] for stop in self._stop if len(stop) > length)):
                return length
        return 0
