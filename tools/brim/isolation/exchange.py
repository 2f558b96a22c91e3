"""Many callers at once over HTTP and gRPC, each waiting for its own answer. Bounded: every wait has an end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import grpc
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2

from brim.isolation.flights import Flights
from brim.isolation.request import Came, Leaving, Request
from brim.isolation.wire import HEADER_LENGTH, HttpMessage
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint

INFER = "/inference.GRPCInferenceService/ModelInfer"
LOST = "lost"
HUNG_LIMIT = 20
"""After so many callers without an answer nothing more is sent: it would only be more of the same, one wait each."""
ANSWER_LIMIT_BYTES = 1 << 28
CHANNELS = 4
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", ANSWER_LIMIT_BYTES),
    ("grpc.max_send_message_length", -1),
    # Channels with equal arguments share one connection unless told otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that comes back is found at once; gRPC's own bounds are 1 s and 120 s. The minimum is also how long one
    # attempt may take, the server's first frame included: this process is too busy at times to read that in 100 ms.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
]
OnCame = Callable[[int, Request, str, Came], None]
Gate = Callable[[], Awaitable[None]]


def exchange(
    endpoint: Endpoint,
    requests: Iterable[Request],
    *,
    callers: int,
    timeout_s: float,
    prefix: str,
    on_came: OnCame,
    flights: Flights | None = None,
    gate: Gate | None = None,
    pause_s: float = 0.0,
) -> Flights:
    """Send the requests in their order, at most ``callers`` at a time, and tell ``on_came`` what each got; the times.

    Closed loop: a caller sends its next one when its last one is answered. What breaks the protocol has connections of
    its own, so that a server that closes one of those closes nobody else's.

    Args:
        endpoint: the server; both protocols are used as the requests say.
        requests: what to send. What is taken from an iterator is sent at once, so it can end when enough was sent.
        callers: how many at once.
        timeout_s: longest wait for one answer.
        prefix: of the request ids; the number of the request follows.
        on_came: called with the number, the request, its id and what came. Requests that are no longer sent after
            ``HUNG_LIMIT`` waits are not told of.
        flights: where to keep the times, for somebody who looks at them meanwhile; new ones when absent.
        gate: awaited before each request is sent; whoever waits there first must be let go first.
        pause_s: how long a caller waits after an error before it sends again.
    """
    flights = Flights() if flights is None else flights
    asyncio.run(_exchange(endpoint, requests, callers, timeout_s, prefix, on_came, flights, gate, pause_s))
    return flights


async def _exchange(
    endpoint: Endpoint,
    requests: Iterable[Request],
    callers: int,
    timeout_s: float,
    prefix: str,
    on_came: OnCame,
    flights: Flights,
    gate: Gate | None,
    pause_s: float,
) -> None:
    line = _Line(endpoint, timeout_s)
    hung = 0

    async def caller(waiting: Iterator[Request]) -> None:
        nonlocal hung
        for request in waiting:
            if gate is not None:
                await gate()
            if hung >= HUNG_LIMIT:
                return
            number = flights.leave(request)
            request_id = f"{prefix}-{number}"
            came = await line.ask(request, request_id)
            flights.land(number)
            hung += came.hung
            on_came(number, request, request_id, came)
            if came.error and pause_s:
                await asyncio.sleep(pause_s)

    waiting = iter(requests)
    try:
        await asyncio.gather(*(caller(waiting) for _ in range(callers)))
    finally:
        await line.close()


class _Line:
    """The connections of one exchange."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        no_limit = aiohttp.ClientTimeout(total=None)
        # A server that may compress its answers does, which costs both sides more than it saves here.
        common: dict[str, Any] = {"timeout": no_limit, "skip_auto_headers": ("Accept-Encoding",)}
        self.good = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), **common)
        self.bad = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True), **common)
        self.channels = [grpc.aio.insecure_channel(endpoint.grpc, options=CHANNEL_OPTIONS) for _ in range(CHANNELS)]
        self.calls = [channel.unary_unary(INFER, None, None) for channel in self.channels]
        self.turn = 0

    async def close(self) -> None:
        await self.good.close()
        await self.bad.close()
        for channel in self.channels:
            await channel.close(None)

    async def ask(self, request: Request, request_id: str) -> Came:
        try:
            async with asyncio.timeout(self.timeout_s):
                if request.protocol is Protocol.GRPC:
                    return await self._ask_grpc(request, request_id)
                if request.leaving is not None:
                    return await self._leave_http(request, request_id)
                return await self._ask_http(request, request_id)
        except TimeoutError:
            return Came(hung=True)
        except (OSError, aiohttp.ClientError) as error:
            return Came(error=f"{type(error).__name__}: {error}", status=LOST)

    async def _ask_http(self, request: Request, request_id: str) -> Came:
        message = request.http(request_id)
        session = self.bad if request.breaks else self.good
        async with session.post(
            f"http://{self.endpoint.http}/v2/models/{request.model}/infer", data=message.body, headers=message.headers
        ) as answer:
            body = await answer.read()
            if answer.status != 200:
                return Came(error=body.decode("utf-8", "replace") or "no text", status=str(answer.status))
            return read_http(body, answer.headers.get(HEADER_LENGTH))

    async def _ask_grpc(self, request: Request, request_id: str) -> Came:
        self.turn += 1
        deadline_s = request.leaves_after_us / 1e6 if request.leaving is Leaving.DEADLINE else None
        call: Any = self.calls[self.turn % CHANNELS](request.grpc(request_id), timeout=deadline_s)
        if request.leaving is Leaving.CANCEL:
            asyncio.get_running_loop().call_later(request.leaves_after_us / 1e6, call.cancel)
        try:
            return read_grpc(await call)
        except asyncio.CancelledError:
            if request.leaving is not Leaving.CANCEL or not call.cancelled():
                raise
            return Came(left=True)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if request.leaving is Leaving.DEADLINE and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                return Came(left=True)
            return Came(error=error.details() or "no text", status=code.name)

    async def _leave_http(self, request: Request, request_id: str) -> Came:
        host, _, port = self.endpoint.http.rpartition(":")
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            whole = _on_the_wire(request.model, self.endpoint.http, request.http(request_id))
            writer.write(whole[: -max(1, len(whole) // 4)] if request.leaving is Leaving.HALF else whole)
            await writer.drain()
            await asyncio.sleep(request.leaves_after_us / 1e6)
            if request.leaving is Leaving.RESET:
                # Linger 0: the kernel sends RST instead of FIN.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return Came(left=True)


def _on_the_wire(model: str, host: str, message: HttpMessage) -> bytes:
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(message.body)}",
        *(f"{name}: {value}" for name, value in message.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + message.body


def read_http(body: bytes, header_length: str | None) -> Came:
    """A 200 as outputs; a body that cannot be read is an answer without outputs."""
    try:
        result = triton_http.InferenceServerClient.parse_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
        response = result.get_response()
        outputs = {tensor["name"]: result.as_numpy(tensor["name"]) for tensor in response["outputs"]}
    except Exception:  # noqa: BLE001 - whatever is wrong with the body, the verdict is the same
        return Came()
    return Came(outputs=outputs, echoed=response.get("id"))


def read_grpc(body: bytes) -> Came:
    """A serialised ``ModelInferResponse`` as outputs; one that cannot be read is an answer without outputs."""
    try:
        response = service_pb2.ModelInferResponse.FromString(body)
        result = triton_grpc.InferResult(response)
        outputs = {tensor.name: result.as_numpy(tensor.name) for tensor in response.outputs}
    except Exception:  # noqa: BLE001 - whatever is wrong with the message, the verdict is the same
        return Came()
    return Came(outputs=outputs, echoed=response.id or None)
