"""The sequence of fuzzed requests: each is a function of the seed, the protocol and its number, so any can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import grpc

from brim.isolation.fuzz_avoid import Avoided, avoided_grpc, avoided_http, killers
from brim.isolation.fuzz_draft import HttpDraft, HttpKind, Stage, right_draft
from brim.isolation.fuzz_grpc import GRPC_KINDS, GrpcDraft, GrpcKind, right_call
from brim.isolation.fuzz_grpc import broken as broken_call
from brim.isolation.fuzz_http import HTTP_KINDS
from brim.isolation.fuzz_http import broken as broken_request
from brim.isolation.pool import Pool
from brim.measure.plan import Protocol

BODY_LIMIT_BYTES = 64 << 10
ROOM_BYTES = 48 << 10
"""A row is used as it is up to this size; mutations add to it."""
TRIES = 50
FURTHER_SHARE = 0.35
"""Of the requests, those that are broken in a second way too, and of these those in a third way."""
KILLER_EVERY = 100
ENDS_ITSELF = frozenset(
    ["chunked_wrongly", "content_length", "head_bytes", "line_ends", "cut_off", "version", "path", "method", "headers"]
)
"""Kinds that may leave a server waiting for more: their caller says at once that no more comes."""
RIGHT = "right"
Kind = TypeVar("Kind", HttpKind, GrpcKind)


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A gRPC call as it travels."""

    method: str
    data: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    compression: grpc.Compression
    streams: bool


@dataclass(frozen=True, slots=True)
class FuzzBody:
    """One fuzzed request.

    Attributes:
        protocol: how it travels.
        number: of it in the sequence of its protocol.
        kinds: how it is broken, in the order of application.
        payload: pieces of bytes, one a write, or a call.
        row: of the pool, whose answer a success must carry; None where the meaning has changed.
        ends: whether the caller ends its side of the connection after sending.
    """

    protocol: Protocol
    number: int
    kinds: tuple[str, ...]
    payload: tuple[bytes, ...] | GrpcCall
    row: int | None
    ends: bool = False

    @property
    def request_id(self) -> str:
        """As it is in the request, where no mutation has changed it."""
        return request_id(self.protocol, self.number)

    @property
    def what(self) -> str:
        """The kinds, for people."""
        return " + ".join(self.kinds) or RIGHT

    @property
    def data(self) -> bytes:
        """Everything that travels, but for the framing of gRPC."""
        return self.payload.data if isinstance(self.payload, GrpcCall) else b"".join(self.payload)


def request_id(protocol: Protocol, number: int) -> str:
    """The id of a fuzzed request."""
    return f"fuzz-{protocol.value}-{number}"


