"""Read and write config.pbtxt: protobuf text of Triton's ``ModelConfig``, with the place of every field.

Whether a text is accepted is decided by protobuf's own parser. A small schema-guided scanner runs beside it: it knows
where each field stands, goes on after a fault, and says what the writer of the file probably meant. It also refuses the
few spellings that Python's parser takes and the C++ parser inside tritonserver 2.51.0 (24.10) does not (``+8``,
``1_000``, ``0b1``, an unknown escape, a NUL in a string, a no-break space: each tried on that server), because a file
has to load there.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelParameter

from brim.findings import Finding, Severity, has_errors

MAX_FINDINGS = 50
"""Reading stops after this many faults: a binary file should not print a page a byte."""

MAX_DEPTH = 64
"""Deepest nesting that is followed. The schema itself needs 7."""

MAX_BYTES = 4 * 1024 * 1024
"""Largest text that is read."""

NOT_UTF8 = "CFG001"
BYTE_ORDER_MARK = "CFG002"
LOOKALIKE = "CFG003"
WRONG_COMMENT = "CFG004"
COMMA = "CFG005"
NO_FIELD_NAME = "CFG006"
UNKNOWN_FIELD = "CFG007"
QUOTED_ENUM = "CFG008"
ENUM_NAME = "CFG009"
WRONG_VALUE = "CFG010"
GIVEN_TWICE = "CFG011"
ONEOF_TWICE = "CFG012"
ENUM_NUMBER = "CFG013"
OCTAL = "CFG014"
DUPLICATE_KEY = "CFG015"
EMPTY = "CFG016"
UNBALANCED = "CFG017"
TOO_DEEP = "CFG018"
BAD_STRING = "CFG019"
NO_COLON = "CFG020"
UNEXPECTED = "CFG021"

_CLOSERS = {"{": "}", "<": ">", "[": "]"}
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
    | (?P<number>[+-]?(?:[0-9]|\.[0-9])(?:[eE][+-]|[0-9A-Za-z_.])*)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
    | (?P<open_string>["'][^\n]*)
    | (?P<mark>[{}<>\[\],;:\-])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?P<good>[abfnrtv\\'\"?]|[0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|\\.")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eEfF]))(?:[eE][+-]?[0-9]+)?[fF]?)")
_TRUTH = {"true", "false", "True", "False", "t", "f", "0", "1"}
_PROTOCOL_TYPES = {"BYTES": "TYPE_STRING", "FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "HALF": "TYPE_FP16"}
_PROTOCOL_TYPES |= {"LONG": "TYPE_INT64", "INT": "TYPE_INT32", "STRING": "TYPE_STRING", "BFLOAT16": "TYPE_BF16"}
_FIELD_START = re.compile(r"\s*[:{<]")
_PROTOBUF_PLACE = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)

_INT_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


class Place(NamedTuple):
    """A 1-based line and column; ``(0, 0)`` is "no place"."""

    line: int
    column: int


NOWHERE = Place(0, 0)


class Positions(dict[str, Place]):
    """Field path to place: ``input[0].dims[1]``, ``parameters["x"].string_value``, ``dynamic_batching``.

    A field's place is its name; an element of a ``[...]`` list has the place of the element.
    """

    def nearest(self, path: str) -> Place:
        """The place of ``path`` or of the closest enclosing field that the text has; ``(0, 0)`` when it has none."""
        while path:
            if path in self:
                return self[path]
            path = _parent(path)
        return NOWHERE


def _parent(path: str) -> str:
    if path.endswith("]"):
        opened = path.rfind('["') if path.endswith('"]') else path.rfind("[")
        return path[:opened]
    return path.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that was read: its message (None when protobuf refuses it), where each field stands, and every fault."""

    message: ModelConfig | None
    positions: Positions
    findings: list[Finding]


def parse(text: str | bytes, file: str) -> Parsed:
    """Read a configuration. Faults come back as findings, all of them at once; nothing is raised for a bad text.

    Args:
        text: protobuf text; bytes must be UTF-8.
        file: the name that the findings carry.
    """
    if len(text) > MAX_BYTES:
        said = f"the text has {len(text)} bytes, at most {MAX_BYTES} are read"
        return Parsed(None, Positions(), [Finding(TOO_DEEP, Severity.ERROR, file, 1, 1, said)])
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return Parsed(None, Positions(), [_not_utf8(error, file)])
    scanner = _Scanner(_Source(text), file)
    scanner.run()
    findings = scanner.findings
    message: ModelConfig | None
    try:
        message = text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        message = None
        if not has_errors(findings):
            findings.append(_protobuf_fault(error, file))
    return Parsed(message, scanner.positions, sorted(findings, key=lambda finding: (finding.line, finding.column)))


