"""Right ``ModelInferRequest`` messages of a model, broken on purpose: their fields, their contents, and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from brim.isolation.fuzz_bytes import LONG_TEXT, WHOLE_NUMBERS, mutated, odd_text
from brim.isolation.fuzz_json import DATATYPES, MANY, PARAMETERS, odd_shape
from brim.isolation.wire import WireTensor

SERVICE = "/inference.GRPCInferenceService/"
CONTENTS = (
    *("bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
METHODS = ("ModelInfer2", "modelinfer", "", "ModelInfer/", "ServerLive", "ModelReady", "ModelMetadata", "x" * 2_000)
INT64 = range(-(1 << 63), 1 << 63)
OVERLONG_VARINT = b"\x80" * 9 + b"\x01"


class Stage(IntEnum):
    """When a mutation is applied: to the message, to its bytes, or to the call around it."""

    MESSAGE = 0
    BYTES = 1
    CALL = 2


@dataclass(slots=True)
class GrpcDraft:
    """A call in the making.

    Attributes:
        row: of the pool, whose answer it should get.
        tensors: the right inputs.
        outputs: names of the model's outputs.
        message: what is sent, until it is bytes.
        data: the bytes of the message, once the first stage is over.
        method: whole path of the method.
        metadata: keys and values beside the message.
        compression: of the message, by the gRPC library.
        streams: whether it goes over ``ModelStreamInfer``.
    """

    row: int
    tensors: tuple[WireTensor, ...]
    outputs: tuple[str, ...]
    message: Any
    data: bytes = b""
    method: str = f"{SERVICE}ModelInfer"
    metadata: list[tuple[str, str | bytes]] = field(default_factory=list)
    compression: grpc.Compression = grpc.Compression.NoCompression
    streams: bool = False


def right_call(
    model: str, row: int, tensors: tuple[WireTensor, ...], outputs: tuple[str, ...], request_id: str
) -> GrpcDraft:
    """A call that has nothing wrong."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.data)
    return GrpcDraft(row, tensors, outputs, message)


def _plain_text(draw: Random) -> str:
    """An odd text that protobuf takes: it has no half surrogate pairs."""
    return odd_text(draw).encode("utf-8", "replace").decode()


def _names(draft: GrpcDraft, draw: Random) -> None:
    where = draw.choice(("model_name", "model_version", "id"))
    value = draw.choice((_plain_text(draw), "x" * LONG_TEXT, "-1", "1", "0", "9" * 40))
    setattr(draft.message, where, value)


def _input(draft: GrpcDraft, draw: Random) -> None:
    one = draw.choice(draft.message.inputs)
    if draw.random() < 0.5:
        one.name = draw.choice((_plain_text(draw), one.name.lower() + "x", "x" * LONG_TEXT))
    else:
        one.datatype = draw.choice(DATATYPES)


def _shape(draft: GrpcDraft, draw: Random) -> None:
    one = draw.choice(draft.message.inputs)
    changed = [size for size in odd_shape(list(one.shape), draw) if size in INT64]
    del one.shape[:]
    one.shape.extend(changed)


def _inputs(draft: GrpcDraft, draw: Random) -> None:
    inputs = draft.message.inputs
    chosen = draw.choice(("gone", "twice", "many", "turned", "empty"))
    if chosen == "gone":
        inputs.pop(draw.randrange(len(inputs)))
    elif chosen == "twice":
        inputs.append(draw.choice(inputs))
    elif chosen == "many":
        for number in range(MANY):
            inputs.add(name=f"X{number}", datatype="FP32", shape=[1])
    elif chosen == "turned":
        inputs.reverse()
    else:
        inputs.add()


def _contents(draft: GrpcDraft, draw: Random) -> None:
    """Typed contents beside the raw ones or in their place, of the right kind or another."""
    if draw.random() < 0.7:
        del draft.message.raw_input_contents[:]
    one = draw.choice(draft.message.inputs).contents
    for name in draw.sample(CONTENTS, draw.choice((1, 1, 2, 8))):
        count = draw.choice((0, 1, 64, MANY))
        value: Any = {
            "bool_contents": True,
            "bytes_contents": b"a\x00",
            "fp32_contents": 0.5,
            "fp64_contents": 1e300,
        }.get(name, 3)
        getattr(one, name).extend([value] * count)


def _raw_count(draft: GrpcDraft, draw: Random) -> None:
    raw = draft.message.raw_input_contents
    chosen = draw.choice(("none", "fewer", "more", "many", "empty"))
    if chosen == "none":
        del raw[:]
    elif chosen == "fewer":
        raw.pop()
    elif chosen == "empty":
        raw[draw.randrange(len(raw))] = b""
    else:
        raw.extend([draw.randbytes(8)] * (1 if chosen == "more" else MANY))


def _raw_data(draft: GrpcDraft, draw: Random) -> None:
    raw = draft.message.raw_input_contents
    at = draw.randrange(len(raw))
    raw[at] = mutated(raw[at], draw)


def _rows_more(draft: GrpcDraft, draw: Random) -> None:
    """A few equal rows in one request, or one input with another count."""
    count = draw.randint(2, 4)
    numbers = range(len(draft.tensors))
    for number in numbers if draw.random() < 0.6 else [draw.choice(numbers)]:
        if draft.message.inputs[number].shape:
            draft.message.inputs[number].shape[0] *= count
        draft.message.raw_input_contents[number] *= count


def _parameters(draft: GrpcDraft, draw: Random) -> None:
    node = draw.choice([draft.message, *draft.message.inputs])
    for _ in range(draw.choice((1, 1, 3, 100))):
        _parameter(node.parameters[draw.choice((*PARAMETERS, _plain_text(draw)[:200]))], draw)


