"""What the schema of ``ModelConfig`` says of a field, and which name of it was probably meant."""

from __future__ import annotations

import difflib
import functools

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

INT_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
"""Integer type to its smallest and largest value."""

_PROTOCOL_TYPES = {"BYTES": "TYPE_STRING", "FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "HALF": "TYPE_FP16"}
_PROTOCOL_TYPES |= {"LONG": "TYPE_INT64", "INT": "TYPE_INT32", "STRING": "TYPE_STRING", "BFLOAT16": "TYPE_BF16"}


def is_block(known: FieldDescriptor) -> bool:
    """Whether the field holds messages."""
    return known.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE


def message_of(known: FieldDescriptor) -> Descriptor:
    """The message type of a field that is known to have one."""
    assert known.message_type is not None, known.full_name
    return known.message_type


def enum_of(known: FieldDescriptor) -> EnumDescriptor:
    """The enum type of a field that is known to have one."""
    assert known.enum_type is not None, known.full_name
    return known.enum_type


def closest_value(enum: EnumDescriptor, said: str) -> str:
    """The value of the enum that was probably meant, else all of them."""
    names = list(enum.values_by_name)
    wanted = said.upper().replace("-", "_")
    prefix = names[0].partition("_")[0] + "_"
    for guess in (wanted, prefix + wanted, _PROTOCOL_TYPES.get(wanted, "")):
        if guess in names:
            return guess
    close = difflib.get_close_matches(wanted, names, n=1) or difflib.get_close_matches(prefix + wanted, names, n=1)
    return close[0] if close else "one of " + ", ".join(names)


def closest_field(message: Descriptor, said: str) -> str:
    """A hint for a name that is no field of ``message``: the field that was meant, or where the name belongs."""
    elsewhere = _homes().get(said, [])
    close = difflib.get_close_matches(said.lower(), list(message.fields_by_name), n=1, cutoff=0.6)
    home = f"{said} belongs inside {' or '.join(elsewhere[:3])}"
    if close and elsewhere:
        return f"did you mean {close[0]}? ({home})"
    if elsewhere:
        return home
    if close:
        return f"did you mean {close[0]}?"
    return f"known here: {', '.join(message.fields_by_name)}"


@functools.cache
def _homes() -> dict[str, list[str]]:
    """Every field name of the schema and the blocks that have it."""
    found: dict[str, list[str]] = {}

    def walk(message: Descriptor, path: str) -> None:
        for known in message.fields:
            if not message.GetOptions().map_entry:
                found.setdefault(known.name, []).append(path or "the top level")
            if is_block(known):
                walk(message_of(known), f"{path}.{known.name}" if path else known.name)

    walk(ModelConfig.DESCRIPTOR, "")
    return found
