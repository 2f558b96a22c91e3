"""Cut protobuf text into tokens, and report the faults that show in single characters and brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from brim.config.faults import (
    BAD_STRING,
    BYTE_ORDER_MARK,
    LOOKALIKE,
    TOO_DEEP,
    UNBALANCED,
    UNEXPECTED,
    WRONG_COMMENT,
    Faults,
)
from brim.config.places import Place, Source

MAX_DEPTH = 64
"""Deepest nesting that is followed. The schema itself needs 7."""

OPENERS = "{<["
CLOSERS = "}>]"
SEPARATORS = ",;"
PARTNERS = dict(zip(OPENERS, CLOSERS, strict=True))
"""Opening mark to the mark that closes it."""

_LOOKALIKES = {
    "\u201c": 'a plain double quote (")',
    "\u201d": 'a plain double quote (")',
    "\u201e": 'a plain double quote (")',
    "\u2018": "a plain single quote (')",
    "\u2019": "a plain single quote (')",
    "\u201a": "a plain single quote (')",
    "\u00ab": 'a plain double quote (")',
    "\u00bb": 'a plain double quote (")',
    "\u00a0": "a plain space",
    "\u202f": "a plain space",
    "\u2009": "a plain space",
    "\u3000": "a plain space",
    "\u200b": "nothing (it is invisible)",
    "\ufeff": "nothing (it is invisible)",
    "\u2013": "a plain hyphen (-)",
    "\u2014": "a plain hyphen (-)",
    "\u2212": "a plain hyphen (-)",
    "\uff1a": "a plain colon (:)",
    "\uff0c": "a plain comma (,)",
}
_OPEN_QUOTES = {"\u201c": "\u201c\u201d", "\u201d": "\u201d", "\u201e": "\u201c\u201d", "\u00ab": "\u00bb"}
_OPEN_QUOTES |= {"\u2018": "\u2019", "\u2019": "\u2019", "\u201a": "\u2018\u2019"}

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
    | (?P<slashes>//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>[+-]?(?:[0-9]|\.[0-9])(?:[eE][+-]|[0-9A-Za-z_.])*|-(?i:inf|infinity)\b)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
    | (?P<open_string>["'][^\n]*)
    | (?P<mark>[{}<>\[\],;:\-])
    """,
    re.VERBOSE,
)
_FIELD_START = re.compile(r"\s*[:{<]")


class Token(NamedTuple):
    """One token. ``kind`` is name, number, string, mark or end; ``end`` is the offset behind it."""

    kind: str
    text: str
    place: Place
    end: int

    def is_mark(self, marks: str) -> bool:
        """Whether the token is one of ``marks``."""
        return self.kind == "mark" and self.text in marks

    @property
    def is_value(self) -> bool:
        """Whether the token can be the value of a scalar field."""
        return self.kind in ("string", "number", "name")


class Tokens:
    """The tokens of a text, one of them in view. They are cut, and their faults reported, as they come into view."""

    def __init__(self, source: Source, faults: Faults) -> None:
        """Bring the first token into view.

        Raises:
            EnoughFaults: the text has too many faults before it.
        """
        self._source = source
        self._faults = faults
        self._rest = self._cut()
        self.current = next(self._rest)

    def advance(self) -> Token:
        """The token in view; the next one takes its place. The end of the file stays."""
        token = self.current
        self.current = next(self._rest, token)
        return token

    def take(self, mark: str) -> bool:
        """Pass over ``mark`` if it is in view, and say whether it was."""
        if self.current.is_mark(mark):
            self.advance()
            return True
        return False

    def starts_field(self) -> bool:
        """Whether a field name with its colon or block behind it is in view."""
        return self.current.kind == "name" and _FIELD_START.match(self._source.text, self.current.end) is not None

    def skip_value(self) -> bool:
        """Pass over the value of a field that nothing is known of; whether it was nested too deep."""
        self.take(":")
        if self.current.is_mark(OPENERS):
            return self.skip_block()
        if self.current.is_value:
            while self.advance().kind == "string" and self.current.kind == "string":
                pass
        return False

    def skip_block(self) -> bool:
        """From an opening mark to its partner, without recursion; whether the blocks were nested too deep."""
        stack = [self.advance()]
        too_deep = False
        while stack and self.current.kind != "end":
            token = self.advance()
            if token.is_mark(OPENERS):
                stack.append(token)
                if len(stack) > MAX_DEPTH and not too_deep:
                    too_deep = True
                    said = f"blocks are nested more than {MAX_DEPTH} deep; the schema needs 7 at most"
                    hint = "look for brackets that are opened and never closed"
                    self._faults.add(TOO_DEEP, token.place, said, hint)
            elif token.is_mark(CLOSERS):
                stack.pop()
        if stack:
            said = f"{stack[0].text!r} is never closed"
            hint = f"add {PARTNERS[stack[0].text]!r} where the block ends"
            self._faults.add(UNBALANCED, stack[0].place, said, hint)
        return too_deep

    def _cut(self) -> Iterator[Token]:
        text, offset = self._source.text, 0
        if text.startswith("\ufeff"):
            said = "the file starts with a byte order mark (U+FEFF)"
            self._faults.add(BYTE_ORDER_MARK, Place(1, 1), said, "save the file as UTF-8 without a byte order mark")
            offset = 1
        while offset < len(text):
            matched = _TOKEN.match(text, offset)
            place = self._source.place(offset)
            if matched is None:
                length, token = self._lookalike(offset, place)
                offset += length
                if token:
                    yield token
                continue
            offset = matched.end()
            kind = matched.lastgroup or ""
            if kind == "slashes":
                said = f"{matched[0][:2]} does not start a comment"
                self._faults.add(WRONG_COMMENT, place, said, "start it with #")
            elif kind == "open_string":
                hint = "close the quote; write a line break as \\n"
                self._faults.add(BAD_STRING, place, "the string is not closed on its line", hint)
                yield Token("string", matched[0], place, offset)
            elif kind != "space":
                yield Token(kind, matched[0], place, offset)
        yield Token("end", "end of the file", self._source.place(len(text)), len(text))

    def _lookalike(self, offset: int, place: Place) -> tuple[int, Token | None]:
        """The length of what starts with a foreign character, and the string that it was meant to be."""
        text = self._source.text
        char = text[offset]
        wanted = _LOOKALIKES.get(char)
        if wanted is None:
            self._faults.add(UNEXPECTED, place, f"unexpected character {char!r} (U+{ord(char):04X})")
            return 1, None
        said = f"{char!r} (U+{ord(char):04X}) only looks right: protobuf wants {wanted}"
        self._faults.add(LOOKALIKE, place, said, f"write {wanted}")
        closers = _OPEN_QUOTES.get(char)
        if closers is None:
            return 1, None
        end = re.compile(f"[^\n{closers}]*[{closers}]?").match(text, offset + 1)
        length = 1 + (len(end[0]) if end else 0)
        meant = text[offset + 1 : offset + length].rstrip(closers)
        return length, Token("string", f'"{meant}"', place, offset + length)