def _parameter(chosen: Any, draw: Random) -> None:
    kind = draw.choice(("bool_param", "int64_param", "string_param", "double_param", "uint64_param", ""))
    if kind == "string_param":
        chosen.string_param = _plain_text(draw)
    elif kind == "double_param":
        chosen.double_param = draw.choice((float("nan"), 1e308, -0.5))
    elif kind == "bool_param":
        chosen.bool_param = draw.random() < 0.5
    elif kind:
        number = draw.choice(WHOLE_NUMBERS)
        limit = INT64 if kind == "int64_param" else range(1 << 64)
        setattr(chosen, kind, number if number in limit else 1)


def _outputs(draft: GrpcDraft, draw: Random) -> None:
    for number in range(draw.choice((1, 1, 2, MANY))):
        one = draft.message.outputs.add(name=draw.choice((*draft.outputs, _plain_text(draw)[:300], f"O{number}")))
        if number < 3:
            _parameter(one.parameters[draw.choice(PARAMETERS)], draw)


def _bytes(draft: GrpcDraft, draw: Random) -> None:
    draft.data = mutated(draft.data, draw)


def _twice(draft: GrpcDraft, draw: Random) -> None:
    """Protobuf reads messages one behind the other as one: lists grow, single fields take the last value."""
    draft.data = draft.data * draw.randint(2, 4)


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def _fields(draft: GrpcDraft, draw: Random) -> None:
    """Fields that the schema does not have, wire types that do not fit, lengths that lie, groups that stay open."""
    number = draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 100, 1 << 20, (1 << 29) - 1, 0))
    wire_type = draw.randrange(8)
    key = _varint(number << 3 | wire_type)
    lying = _varint(draw.choice((1, 50, 1 << 20, (1 << 31) - 1, 1 << 32, (1 << 63) - 1))) + b"x" * 20
    field_bytes = draw.choice(
        (
            key + draw.randbytes(draw.randint(0, 12)),
            _varint(number << 3 | 2) + lying,
            key + OVERLONG_VARINT,
            OVERLONG_VARINT,
            _varint(number << 3 | 3) * draw.choice((1, 90, 150, 10_000)),
            _varint(number << 3 | 4),
        )
    )
    draft.data = draft.data + field_bytes if draw.random() < 0.5 else field_bytes + draft.data


def _not_utf8(draft: GrpcDraft, draw: Random) -> None:
    """A text field (model_name 1, model_version 2, id 3) with bytes that are no UTF-8."""
    wrong = draw.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00b")) * draw.randint(1, 20)
    draft.data += _varint(draw.choice((1, 2, 3)) << 3 | 2) + _varint(len(wrong)) + wrong


def _method(draft: GrpcDraft, draw: Random) -> None:
    draft.method = SERVICE + draw.choice(METHODS)


def _stream(draft: GrpcDraft, draw: Random) -> None:
    draft.method, draft.streams = f"{SERVICE}ModelStreamInfer", True


def _compressed(draft: GrpcDraft, draw: Random) -> None:
    draft.compression = draw.choice((grpc.Compression.Gzip, grpc.Compression.Deflate))


def _metadata(draft: GrpcDraft, draw: Random) -> None:
    known: tuple[list[tuple[str, str | bytes]], ...] = (
        [(f"x-{number}", "y") for number in range(80)],
        [("x-long", "y" * 4_000)],
        [("x-bin", draw.randbytes(200))],
        [("triton_x", "y"), ("triton_grpc_error", "true")],
        [("traceparent", "00-" + "f" * 32 + "-xx-01")],
        [("accept-encoding", "gzip;q=abc")],
    )
    draft.metadata += draw.choice(known)


@dataclass(frozen=True, slots=True)
class GrpcKind:
    """One way to break a call. ``keeps`` says that its meaning stays: an answer must then be the row's own."""

    name: str
    stage: Stage
    change: Callable[[GrpcDraft, Random], None]
    keeps: bool = False


GRPC_KINDS = (
    GrpcKind("names", Stage.MESSAGE, _names),
    GrpcKind("input", Stage.MESSAGE, _input),
    GrpcKind("shape", Stage.MESSAGE, _shape),
    GrpcKind("inputs", Stage.MESSAGE, _inputs),
    GrpcKind("contents", Stage.MESSAGE, _contents),
    GrpcKind("raw_count", Stage.MESSAGE, _raw_count),
    GrpcKind("raw_data", Stage.MESSAGE, _raw_data),
    GrpcKind("rows_more", Stage.MESSAGE, _rows_more),
    GrpcKind("parameters", Stage.MESSAGE, _parameters),
    GrpcKind("outputs", Stage.MESSAGE, _outputs),
    GrpcKind("bytes", Stage.BYTES, _bytes),
    GrpcKind("twice", Stage.BYTES, _twice),
    GrpcKind("fields", Stage.BYTES, _fields),
    GrpcKind("not_utf8", Stage.BYTES, _not_utf8),
    GrpcKind("method", Stage.CALL, _method),
    GrpcKind("stream", Stage.CALL, _stream, keeps=True),
    GrpcKind("compressed", Stage.CALL, _compressed, keeps=True),
    GrpcKind("metadata", Stage.CALL, _metadata, keeps=True),
)


def broken(draft: GrpcDraft, kinds: list[GrpcKind], draw: Random) -> GrpcDraft:
    """Apply the kinds, each at its stage; afterwards ``data`` is what travels."""
    for stage in Stage:
        for kind in kinds:
            if kind.stage is stage:
                kind.change(draft, draw)
        if stage is Stage.MESSAGE:
            draft.data = draft.message.SerializeToString(deterministic=True)
    return draft


def parsed(data: bytes) -> Any:
    """The message that these bytes are, or None where they are none."""
    try:
        return service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return None
