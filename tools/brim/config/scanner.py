"""Walk over the fields of a configuration, guided by its schema: where each stands, and what is wrong with it.

After a fault the walk goes on, so that one reading finds all of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.faults import (
    COMMA,
    DUPLICATE_KEY,
    EMPTY,
    GIVEN_TWICE,
    NO_COLON,
    NO_FIELD_NAME,
    ONEOF_TWICE,
    UNBALANCED,
    UNKNOWN_FIELD,
    WRONG_VALUE,
    EnoughFaults,
    Faults,
)
from brim.config.places import Place, Positions, Source
from brim.config.schema import INT_BOUNDS, closest_field, is_block, message_of
from brim.config.tokens import CLOSERS, OPENERS, PARTNERS, SEPARATORS, Token, Tokens
from brim.config.values import read_value
from brim.findings import Severity

_BLOCK = "{<"
_BLOCK_END = "}>"


def scan(source: Source, faults: Faults) -> Positions:
    """The places of all fields of ``source``, up to where ``faults`` has enough."""
    positions = Positions()
    with suppress(EnoughFaults):
        _Scanner(Tokens(source, faults), faults, positions).run()
    return positions


@dataclass(slots=True)
class _Seen:
    """What one message has been given so far."""

    fields: dict[str, Place] = field(default_factory=dict)
    oneofs: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    key: str | None = None


class _Scanner:
    """One pass over a text."""

    def __init__(self, tokens: Tokens, faults: Faults, positions: Positions) -> None:
        self._tokens = tokens
        self._faults = faults
        self._positions = positions

    def run(self) -> None:
        tokens = self._tokens
        if tokens.current.kind == "end":
            hint = "give at least name, backend and max_batch_size"
            self._faults.add(EMPTY, Place(1, 1), "the file holds no field", hint)
        seen = _Seen()
        while tokens.current.kind != "end":
            self._fields(ModelConfig.DESCRIPTOR, "", seen, None)
            if tokens.current.kind != "end":
                closer = tokens.current
                hint = "remove it, or find the block that it closed too early"
                self._faults.add(UNBALANCED, closer.place, f"{closer.text!r} closes nothing", hint)
                tokens.advance()

    def _fields(self, message: Descriptor, path: str, seen: _Seen, opener: Token | None) -> None:
        """The fields of one message, up to and including the mark that closes ``opener``."""
        while self._tokens.current.kind != "end":
            token = self._tokens.current
            if token.kind == "name":
                self._field(message, path, seen)
            elif token.is_mark(CLOSERS):
                if opener is None:
                    return
                wanted = PARTNERS[opener.text]
                if token.text != wanted:
                    opened = f"{opener.text!r} of line {opener.place.line}, column {opener.place.column}"
                    said = f"{opened} is closed with {token.text!r}"
                    self._faults.add(UNBALANCED, token.place, said, f"close it with {wanted!r}")
                self._tokens.advance()
                return
            elif token.is_mark(SEPARATORS):
                said = f"{token.text!r} separates nothing here"
                self._faults.add(COMMA, token.place, said, "remove it: one mark between two fields at most")
                self._tokens.advance()
            else:
                self._nameless(message, token)
        if opener is not None:
            hint = f"add {PARTNERS[opener.text]!r} where the block ends; the file ends first"
            self._faults.add(UNBALANCED, opener.place, f"{opener.text!r} is never closed", hint)

    def _nameless(self, message: Descriptor, token: Token) -> None:
        """Values where a field name belongs: reported once for the whole run of them."""
        tokens = self._tokens
        shown: list[str] = []
        while tokens.current.kind not in ("end", "name") and not tokens.current.is_mark(CLOSERS):
            if tokens.current.kind != "mark":
                shown.append(tokens.current.text)
            if tokens.current.is_mark(OPENERS):
                tokens.skip_block()
            else:
                tokens.advance()
        values = ", ".join(shown) or token.text
        lists = [known.name for known in message.fields if known.is_repeated and known.cpp_type in INT_BOUNDS]
        guessed = len(lists) == 1 and shown and token.kind == "number"
        hint = f"write {lists[0]}: [ {values} ]" if guessed else "write NAME: VALUE"
        self._faults.add(NO_FIELD_NAME, token.place, f"{values} stands here without a field name", hint)

    def _field(self, message: Descriptor, path: str, seen: _Seen) -> None:
        name = self._tokens.advance()
        known = message.fields_by_name.get(name.text)
        if known is None:
            if not self._tokens.skip_value():
                said = f"{message.name} has no field {name.text!r}"
                self._faults.add(UNKNOWN_FIELD, name.place, said, closest_field(message, name.text))
        else:
            here = f"{path}.{name.text}" if path else name.text
            self._note(known, here, name.place, seen)
            if is_block(known):
                self._blocks(known, here, name, seen)
            else:
                self._scalars(known, here, name, seen)
        if self._tokens.current.is_mark(SEPARATORS):
            self._tokens.advance()

    def _note(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> None:
        """Record where a field stands, and whether it may stand there once more."""
        first = seen.fields.setdefault(known.name, place)
        self._positions.setdefault(path, place)
        if known.is_repeated:
            return
        oneof = known.containing_oneof
        if first is not place:
            said = f"{known.name} is given twice: first on line {first.line}, column {first.column}"
            self._faults.add(GIVEN_TWICE, place, said, "keep one of them")
        elif oneof is not None:
            other = seen.oneofs.setdefault(oneof.name, known.name)
            if other != known.name:
                at = seen.fields[other]
                said = f"{known.name} excludes {other} (line {at.line}): the schema allows one of {oneof.name}"
                self._faults.add(ONEOF_TWICE, place, said, f"keep either {other} or {known.name}")

    def _blocks(self, known: FieldDescriptor, path: str, name: Token, seen: _Seen) -> None:
        """One message, or a list of them."""
        self._tokens.take(":")
        token = self._tokens.current
        if token.is_mark("["):
            self._list(known, path, seen)
        elif token.is_mark(_BLOCK):
            self._block(known, path, name.place, seen)
        else:
            said = f"{known.name} is a block, {token.text!r} is not"
            self._faults.add(WRONG_VALUE, token.place, said, f"write {known.name} {{ ... }}")
            self._tokens.skip_value()

    def _block(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> None:
        opener = self._tokens.advance()
        if message_of(known).GetOptions().map_entry:
            self._entry(known, path, place, opener, seen)
            return
        if known.is_repeated:
            path = self._element(known, path, place, seen)
        self._fields(message_of(known), path, _Seen(), opener)

    def _element(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> str:
        """The path of the next element of a repeated field, whose place is recorded."""
        index = seen.counts.get(known.name, 0)
        seen.counts[known.name] = index + 1
        path = f"{path}[{index}]"
        self._positions[path] = place
        return path

    def _entry(self, known: FieldDescriptor, path: str, place: Place, opener: Token, seen: _Seen) -> None:
        """A map entry. Its key is known only at its end, so its positions are collected apart and renamed."""
        outer, self._positions = self._positions, Positions()
        inside = _Seen()
        try:
            self._fields(message_of(known), "", inside, opener)
        finally:
            found, self._positions = self._positions, outer
        textual = message_of(known).fields_by_name["key"].cpp_type == FieldDescriptor.CPPTYPE_STRING
        key = inside.key if inside.key is not None else ('""' if textual else "0")
        entry = f"{path}[{key}]"
        first = seen.fields.get(entry)
        if first is not None:
            for name in [name for name in self._positions if name.startswith(entry)]:
                del self._positions[name]
            said = f"key {key} is given twice (first on line {first.line}): the last one wins"
            self._faults.add(DUPLICATE_KEY, place, said, "keep one entry for each key", Severity.WARNING)
        seen.fields[entry] = place
        self._positions[entry] = place
        for name, at in found.items():
            if name.startswith("value."):
                self._positions[f"{entry}.{name.removeprefix('value.')}"] = at

    def _list(self, known: FieldDescriptor, path: str, seen: _Seen) -> None:
        """``[ element, element ]`` of a repeated field."""
        tokens = self._tokens
        opener = tokens.advance()
        if not known.is_repeated:
            said = f"{known.name} takes one value, not a list"
            self._faults.add(WRONG_VALUE, opener.place, said, "remove the brackets")
        comma: Token | None = None
        first = True
        while tokens.current.kind != "end":
            token = tokens.current
            if token.is_mark("]"):
                if comma is not None:
                    said = f"comma after the last element of {known.name}"
                    hint = "remove it: protobuf text allows commas only between elements"
                    self._faults.add(COMMA, comma.place, said, hint)
                tokens.advance()
                return
            if token.is_mark(SEPARATORS):
                said = f"{token.text!r} stands where an element of {known.name} is expected"
                self._faults.add(COMMA, token.place, said, "put one comma between two elements")
                tokens.advance()
                continue
            if tokens.starts_field() or token.is_mark(_BLOCK_END):
                break
            if not first and comma is None:
                said = f"comma missing before {token.text!r} in the list {known.name}"
                self._faults.add(COMMA, token.place, said, "put a comma between two elements")
            self._list_element(known, path, token, seen)
            first = False
            comma = tokens.advance() if tokens.current.is_mark(",") else None
        said = f"'[' of {known.name} is never closed"
        self._faults.add(UNBALANCED, opener.place, said, "add ']' after the last element")

    def _list_element(self, known: FieldDescriptor, path: str, token: Token, seen: _Seen) -> None:
        if not is_block(known):
            self._scalar(known, path, token.place, seen)
        elif token.is_mark(_BLOCK):
            self._block(known, path, token.place, seen)
        else:
            said = f"{known.name} is a list of blocks, {token.text!r} is not one"
            self._faults.add(WRONG_VALUE, token.place, said, f"write {known.name} [ {{ ... }}, {{ ... }} ]")
            self._tokens.skip_value()

    def _scalars(self, known: FieldDescriptor, path: str, name: Token, seen: _Seen) -> None:
        """The value of a scalar field, or the list of values of a repeated one."""
        coloned = self._tokens.take(":")
        token = self._tokens.current
        if not coloned:
            if token.kind == "end" or token.is_mark(CLOSERS + SEPARATORS):
                said = f"{known.name} has no value"
                self._faults.add(WRONG_VALUE, name.place, said, f"write {known.name}: VALUE")
                return
            said = f"colon missing between {known.name} and its value"
            self._faults.add(NO_COLON, token.place, said, f"write {known.name}: {token.text}")
        if token.is_mark("["):
            self._list(known, path, seen)
        elif token.is_mark(_BLOCK):
            said = f"{known.name} takes a value, not a block"
            self._faults.add(WRONG_VALUE, token.place, said, f"write {known.name}: VALUE")
            self._tokens.skip_block()
        else:
            self._scalar(known, path, name.place, seen)

    def _scalar(self, known: FieldDescriptor, path: str, place: Place, seen: _Seen) -> None:
        """One value, which stands at ``place`` when it is an element of a repeated field."""
        if known.is_repeated:
            self._element(known, path, place, seen)
        key = read_value(known, self._tokens, self._faults)
        if key is not None:
            seen.key = key
