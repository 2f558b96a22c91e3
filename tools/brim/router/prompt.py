"""The beginning of a prompt, out of the body of a request, for its prefix. What cannot be read has none, and goes on all the same.

Bytes stand for tokens: the picker knows no tokenizer, and prompts that begin with the same bytes begin with the same tokens.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from brim.engine.kv_cache import block_hashes
from brim.router.view import LEAST_IMPORTANT, Request

TEXT_INPUT = "text_input"
TEXT_KEYS = (TEXT_INPUT, "prompt")
"""Of Triton's generate extension, and of completions."""
TOKEN_BYTES = 4
"""Of English text, about; a wrong guess moves ``Settings.least_match_tokens`` and the room that a prompt is thought to need."""
MOST_BYTES = 16_384
"""Of a prompt, that are hashed: about 4,096 tokens."""
GRPC_HEAD = struct.Struct(">BI")
LENGTH = struct.Struct("<I")


def request_of(prompt: bytes, block_tokens: int, priority: int = LEAST_IMPORTANT) -> Request:
    """What a policy is told of a prompt."""
    blocks = block_hashes(prompt[:MOST_BYTES], block_tokens * TOKEN_BYTES)
    return Request(-(-len(prompt) // TOKEN_BYTES), tuple(blocks), priority)


def prompt_of_json(body: bytes, head_bytes: int | None = None) -> bytes:
    """Of an HTTP request: ``text_input``, ``prompt``, ``messages``, or the tensor ``text_input``; empty when it has none.

    Args:
        body: all of it.
        head_bytes: length of its JSON, when binary tensors follow (KServe's binary extension).
    """
    try:
        said = json.loads(body[:head_bytes])
    except (ValueError, RecursionError):
        return b""
    if not isinstance(said, dict):
        return b""
    for key in TEXT_KEYS:
        if isinstance(said.get(key), str):
            return _bytes(said[key])
    if isinstance(said.get("messages"), list):
        return _bytes(json.dumps(said["messages"], ensure_ascii=False))
    return _tensor_of_json(said.get("inputs"), body[head_bytes:] if head_bytes else b"")


def _tensor_of_json(inputs: Any, tensors: bytes) -> bytes:
    if not isinstance(inputs, list):
        return b""
    at = 0
    for one in inputs:
        if not isinstance(one, dict):
            return b""
        parameters = one.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if one.get("name") == TEXT_INPUT:
            return _first_element(tensors[at:]) if isinstance(size, int) else _first_text(one.get("data"))
        at += size if isinstance(size, int) and size >= 0 else 0
    return b""


def _first_text(data: Any) -> bytes:
    while isinstance(data, list) and data:
        data = data[0]
    return _bytes(data) if isinstance(data, str) else b""


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _first_element(tensor: bytes) -> bytes:
    """Of a BYTES tensor: four bytes of length, then so many."""
    if len(tensor) < LENGTH.size:
        return b""
    return tensor[LENGTH.size : LENGTH.size + LENGTH.unpack_from(tensor)[0]]


def prompt_of_grpc(body: bytes) -> bytes:
    """Of a gRPC call of ``ModelInfer``: the tensor ``text_input``; empty when it has none.

    Field numbers: ``grpc_service.proto`` of triton-inference-server/common.
    """
    if len(body) < GRPC_HEAD.size or body[0]:
        return b""
    message = body[GRPC_HEAD.size : GRPC_HEAD.size + GRPC_HEAD.unpack_from(body)[1]]
    try:
        fields = list(_fields(message))
        inputs = [dict(_fields(value)) for number, value in fields if number == 5]
        place = next(place for place, one in enumerate(inputs) if one.get(1) == TEXT_INPUT.encode())
        if 5 in inputs[place]:
            return dict(reversed(list(_fields(inputs[place][5])))).get(8, b"")
        raw = [value for number, value in fields if number == 7]
        return _first_element(raw[place]) if place < len(raw) else b""
    except (ValueError, StopIteration):
        return b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message, in order.

    Raises:
        ValueError: it is none.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, size = key & 7, 0
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field goes beyond the end")
        if kind == 2:
            yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise ValueError("a number goes beyond the end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has more than ten bytes")
