"""Readiness that tells the truth, on a real server."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.config.textformat import write
from brim.errors import ServerFailed
from brim.server import leftovers
from brim.server.canary import ask, zeros_for
from brim.server.embedded import EmbeddedServer, ServerOptions
from tests.server.doubler import make_project

REFUSES = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not today")) for _ in requests]
"""


def test_dead_stub_is_seen_by_the_canary_and_not_by_readiness(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with EmbeddedServer(
        project.model_repository, ["doubler"], cache=project.cache, log_file=tmp_path / "log"
    ) as server:
        row = {"X": np.ones((1, 4), np.float32)}
        assert ask(server.endpoint, "doubler", row) is None
        (stub,) = [one for one in leftovers.processes_of(server.prefix) if "stub" in one.name()]
        stub.kill()
        # Triton does not collect it, so it stays a zombie.
        deadline = time.monotonic() + 30
        while stub.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        trouble = ask(server.endpoint, "doubler", row)
        assert trouble is not None
        with closing(server.endpoint.http_client()) as client:
            assert client.is_server_ready() and client.is_model_ready("doubler")
    assert leftovers.regions_of(server.prefix) == []


def test_model_that_loads_and_cannot_answer_never_gets_ready(tmp_path: Path) -> None:
    project = make_project(tmp_path, model=REFUSES)
    # The warm-up would already refuse it; without one, only the canary is left to tell.
    path = project.model_repository / "doubler" / "config.pbtxt"
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("model_warmup")], encoding="utf-8")
    server = EmbeddedServer(
        project.model_repository,
        ["doubler"],
        cache=project.cache,
        log_file=tmp_path / "log",
        options=ServerOptions(ready_timeout_s=2.0),
    )
    with pytest.raises(ServerFailed, match=r"doubler: its canary failed: .*not today"), server:
        pass
    assert leftovers.processes_of(server.prefix) == []
    assert leftovers.regions_of(server.prefix) == []


def test_row_of_zeros_follows_the_configuration(tmp_path: Path) -> None:
    config = pb.ModelConfig(name="any", backend="python", max_batch_size=100)
    for name, kind, dims, optional in (
        ("TEXT", "TYPE_STRING", [1], False),
        ("IDS", "TYPE_INT64", [-1], False),
        ("HALF", "TYPE_FP16", [2, 3], False),
        ("EXTRA", "TYPE_FP32", [1], True),
    ):
        config.input.add(name=name, data_type=pb.DataType.Value(kind), dims=dims, optional=optional)
    config.output.add(name="Y", data_type=pb.TYPE_FP32, dims=[1])
    folder = tmp_path / "repository" / "any"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(write(config), encoding="utf-8")
    answers = REFUSES.replace('error=pb_utils.TritonError("not today")', "[]")
    (folder / "1" / "model.py").write_text(answers, encoding="utf-8")
    with (
        EmbeddedServer(tmp_path / "repository", ["any"], cache=tmp_path / "cache", log_file=tmp_path / "log") as server,
        closing(server.endpoint.http_client()) as client,
    ):
        row = zeros_for(client, "any")
    assert {name: (array.shape, array.dtype.kind) for name, array in row.items()} == {
        "TEXT": ((1, 1), "O"),
        "IDS": ((1, 1), "i"),
        "HALF": ((1, 2, 3), "f"),
    }
