"""Clients of Brim's gateway to copy: a deadline on every call, and retries that cannot make an overload worse.

Four of one shape: ``HttpClient`` and ``GrpcClient`` for threads, ``AsyncHttpClient`` and ``AsyncGrpcClient`` for asyncio. Make
one a process and keep it: connections are used again, and the retry budget is one for all of its calls. Needed are numpy,
tritonclient[http,grpc], and aiohttp or urllib3 for HTTP.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import grpc
import numpy as np
import urllib3
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

Tensors = Mapping[str, np.ndarray[Any, Any]]
Outputs = dict[str, np.ndarray[Any, Any]]
BUSY = ("429", "503", "RESOURCE_EXHAUSTED", "UNAVAILABLE")
LATE = "DEADLINE_EXCEEDED"
CONNECTIONS = 100
CHANNEL = [
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", -1),
]
"""Retries are counted here, and the library's own would come on top. It would wait up to two minutes for a gateway that is
back in seconds."""
JSON_BYTES = "Inference-Header-Content-Length"


class CallFailed(Exception):
    """A call without an answer. ``status`` is HTTP's number or gRPC's name, ``reason`` the gateway's (docs/clients.md)."""

    def __init__(self, status: str, text: str, reason: str = "", retry_after_s: float = 0.0) -> None:
        """``retry_after_s`` is 0 where the gateway named no time."""
        super().__init__(f"{status} {reason}: {text}" if reason else f"{status}: {text}")
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def may_pass(self) -> bool:
        """Whether the same request can succeed a little later. ``too_large`` shares its gRPC status with a full queue."""
        return self.status in BUSY and self.reason != "too_large"


@dataclass
class RetryBudget:
    """Retries for all calls together: each call earns ``ratio`` of one, and ``most`` can be saved up.

    When everything is refused, traffic grows by that ratio and no more. Without a budget three tries would be three times
    the load, just when there is too much of it.
    """

    ratio: float = 0.1
    most: float = 10.0
    left: float = 10.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def earn(self) -> None:
        """For each call."""
        with self._lock:
            self.left = min(self.most, self.left + self.ratio)

    def spend(self) -> bool:
        """For each retry: whether there is one left."""
        with self._lock:
            if self.left < 1:
                return False
            self.left -= 1
            return True


@dataclass
class Retries:
    """When a call is tried again: after ``Retry-After``, and a random time up to ``first_s``, doubled from try to try."""

    tries: int = 4
    first_s: float = 0.1
    longest_s: float = 2.0
    budget: RetryBudget = field(default_factory=RetryBudget)
    now_s: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


class Call:
    """One call: its deadline, which holds for all of its tries together, and how often it was tried."""

    def __init__(self, retries: Retries, timeout_s: float) -> None:
        """It begins now."""
        self.retries, self.tried = retries, 0
        self.deadline_s = retries.now_s() + timeout_s
        retries.budget.earn()

    def left_s(self) -> float:
        """What the next try may take."""
        self.tried += 1
        left_s = self.deadline_s - self.retries.now_s()
        if left_s <= 0:
            raise CallFailed(LATE, "the deadline has passed")
        return left_s

    def pause_s(self, error: CallFailed) -> float:
        """How long to wait before the next try; raises the error when there is to be none."""
        plan = self.retries
        pause_s = error.retry_after_s + plan.uniform(0, min(plan.longest_s, plan.first_s * 2 ** (self.tried - 1)))
        is_in_time = plan.now_s() + pause_s < self.deadline_s
        if not (error.may_pass and self.tried < plan.tries and is_in_time and plan.budget.spend()):
            raise error
        return pause_s


class _Client:
    def __init__(
        self,
        address: str,
        *,
        caller_class: str | None = None,
        tenant: str | None = None,
        retries: Retries | None = None,
    ) -> None:
        """For the gateway at ``address``, host:port, which is one for both protocols."""
        self.address, self.retries = address, retries or Retries()
        given = {"x-brim-class": caller_class, "x-brim-tenant": tenant}
        self.headers = {name: value for name, value in given.items() if value is not None}
        self._open()

    def _open(self) -> None:
        raise NotImplementedError


class _Sync(_Client):
    def infer(self, model: str, inputs: Tensors, *, timeout_s: float) -> Outputs:
        """The outputs for inputs of one row or more; ``CallFailed`` when there are none within ``timeout_s``."""
        call = Call(self.retries, timeout_s)
        while True:
            try:
                return self._send(model, inputs, call.left_s())
            except CallFailed as error:
                time.sleep(call.pause_s(error))

    def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        raise NotImplementedError

    def __enter__(self) -> Self:
        """The client; the end of the block closes its connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self._close()

    def _close(self) -> None:
        raise NotImplementedError


class _Async(_Client):
    async def infer(self, model: str, inputs: Tensors, *, timeout_s: float) -> Outputs:
        """The same as in ``HttpClient``."""
        call = Call(self.retries, timeout_s)
        while True:
            try:
                return await self._send(model, inputs, call.left_s())
            except CallFailed as error:
                await asyncio.sleep(call.pause_s(error))

    async def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        """The client; the end of the block closes its connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        await self._close()

    async def _close(self) -> None:
        raise NotImplementedError


