"""The front of the native profiles on a real server, before a stand-in that fails whole batches as native backends do."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from brim.config.generate import NATIVE_SUFFIX, Profile
from brim.isolation.result import Options
from brim.isolation.suite import run_suite
from brim.measure.callers import Answer, ask_all
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions
from brim.server.wheel import find_wheel
from brim.service.load import find_services
from brim_export.models import image_classifier
from brim_export.models.sentences import varied_sentences
from tests.server import native_models as models

PATIENCE_S = 60.0
CALLERS = 128
REQUESTS = 512
DELAY_US = 10_000
"""Long enough that callers who send at once share batches."""
INCIDENT = re.compile(r"incident [0-9a-f]{12}")
FIRST_BAD = 7_000_001


@dataclass(frozen=True)
class Running:
    server: EmbeddedServer
    repository: Path

    def ask(self, protocol: str, model: str, ids: Sequence[int]) -> list[Answer]:
        endpoint = self.server.endpoint
        rows = [{"IDS": np.array([[number]], np.int64)} for number in ids]
        return ask_all(getattr(endpoint, protocol), protocol, model, rows, CALLERS, PATIENCE_S)

    def counts(self, model: str) -> tuple[int, int]:
        """Requests answered and executions so far. The server counts a batch a moment after its answers have gone out."""
        with closing(self.server.endpoint.http_client()) as client:
            stats = client.get_inference_statistics(model)["model_stats"][0]
        answered = sum(int(stats["inference_stats"][kind].get("count", 0)) for kind in ("success", "fail"))
        return answered, int(stats.get("execution_count", 0))

    def ask_and_count(self, protocol: str, front: str, ids: Sequence[int]) -> tuple[list[Answer], int]:
        """The answers, and the batches of the front."""
        answered, batches = self.counts(front)
        answers = self.ask(protocol, front, ids)
        deadline = time.monotonic() + PATIENCE_S
        while self.counts(front)[0] < answered + len(ids):
            assert time.monotonic() < deadline, "the server never counted the last batch"
            time.sleep(0.02)
        return answers, self.counts(front)[1] - batches

    def runs(self, front: str) -> int:
        """Of the model behind a front, so far."""
        return self.counts(front + NATIVE_SUFFIX)[1]

    def load(self, model: str) -> None:
        with closing(self.server.endpoint.http_client()) as client:
            client.load_model(model)

    def unload(self, model: str) -> None:
        with closing(self.server.endpoint.http_client()) as client:
            client.unload_model(model)


@pytest.fixture(scope="module")
def running(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("native")
    repository = folder / "models"
    names = models.add_lookup_pair(repository, "plain", guard=False, delay_us=DELAY_US)
    names += models.add_lookup_pair(repository, "safe", guard=True, delay_us=DELAY_US)
    models.add_lookup_pair(repository, "orphan", guard=True, delay_us=DELAY_US)
    for name, profile in (("image_classifier", Profile.ONNX_CPU), ("text_embedding", Profile.ONNX_GPU)):
        (service,) = find_services(exported.services, [name])
        names += models.stand_in_for(service, exported.model_repository, repository, profile)
    models.add_remembered(repository, "remembered", maker=1)
    caches = find_wheel().tritonserver / "caches"
    options = ServerOptions(extra_arguments=("--cache-config=local,size=1048576", f"--cache-directory={caches}"))
    with EmbeddedServer(
        repository,
        [*names, "remembered"],
        cache=exported.cache,
        log_file=folder / "triton.log",
        options=options,
    ) as server:
        yield Running(server, repository)


def mixed(poison: int, seed: int) -> list[int]:
    """Good ids, and so many bad ones at random places, each another number of seven digits."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 5, REQUESTS)
    ids[draw.choice(REQUESTS, poison, replace=False)] = np.arange(FIRST_BAD, FIRST_BAD + poison)
    return [int(number) for number in ids]


def text_of(answer: Answer) -> str:
    assert answer.error is not None
    return INCIDENT.sub("incident", answer.error.message)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_backend_that_fails_whole_batches_fails_only_the_poison(
    running: Running, protocol: str, share: float
) -> None:
    poison = round(REQUESTS * share)
    ids = mixed(poison, seed=poison)
    before = running.runs("plain")
    answers, batches = running.ask_and_count(protocol, "plain", ids)
    runs = running.runs("plain") - before
    for number, answer in zip(ids, answers, strict=True):
        if number < FIRST_BAD:
            assert answer.outputs is not None, answer.error
            assert answer.outputs["Y"].tolist() == [[10.0 * number]]
        else:
            assert answer.error is not None
            assert answer.error.status in ("500", "INTERNAL", "StatusCode.INTERNAL")
            assert not re.search(r"\d{7}|Gather|onnx", text_of(answer))
    assert batches < REQUESTS / 4
    assert batches < runs <= batches + 2 * math.ceil(math.log2(100)) * poison


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_guarded_graph_needs_no_run_more_than_there_are_batches(
    running: Running, protocol: str, share: float
) -> None:
    poison = round(REQUESTS * share)
    ids = mixed(poison, seed=poison + 1)
    ids[::100] = [-1] * len(ids[::100])
    before = running.runs("safe")
    answers, batches = running.ask_and_count(protocol, "safe", ids)
    assert running.runs("safe") - before == batches < REQUESTS / 4
    for number, answer in zip(ids, answers, strict=True):
        if 0 <= number < FIRST_BAD:
            assert answer.outputs is not None, answer.error
            assert answer.outputs["Y"].tolist() == [[10.0 * number]]
        else:
            assert answer.error is not None
            assert answer.error.status in ("400", "INVALID_ARGUMENT", "StatusCode.INVALID_ARGUMENT")
            assert text_of(answer).endswith(
                "[out_of_range] row 0 holds a value that the model cannot take: not finite, or outside its range"
            )


