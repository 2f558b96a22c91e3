"""What a bounded queue means on the real server: the request that runs is not counted, the rest is refused at once.

The model holds its batch until the test lets it go, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brim.config.textformat import parse, write
from brim.measure.plan import Protocol
from brim.server.canary import infer_inputs
from brim.server.embedded import EmbeddedServer

PATIENCE_S = 60
HELD = """
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

FOLDER = Path({folder!r})


class TritonPythonModel:
    def execute(self, requests):
        (FOLDER / "running").touch()
        deadline = time.monotonic() + {patience}
        while not (FOLDER / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2)]
            )
            for request in requests
        ]
"""


@contextmanager
def slow_model(checkout: Path, cases: Path, tmp_path: Path, limit: int) -> Iterator[EmbeddedServer]:
    """The case's configuration with this bound, around a model that waits for the file ``go``."""
    config = parse((cases / "09_bounded_queue.pbtxt").read_bytes(), "config.pbtxt").message
    assert config is not None
    config.dynamic_batching.default_queue_policy.max_queue_size = limit
    folder = tmp_path / "repository" / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(write(config), encoding="utf-8")
    (folder / "1" / "model.py").write_text(HELD.format(folder=str(tmp_path), patience=PATIENCE_S), encoding="utf-8")
    (tmp_path / "go").touch()
    with EmbeddedServer(
        tmp_path / "repository", ["slow"], cache=checkout / ".cache", log_file=tmp_path / "triton.log"
    ) as server:
        (tmp_path / "go").unlink()
        (tmp_path / "running").unlink()
        try:
            yield server
        finally:
            (tmp_path / "go").touch()


def ask(server: EmbeddedServer, protocol: Protocol, value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    module, address = (
        (triton_http, server.endpoint.http) if protocol is Protocol.HTTP else (triton_grpc, server.endpoint.grpc)
    )
    with closing(module.InferenceServerClient(address)) as client:
        row = np.full((1, 4), value, np.float32)
        return client.infer("slow", infer_inputs({"X": row}, module)).as_numpy("Y")  # type: ignore[no-any-return]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(("limit", "served"), [(8, 9), (0, 21)], ids=["bounded", "zero is no bound"])
def test_twenty_behind_one_that_runs(
    checkout: Path, cases: Path, tmp_path: Path, protocol: Protocol, limit: int, served: int
) -> None:
    traffic = json.loads((cases / "09_traffic.json").read_text(encoding="utf-8"))["expect"]
    expected_refused = traffic["rejected"] if limit else 0
    assert served == (traffic["accepted"] if limit else 21)
    refused = threading.Semaphore(0)

    def finished(future: Future[object]) -> None:
        if future.exception() is not None:
            refused.release()

    with slow_model(checkout, cases, tmp_path, limit) as server, ThreadPoolExecutor(21) as callers:
        futures = {0: callers.submit(ask, server, protocol, 0)}
        wait_for(tmp_path / "running")
        for value in range(1, 21):
            futures[value] = callers.submit(ask, server, protocol, value)
            futures[value].add_done_callback(finished)
        # The refusals arrive while the first batch is still held: at once, not when the queue moves.
        for _ in range(expected_refused):
            assert refused.acquire(timeout=PATIENCE_S)
        assert not futures[0].done()
        (tmp_path / "go").touch()
        right, errors = 0, []
        for value, future in futures.items():
            try:
                np.testing.assert_array_equal(future.result(PATIENCE_S), np.full((1, 4), 2 * value, np.float32))
                right += 1
            except InferenceServerException as error:
                errors.append(error)
    assert right == served
    assert len(errors) == expected_refused
    status = "503" if protocol is Protocol.HTTP else "StatusCode.UNAVAILABLE"
    assert {error.status() for error in errors} == ({status} if errors else set())
    assert all("Exceeds maximum queue size" in error.message() for error in errors)
