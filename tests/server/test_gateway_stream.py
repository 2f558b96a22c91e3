"""The requests of ``ModelStreamInfer`` calls at the gateway, before the real server: bounded and counted as calls are."""

from __future__ import annotations

import queue
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from brim.gateway.admission import Admission, ClassBounds
from brim.gateway.envoy import Gateway
from brim.isolation.waiting import waiting_requests
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from tests.server.test_cases_isolation import until
from tests.server.test_gateway import counters

MODEL, BOUND = "held", 20
TAKEN_AHEAD = 3
"""Requests of a batch size of 1 that Triton does not count as waiting: one is executed, two are next."""
PATIENCE_S, POLL_S, QUIET_POLLS = 60.0, 0.1, 5
HELD = """
import time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._hold = Path(args["model_repository"]) / "hold"

    def execute(self, requests):
        began = time.monotonic()
        while self._hold.exists() and time.monotonic() - began < 60:
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A model that executes one request at a time, and none while the file ``hold`` is there."""
    folder = tmp_path_factory.mktemp("held")
    model = folder / "models" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(HELD)
    (model / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 1\n'
        'input { name: "X" data_type: TYPE_FP32 dims: [1] } output { name: "Y" data_type: TYPE_FP32 dims: [1] }\n'
        "dynamic_batching {} instance_group { count: 1 kind: KIND_CPU }"
    )
    cache = Project(checkout).cache
    with EmbeddedServer(folder / "models", [MODEL], cache=cache, log_file=folder / "triton.log") as running:
        yield running


def one_row() -> triton_grpc.InferInput:
    tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
    return tensor


class Stream:
    """One caller's ``ModelStreamInfer`` call."""

    def __init__(self, gateway: Gateway, **headers: str) -> None:
        self._answers: queue.SimpleQueue[InferenceServerException | None] = queue.SimpleQueue()
        self._client = gateway.endpoint.grpc_client()
        answers = self._answers
        self._client.start_stream(callback=lambda result, error: answers.put(error), headers=headers)

    def send(self, requests: int) -> None:
        for _ in range(requests):
            self._client.async_stream_infer(MODEL, [one_row()])

    def outcomes(self, count: int) -> list[str]:
        """Of the next answers, which Triton gives in the order of the requests: "answered", or why they were refused."""
        errors = [self._answers.get(timeout=PATIENCE_S) for _ in range(count)]
        said = [error and re.search(r"refused by the gateway: (\w+)", error.message()) for error in errors]
        return [
            match[1] if match else "answered" if error is None else "failed"
            for match, error in zip(said, errors, strict=True)
        ]

    def end(self, *, leaves: bool = False) -> None:
        self._client.stop_stream(cancel_requests=leaves)
        self._client.close()


class Held:
    """While it lasts, no request is executed."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server, self._file = server, server.repository / MODEL / "hold"

    def __enter__(self) -> Held:
        self._file.touch()
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.unlink()

    def wait_for_all(self) -> None:
        """Until as many requests as the bound are in flight."""
        seen: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < QUIET_POLLS or len(set(seen[-QUIET_POLLS:])) > 1 or seen[-1] < BOUND - TAKEN_AHEAD:
            assert time.monotonic() < deadline, seen
            time.sleep(POLL_S)
            with urllib.request.urlopen(f"http://{self._server.endpoint.metrics}/metrics") as page:
                seen.append(waiting_requests(page.read().decode(), MODEL))


def behind(server: EmbeddedServer, folder: Path, classes: tuple[ClassBounds, ...] = ()) -> Gateway:
    admitted = {MODEL: Admission(in_flight=BOUND, max_rows=1, classes=classes)}
    return Gateway(server.endpoint, log_file=folder / "envoy.log", admitted=admitted)


def faults(gateway: Gateway) -> list[str]:
    return [line for line in gateway.log_file.read_text().splitlines() if "script" in line]


def call(gateway: Gateway) -> str:
    client = gateway.endpoint.grpc_client()
    try:
        client.infer(MODEL, [one_row()])
        return "answered"
    except InferenceServerException as error:
        return str(error.status())
    finally:
        client.close()


def stream_requests(gateway: Gateway) -> Counter[tuple[str, str]]:
    """``envoy_brim_stream_requests`` by class and outcome; what is not 0."""
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics") as answer:
        page = answer.read().decode()
    found = Counter[tuple[str, str]]()
    for labels, value in re.findall(r"^envoy_brim_stream_requests\{(.*)\} (\d+)$", page, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        assert named["model"] == MODEL
        found[named["class"], named["outcome"]] += int(value)
    return +found


def test_the_requests_of_streams_have_the_same_bound_as_calls(server: EmbeddedServer, tmp_path: Path) -> None:
    classes = (ClassBounds("page", 1, BOUND), ClassBounds("nightly", 2, BOUND // 2))
    with behind(server, tmp_path, classes) as gateway:
        first, second = Stream(gateway), Stream(gateway, **{"x-brim-class": "nightly"})
        for _ in range(2):
            with Held(server) as held:
                first.send(BOUND + 5)
                held.wait_for_all()
                second.send(3)
                assert second.outcomes(3) == ["shed"] * 3
                assert call(gateway) == "StatusCode.RESOURCE_EXHAUSTED"
            assert first.outcomes(BOUND + 5) == ["answered"] * BOUND + ["queue_full"] * 5
        second.send(3)
        assert second.outcomes(3) == ["answered"] * 3
        first.end()
        second.end()
        expected = {
            ("page", "admitted"): 2 * BOUND,
            ("page", "answered"): 2 * BOUND,
            ("page", "queue_full"): 10,
            ("nightly", "admitted"): 3,
            ("nightly", "answered"): 3,
            ("nightly", "shed"): 6,
        }
        until(lambda: stream_requests(gateway) == expected, "the streams are not counted")
        assert {series.reason for series in counters(gateway)} == {"queue_full"}, "a stream is no call"
        assert sum(counters(gateway).values()) == 2
        assert faults(gateway) == []


def test_who_leaves_a_stream_makes_room_for_others(server: EmbeddedServer, tmp_path: Path) -> None:
    with behind(server, tmp_path) as gateway:
        with Held(server) as held:
            leaver = Stream(gateway)
            leaver.send(BOUND)
            held.wait_for_all()
            assert call(gateway) == "StatusCode.RESOURCE_EXHAUSTED"
            leaver.end(leaves=True)
        until(lambda: call(gateway) == "answered", "its requests stay in flight")
        stayer = Stream(gateway)
        stayer.send(BOUND)
        assert stayer.outcomes(BOUND) == ["answered"] * BOUND
        stayer.end()
        assert faults(gateway) == []
