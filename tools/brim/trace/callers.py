"""Callers of a trace: each sends one row, over HTTP, and notes on the monotonic clock when it sent and when it had its answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tritonclient import http as triton_http
from tritonclient.utils import np_to_triton_dtype

from brim.gateway.access_log import ID_HEADER
from brim.gateway.xds import REASON_HEADER
from brim.measure.callers import Row

MOST_REQUESTS = 10_000
MOST_CALLERS = 512
MOST_ANSWER_BYTES = 64 << 20
UNAVAILABLE = "unavailable"
"""Why the gateway says 503 when the server behind it does not answer; any other 503 is a refusal."""
LENGTH_HEADER = "Inference-Header-Content-Length"
"""Of the binary tensor extension: where the JSON ends and the tensors begin."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its caller saw it.

    Attributes:
        request_id: its KServe id and its ``x-request-id``.
        sent_ns: just before the first byte left, on the monotonic clock.
        answered_ns: just after the last byte of the answer, or when the connection failed.
        status: HTTP status; None when no answer came.
        reason: why the gateway refused it (``x-brim-reason``); empty when it did not.
        message: the error's text; empty for an answer.
    """

    request_id: str
    sent_ns: int
    answered_ns: int
    status: int | None
    reason: str
    message: str

    @property
    def outcome(self) -> str:
        """In the words of ``brim_requests_total``: right means an answer with status 200, whose values nobody has compared."""
        if self.status == 429 or (self.status == 503 and self.reason != UNAVAILABLE):
            return "refused"
        if self.status is None or self.status >= 500:
            return "expired" if self.status == 504 else "failed"
        return "right" if self.status == 200 else "own_error"


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent.

    Attributes:
        request_id: its KServe id, which is in the body, and its ``x-request-id``.
        path: of the POST.
        body: of it.
        headers: beside the id.
    """

    request_id: str
    path: str
    body: bytes
    headers: Mapping[str, str]


def tensor_requests(model: str, rows: Sequence[Row], ids: Sequence[str]) -> list[Request]:
    """One for each id; the rows, which have a batch dimension of 1, are taken in turn."""
    return [_tensor_request(model, rows[number % len(rows)], one) for number, one in enumerate(ids)]


def call_all(address: str, requests: Sequence[Request], concurrency: int, timeout_s: float) -> list[Call]:
    """Send every request, at most ``concurrency`` at once; the first ones leave together. In the order of the requests.

    Args:
        address: ``host:port`` of the gateway, or of a server.
        requests: with ids that differ.
        concurrency: callers; each has a connection of its own and sends its next request when its last one is answered.
        timeout_s: bound on each wait for more of an answer.
    """
    waiting, lock, stopped = iter(requests), threading.Lock(), threading.Event()
    callers = min(concurrency, len(requests))
    together = threading.Barrier(callers)

    def take() -> Iterator[Request]:
        while True:
            with lock:
                found = next(waiting, None)
            if found is None or stopped.is_set():
                return
            yield found

    def caller() -> list[Call]:
        line = http.client.HTTPConnection(address, timeout=timeout_s)
        try:
            _connect(line)
            together.wait(timeout_s)
            return [_ask(line, request) for request in take()]
        except BaseException:
            together.abort()
            raise
        finally:
            line.close()

    with ThreadPoolExecutor(callers, thread_name_prefix="brim-trace") as threads:
        done = [threads.submit(caller) for _ in range(callers)]
        try:
            calls = [call for future in done for call in future.result()]
        finally:
            # Who is interrupted waits for what is under way, and sends nothing more.
            stopped.set()
    order = {request.request_id: number for number, request in enumerate(requests)}
    return sorted(calls, key=lambda call: order[call.request_id])


def _connect(line: http.client.HTTPConnection) -> None:
    try:
        line.connect()
    except OSError:
        # It shows again, and is noted, when a request is sent.
        line.close()


def _tensor_request(model: str, row: Row, request_id: str) -> Request:
    inputs: list[Any] = []
    for name, value in row.items():
        tensor = triton_http.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    body, length = triton_http.InferenceServerClient.generate_request_body(inputs, request_id=request_id)
    headers = {} if length is None else {LENGTH_HEADER: str(length)}
    return Request(request_id, f"/v2/models/{model}/infer", bytes(body), headers)


def _ask(line: http.client.HTTPConnection, request: Request) -> Call:
    status, reason, message = None, "", ""
    sent_ns = time.monotonic_ns()
    try:
        line.request("POST", request.path, request.body, {**request.headers, ID_HEADER: request.request_id})
        answer = line.getresponse()
        said = answer.read(MOST_ANSWER_BYTES)
        answered_ns = time.monotonic_ns()
        status, reason = answer.status, answer.headers.get(REASON_HEADER, "")
        message = "" if status == 200 else _words(said)
        if len(said) == MOST_ANSWER_BYTES:
            line.close()
    except (OSError, http.client.HTTPException) as error:
        answered_ns = time.monotonic_ns()
        message = f"{type(error).__name__}: {error}"
        line.close()
    return Call(request.request_id, sent_ns, answered_ns, status, reason, message)


def _words(said: bytes) -> str:
    text = said[:2000].decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