class HttpClient(_Sync):
    """HTTP, for any number of threads."""

    def _open(self) -> None:
        host, _, port = self.address.rpartition(":")
        self._pool = urllib3.HTTPConnectionPool(host, int(port), maxsize=CONNECTIONS, retries=False)

    def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        body, headers = _http_request(inputs, left_s)
        headers |= self.headers
        try:
            answer = self._pool.request("POST", _path(model), body, headers=headers, timeout=urllib3.Timeout(left_s))
        except urllib3.exceptions.NewConnectionError as error:
            raise CallFailed("503", str(error)) from error
        except urllib3.exceptions.TimeoutError as error:
            raise CallFailed("504", str(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise CallFailed("connection lost", str(error)) from error
        return _http_outputs(answer.status, answer.headers, answer.data)

    def _close(self) -> None:
        self._pool.close()


class AsyncHttpClient(_Async):
    """HTTP, for asyncio. Make it inside the event loop."""

    def _open(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS))

    async def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        body, headers = _http_request(inputs, left_s)
        headers |= self.headers
        url, timeout = f"http://{self.address}{_path(model)}", aiohttp.ClientTimeout(total=left_s)
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as answer:
                return _http_outputs(answer.status, answer.headers, await answer.read())
        except aiohttp.ClientConnectorError as error:
            raise CallFailed("503", str(error)) from error
        except TimeoutError as error:
            raise CallFailed("504", "no answer before the deadline") from error
        except aiohttp.ClientError as error:
            raise CallFailed("connection lost", str(error)) from error

    async def _close(self) -> None:
        await self._session.close()


class GrpcClient(_Sync):
    """gRPC, for any number of threads, over one connection."""

    def _open(self) -> None:
        self._channel = grpc.insecure_channel(self.address, options=CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        request, metadata = _grpc_request(model, inputs), tuple(self.headers.items())
        try:
            return _grpc_outputs(self._stub.ModelInfer(request, timeout=left_s, metadata=metadata))
        except grpc.RpcError as error:
            raise _grpc_failure(error) from error

    def _close(self) -> None:
        self._channel.close()


class AsyncGrpcClient(_Async):
    """gRPC, for asyncio. Make it inside the event loop."""

    def _open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def _send(self, model: str, inputs: Tensors, left_s: float) -> Outputs:
        request, metadata = _grpc_request(model, inputs), tuple(self.headers.items())
        try:
            return _grpc_outputs(await self._stub.ModelInfer(request, timeout=left_s, metadata=metadata))
        except grpc.RpcError as error:
            raise _grpc_failure(error) from error

    async def _close(self) -> None:
        await self._channel.close(None)


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _http_request(inputs: Tensors, left_s: float) -> tuple[bytes, dict[str, str]]:
    tensors = []
    for name, array in inputs.items():
        tensors.append(triton_http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    body, json_bytes = triton_http.InferenceServerClient.generate_request_body(tensors)
    # The gateway ends what would come too late, so that nobody works for a caller who has gone.
    headers = {"x-brim-timeout-ms": str(max(1, int(left_s * 1000)))}
    return bytes(body), headers if json_bytes is None else {**headers, JSON_BYTES: str(json_bytes)}


def _http_outputs(status: int, headers: Mapping[str, str], body: bytes) -> Outputs:
    if status != 200:
        reason, again_s = headers.get("x-brim-reason", ""), _seconds(headers.get("retry-after"))
        raise CallFailed(str(status), body[:500].decode("utf-8", "replace"), reason, again_s)
    json_bytes = headers.get(JSON_BYTES)
    parse = triton_http.InferenceServerClient.parse_response_body
    result = parse(body, header_length=None if json_bytes is None else int(json_bytes))
    return {one["name"]: result.as_numpy(one["name"]) for one in result.get_response()["outputs"]}


def _grpc_request(model: str, inputs: Tensors) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        is_text = array.dtype.kind in "OSU"
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
    return request


def _grpc_outputs(answer: Any) -> Outputs:
    result = triton_grpc.InferResult(answer)
    return {one.name: result.as_numpy(one.name) for one in answer.outputs}


def _grpc_failure(error: Any) -> CallFailed:
    said = {key: str(value) for key, value in error.trailing_metadata() or ()}
    reason, again_s = said.get("x-brim-reason", ""), _seconds(said.get("retry-after"))
    return CallFailed(error.code().name, error.details() or "", reason, again_s)


def _seconds(text: str | None) -> float:
    """``Retry-After`` in its form of a number; the gateway never sends a date."""
    return float(text) if text and text.isdigit() else 0.0
