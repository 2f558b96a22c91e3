"""The open loop against a real server, over gRPC or HTTP, in one process: what it sends, and what it sees of itself."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, Self
from urllib.parse import quote

import grpc

from brim.errors import InputError, ServerFailed
from brim.measure import plan as measure_plan
from brim.measure.accounting import Outcome, Reply
from brim.measure.callers import Row
from brim.measure.histogram import Latencies
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult, drive
from brim.measure.openloop_http import Pool, whole_request
from brim.measure.openloop_limits import LAG_PERCENTILE, Evidence
from brim.measure.openloop_wire import grpc_body, http_body
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
CHANNELS = 4
"""Connections of the gRPC side: one alone has its calls wait for each other in the client library."""
CONNECTIONS_AHEAD = 32
CONNECT_TIMEOUT_S = 10.0
LEAD_S = 0.05
"""Between the last preparation and the first request."""
TICK_S = 0.01
CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
LONGEST_TEXT = 200
EXPIRED_TEXT = "timeout expired"
"""What Triton says when its own queue timeout has passed: ``Request timeout expired``, with the status of a refusal."""
LOST_TEXTS = ("failed to connect", "Socket closed", "Connection reset", "recvmsg", "Broken pipe", "GOAWAY")
"""The gRPC library's own words for a connection that is gone, which has the status of a refusal, too."""
ANSWERED = Reply(Outcome.ANSWERED)


def grpc_reply(code: str, details: str) -> Reply:
    """What a gRPC status other than OK means for the caller."""
    text = f"{code}: {details}"[:LONGEST_TEXT]
    if code == "DEADLINE_EXCEEDED" or (code == "UNAVAILABLE" and EXPIRED_TEXT in details):
        return Reply(Outcome.EXPIRED, text)
    if code == "UNAVAILABLE" and any(words in details for words in LOST_TEXTS):
        return Reply(Outcome.FAILED, text)
    if code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"):
        return Reply(Outcome.REFUSED, text)
    return Reply(Outcome.FAILED, text)


def http_reply(status: int, body: str) -> Reply:
    """What an HTTP status means for the caller."""
    if status == 200:
        return ANSWERED
    text = f"{status}: {body}"[:LONGEST_TEXT]
    if status == 504 or (status == 503 and EXPIRED_TEXT in body):
        return Reply(Outcome.EXPIRED, text)
    return Reply(Outcome.REFUSED if status in (429, 503) else Outcome.FAILED, text)


def messages(
    endpoint: Endpoint,
    protocol: measure_plan.Protocol,
    model: str,
    rows: Sequence[Row],
    headers: Mapping[str, str] | None = None,
) -> list[bytes]:
    """Each row as a whole message, over HTTP with these headers as well.

    Raises:
        InputError: there is no row, or numpy's type of one has no counterpart, or headers are given for gRPC, whose
            messages hold none.
    """
    if not rows:
        raise InputError("no row to send", hint="give one at least")
    if headers and protocol is measure_plan.Protocol.GRPC:
        raise InputError(f"headers {dict(headers)} for gRPC: its messages hold none", hint="send over HTTP")
    if protocol is measure_plan.Protocol.GRPC:
        return [grpc_body(model, row) for row in rows]
    bodies = [http_body(row) for row in rows]
    whole = [replace(body, headers={**body.headers, **(headers or {})}) for body in bodies]
    return [whole_request(endpoint.http, f"/v2/models/{quote(model)}/infer", body) for body in whole]


def run_open_loop(
    endpoint: Endpoint,
    protocol: measure_plan.Protocol,
    model: str,
    rows: Sequence[Row],
    due_offsets_us: Iterable[int],
    plan: OpenLoopPlan,
) -> OpenLoopResult:
    """Send the rows in turn, one a request, each when it is due, from this process.

    Args:
        endpoint: the server.
        protocol: how the requests travel.
        model: whom they are for.
        rows: what they carry, with the batch dimension 1 in front; encoded once, before the beginning.
        due_offsets_us: when they are due (``brim.measure.arrivals``).
        plan: how callers behave, and what is counted.

    Raises:
        InputError: there is no row, or numpy's type of one has no counterpart.
        ServerFailed: nothing answers at the address.
    """
    return send_messages(endpoint, protocol, messages(endpoint, protocol, model, rows), due_offsets_us, plan)


def send_messages(
    endpoint: Endpoint,
    protocol: measure_plan.Protocol,
    whole: Sequence[bytes],
    due_offsets_us: Iterable[int],
    plan: OpenLoopPlan,
    *,
    agree: Callable[[], float] | None = None,
) -> OpenLoopResult:
    """``run_open_loop`` for messages that are made already.

    Args:
        endpoint: the server.
        protocol: how the messages travel.
        whole: one message or more, sent in turn.
        due_offsets_us: when they are due.
        plan: how callers behave, and what is counted.
        agree: asked once, when the connections stand, for the beginning on ``time.monotonic``: several processes begin
            together. As soon as possible when absent.

    Raises:
        ServerFailed: nothing answers at the address.
    """
    return asyncio.run(_send(endpoint, protocol, whole, due_offsets_us, plan, agree))


