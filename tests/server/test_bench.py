"""Each benchmark in its smallest form against the real server: what was asked was answered, and every ratio is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from brim.bench import padding, runtime_cost
from brim.bench.comparison import Comparison
from brim.bench.stages import ADAPTER_STAGES
from brim.bench.token_count import TokenCount, read_tokens
from brim.bench.verdict import ExitCode, Verdict
from brim.errors import MissingTool
from brim.measure.callers import ask_all
from brim.measure.launcher import Launcher, find_launcher
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.service.load import find_service
from tests.server import adapter_models as models

PATIENCE_S = 20


@pytest.fixture(scope="module")
def launcher(checkout: Path) -> Launcher:
    try:
        return find_launcher(Project(checkout).cache)
    except MissingTool as error:
        pytest.skip(str(error))


def check_shape(found: Comparison, ratios: int, rounds: int) -> None:
    """One round allows no verdict, whatever the figures."""
    assert len(found.ratios) == ratios
    for judged in found.ratios:
        assert len(judged.values) == rounds and min(judged.values) > 0
        assert judged.verdict is Verdict.UNCLEAR
    assert found.exit_code is ExitCode.COULD_NOT_TELL
    assert all(len(values) == rounds and min(values) > 0 for values in found.figures.values())
    read = json.loads(json.dumps(found.as_json()))
    assert read["conditions"]["cores"] >= 1 and read["conditions"]["versions"]["Triton"]


def test_padding(exported: Project, tmp_path: Path) -> None:
    service = find_service(exported.services, "text_embedding")
    effort = padding.Effort(rounds=2, sentences=30, callers=12)
    found = padding.padding(exported, service, log_file=tmp_path / "triton.log", effort=effort)
    check_shape(found, ratios=4, rounds=2)
    assert found.details["answered"] == 60
    assert min(found.figures["padded_per_real"]) >= 1.0


def test_tokens_are_counted_by_two_instances_and_anew_after_a_reload(checkout: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    models.add_tokens(repository)
    config = repository / "tokens" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    rows = [{"TEXT": np.array([[b"word " * words]], dtype=np.object_)} for words in range(1, 61)]
    sent = sum(words + 2 for words in range(1, 61))
    with EmbeddedServer(
        repository, ["tokens"], cache=Project(checkout).cache, log_file=tmp_path / "triton.log"
    ) as server:
        address = server.endpoint.metrics
        assert address is not None
        for turn in range(2):
            before = read_tokens(address, "tokens")
            assert turn == 0 or before == TokenCount(0, 0)
            answers = ask_all(server.endpoint.grpc, "grpc", "tokens", rows, 30, 60)
            assert [answer.error for answer in answers] == [None] * 60
            counted = read_tokens(address, "tokens").since(before)
            assert counted.real == sent <= counted.padded
            with closing(server.endpoint.http_client()) as client:
                client.unload_model("tokens")
                wait_until(lambda: read_tokens(address, "tokens") == TokenCount(0, 0))
                client.load_model("tokens")
        assert server.how_it_ended() is None


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_runtime_cost(exported: Project, launcher: Launcher, tmp_path: Path) -> None:
    service = find_service(exported.services, "image_classifier")
    found = runtime_cost.runtime_cost(
        exported,
        service,
        launcher=launcher,
        folder=tmp_path / "raw",
        log_file=tmp_path / "triton.log",
        effort=runtime_cost.Effort(rounds=1, callers=16, window_ms=150),
    )
    check_shape(found, ratios=2, rounds=1)
    assert found.details["answered"] > 0
    stages = found.details["stages_us"]
    assert isinstance(stages, dict)
    assert set(stages["adapter"]) == {stage for stage, _, _ in ADAPTER_STAGES}
    assert set(stages["bare"]) < set(stages["adapter"])
    assert min(min(spent.values()) for spent in stages.values()) > 0
