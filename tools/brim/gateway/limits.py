"""What the gateway takes of one request, worked out from the services behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from brim.service.schema import LARGEST_RANK, LARGEST_SIZE, DataType, InputTensor, Service

LEAST_BODY_BYTES = 1 << 20
LARGEST_BODY_BYTES = 64 << 20
ENVELOPE_BYTES = 64 << 10
JSON_GROWTH = 6
"""A FP32 value in JSON takes up to about 22 characters where its binary form takes 4 bytes."""
UNKNOWN_SIZE = 4096
"""Taken for a variable axis that the service sets no limit for."""
UNKNOWN_ELEMENT_BYTES = 1 << 16
"""Taken for a BYTES element that the service sets no limit for."""
_ITEM_BYTES = {"BOOL": 1, "BF16": 2}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on one request. All of them end in 400, the body's in 413.

    Attributes:
        body_bytes: largest body, which is held in memory while it is checked.
        small_body_bytes: of bodies up to this size any number may be on their way.
        held_bytes: of all larger ones together, by the length that they announce; further ones are refused with 503.
        quoted_bytes: of a name, an id or a type in gRPC, which Triton may quote in the header that carries an error.
        largest_size: largest dimension. 24.10 ends itself on some from 2^31 upwards (core#434 mended it later).
        rank: most dimensions, the batch included.
        nesting: how deep JSON may go: tensors of the largest rank, and what they stand in. 24.10 ends itself on some
            250,000 nested brackets.
        inputs: most tensors.
        keys: most of one JSON object: all are remembered, since none may come twice.
    """

    body_bytes: int = LARGEST_BODY_BYTES
    small_body_bytes: int = 64 << 10
    held_bytes: int = 4 * LARGEST_BODY_BYTES
    quoted_bytes: int = 4096
    largest_size: int = LARGEST_SIZE
    rank: int = LARGEST_RANK + 1
    nesting: int = LARGEST_RANK + 9
    inputs: int = 256
    keys: int = 4096

    def as_lua(self) -> str:
        """``LIMITS`` as ``guard.lua`` reads it."""
        names = (
            "body_bytes",
            "small_body_bytes",
            "held_bytes",
            "quoted_bytes",
            "largest_size",
            "rank",
            "nesting",
            "inputs",
            "keys",
        )
        return "local LIMITS = { " + ", ".join(f"{name} = {getattr(self, name)}" for name in names) + " }"


def request_limits(services: Sequence[Service]) -> RequestLimits:
    """Limits that let every right request of every service through, in binary form and in JSON."""
    largest = max((_full_request_bytes(service) for service in services), default=LARGEST_BODY_BYTES)
    return RequestLimits(
        body_bytes=min(LARGEST_BODY_BYTES, max(LEAST_BODY_BYTES, largest * JSON_GROWTH + ENVELOPE_BYTES))
    )


def _full_request_bytes(service: Service) -> int:
    return max(1, service.max_batch_size) * sum(_row_bytes(tensor) for tensor in service.inputs)


def _row_bytes(tensor: InputTensor) -> int:
    elements = prod(size if size > 0 else tensor.largest_size or UNKNOWN_SIZE for size in tensor.shape)
    return elements * _element_bytes(tensor)


def _element_bytes(tensor: InputTensor) -> int:
    if tensor.dtype is DataType.BYTES:
        return 4 + (tensor.longest_bytes or UNKNOWN_ELEMENT_BYTES)
    name = tensor.dtype.value
    return _ITEM_BYTES.get(name) or int("".join(letter for letter in name if letter.isdigit())) // 8
