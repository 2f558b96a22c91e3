"""One request over either protocol, with an answer that is read whole and checked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
from tritonclient.grpc import service_pb2

from brim.errors import ServerFailed
from brim.measure import plan
from brim.measure.accounting import Outcome, Reply
from brim.measure.callers import Row
from brim.measure.openloop_run import ANSWERED, INFER, LONGEST_TEXT, grpc_reply, http_reply, messages
from brim.server.endpoint import Endpoint
from brim.soak.answers import RightAnswer

CHANNELS = 4
"""Connections of the gRPC side: one alone has its calls wait for each other in the client library."""
LARGEST_ANSWER = 64 << 20
WRONG = Reply(Outcome.FAILED, "wrong answer")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_HEADER_LENGTH = re.compile(rb"\r\ninference-header-content-length: *(\d{1,9})\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)


class Line(Protocol):
    """Connections that requests of one model take. ``ask`` sends the row of that number, counted round."""

    async def ask(self, number: int) -> Reply:
        """Send one and say what became of it."""

    async def close(self) -> None:
        """Close every connection."""


def line_to(
    endpoint: Endpoint, protocol: plan.Protocol, model: str, rows: Sequence[Row], right: Sequence[RightAnswer]
) -> Line:
    """Connections for these rows, each with its right answer. Nothing is opened before the first request."""
    whole = messages(endpoint, protocol, model, rows)
    if protocol is plan.Protocol.GRPC:
        return GrpcLine(endpoint.grpc, whole, right)
    return HttpLine(endpoint.http, whole, right)


def _checked(raw: bytes, index: int, right: Sequence[RightAnswer]) -> Reply:
    return ANSWERED if right[index].is_matched_by(raw) else WRONG


class GrpcLine:
    """Calls over a few channels."""

    def __init__(self, address: str, whole: Sequence[bytes], right: Sequence[RightAnswer]) -> None:
        """For messages that are made already."""
        options = [("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.use_local_subchannel_pool", 1)]
        self._whole, self._right = whole, right
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self._calls = [channel.unary_unary(INFER, None, None) for channel in self._channels]

    async def ask(self, number: int) -> Reply:
        """Send one and say what became of it."""
        index = number % len(self._whole)
        call: Any = self._calls[number % CHANNELS](self._whole[index])
        try:
            answer = service_pb2.ModelInferResponse.FromString(await call)
        except grpc.aio.AioRpcError as error:
            return grpc_reply(error.code().name, error.details() or "")
        return _checked(b"".join(answer.raw_output_contents), index, self._right)

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels:
            await channel.close(None)


class HttpLine:
    """HTTP/1.1, as many connections as there are requests under way; a free one is used again."""

    def __init__(self, address: str, whole: Sequence[bytes], right: Sequence[RightAnswer]) -> None:
        """For messages that are made already."""
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._whole, self._right = whole, right
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> Reply:
        """Send one and say what became of it. One that is cancelled takes its connection with it."""
        index = number % len(self._whole)
        try:
            status, head, body = await self._exchange(self._whole[index])
        except (OSError, EOFError, asyncio.LimitOverrunError, ServerFailed) as error:
            return Reply(Outcome.FAILED, f"{type(error).__name__}: {error}"[:LONGEST_TEXT])
        if status != 200:
            return http_reply(status, body.decode("utf-8", "replace"))
        length = _HEADER_LENGTH.search(head)
        return _checked(body[int(length[1]) :] if length else body, index, self._right)

    async def _exchange(self, request: bytes) -> tuple[int, bytes, bytes]:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        is_whole = False
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is None or int(length[1]) > LARGEST_ANSWER:
                raise ServerFailed(f"an answer without a length: {head[:LONGEST_TEXT]!r}", hint="is it a gateway?")
            body = await reader.readexactly(int(length[1]))
            is_whole = not _CLOSES.search(head)
        finally:
            if is_whole:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return int(head[9:12]), head, body

    async def close(self) -> None:
        """Close every connection."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
