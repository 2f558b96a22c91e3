"""Sends fuzzed requests as they are, byte by byte, and steady callers beside them. Every wait has an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import Any

import aiohttp
import grpc
from tritonclient.grpc import service_pb2

from brim.isolation.exchange import INFER, LOST, read_grpc, read_http
from brim.isolation.fuzz_bodies import FuzzBody, GrpcCall
from brim.isolation.request import Came, Request
from brim.isolation.wire import HEADER_LENGTH
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint

CLOSED = "closed"
"""The status of a connection that ended without an answer: the least that a server owes to a broken request."""
REFUSED = "refused"
"""The status when there was no connection at all."""
PATIENCE_S = 1.0
"""Before a caller says that no more comes, where its request should be whole."""
HEAD_LIMIT_BYTES = 1 << 18
ANSWER_LIMIT_BYTES = 1 << 24
INTERIM = range(100, 200)


class FuzzLine:
    """The connections of one fuzz: every fuzzed HTTP request has its own; gRPC calls share a channel, the steady ones another."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Open nothing yet; must be called inside the event loop."""
        self.endpoint = endpoint
        host, _, port = endpoint.http.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        options = [
            ("grpc.max_receive_message_length", ANSWER_LIMIT_BYTES),
            ("grpc.max_send_message_length", -1),
            # Channels with equal arguments share one connection unless told otherwise, and a server that is gone for a
            # moment must be asked again at once.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
        ]
        self.fuzzed = grpc.aio.insecure_channel(endpoint.grpc, options=options)
        self.steady = grpc.aio.insecure_channel(endpoint.grpc, options=options)

    async def close(self) -> None:
        """End all connections."""
        await self.session.close()
        for channel in (self.fuzzed, self.steady):
            await channel.close(None)

    async def send(self, body: FuzzBody, timeout_s: float) -> Came:
        """Send a fuzzed request; what came, ``hung`` when the server neither answered nor ended the connection in time."""
        try:
            async with asyncio.timeout(timeout_s):
                if isinstance(body.payload, GrpcCall):
                    return await self._send_grpc(body.payload)
                return await self._send_http(body.payload, body.ends)
        except TimeoutError:
            return Came(hung=True)

    async def _send_http(self, pieces: tuple[bytes, ...], ends: bool) -> Came:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=HEAD_LIMIT_BYTES)
        except OSError as error:
            return Came(error=str(error), status=REFUSED)
        try:
            # A server may answer and close before it has all of a request.
            with suppress(OSError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if ends:
                    writer.write_eof()
            return await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Came:
        answer = asyncio.ensure_future(_read_answer(reader))
        try:
            done, _ = await asyncio.wait([answer], timeout=PATIENCE_S)
            if not done:
                with suppress(OSError):
                    writer.write_eof()
            return await answer
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, HTTPException, ValueError) as error:
            return Came(error=f"{type(error).__name__}: {error}", status=CLOSED)
        finally:
            answer.cancel()

    async def _send_grpc(self, call: GrpcCall) -> Came:
        try:
            if call.streams:
                return await self._stream(call)
            asked: Any = self.fuzzed.unary_unary(call.method, None, None)
            answer = await asked(call.data, metadata=call.metadata, compression=call.compression)
        except grpc.aio.AioRpcError as error:
            return Came(error=error.details() or "no text", status=error.code().name)
        return read_grpc(answer)

    async def _stream(self, call: GrpcCall) -> Came:
        async def sent() -> AsyncIterator[bytes]:
            yield call.data

        asked: Any = self.fuzzed.stream_stream(call.method, None, None)
        came = Came(error="the stream ended without an answer", status=CLOSED)
        async for answer in asked(sent(), metadata=call.metadata, compression=call.compression):
            message = service_pb2.ModelStreamInferResponse.FromString(answer)
            if message.error_message:
                came = Came(error=message.error_message, status="stream error")
            else:
                came = read_grpc(message.infer_response.SerializeToString())
        return came

    async def ask(self, request: Request, request_id: str, timeout_s: float) -> Came:
        """A well-meant request over a connection that is kept."""
        try:
            async with asyncio.timeout(timeout_s):
                if request.protocol is Protocol.GRPC:
                    asked: Any = self.steady.unary_unary(INFER, None, None)
                    return read_grpc(await asked(request.grpc(request_id)))
                return await self._ask_http(request, request_id)
        except TimeoutError:
            return Came(hung=True)
        except grpc.aio.AioRpcError as error:
            return Came(error=error.details() or "no text", status=error.code().name)
        except (OSError, aiohttp.ClientError) as error:
            return Came(error=f"{type(error).__name__}: {error}", status=LOST)

    async def _ask_http(self, request: Request, request_id: str) -> Came:
        message = request.http(request_id)
        url = f"http://{self.endpoint.http}/v2/models/{request.model}/infer"
        async with self.session.post(url, data=message.body, headers=message.headers) as answer:
            body = await answer.read()
            if answer.status != 200:
                return Came(error=body.decode("utf-8", "replace") or "no text", status=str(answer.status))
            return read_http(body, answer.headers.get(HEADER_LENGTH))


async def _read_answer(reader: asyncio.StreamReader) -> Came:
    """The first final answer on the connection; raises what reading raises when it ends before that."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        status = int(first.split(b" ", 2)[1])
        headers = parse_headers(BytesIO(rest))
        if status not in INTERIM:
            break
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif (length := headers.get("Content-Length")) is not None:
        body = await reader.readexactly(min(int(length), ANSWER_LIMIT_BYTES))
    else:
        body = await reader.read(ANSWER_LIMIT_BYTES)
    if status != 200:
        return Came(error=body.decode("utf-8", "replace") or "no text", status=str(status))
    return read_http(body, headers.get(HEADER_LENGTH))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while (size := int(await reader.readuntil(b"\r\n"), 16)) and len(body) < ANSWER_LIMIT_BYTES:
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return body