async def _send(
    endpoint: Endpoint,
    protocol: measure_plan.Protocol,
    whole: Sequence[bytes],
    due_offsets_us: Iterable[int],
    plan: OpenLoopPlan,
    agree: Callable[[], float] | None,
) -> OpenLoopResult:
    loop = asyncio.get_running_loop()
    over_grpc = protocol is measure_plan.Protocol.GRPC
    line: _Line = _GrpcLine(endpoint.grpc, whole) if over_grpc else _HttpLine(endpoint.http, whole)
    try:
        await line.open()
        with Alarm(loop) as alarm:
            begin_s = loop.time() + LEAD_S if agree is None else await loop.run_in_executor(None, agree)
            watch = Watch(loop)
            began = (loop.time(), time.thread_time())
            accounts, most = await drive(due_offsets_us, line.ask, plan, wait_until=alarm.wait_until, begin_s=begin_s)
            wall_s, own_s = loop.time() - began[0], time.thread_time() - began[1]
            watch.stop()
        alive = await _still_answers(line)
    finally:
        await line.close()
    lag_us = watch.lag.percentile_us(LAG_PERCENTILE)
    evidence = Evidence(
        own_s / wall_s if wall_s > 0 else None, lag_us, most, wall_us=round((began[0] + wall_s - begin_s) * US_PER_S)
    )
    return OpenLoopResult(plan, accounts, evidence, alive)


async def _still_answers(line: _Line) -> bool:
    try:
        await line.open()
    except ServerFailed:
        return False
    return True


class _Line(Protocol):
    """The connections of one run."""

    async def open(self) -> None: ...

    async def ask(self, number: int) -> Reply: ...

    async def close(self) -> None: ...


class _GrpcLine:
    def __init__(self, address: str, whole: Sequence[bytes]) -> None:
        self.address = address
        self.whole = whole
        sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        # Channels with equal arguments share one connection unless told otherwise.
        self.channels = [
            grpc.aio.insecure_channel(address, options=[*sizes, ("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CHANNELS)
        ]
        self.calls = [channel.unary_unary(INFER, None, None) for channel in self.channels]

    async def open(self) -> None:
        """One question on each channel, so that no connection is made while the clock runs."""
        try:
            for channel in self.channels:
                await channel.unary_unary(LIVE, None, None)(b"", timeout=CONNECT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _no_server(self.address, error.details() or error.code().name) from error

    async def ask(self, number: int) -> Reply:
        call: Any = self.calls[number % CHANNELS](self.whole[number % len(self.whole)])
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return grpc_reply(error.code().name, error.details() or "")
        return ANSWERED

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close(None)


class _HttpLine:
    def __init__(self, address: str, whole: Sequence[bytes]) -> None:
        self.address = address
        self.whole = whole
        host, _, port = address.rpartition(":")
        self.pool = Pool(host.strip("[]"), int(port))

    async def open(self) -> None:
        """Some connections ahead; further ones are made as they are needed, as callers of a service do."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.pool.open(CONNECTIONS_AHEAD)
        except (OSError, TimeoutError) as error:
            raise _no_server(self.address, f"{type(error).__name__}: {error}") from error

    async def ask(self, number: int) -> Reply:
        try:
            status, text = await self.pool.ask(self.whole[number % len(self.whole)])
        except OSError as error:
            return Reply(Outcome.FAILED, f"{type(error).__name__}: {error}"[:LONGEST_TEXT])
        return ANSWERED if status == 200 else http_reply(status, text.decode("utf-8", "replace"))

    async def close(self) -> None:
        self.pool.close()


def _no_server(address: str, why: str) -> ServerFailed:
    return ServerFailed(f"{address}: no server answers: {why}", hint="start it with `brim serve`, or check the address")


class Alarm:
    """Wakes the event loop at a time, to some ten microseconds.

    The loop's own timers come up to a millisecond late, because epoll counts in milliseconds: at 1,000 arrivals a second
    that would be the interval between two. A Linux timer file descriptor (``timerfd_create(2)``) has no such step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing is opened before the ``with`` block. The loop's clock must be ``time.monotonic``, as asyncio's is."""
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = -1
        self._woken: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        """Open the timer."""
        self._file = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._file, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    async def wait_until(self, at_s: float) -> None:
        """Return at ``at_s``, or at once when that is past. One at a time."""
        at_ns = round(at_s * 1e9)
        if at_ns <= time.monotonic_ns():
            return
        self._woken = self._loop.create_future()
        # struct itimerspec: interval (none), then the time itself.
        value = (ctypes.c_long * 4)(0, 0, *divmod(at_ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._woken

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._file, 8)
            if self._woken is not None and not self._woken.done():
                self._woken.set_result(None)


class Watch:
    """Notes how late the event loop's timers come, from when it is made until ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin."""
        self.lag = Latencies()
        self._loop = loop
        self._expected_s = loop.time() + TICK_S
        self._timer = loop.call_at(self._expected_s, self._tick)

    def stop(self) -> None:
        """No further note."""
        self._timer.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        self.lag.record(max(0, round((now_s - self._expected_s) * US_PER_S)))
        self._expected_s = now_s + TICK_S
        self._timer = self._loop.call_at(self._expected_s, self._tick)