def test_what_the_model_behind_says_is_in_the_log_under_the_incident(running: Running) -> None:
    (answer,) = running.ask("http", "plain", [FIRST_BAD + 900])
    assert answer.error is not None
    (incident,) = INCIDENT.findall(answer.error.message)
    (line,) = [line for line in running.server.log_file.read_text(encoding="utf-8").splitlines() if incident in line]
    assert "onnx runtime error 2" in line and f"idx={FIRST_BAD + 900}" in line


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_without_the_model_behind_every_caller_learns_it_at_once(running: Running, protocol: str) -> None:
    running.load("orphan")
    seen = running.server.log_file.stat().st_size
    answers, batches = running.ask_and_count(protocol, "orphan", [1] * REQUESTS)
    for answer in answers:
        assert answer.error is not None
        assert answer.error.status in ("503", "UNAVAILABLE", "StatusCode.UNAVAILABLE")
        assert "the model orphan-native, which runs the batches, is not available" in answer.error.message
    with running.server.log_file.open(encoding="utf-8") as log:
        log.seek(seen)
        incidents = [line for line in log if "Model 'orphan-native' is not ready" in line]
    assert len(incidents) == batches < REQUESTS / 4


def test_the_front_answers_again_when_the_model_behind_comes_back(running: Running) -> None:
    running.load("orphan")
    running.load("orphan-native")
    (answer,) = running.ask("grpc", "orphan", [3])
    assert answer.outputs is not None
    assert answer.outputs["Y"].tolist() == [[30.0]]
    running.unload("orphan-native")
    (answer,) = running.ask("grpc", "orphan", [3])
    assert answer.error is not None and "not available" in answer.error.message


CHECKS = ("identity", "poison_neighbours", "own_errors_only")
OPTIONS = Options(requests=120, callers=120, answer_timeout_s=PATIENCE_S, checks=CHECKS)


@pytest.mark.parametrize("model, fails", [("plain", True), ("safe", False)])
def test_the_suite_finds_nobody_hurt_behind_a_front(running: Running, model: str, fails: bool) -> None:
    rows = [{"IDS": np.array([[number % 5]], np.int64)} for number in range(20)]
    options = replace(OPTIONS, checks=(*CHECKS, "whole_batch_failure"))
    results = run_suite(running.server.endpoint, model, options, rows=rows)
    assert [result.message for result in results if not result.ok] == []
    assert {result.id for result in results} == set(options.checks)
    assert sum(result.own_error for result in results) > 0
    (whole,) = (result for result in results if result.id == "whole_batch_failure")
    assert whole.skipped is not fails


def test_the_suite_finds_nobody_hurt_at_the_shipped_classifier(running: Running) -> None:
    images, _ = image_classifier.held_out()
    rows = [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in images[:120]]
    results = run_suite(running.server.endpoint, "image_classifier", OPTIONS, rows=rows)
    assert [result.message for result in results if not result.ok] == []


def test_the_shipped_fronts_answer_as_the_default_profile_does(running: Running, shipped: EmbeddedServer) -> None:
    texts = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in varied_sentences(40)]
    images = [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in image_classifier.held_out()[0][:200]]
    for model, output, rows in (("text_embedding", "EMBEDDING", texts), ("image_classifier", "PROBABILITIES", images)):
        got, known = (
            ask_all(server.endpoint.grpc, "grpc", model, rows, 40, PATIENCE_S) for server in (running.server, shipped)
        )
        for mine, right in zip(got, known, strict=True):
            assert mine.outputs is not None and right.outputs is not None, (mine.error, right.error)
            np.testing.assert_allclose(mine.outputs[output], right.outputs[output], rtol=1e-4, atol=1e-5)


def test_the_response_cache_answers_with_what_was_another_request_s(running: Running) -> None:
    """Why Brim writes none, and the linter warns of one (docs/native-profiles.md)."""

    def ask(rows: list[list[float]], *outputs: str) -> dict[str, list[list[float]]]:
        given = np.array(rows, np.float32)
        tensor = triton.InferInput("X", list(given.shape), "FP32")
        tensor.set_data_from_numpy(given)
        wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
        with closing(running.server.endpoint.http_client()) as client:
            result = client.infer("remembered", [tensor], outputs=wanted)
        arrays = {name: result.as_numpy(name) for name in ("SUM", "BY")}
        return {name: array.tolist() for name, array in arrays.items() if array is not None}

    assert ask([[1, 2, 3], [4, 5, 6]])["SUM"] == [[6], [15]]
    assert ask([[1, 2], [3, 4], [5, 6]])["SUM"] == [[6], [15]]
    assert ask([[7, 8]], "SUM") == ask([[7, 8]]) == {"SUM": [[15]]}
    with pytest.raises(InferenceServerException, match="refused"):
        ask([[-1, 5]])
    assert ask([[-1, 5]]) == {}
    assert ask([[9, 9]])["BY"] == [[1]]
    models.add_remembered(running.repository, "remembered", maker=2)
    # Triton loads a model anew only when a file of it is newer (measured on 24.10).
    later = time.time() + 10
    os.utime(running.repository / "remembered" / "1" / "model.py", (later, later))
    running.load("remembered")
    assert ask([[9, 9]])["BY"] == [[1]]
    assert ask([[9, 8]])["BY"] == [[2]]
