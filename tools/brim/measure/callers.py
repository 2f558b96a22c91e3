"""Concurrent callers, each sending one row and waiting for its own answer, as production clients do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import aio as grpc_aio
from tritonclient.http import aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from brim.errors import InputError
from brim.measure.plan import Protocol

Row: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Input name -> tensor with the batch dimension 1 in front."""

CONNECT_TIMEOUT_S = 10.0
MARGIN_S = 5.0
"""The client library's own limit is this much longer than ours, so that ours is the one that is recorded."""


@dataclass(frozen=True, slots=True)
class CallerError:
    """Why a caller has no answer. ``status`` is the HTTP status or gRPC code, empty when no answer came."""

    message: str
    status: str = ""
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What one caller got: outputs, or an error.

    Attributes:
        index: which request, counted from 0.
        outputs: output name -> tensor; None when there is an error.
        error: None when there are outputs.
        latency_us: from sending to the end of the answer, or of the waiting; 0 when it was never sent.
    """

    index: int
    outputs: dict[str, np.ndarray[Any, Any]] | None
    error: CallerError | None
    latency_us: int


def ask_all(
    endpoint_url: str,
    protocol: Protocol | str,
    model: str,
    requests: Sequence[Row],
    concurrency: int,
    timeout_s: float,
) -> list[Answer]:
    """Send every request, at most ``concurrency`` at a time, and return one answer each in the order of the requests.

    The loop is closed: a caller sends its next request when its last one is answered. The first ``concurrency``
    requests leave together, over connections that are already open. Whatever goes wrong with a request is recorded in
    its own answer and touches no other; ``len(answers) == len(requests)`` always.

    Args:
        endpoint_url: ``host:port`` of that protocol.
        protocol: ``http`` or ``grpc``.
        model: name of the model.
        requests: one row each, batch dimension 1 in front; text as arrays of objects.
        concurrency: callers.
        timeout_s: longest wait for one answer.

    Raises:
        InputError: ``concurrency`` is below 1 or ``timeout_s`` not above 0.
    """
    return asyncio.run(ask_all_async(endpoint_url, protocol, model, requests, concurrency, timeout_s))


async def ask_all_async(
    endpoint_url: str,
    protocol: Protocol | str,
    model: str,
    requests: Sequence[Row],
    concurrency: int,
    timeout_s: float,
) -> list[Answer]:
    """``ask_all`` for a caller that runs an event loop already."""
    if concurrency < 1:
        raise InputError(f"concurrency {concurrency}: must be 1 or more", hint="give the number of callers")
    if not timeout_s > 0:
        raise InputError(f"timeout_s {timeout_s:g}: must be above 0", hint="give the longest wait for one answer")
    callers = min(concurrency, len(requests))
    if not callers:
        return []
    line = _Line(endpoint_url, Protocol(protocol), model, callers, timeout_s)
    answers: dict[int, Answer] = {}
    try:
        await line.open(callers)
        together = asyncio.Barrier(callers)
        waiting = iter(enumerate(requests))
        await asyncio.gather(*(_caller(line, waiting, together, answers) for _ in range(callers)))
    finally:
        await line.close()
    return [answers[index] for index in range(len(requests))]


async def _caller(
    line: _Line, waiting: Iterator[tuple[int, Row]], together: asyncio.Barrier, answers: dict[int, Answer]
) -> None:
    first = True
    for index, row in waiting:
        try:
            prepared, fault = line.prepare(row), None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this row belongs to this caller only
            prepared, fault = [], _explain(error)
        if first:
            await together.wait()
            first = False
        answers[index] = Answer(index, None, fault, 0) if fault else await line.ask(index, prepared)


class _Line:
    """One client of either protocol that holds every caller's request at once."""

    def __init__(self, url: str, protocol: Protocol, model: str, callers: int, timeout_s: float) -> None:
        self.model = model
        self.timeout_s = timeout_s
        self.over_http = protocol is Protocol.HTTP
        self.client = (
            http_aio.InferenceServerClient(url, conn_limit=callers, conn_timeout=timeout_s + MARGIN_S)
            if self.over_http
            else grpc_aio.InferenceServerClient(url)
        )

    async def open(self, callers: int) -> None:
        """Open every connection before the first request, so that the first ones really leave together.

        A server that is not there shows in each answer, not here.
        """
        knocks = (self.client.is_server_live() for _ in range(callers if self.over_http else 1))
        everyone = asyncio.gather(*knocks, return_exceptions=True)
        try:
            await asyncio.wait_for(everyone, min(CONNECT_TIMEOUT_S, self.timeout_s))
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    def prepare(self, row: Row) -> list[Any]:
        """The row as the client library's inputs."""
        module = triton_http if self.over_http else triton_grpc
        inputs = []
        for name, value in row.items():
            datatype = np_to_triton_dtype(value.dtype)
            if datatype is None:
                raise InputError(
                    f"input {name}: numpy type {value.dtype} has no counterpart in Triton",
                    hint="cast the array to a type of KServe v2 (docs/service-file.md lists them)",
                )
            tensor = module.InferInput(name, list(value.shape), datatype)
            tensor.set_data_from_numpy(value)
            inputs.append(tensor)
        return inputs

    async def ask(self, index: int, inputs: list[Any]) -> Answer:
        """Send one request and wait for its own answer, ``timeout_s`` at most."""
        began_ns = time.perf_counter_ns()
        outputs, error = None, None
        try:
            result = await asyncio.wait_for(
                self.client.infer(self.model, inputs, request_id=str(index)), self.timeout_s
            )
            outputs, error = _outputs(result, index, self.over_http)
        except TimeoutError:
            error = CallerError(f"no answer within {self.timeout_s:g} s", timed_out=True)
        except Exception as problem:  # noqa: BLE001 - recorded for this caller; the others go on
            error = _explain(problem)
        return Answer(index, outputs, error, (time.perf_counter_ns() - began_ns) // 1_000)


def _outputs(
    result: Any, index: int, over_http: bool
) -> tuple[dict[str, np.ndarray[Any, Any]] | None, CallerError | None]:
    """The tensors of an answer, once its id has shown that it is this caller's own."""
    response = result.get_response()
    identity = str(response.get("id", "") if over_http else response.id)
    if identity != str(index):
        return None, CallerError(f"the answer carries the id {identity!r}, the request had {index}")
    tensors = response["outputs"] if over_http else response.outputs
    names = [tensor["name"] if over_http else tensor.name for tensor in tensors]
    return {name: result.as_numpy(name) for name in names}, None


def _explain(error: Exception) -> CallerError:
    if isinstance(error, InferenceServerException):
        status = str(error.status() or "").removeprefix("StatusCode.")
        return CallerError(error.message(), status, timed_out=status == "DEADLINE_EXCEEDED")
    return CallerError(f"{type(error).__name__}: {error}")
