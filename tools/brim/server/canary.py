"""Readiness that tells the truth: a model is ready when it has answered an inference.

``/v2/health/ready`` and ``/v2/models/M/ready`` stay 200 after a python-backend stub has died (measured on 24.10), so
they are asked only to avoid sending the canary too early.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from brim.errors import ServerFailed
from brim.server.endpoint import NO_ANSWER, Endpoint

Tensors = Mapping[str, npt.NDArray[Any]]
POLL_S = 0.05
DECOUPLED = "decoupled transaction policy"
"""In Triton's answer to an inference on a model that answers in pieces."""
TEXT = b"a"
"""A language model's canary where its service has no sample: an empty prompt would be refused."""
LONGEST_ERROR = 2_000
"""Bytes of an error's text."""


def zeros_for(client: triton_http.InferenceServerClient, model: str) -> dict[str, npt.NDArray[Any]]:
    """One row of zeros (empty strings for BYTES) for every required input, shaped by the server's own configuration."""
    config = client.get_model_config(model)
    tensors = {}
    for entry in config["input"]:
        if entry.get("optional"):
            continue
        shape = [max(1, int(size)) for size in entry["dims"]]
        if config.get("max_batch_size", 0) > 0:
            shape = [1, *shape]
        kind = entry["data_type"].removeprefix("TYPE_")
        if kind == "STRING":
            tensors[entry["name"]] = np.full(shape, b"", dtype=np.object_)
        else:
            tensors[entry["name"]] = np.zeros(shape, dtype=triton_to_np_dtype(kind))
    return tensors


def infer_inputs(tensors: Tensors, module: Any = triton_http) -> list[Any]:
    """tritonclient inputs (of its HTTP or gRPC module) from arrays."""
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in tensors.items():
        item = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        item.set_data_from_numpy(array)
        inputs.append(item)
    return inputs


@dataclass(frozen=True, slots=True)
class Refusal:
    """What came of a canary instead of an answer.

    Attributes:
        status: of HTTP, as a text; empty where nothing came at all.
        text: the server's words, or why nothing came.
    """

    status: str
    text: str

    def __str__(self) -> str:
        """Both."""
        return f"[{self.status}] {self.text}" if self.status else self.text


def ask(endpoint: Endpoint, model: str, tensors: Tensors | None = None, *, timeout_s: float = 30.0) -> Refusal | None:
    """Send one canary over HTTP. Returns None when the model answered, else why it did not."""
    client = endpoint.http_client(timeout_s=timeout_s)
    try:
        client.infer(model, infer_inputs(tensors if tensors is not None else zeros_for(client, model)))
    except InferenceServerException as error:
        if DECOUPLED in error.message():
            return _ask_for_text(endpoint, model, tensors, timeout_s)
        return Refusal(str(error.status()), error.message())
    except NO_ANSWER as error:
        return Refusal("", f"{type(error).__name__}: {error}")
    finally:
        client.close()
    return None


def text_inputs(tensors: Tensors | None) -> dict[str, Any]:
    """The JSON body of a request for ``/generate`` from arrays of one element; a short prompt where there are none."""
    values = {name: array.ravel()[0] for name, array in (tensors or {}).items()} or {"text_input": TEXT}
    return {name: value.decode() if isinstance(value, bytes) else value.item() for name, value in values.items()}


def _ask_for_text(endpoint: Endpoint, model: str, tensors: Tensors | None, timeout_s: float) -> Refusal | None:
    """The canary of a decoupled model, which answers on ``/generate`` and on gRPC streams only."""
    request = urllib.request.Request(
        f"http://{endpoint.http}/v2/models/{model}/generate", json.dumps(text_inputs(tensors)).encode(), method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        return Refusal(str(error.code), error.read(LONGEST_ERROR).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        return Refusal("", f"{type(error).__name__}: {error}")
    return None


def wait_ready(
    endpoint: Endpoint,
    canaries: Mapping[str, Tensors | None],
    *,
    timeout_s: float,
    still_alive: Callable[[], str | None],
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Block until every model has answered its canary.

    Args:
        endpoint: the server.
        canaries: model name -> the row to send; None sends zeros shaped by the model's configuration.
        timeout_s: bound on the whole wait.
        still_alive: None while the server lives, else how it ended.
        on_progress: told each model's name when it has answered.

    Raises:
        ServerFailed: the server ended, or time ran out; names the models that did not answer and why.
    """
    deadline = time.monotonic() + timeout_s
    waiting: dict[str, str] = dict.fromkeys(canaries, "not ready yet")
    client = endpoint.http_client(timeout_s=5.0)
    try:
        while True:
            for model in list(waiting):
                ended = still_alive()
                if ended:
                    raise ServerFailed(ended, hint="`brim lint` checks the configuration, `brim doctor` the machine")
                try:
                    if not client.is_model_ready(model):
                        continue
                except NO_ANSWER:
                    continue
                trouble = ask(endpoint, model, canaries[model], timeout_s=max(1.0, deadline - time.monotonic()))
                if trouble is None:
                    del waiting[model]
                    on_progress(model)
                else:
                    waiting[model] = f"its canary failed: {trouble}"
            if not waiting:
                return
            if time.monotonic() > deadline:
                reasons = "; ".join(f"{model}: {reason}" for model, reason in waiting.items())
                raise ServerFailed(
                    f"not ready after {timeout_s:.0f} s: {reasons}",
                    hint="if the models were still loading, raise --ready-timeout-s; else the server's log tells why",
                )
            time.sleep(POLL_S)
    finally:
        client.close()
