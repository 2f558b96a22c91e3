"""Callers of a language model over gRPC streams: what each asks, and what it hears, when.

Inputs and outputs are those of Triton's vLLM backend (``brim.config.generation``). Every request has a stream of its own on
a shared connection, so leaving one cancels that request alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2

from brim.measure.openloop_run import CHANNELS
from brim.server.endpoint import Endpoint

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
RETURNS = ("return_finish_reason", "return_num_output_tokens", "return_num_input_tokens")
"""What a caller may want to be told beside the text. Each is a tensor more in every piece, which costs both sides time."""
MOST_BYTES = 1 << 26
LONGEST_ERROR = 500
"""Characters of an error that are kept."""
LENGTH_BYTES = 4
"""In front of an element of type BYTES in raw tensor contents."""
LEFT = "left"
"""In ``Heard.error`` of a caller who went before the end."""


def clock_us() -> int:
    """Microseconds on a clock that never goes back, the same for every process of the machine."""
    return time.monotonic_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        prompt: as it stands; no chat template is applied.
        options: sampling options by the names of vLLM's ``SamplingParams``; whatever JSON holds, or the bytes themselves
            where they are to be no JSON.
        parameters: the request's own parameters, such as ``brim_class``.
        request_id: for the server's log; nothing when empty.
        timeout_us: after which the server may drop it; 0 for never.
        stream: pieces as they come, or the whole text at the end.
        returns: of ``RETURNS``; without the first, no text is known to be complete.
    """

    prompt: bytes
    options: Mapping[str, Any] | bytes = field(default_factory=dict)
    parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    request_id: str = ""
    timeout_us: int = 0
    stream: bool = True
    returns: tuple[str, ...] = RETURNS

    def message(self, model: str) -> bytes:
        """The request as it travels."""
        request = service_pb2.ModelInferRequest(model_name=model, id=self.request_id)
        _add(request, "text_input", "BYTES", _element(self.prompt))
        options = self.options if isinstance(self.options, bytes) else json.dumps(self.options).encode()
        _add(request, "sampling_parameters", "BYTES", _element(options))
        _add(request, "stream", "BOOL", bytes([self.stream]))
        for name in ("exclude_input_in_output", *self.returns):
            _add(request, name, "BOOL", b"\x01")
        for name, value in self.parameters.items():
            kind = {bool: "bool_param", int: "int64_param"}.get(type(value), "string_param")
            setattr(request.parameters[name], kind, value)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        if self.timeout_us:
            request.parameters["timeout"].int64_param = self.timeout_us
        return bytes(request.SerializeToString())


@dataclass(slots=True)
class Heard:
    """What one caller heard, on ``clock_us``.

    Attributes:
        sent_us: when the request was handed to the connection.
        pieces: of the text: when it came, how many tokens are behind it, and what it says.
        ended_us: when the last response, or the error, came.
        finish_reason: ``stop`` or ``length``; empty without an end.
        input_tokens: of the prompt, as the server counts; 0 when it did not say.
        error: status and text where the request failed; ``LEFT`` where the caller went.
        strange: what came and should not: bytes that are no text, more after the finish reason or the final response.
    """

    sent_us: int = 0
    pieces: list[tuple[int, int, str]] = field(default_factory=list)
    ended_us: int = 0
    finish_reason: str = ""
    input_tokens: int = 0
    error: str = ""
    strange: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, _, text in self.pieces)

    @property
    def output_tokens(self) -> int:
        """Tokens behind it."""
        return sum(tokens for _, tokens, _ in self.pieces)

    @property
    def complete(self) -> bool:
        """Whether the text ended as it should."""
        return not self.error and bool(self.finish_reason)

    @property
    def first_us(self) -> int | None:
        """When the first piece that stands for a token came."""
        return next((at_us for at_us, tokens, _ in self.pieces if tokens), None)

    @property
    def last_us(self) -> int | None:
        """When the last such piece came."""
        return next((at_us for at_us, tokens, _ in reversed(self.pieces) if tokens), None)


Leaves = Callable[[Heard], bool]
"""Asked after every piece whether the caller goes now."""