class FuzzSource:
    """All fuzzed requests of a seed.

    Args:
        pool: good rows; what is sent is made of them.
        seed: of every choice.
        killers: whether to send what is known to end or hurt a bare tritonserver 24.10 (``fuzz_avoid``), too.
    """

    def __init__(self, pool: Pool, seed: int, *, killers: bool = False) -> None:
        """Choose the rows: those that leave room for mutations, or the smallest one where none does."""
        self.pool = pool
        self.seed = seed
        self.killers = killers
        self.outputs = tuple(spec.name for spec in pool.contract.outputs)
        sizes = [sum(len(tensor.data) for tensor in tensors) for tensors in pool.tensors]
        self.rows = [row for row, size in enumerate(sizes) if size <= ROOM_BYTES] or [sizes.index(min(sizes))]
        self.limit_bytes = max(BODY_LIMIT_BYTES, 2 * min(sizes[row] for row in self.rows))

    def body(self, protocol: Protocol, number: int) -> FuzzBody:
        """Request ``number`` of the protocol. The kinds take turns; the rest is drawn."""
        if self.killers and protocol is Protocol.HTTP and number % KILLER_EVERY == KILLER_EVERY - 1:
            return self._killer(number)
        for attempt in range(TRIES):
            draw = Random(f"{self.seed}/{protocol.value}/{number}/{attempt}")
            found, why = self._http(number, draw) if protocol is Protocol.HTTP else self._grpc(number, draw)
            if len(found.data) <= self.limit_bytes and (self.killers or why is None):
                return found
        return self.right(protocol, number)

    def right(self, protocol: Protocol, number: int) -> FuzzBody:
        """A request with nothing wrong, by the same road."""
        draw = Random(f"{self.seed}/{protocol.value}/{number}/right")
        if protocol is Protocol.HTTP:
            return _http_body(number, broken_request(self._draft(number, draw), [], draw), [])
        return _grpc_body(number, broken_call(self._call(number, draw), [], draw), [])

    def _draft(self, number: int, draw: Random) -> HttpDraft:
        row = draw.choice(self.rows)
        as_json = draw.random() < 0.5 and self.pool.speaks_json(row)
        return right_draft(
            self.pool.contract.name,
            row,
            self.pool.tensors[row],
            self.outputs,
            as_json,
            request_id(Protocol.HTTP, number),
        )

    def _call(self, number: int, draw: Random) -> GrpcDraft:
        row = draw.choice(self.rows)
        name = request_id(Protocol.GRPC, number)
        return right_call(self.pool.contract.name, row, self.pool.tensors[row], self.outputs, name)

    def _http(self, number: int, draw: Random) -> tuple[FuzzBody, Avoided | None]:
        kinds = _chosen(HTTP_KINDS, number, draw)
        draft = broken_request(self._draft(number, draw), kinds, draw)
        return _http_body(number, draft, kinds), avoided_http(draft)

    def _grpc(self, number: int, draw: Random) -> tuple[FuzzBody, Avoided | None]:
        kinds = _chosen(GRPC_KINDS, number, draw)
        draft = broken_call(self._call(number, draw), kinds, draw)
        return _grpc_body(number, draft, kinds), avoided_grpc(draft)

    def _killer(self, number: int) -> FuzzBody:
        contract = self.pool.contract
        spec = contract.inputs[0]
        shape = list(self.pool.tensors[self.rows[0]][0].shape)
        known = killers(contract.name, spec.name, spec.datatype, shape)
        what, data, headers = known[number // KILLER_EVERY % len(known)]
        draft = right_draft(contract.name, 0, (), (), True, "")
        draft.document, draft.headers = data, [*draft.headers, *headers]
        for stage in Stage:
            draft.finish(stage)
        return FuzzBody(Protocol.HTTP, number, (what,), tuple(draft.writes), None)


def _chosen(known: Sequence[Kind], number: int, draw: Random) -> list[Kind]:
    """One kind in turn, and sometimes others; never two of one stage, since the second would not find what it expects."""
    kinds = [known[number % len(known)]]
    while len(kinds) < 3 and draw.random() < FURTHER_SHARE:
        taken = {kind.stage for kind in kinds}
        kinds.append(draw.choice([kind for kind in known if kind.stage not in taken]))
    return sorted(kinds, key=lambda kind: kind.stage)


def _http_body(number: int, draft: HttpDraft, kinds: Sequence[HttpKind]) -> FuzzBody:
    names = tuple(kind.name for kind in kinds)
    row = draft.row if all(kind.keeps for kind in kinds) else None
    return FuzzBody(Protocol.HTTP, number, names, tuple(draft.writes), row, not ENDS_ITSELF.isdisjoint(names))


def _grpc_body(number: int, draft: GrpcDraft, kinds: Sequence[GrpcKind]) -> FuzzBody:
    call = GrpcCall(draft.method, draft.data, tuple(draft.metadata), draft.compression, draft.streams)
    row = draft.row if all(kind.keeps for kind in kinds) else None
    return FuzzBody(Protocol.GRPC, number, tuple(kind.name for kind in kinds), call, row)
