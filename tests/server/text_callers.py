"""Callers of a language model over gRPC streams and HTTP, for tests."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from tritonclient import grpc as triton_grpc

from brim.server.endpoint import Endpoint

WAIT_S = 60.0
MODEL = "text_generation"


def tensor(name: str, value: bytes | bool) -> Any:
    """An input of one element."""
    kind, dtype = ("BYTES", np.object_) if isinstance(value, bytes) else ("BOOL", np.bool_)
    item = triton_grpc.InferInput(name, [1], kind)
    item.set_data_from_numpy(np.array([value], dtype))
    return item


@dataclass
class Stream:
    """One caller with a connection of its own."""

    endpoint: Endpoint
    prompt: bytes
    parameters: dict[str, Any]
    model: str = MODEL
    request_id: str = ""
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    error: str | None = None
    ended: bool = False

    def __enter__(self) -> Self:
        self._news: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = triton_grpc.InferenceServerClient(self.endpoint.grpc)
        self._client.start_stream(callback=lambda result, error: self._news.put((result, error)))
        flags = ("stream", "return_finish_reason", "return_num_output_tokens")
        inputs = [tensor("text_input", self.prompt), *(tensor(name, True) for name in flags)]
        self._client.async_stream_infer(
            self.model, inputs, request_id=self.request_id, parameters=self.parameters, enable_empty_final_response=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        # Cancelled only where it has not ended: after some thousand cancellations that crossed a last response, each of
        # which had been sent, tritonserver 24.10 left the model unloading for ever, and an exit took all of its timeout.
        self._client.stop_stream(cancel_requests=not self.ended)
        self._client.close()

    def cancel(self) -> None:
        """Leave without waiting for the end."""
        self._client.stop_stream(cancel_requests=True)

    def next(self) -> bool:
        """Take one response; whether it was the last one."""
        result, error = self._news.get(timeout=WAIT_S)
        if error is not None:
            self.error, self.ended = str(error), True
            return True
        text = result.as_numpy("text_output")
        if text is not None:
            self.texts.append(text[0].decode())
            self.tokens.append(int(result.as_numpy("num_output_tokens")[0]))
            self.reasons.append(result.as_numpy("finish_reason")[0].decode())
        self.ended = bool(result.get_response().parameters["triton_final_response"].bool_param)
        return self.ended

    def finish(self) -> Self:
        """Take responses to the last one."""
        while not self.next():
            pass
        return self

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


def post(endpoint: Endpoint, path: str, body: object, *, model: str = MODEL) -> tuple[int, str]:
    """Status and body of a POST to the model."""
    request = urllib.request.Request(f"http://{endpoint.http}/v2/models/{model}/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(endpoint: Endpoint, name: str, **labels: str) -> float:
    """The value of one metric."""
    with urllib.request.urlopen(f"http://{endpoint.metrics}/metrics", timeout=WAIT_S) as page:
        lines = page.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    (found,) = [line for line in lines if line.startswith(f"{name}{{") and all(part in line for part in wanted)]
    return float(found.rsplit(" ", 1)[1])