class TextCallers:
    """Callers in one asyncio loop. ``async with`` opens their connections."""

    def __init__(self, endpoint: Endpoint, model: str, *, channels: int = CHANNELS) -> None:
        """Of a model at an endpoint; nothing is opened yet."""
        self._endpoint, self._model, self._count = endpoint, model, channels
        self._next = 0

    async def __aenter__(self) -> Self:
        """Open the connections."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_send_message_length", MOST_BYTES),
        ]
        self._channels = [
            grpc.aio.insecure_channel(self._endpoint.grpc, options=options) for _ in range(max(1, self._count))
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them; whoever still listens is cut off."""
        for channel in self._channels:
            await channel.close(None)

    async def ask(
        self,
        ask: Ask,
        *,
        leaves: Leaves | None = None,
        limit_s: float = 600.0,
        headers: Mapping[str, str] | None = None,
        heard: Heard | None = None,
        pause_s: float = 0.0,
        listens_on: bool = False,
    ) -> Heard:
        """Send a request and listen to the end.

        Args:
            ask: the request.
            leaves: asked after every piece; the caller cancels when it says so.
            limit_s: after which the caller goes whatever has come. Cancelling the task is leaving, too.
            headers: gRPC metadata.
            heard: where to note it, for somebody who cancels the task and wants to know what came before; a new one when
                absent.
            pause_s: before each response is read: a slow reader.
            listens_on: whether to wait for the end of the stream behind the final response, where nothing may come any more.

        Returns:
            What it heard; a refusal or a fault is in ``error``, and none is raised.
        """
        heard = Heard() if heard is None else heard
        self._next = (self._next + 1) % len(self._channels)
        open_stream: Any = self._channels[self._next].stream_stream(STREAM, None, None)
        message = ask.message(self._model)
        heard.sent_us = clock_us()
        call: Any = open_stream(timeout=limit_s, metadata=tuple((headers or {}).items()))
        try:
            await call.write(message)
            while True:
                if pause_s:
                    await asyncio.sleep(pause_s)
                raw = await call.read()
                if not isinstance(raw, bytes):
                    if not heard.ended_us:
                        heard.ended_us = clock_us()
                        heard.error = await _status(call)
                    break
                if _hear(heard, raw, clock_us()):
                    break
                if leaves is not None and leaves(heard):
                    heard.ended_us, heard.error = clock_us(), LEFT
                    break
        except grpc.aio.AioRpcError as error:
            heard.ended_us = clock_us()
            heard.error = f"{error.code().name}: {error.details()}"[:LONGEST_ERROR]
        except asyncio.CancelledError:
            heard.ended_us, heard.error = clock_us(), LEFT
            call.cancel()
            raise
        if heard.error == LEFT:
            call.cancel()
        elif not call.done():
            # A cancellation that crosses the last response is of no use to anybody, so the stream ends in order.
            await call.done_writing()
            if listens_on and isinstance(await call.read(), bytes):
                heard.strange.append("a response behind the final one")
        return heard


async def _status(call: Any) -> str:
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return "the stream ended without a final response"
    return f"{code.name}: {await call.details()}"[:LONGEST_ERROR]


def _hear(heard: Heard, raw: bytes, now_us: int) -> bool:
    """Take in one response; whether it was the last one."""
    response = service_pb2.ModelStreamInferResponse.FromString(raw)
    if response.error_message:
        heard.ended_us, heard.error = now_us, response.error_message[:LONGEST_ERROR]
        return True
    answer = response.infer_response
    if answer.outputs:
        values = dict(zip((output.name for output in answer.outputs), answer.raw_output_contents, strict=True))
        tokens = int.from_bytes(values.get("num_output_tokens", b""), "little")
        if heard.finish_reason:
            heard.strange.append("a response behind the one with the finish reason")
        text = _text(heard, values["text_output"][LENGTH_BYTES:])
        if tokens or text:
            heard.pieces.append((now_us, tokens, text))
        reason = values.get("finish_reason", b"")[LENGTH_BYTES:].decode()
        if reason not in ("", "None"):
            heard.finish_reason = reason
        heard.input_tokens = int.from_bytes(values.get("num_input_tokens", b""), "little")
    if answer.parameters["triton_final_response"].bool_param:
        heard.ended_us = now_us
        return True
    return False


def _text(heard: Heard, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        heard.strange.append(f"a piece that is not UTF-8: {raw[max(0, error.start - 8) : error.end]!r}")
        return raw.decode("utf-8", "replace")


def _element(value: bytes) -> bytes:
    return len(value).to_bytes(LENGTH_BYTES, "little") + value


def _add(request: Any, name: str, datatype: str, content: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1])
    request.raw_input_contents.append(content)
