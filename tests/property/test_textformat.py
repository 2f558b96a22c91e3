"""Every configuration survives writing and reading; the reader agrees with protobuf and never fails on any text."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.textformat import parse, write
from brim.findings import has_errors

INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
}
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def scalars(known: FieldDescriptor) -> st.SearchStrategy[Any]:
    if known.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return STRINGS
    if known.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if known.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from(sorted(known.enum_type.values_by_number))
    if known.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return st.floats(width=32, allow_nan=False)
    if known.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return st.floats(allow_nan=False)
    return INTEGERS[known.cpp_type]


def fill(draw: st.DrawFn, message: Any, kind: Descriptor) -> None:
    taken: set[str] = set()
    names = [known.name for known in kind.fields]
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []:
        known = kind.fields_by_name[name]
        oneof = known.containing_oneof
        if oneof is not None:
            if oneof.name in taken:
                continue
            taken.add(oneof.name)
        if known.message_type is not None and known.message_type.GetOptions().map_entry:
            value = known.message_type.fields_by_name["value"]
            for key in draw(st.lists(scalars(known.message_type.fields_by_name["key"]), max_size=3, unique=True)):
                if value.message_type is not None:
                    fill(draw, getattr(message, name)[key], value.message_type)
                else:
                    getattr(message, name)[key] = draw(scalars(value))
        elif known.message_type is not None:
            for _ in range(draw(st.integers(0, 2)) if known.is_repeated else 1):
                target = getattr(message, name).add() if known.is_repeated else getattr(message, name)
                if not known.is_repeated:
                    target.SetInParent()
                fill(draw, target, known.message_type)
        elif known.is_repeated:
            getattr(message, name).extend(draw(st.lists(scalars(known), max_size=3)))
        else:
            setattr(message, name, draw(scalars(known)))


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    config = ModelConfig()
    fill(draw, config, ModelConfig.DESCRIPTOR)
    return config


@settings(max_examples=200, deadline=None)
@given(configs())
def test_written_configuration_reads_back_equal_and_clean(config: ModelConfig) -> None:
    text = write(config)
    parsed = parse(text, "f")
    assert parsed.message == config
    assert [finding.render() for finding in parsed.findings if finding.code != "CFG016"] == []
    assert write(parsed.message) == text


def paths(message: Any, prefix: str = "") -> list[str]:
    """Paths of the set scalar and message fields, maps left out."""
    found = []
    for known, value in message.ListFields():
        path = f"{prefix}{known.name}"
        if known.message_type is not None and known.message_type.GetOptions().map_entry:
            continue
        values = [(f"{path}[{i}]", item) for i, item in enumerate(value)] if known.is_repeated else [(path, value)]
        for name, item in values:
            found.append(name)
            if known.message_type is not None:
                found += paths(item, f"{name}.")
    return found


@settings(max_examples=100, deadline=None)
@given(configs())
def test_every_set_field_has_a_place_inside_the_text(config: ModelConfig) -> None:
    text = write(config)
    lines = text.split("\n")
    positions = parse(text, "f").positions
    for path in paths(config):
        line, column = positions[path]
        name = path.rpartition(".")[2].partition("[")[0]
        rest = lines[line - 1][column - 1 :]
        assert rest.startswith(name) or f"{name}: [" in lines[line - 1]


WORDS = "name input dims data_type dynamic_batching preferred_batch_size key value parameters TYPE_FP32 FP32 true"
MARKS = ': { } [ ] < > , ; - # // " \' \\ \u201c \ufeff é \0 $ 0 8 010 1.5 -1 "a"'
PIECES = st.sampled_from([*WORDS.split(" "), *MARKS.split(" "), " ", "\n"])


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(max_size=40)))
def test_any_text_gets_a_verdict_at_least_as_strict_as_protobufs(text: str) -> None:
    parsed = parse(text, "f")
    try:
        message = text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, UnicodeEncodeError):
        message = None
    assert parsed.message == message
    if message is None:
        assert has_errors(parsed.findings)
    for finding in parsed.findings:
        assert 1 <= finding.line <= text.count("\n") + 1
        assert finding.column >= 1


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    parsed = parse(data, "f")
    assert parsed.message is not None or has_errors(parsed.findings)
