"""Read the value of a scalar field and check it against the field's type."""

from __future__ import annotations

import json
import re

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelParameter

from brim.config.faults import BAD_STRING, ENUM_NAME, ENUM_NUMBER, OCTAL, QUOTED_ENUM, WRONG_VALUE, Faults
from brim.config.places import Place
from brim.config.schema import INT_BOUNDS, closest_value, enum_of
from brim.config.tokens import CLOSERS, SEPARATORS, Token, Tokens
from brim.findings import Severity

_ESCAPE = re.compile(r"\\(?P<good>[abfnrtv\\'\"?]|[0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|\\.")
_MOST_DIGITS = 25
"""More than a 64-bit value has in any base."""
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eEfF]))(?:[eE][+-]?[0-9]+)?[fF]?)")
_NOT_FINITE = {"inf", "-inf", "infinity", "-infinity", "nan"}
_TRUTH = {"true", "false", "True", "False", "t", "f", "0", "1"}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


def read_value(known: FieldDescriptor, tokens: Tokens, faults: Faults) -> str | None:
    """Pass over one value of the field ``known`` and report what is wrong with it.

    Returns:
        For the key of a map entry: the key as position paths show it, unless it is of another type. Else None.
    """
    token = tokens.current
    if token.is_mark("-"):
        tokens.advance()
        said = f"{known.name} has a space between the sign and the number"
        faults.add(WRONG_VALUE, token.place, said, "write the sign directly before the number")
        if tokens.current.kind == "number":
            tokens.advance()
        return None
    if not token.is_value:
        said = f"{known.name} has no value before {token.text!r}"
        faults.add(WRONG_VALUE, token.place, said, f"write {known.name}: VALUE")
        if not token.is_mark(CLOSERS + SEPARATORS):
            tokens.advance()
        return None
    tokens.advance()
    if known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _string(known, token, tokens, faults)
    if known.cpp_type in INT_BOUNDS:
        return _integer(known, token, faults)
    if known.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        _enum(known, token, faults)
    elif known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if token.text not in _TRUTH:
            said = f"{known.name} is true or false, got {token.text}"
            faults.add(WRONG_VALUE, token.place, said, f"write {known.name}: true, or false")
    elif known.cpp_type in _FLOATS and (
        token.kind == "string" or not (_DECIMAL.fullmatch(token.text) or token.text.lower() in _NOT_FINITE)
    ):
        said = f"{known.name} is a decimal number, got {token.text}"
        faults.add(WRONG_VALUE, token.place, said, "write it in decimal, without quotes")
    return None


def _string(known: FieldDescriptor, token: Token, tokens: Tokens, faults: Faults) -> str | None:
    if token.kind != "string":
        said = f"{known.name} is a string, {token.text} has no quotes"
        faults.add(WRONG_VALUE, token.place, said, f'write {known.name}: "{token.text}"')
        return None
    parts = [token]
    while tokens.current.kind == "string":
        parts.append(tokens.advance())
    for part in parts:
        for escape in _ESCAPE.finditer(part.text):
            if escape["good"] is None:
                place = Place(part.place.line, part.place.column + escape.start())
                said = f"{escape[0]} is no escape that protobuf knows"
                faults.add(BAD_STRING, place, said, "write a backslash as \\\\")
        if "\0" in part.text:
            said = "the string holds a NUL character"
            faults.add(BAD_STRING, part.place, said, "write it as \\000, or remove it")
    return _shown_key(parts) if known.name == "key" else None


def _shown_key(parts: list[Token]) -> str:
    """A string map key as it stands in a position path (JSON quoting), from its literal; an unreadable one is empty."""
    try:
        key = text_format.Parse("string_value: " + " ".join(part.text for part in parts), ModelParameter()).string_value
    except text_format.ParseError:
        key = ""
    return json.dumps(key, ensure_ascii=False)


def _enum(known: FieldDescriptor, token: Token, faults: Faults) -> None:
    kind = enum_of(known)
    names = kind.values_by_name
    if token.kind == "string":
        bare = token.text.strip("\"'")
        said = f"{known.name} is an enum, {token.text} is a string"
        faults.add(QUOTED_ENUM, token.place, said, f"write {closest_value(kind, bare)} without quotes")
    elif token.kind == "name":
        if token.text not in names:
            said = f"{kind.name} has no value {token.text}"
            faults.add(ENUM_NAME, token.place, said, f"write {closest_value(kind, token.text)}")
    elif not _INTEGER.fullmatch(token.text):
        said = f"{known.name} is an enum, got {token.text}"
        faults.add(WRONG_VALUE, token.place, said, f"write one of {', '.join(names)}")
    elif _number(token.text) not in kind.values_by_number:
        said = f"{kind.name} has no value number {token.text}; protobuf lets it pass and the model cannot use it"
        faults.add(ENUM_NUMBER, token.place, said, f"write one of {', '.join(names)}")


def _integer(known: FieldDescriptor, token: Token, faults: Faults) -> str | None:
    low, high = INT_BOUNDS[known.cpp_type]
    if not _INTEGER.fullmatch(token.text):
        said = f"{known.name} is a whole number, got {token.text}"
        hint = "write decimal digits: no quotes, no fraction, no exponent, no plus sign, no underscore"
        faults.add(WRONG_VALUE, token.place, said, hint)
        return None
    value = _number(token.text)
    if not low <= value <= high:
        said = f"{known.name} is {token.text[:_MOST_DIGITS]}{'...' * (len(token.text) > _MOST_DIGITS)}, outside {low}..{high}"
        faults.add(WRONG_VALUE, token.place, said, "use a number that the field holds")
    digits = token.text.lstrip("-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
        decimal = digits.lstrip("0") or "0"
        said = f"{token.text} is octal: protobuf reads it as {value}, not {decimal}"
        hint = f"write {value}, or {decimal} if that is meant"
        faults.add(OCTAL, token.place, said, hint, Severity.WARNING)
    return str(value) if known.name == "key" else None


def _number(text: str) -> int:
    """A protobuf integer: decimal, ``0x`` hexadecimal or leading-zero octal.

    What has more digits than any 64-bit value comes back as one number beyond every bound: Python refuses to convert
    thousands of decimal digits.
    """
    digits = text.lstrip("-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    significant = digits[2:].lstrip("0") if base == 16 else digits.lstrip("0")
    size = int(significant or "0", base) if len(significant) <= _MOST_DIGITS else 1 << 80
    return -size if text.startswith("-") else size