def write(message: ModelConfig) -> str:
    """The configuration as text: schema order, short lists, maps sorted by key, UTF-8 kept readable. Equal when read back."""
    return text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True, use_index_order=True)


def _not_utf8(error: UnicodeDecodeError, file: str) -> Finding:
    before = error.object[: error.start].decode("utf-8")
    place = _Source(before).place(len(before))
    said = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    if error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        said += ": the file is UTF-16"
    hint = "save the file as UTF-8; if it holds accents from an older encoding, convert it (iconv -t UTF-8)"
    return Finding(NOT_UTF8, Severity.ERROR, file, *place, said, hint)


def _protobuf_fault(error: text_format.ParseError, file: str) -> Finding:
    matched = _PROTOBUF_PLACE.match(str(error))
    place = Place(int(matched[1]), int(matched[2])) if matched else Place(1, 1)
    said = (matched[3] if matched else str(error)).rpartition("': ")[2]
    return Finding(UNEXPECTED, Severity.ERROR, file, *place, f"protobuf refuses the text here: {said}")


class _Source:
    """A text and the line and column of every offset in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


class _Token(NamedTuple):
    kind: str
    text: str
    place: Place
    end: int


class _EnoughFaults(Exception):
    """The limit on findings is reached."""


@dataclass(slots=True)
class _Seen:
    """What one message has been given so far."""

    fields: dict[str, Place] = field(default_factory=dict)
    oneofs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    key: str | None = None


class _Scanner:
    """One pass over a text: positions, faults, recovery."""

    def __init__(self, source: _Source, file: str) -> None:
        self.positions = Positions()
        self.findings: list[Finding] = []
        self._source = source
        self._file = file
        self._too_deep: Place | None = None
        self._tokens = self._tokenize()
        self._token = _Token("end", "", Place(1, 1), 0)

    def run(self) -> None:
        try:
            if self._source.text.startswith("\ufeff"):
                hint = "save the file as UTF-8 without a byte order mark"
                self._fault(BYTE_ORDER_MARK, Place(1, 1), "the file starts with a byte order mark (U+FEFF)", hint)
            self._token = next(self._tokens)
            if self._token.kind == "end":
                self._fault(
                    EMPTY, Place(1, 1), "the file holds no field", "give at least name, backend and max_batch_size"
                )
            seen = _Seen()
            while self._token.kind != "end":
                self._fields(ModelConfig.DESCRIPTOR, "", seen, None)
                if self._token.kind != "end":
                    message = f"{self._token.text!r} closes nothing"
                    self._fault(
                        UNBALANCED, self._token.place, message, "remove it, or find the block that it closed too early"
                    )
                    self._advance()
        except _EnoughFaults:
            pass

    def _tokenize(self) -> Iterator[_Token]:
        text, offset = self._source.text, 0
        if text.startswith("\ufeff"):
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
                self._fault(WRONG_COMMENT, place, f"{matched[0][:2]} does not start a comment", "start it with #")
            elif kind == "open_string":
                self._fault(
                    BAD_STRING,
                    place,
                    "the string is not closed on its line",
                    "close the quote; write a line break as \\n",
                )
                yield _Token("string", matched[0], place, offset)
            elif kind != "space":
                yield _Token(kind, matched[0], place, offset)
        yield _Token("end", "end of the file", self._source.place(len(text)), len(text))

    def _lookalike(self, offset: int, place: Place) -> tuple[int, _Token | None]:
        text = self._source.text
        char = text[offset]
        wanted = _LOOKALIKES.get(char)
        if wanted is None:
            self._fault(UNEXPECTED, place, f"unexpected character {char!r} (U+{ord(char):04X})")
            return 1, None
        self._fault(
            LOOKALIKE,
            place,
            f"{char!r} (U+{ord(char):04X}) only looks right: protobuf wants {wanted}",
            f"write {wanted}",
        )
        closers = _OPEN_QUOTES.get(char)
        if closers is None:
            return 1, None
        end = re.compile(f"[^\n{closers}]*[{closers}]?").match(text, offset + 1)
        length = 1 + (len(end[0]) if end else 0)
        said = text[offset + 1 : offset + length].rstrip(closers)
        return length, _Token("string", f'"{said}"', place, offset + length)

    def _advance(self) -> _Token:
        token = self._token
        self._token = next(self._tokens, token)
        return token

    def _is(self, mark: str) -> bool:
        return self._token.kind == "mark" and self._token.text == mark

    def _starts_field(self) -> bool:
        """Whether the token is a field name with its colon or block behind it."""
        return self._token.kind == "name" and _FIELD_START.match(self._source.text, self._token.end) is not None

    def _take(self, mark: str) -> bool:
        if self._is(mark):
            self._advance()
            return True
        return False

    def _fault(
        self, code: str, place: Place, message: str, hint: str = "", severity: Severity = Severity.ERROR
    ) -> None:
        self.findings.append(Finding(code, severity, self._file, *place, message, hint))
        if len(self.findings) >= MAX_FINDINGS:
            raise _EnoughFaults

    def _fields(self, message: Descriptor, path: str, seen: _Seen, opener: _Token | None) -> None:
        """The fields of one message, up to and including the mark that closes ``opener``."""
        while self._token.kind != "end":
            token = self._token
            if token.kind == "name":
                self._field(message, path, seen)
            elif token.text in ("}", ">", "]") and token.kind == "mark":
                if opener is None:
                    return
                wanted = _CLOSERS[opener.text]
                if token.text != wanted:
                    said = f"{opener.text!r} of line {opener.place.line}, column {opener.place.column} is closed with {token.text!r}"
                    self._fault(UNBALANCED, token.place, said, f"close it with {wanted!r}")
                self._advance()
                return
            elif token.text in (",", ";") and token.kind == "mark":
                self._fault(
                    COMMA,
                    token.place,
                    f"{token.text!r} separates nothing here",
                    "remove it: one mark between two fields at most",
                )
                self._advance()
            else:
                self._nameless(message, token)
        if opener is not None:
            self._fault(
                UNBALANCED,
                opener.place,
                f"{opener.text!r} is never closed",
                f"add {_CLOSERS[opener.text]!r} where the block ends; the file ends first",
            )

    def _nameless(self, message: Descriptor, token: _Token) -> None:
        """Values where a field name belongs: reported once for the whole run of them."""
        numeric = [known.name for known in message.fields if known.is_repeated and known.cpp_type in _INT_BOUNDS]
        shown: list[str] = []
        while self._token.kind not in ("end", "name") and self._token.text not in ("}", ">", "]"):
            if self._token.kind != "mark":
                shown.append(self._token.text)
            if self._token.text in _CLOSERS and self._token.kind == "mark":
                self._skip_block()
            else:
                self._advance()
        values = ", ".join(shown) or token.text
        hint = (
            f"{numeric[0]}: [ {values} ]" if len(numeric) == 1 and shown and token.kind == "number" else "NAME: VALUE"
        )
        self._fault(NO_FIELD_NAME, token.place, f"{values} stands here without a field name", f"write {hint}")

    def _field(self, message: Descriptor, path: str, seen: _Seen) -> None:
        name = self._advance()
        known = message.fields_by_name.get(name.text)
        if known is None:
            self._skip_value()
            if self._too_deep is None or self._too_deep < name.place:
                self._unknown(message, name)
        else:
            here = f"{path}.{name.text}" if path else name.text
            self._note(known, here, name.place, seen)
            if known.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                self._take(":")
                self._blocks(known, here, name, seen)
            else:
                self._scalars(known, here, name, seen)
        if self._is(",") or self._is(";"):
            self._advance()

    def _note(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> None:
        """Record where a field stands, and whether it may stand there once more."""
        first = seen.fields.setdefault(known.name, place)
        self.positions.setdefault(path, place)
        if known.is_repeated:
            return
        oneof = known.containing_oneof
        if first is not place:
            said = f"{known.name} is given twice: first on line {first.line}, column {first.column}"
            self._fault(GIVEN_TWICE, place, said, "keep one of them")
        elif oneof is not None:
            other = seen.oneofs.setdefault(oneof.name, known.name)
            if other != known.name:
                at = seen.fields[other]
                said = f"{known.name} excludes {other} (line {at.line}): the schema allows one of {oneof.name}"
                self._fault(ONEOF_TWICE, place, said, f"keep either {other} or {known.name}")

    def _unknown(self, message: Descriptor, name: _Token) -> None:
        elsewhere = _homes().get(name.text, [])
        close = difflib.get_close_matches(name.text.lower(), list(message.fields_by_name), n=1, cutoff=0.6)
        if elsewhere:
            hint = f"{name.text} belongs inside {' or '.join(elsewhere[:3])}"
        elif close:
            hint = f"did you mean {close[0]}?"
        else:
            hint = f"known here: {', '.join(message.fields_by_name)}"
        if close and elsewhere:
            hint = f"did you mean {close[0]}? ({hint})"
        self._fault(UNKNOWN_FIELD, name.place, f"{message.name} has no field {name.text!r}", hint)

    def _skip_value(self) -> None:
        self._take(":")
        if self._is("{") or self._is("<") or self._is("["):
            self._skip_block()
        elif self._token.kind in ("string", "number", "name"):
            while self._advance().kind == "string" and self._token.kind == "string":
                pass

    def _skip_block(self) -> None:
        """From an opening mark to its partner, without recursion."""
        stack = [self._advance()]
        reported = False
        while stack and self._token.kind != "end":
            token = self._advance()
            if token.kind != "mark":
                continue
            if token.text in _CLOSERS:
                stack.append(token)
                if len(stack) > MAX_DEPTH and not reported:
                    reported = True
                    self._too_deep = token.place
                    said = f"blocks are nested more than {MAX_DEPTH} deep; the schema needs 7 at most"
                    self._fault(TOO_DEEP, token.place, said, "look for brackets that are opened and never closed")
            elif token.text in ("}", ">", "]"):
                stack.pop()
        if stack:
            said = f"{stack[0].text!r} is never closed"
            self._fault(UNBALANCED, stack[0].place, said, f"add {_CLOSERS[stack[0].text]!r} where the block ends")

    def _blocks(self, known: FieldDescriptor, path: str, name: _Token, seen: _Seen) -> None:
        """One message, or a list of them."""
        if self._is("["):
            self._list(known, path, name, seen)
        elif self._is("{") or self._is("<"):
            self._block(known, path, name.place, seen)
        else:
            said = f"{known.name} is a block, {self._token.text!r} is not"
            self._fault(WRONG_VALUE, self._token.place, said, f"write {known.name} {{ ... }}")
            self._skip_value()

    def _block(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> None:
        opener = self._advance()
        if _message_of(known).GetOptions().map_entry:
            self._entry(known, path, place, opener, seen)
            return
        if known.is_repeated:
            path = self._element(known, path, place, seen)
        self._fields(_message_of(known), path, _Seen(), opener)

    def _element(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> str:
        """The path of the next element of a repeated field, whose place is recorded."""
        index = seen.counts.get(known.name, 0)
        seen.counts[known.name] = index + 1
        path = f"{path}[{index}]"
        self.positions[path] = place
        return path

    def _entry(self, known: FieldDescriptor, path: str, place: Place, opener: _Token, seen: _Seen) -> None:
        """A map entry. Its key is known only at its end, so its positions are collected apart and renamed."""
        outer, self.positions = self.positions, Positions()
        inside = _Seen()
        try:
            self._fields(_message_of(known), "", inside, opener)
        finally:
            found, self.positions = self.positions, outer
        textual = _message_of(known).fields_by_name["key"].cpp_type == FieldDescriptor.CPPTYPE_STRING
        key = inside.key if inside.key is not None else ('""' if textual else "0")
        entry = f"{path}[{key}]"
        first = seen.fields.get(entry)
        if first is not None:
            for name in [name for name in self.positions if name.startswith(entry)]:
                del self.positions[name]
            said = f"key {key} is given twice (first on line {first.line}): the last one wins"
            self._fault(DUPLICATE_KEY, place, said, "keep one entry for each key", Severity.WARNING)
        seen.fields[entry] = place
        self.positions[entry] = place
        for name, at in found.items():
            if name.startswith("value."):
                self.positions[f"{entry}.{name.removeprefix('value.')}"] = at

    def _list(self, known: FieldDescriptor, path: str, name: _Token, seen: _Seen) -> None:
        """``[ element, element ]`` of a repeated field."""
        opener = self._advance()
        if not known.is_repeated:
            said = f"{known.name} takes one value, not a list"
            self._fault(WRONG_VALUE, opener.place, said, "remove the brackets")
        blocks = known.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        comma: _Token | None = None
        first = True
        while self._token.kind != "end":
            token = self._token
            if self._is("]"):
                if comma is not None:
                    said = f"comma after the last element of {known.name}"
                    self._fault(
                        COMMA, comma.place, said, "remove it: protobuf text allows commas only between elements"
                    )
                self._advance()
                return
            if token.kind == "mark" and token.text in (",", ";"):
                said = f"{token.text!r} stands where an element of {known.name} is expected"
                self._fault(COMMA, token.place, said, "put one comma between two elements")
                self._advance()
                continue
            if self._starts_field() or (token.kind == "mark" and token.text in ("}", ">")):
                break
            if not first and comma is None:
                said = f"comma missing before {token.text!r} in the list {known.name}"
                self._fault(COMMA, token.place, said, "put a comma between two elements")
            if blocks and token.kind == "mark" and token.text in ("{", "<"):
                self._block(known, path, token.place, seen)
            elif blocks:
                said = f"{known.name} is a list of blocks, {token.text!r} is not one"
                self._fault(WRONG_VALUE, token.place, said, f"write {known.name} [ {{ ... }}, {{ ... }} ]")
                self._skip_value()
            else:
                where = self._element(known, path, token.place, seen) if known.is_repeated else path
                self._scalar(known, where, seen)
            first = False
            comma = self._advance() if self._is(",") else None
        said = f"'[' of {known.name} is never closed"
        self._fault(UNBALANCED, opener.place, said, "add ']' after the last element")

    def _scalars(self, known: FieldDescriptor, path: str, name: _Token, seen: _Seen) -> None:
        """The value of a scalar field, or the list of values of a repeated one."""
        if not self._take(":"):
            if self._token.kind not in ("string", "number", "name", "mark") or self._token.text in (
                "}",
                ">",
                "]",
                ",",
                ";",
            ):
                self._fault(WRONG_VALUE, name.place, f"{known.name} has no value", f"write {known.name}: VALUE")
                return
            said = f"colon missing between {known.name} and its value"
            self._fault(NO_COLON, self._token.place, said, f"write {known.name}: {self._token.text}")
        if self._is("["):
            self._list(known, path, name, seen)
            return
        if self._is("{") or self._is("<"):
            said = f"{known.name} takes a value, not a block"
            self._fault(WRONG_VALUE, self._token.place, said, f"write {known.name}: VALUE")
            self._skip_block()
            return
        where = self._element(known, path, name.place, seen) if known.is_repeated else path
        self._scalar(known, where, seen)

    def _scalar(self, known: FieldDescriptor, path: str, seen: _Seen) -> None:
        """One value, checked against the type of its field."""
        token = self._token
        if token.kind == "mark" and token.text == "-":
            self._advance()
            said = f"{known.name} has a space between the sign and the number"
            self._fault(WRONG_VALUE, token.place, said, "write the sign directly before the number")
            if self._token.kind == "number":
                self._advance()
            return
        if token.kind not in ("string", "number", "name"):
            self._fault(
                WRONG_VALUE,
                token.place,
                f"{known.name} has no value before {token.text!r}",
                f"write {known.name}: VALUE",
            )
            if token.text not in ("}", ">", "]", ",", ";"):
                self._advance()
            return
        self._advance()
        if known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            self._string(known, token, seen)
        elif known.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            self._enum(known, token)
        elif known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if token.text not in _TRUTH:
                said = f"{known.name} is true or false, got {token.text}"
                self._fault(WRONG_VALUE, token.place, said, f"write {known.name}: true, or false")
        elif known.cpp_type in _FLOATS:
            if token.kind == "string" or not (_DECIMAL.fullmatch(token.text) or token.text.lower() in ("inf", "nan")):
                said = f"{known.name} is a decimal number, got {token.text}"
                self._fault(WRONG_VALUE, token.place, said, "write it in decimal, without quotes")
        else:
            self._integer(known, token, seen)

    def _string(self, known: FieldDescriptor, token: _Token, seen: _Seen) -> None:
        if token.kind != "string":
            said = f"{known.name} is a string, {token.text} has no quotes"
            self._fault(WRONG_VALUE, token.place, said, f'write {known.name}: "{token.text}"')
            return
        parts = [token]
        while self._token.kind == "string":
            parts.append(self._advance())
        for part in parts:
            for escape in _ESCAPE.finditer(part.text):
                if escape["good"] is None:
                    place = Place(part.place.line, part.place.column + escape.start())
                    said = f"{escape[0]} is no escape that protobuf knows"
                    self._fault(BAD_STRING, place, said, "write a backslash as \\\\")
            if "\0" in part.text:
                self._fault(
                    BAD_STRING, part.place, "the string holds a NUL character", "write it as \\000, or remove it"
                )
        if known.name == "key":
            seen.key = _quoted_key(parts)

    def _enum(self, known: FieldDescriptor, token: _Token) -> None:
        kind = _enum_of(known)
        names = kind.values_by_name
        if token.kind == "string":
            bare = token.text.strip("\"'")
            said = f"{known.name} is an enum, {token.text} is a string"
            self._fault(QUOTED_ENUM, token.place, said, f"write {_closest_enum(known, bare)} without quotes")
        elif token.kind == "name":
            if token.text not in names:
                said = f"{kind.name} has no value {token.text}"
                self._fault(ENUM_NAME, token.place, said, f"write {_closest_enum(known, token.text)}")
        elif not _INTEGER.fullmatch(token.text):
            said = f"{known.name} is an enum, got {token.text}"
            self._fault(WRONG_VALUE, token.place, said, f"write one of {', '.join(names)}")
        elif _number(token.text) not in kind.values_by_number:
            said = f"{kind.name} has no value number {token.text}; protobuf lets it pass and the model cannot use it"
            self._fault(ENUM_NUMBER, token.place, said, f"write one of {', '.join(names)}")

    def _integer(self, known: FieldDescriptor, token: _Token, seen: _Seen) -> None:
        low, high = _INT_BOUNDS[known.cpp_type]
        if not _INTEGER.fullmatch(token.text):
            said = f"{known.name} is a whole number, got {token.text}"
            hint = "write decimal digits: no quotes, no fraction, no exponent, no plus sign, no underscore"
            self._fault(WRONG_VALUE, token.place, said, hint)
            return
        value = _number(token.text)
        if not low <= value <= high:
            self._fault(
                WRONG_VALUE,
                token.place,
                f"{known.name} is {value}, outside {low}..{high}",
                "use a number that the field holds",
            )
        digits = token.text.lstrip("-")
        if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
            decimal = digits.lstrip("0") or "0"
            said = f"{token.text} is octal: protobuf reads it as {value}, not {decimal}"
            self._fault(OCTAL, token.place, said, f"write {value}, or {decimal} if that is meant", Severity.WARNING)
        if known.name == "key":
            seen.key = str(value)


def _message_of(known: FieldDescriptor) -> Descriptor:
    """The message type of a field that is known to have one."""
    assert known.message_type is not None, known.full_name
    return known.message_type


def _enum_of(known: FieldDescriptor) -> EnumDescriptor:
    """The enum type of a field that is known to have one."""
    assert known.enum_type is not None, known.full_name
    return known.enum_type


def _number(text: str) -> int:
    """A protobuf integer: decimal, ``0x`` hexadecimal or leading-zero octal."""
    digits = text.lstrip("-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return -int(digits, base) if text.startswith("-") else int(digits, base)


def _quoted_key(parts: list[_Token]) -> str | None:
    """A string map key as it stands in a position path (JSON quoting), from its literal."""
    try:
        key = text_format.Parse("string_value: " + " ".join(part.text for part in parts), ModelParameter()).string_value
    except text_format.ParseError:
        return None
    return json.dumps(key, ensure_ascii=False)


def _closest_enum(known: FieldDescriptor, said: str) -> str:
    """The value of the enum that was probably meant, else all of them."""
    names = list(_enum_of(known).values_by_name)
    wanted = said.upper().replace("-", "_")
    prefix = names[0].partition("_")[0] + "_"
    for guess in (wanted, prefix + wanted, _PROTOCOL_TYPES.get(wanted, "")):
        if guess in names:
            return guess
    close = difflib.get_close_matches(wanted, names, n=1) or difflib.get_close_matches(prefix + wanted, names, n=1)
    return close[0] if close else "one of " + ", ".join(names)


@functools.cache
def _homes() -> dict[str, list[str]]:
    """Every field name of the schema and the blocks that have it."""
    found: dict[str, list[str]] = {}

    def walk(message: Descriptor, path: str) -> None:
        for known in message.fields:
            if not message.GetOptions().map_entry:
                found.setdefault(known.name, []).append(path or "the top level")
            if known.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                walk(_message_of(known), f"{path}.{known.name}" if path else known.name)

    walk(ModelConfig.DESCRIPTOR, "")
    return found
