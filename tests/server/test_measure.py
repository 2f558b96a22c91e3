"""Measuring with the real perf_analyzer against the real server: identities between what both sides counted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton_grpc

from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats
from brim.measure.batch_stats import snapshot
from brim.measure.callers import ask_all
from brim.measure.input_data import write_input_data
from brim.measure.launcher import Launcher, find_launcher
from brim.measure.measure import measure
from brim.measure.perf_analyzer import RequestsFailed
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.point import FILE_NAME, Point
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.server.endpoint import Endpoint
from tests.server.settled import settled, settled_totals

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 100
input [
  {{ name: "T" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
]
output [
  {{ name: "U" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ {batching} }}
"""
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            text = pb_utils.get_input_tensor_by_name(request, "T").as_numpy()
            if (x < 0).any():
                answers.append(pb_utils.InferenceResponse([], pb_utils.TritonError("negative value")))
                continue
            outputs = [pb_utils.Tensor("U", text), pb_utils.Tensor("Y", x * 2)]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""
BATCHING = {
    "plain": (2, ""),
    # Waits for its preferred size: only callers that are all there at once fill it.
    "patient": (1, "preferred_batch_size: [ 100 ] max_queue_delay_microseconds: 20000000"),
}
PROTOCOLS = list(Protocol)


@pytest.fixture(scope="module")
def launcher(checkout: Path) -> Launcher:
    try:
        return find_launcher(Project(checkout).cache)
    except CouldNotTell as error:
        pytest.skip(str(error))


def make_repository(root: Path) -> Path:
    for name, (instances, batching) in BATCHING.items():
        version = root / name / "1"
        version.mkdir(parents=True)
        config = CONFIG.format(name=name, instances=instances, batching=batching)
        (root / name / "config.pbtxt").write_text(config, encoding="utf-8")
        (version / "model.py").write_text(MODEL, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def endpoint(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    with EmbeddedServer(
        root,
        ["plain"],
        cache=Project(checkout).cache,
        log_file=root / "server.log",
        # A canary would wait for the patient model's whole delay, so that one is loaded without.
        # And what its callers gave up would hold up the end of the server.
        options=ServerOptions(extra_arguments=("--load-model=patient",), exit_timeout_s=1),
    ) as server:
        yield server.endpoint


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_input_data(
        tmp_path / "rows.json",
        [{"X": np.full(3, i, np.float32), "T": np.array([f"é{i}"], dtype=object)} for i in range(8)],
    )


def row(value: float, *, size: int = 3) -> dict[str, np.ndarray]:
    return {"X": np.full((1, size), value, np.float32), "T": np.array([[f"é{value}"]], dtype=object)}


def quick(mode: Mode, values: tuple[float, ...], rows: Path | None) -> Plan:
    return Plan(mode, values, input_data=rows, window_ms=300, max_trials=3, stability_percent=1_000)


def check_identities(point: Point) -> None:
    """What must hold whatever the speed."""
    sizes = point.executions_by_size
    assert sum(size * count for size, count in sizes.items()) == point.inferences
    assert sum(sizes.values()) == point.executions
    assert all(1 <= size <= BATCH_LIMIT for size in sizes)
    assert point.mean_batch is not None
    assert 1 <= point.mean_batch <= BATCH_LIMIT
    assert point.fill == pytest.approx(point.mean_batch / BATCH_LIMIT)
    assert point.duty is not None
    assert point.duty > 0
    assert point.settled
    assert point.throughput is not None
    assert point.p50_us is not None
    assert point.p99_us is not None
    assert 0 < point.p50_us <= point.p99_us
    if point.concurrency is not None:
        assert max(sizes) <= point.concurrency


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_closed_loop(protocol: Protocol, endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path) -> None:
    plan = replace(quick(Mode.CONCURRENCY, (1, 12), rows), protocol=protocol, percentiles=(99.9,))
    points = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    assert [point.concurrency for point in points] == [1, 12]
    for point in points:
        check_identities(point)
        raw = tmp_path / point.provenance.raw
        exported = json.loads((raw / "requests.json").read_text(encoding="utf-8"))["experiments"][0]["requests"]
        assert len(exported) <= point.inferences, "the server counted at least what the generator was answered"
        assert {str(request["request_inputs"]["T"]) for request in exported} == {f"é{i}" for i in range(8)}
        assert all(
            request["response_outputs"][0]["U"] == request["request_inputs"]["T"]
            and request["response_outputs"][0]["Y"] == [2 * x for x in request["request_inputs"]["X"]]
            for request in exported
        )
        assert point.latency_us["99.9"] >= point.latency_us["50"]
        assert point.instances == 2
    lines = (tmp_path / FILE_NAME).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["concurrency"] for line in lines] == [1, 12]


@pytest.mark.parametrize("distribution", list(Distribution))
def test_open_loop(
    distribution: Distribution, endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path
) -> None:
    plan = replace(quick(Mode.RATE, (100,), rows), distribution=distribution)
    (point,) = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    check_identities(point)
    assert point.rate == 100
    assert f"--request-distribution={distribution.value}" in point.provenance.command


def test_resume_measures_only_what_is_missing(
    endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path
) -> None:
    plan = quick(Mode.CONCURRENCY, (1,), rows)
    first = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    before = settled_totals(endpoint, "plain")
    longer = replace(plan, values=(1, 2))
    both = measure(endpoint, "plain", longer, launcher=launcher, folder=tmp_path, resume=True)
    assert both[0] == first[0]
    after = settled_totals(endpoint, "plain")
    assert batch_stats.difference(before, after, instances=2).inferences == both[1].inferences
    again = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    assert again[0].provenance.raw != first[0].provenance.raw
    assert (tmp_path / first[0].provenance.raw / "report.csv").is_file()


def test_windows_that_never_agree_give_a_point_that_says_so(
    endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path
) -> None:
    plan = replace(quick(Mode.CONCURRENCY, (4,), rows), stability_percent=1e-6)
    (point,) = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    assert not point.stable
    check_identities(point)


def test_an_open_loop_beyond_capacity_is_ended_and_is_no_error(
    endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path
) -> None:
    plan = replace(quick(Mode.RATE, (200_000,), rows), memory_limit_bytes=150 << 20, max_trials=50)
    seen = {process.pid for process in psutil.Process().children(recursive=True)}
    (point,) = measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
    assert "MiB of memory" in point.note
    assert not point.stable
    assert point.p50_us is None
    assert point.inferences > 0
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= seen


def test_what_cannot_be_measured_is_one_clear_error(
    endpoint: Endpoint, launcher: Launcher, rows: Path, tmp_path: Path
) -> None:
    def go(model: str, data: Path | None, at: Endpoint = endpoint) -> None:
        measure(at, model, quick(Mode.CONCURRENCY, (2,), data), launcher=launcher, folder=tmp_path)

    negative = write_input_data(tmp_path / "negative.json", [{"X": row(-1)["X"][0], "T": row(0)["T"][0]}])
    with pytest.raises(RequestsFailed, match="negative value"):
        go("plain", negative)
    with pytest.raises(InputError, match="dynamic shape"):
        go("plain", None)
    with pytest.raises(InputError, match="nope"):
        go("nope", rows)
    with pytest.raises(ServerFailed, match="no server answers"):
        go("plain", rows, Endpoint("127.0.0.1:1", "127.0.0.1:1"))
    assert not (tmp_path / FILE_NAME).exists()


def test_a_server_that_ends_during_the_run(checkout: Path, launcher: Launcher, rows: Path, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    log_file = tmp_path / "server.log"
    with EmbeddedServer(repository, ["plain"], cache=Project(checkout).cache, log_file=log_file) as server:
        first_output = tmp_path / "raw" / "concurrency-4-1" / "stdout.txt"

        def end_it_under_load() -> None:
            deadline = time.monotonic() + 60
            while not (first_output.is_file() and "Request concurrency" in first_output.read_text()):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
            os.kill(server.pid, signal.SIGKILL)

        ender = threading.Thread(target=end_it_under_load)
        ender.start()
        try:
            with pytest.raises(ServerFailed):
                plan = replace(quick(Mode.CONCURRENCY, (4,), rows), window_ms=3_000)
                measure(server.endpoint, "plain", plan, launcher=launcher, folder=tmp_path)
        finally:
            ender.join()


def test_shapes_without_data(endpoint: Endpoint, launcher: Launcher, tmp_path: Path) -> None:
    plan = replace(quick(Mode.CONCURRENCY, (2,), None), shapes={"X": (2,)}, protocol=Protocol.HTTP)
    with pytest.raises(RequestsFailed, match="negative value"):
        # Random floats reach below zero, which this model refuses: the shape was taken and requests were sent.
        measure(endpoint, "plain", plan, launcher=launcher, folder=tmp_path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_caller_gets_its_own_answer(protocol: Protocol, endpoint: Endpoint) -> None:
    url = endpoint.http if protocol is Protocol.HTTP else endpoint.grpc
    requests = [row(i, size=1 + i % 3) for i in range(300)]
    answers = ask_all(url, protocol, "plain", requests, 40, 60)
    assert [answer.index for answer in answers] == list(range(300))
    for i, answer in enumerate(answers):
        assert answer.error is None
        assert answer.outputs is not None
        np.testing.assert_array_equal(answer.outputs["Y"], np.full((1, 1 + i % 3), 2 * i, np.float32))
        assert answer.outputs["U"][0, 0].decode() == f"é{i}"
        assert answer.latency_us > 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_hundred_callers_are_really_there_at_once(protocol: Protocol, endpoint: Endpoint) -> None:
    """The model runs early only with 100 rows: fewer callers at a time would run partial batches, after 20 s each."""
    url = endpoint.http if protocol is Protocol.HTTP else endpoint.grpc
    before = settled_totals(endpoint, "patient")
    answers = ask_all(url, protocol, "patient", [row(i) for i in range(200)], 200, 120)
    assert [answer.error for answer in answers] == [None] * 200
    stats = batch_stats.difference(before, settled_totals(endpoint, "patient"), instances=1)
    assert stats.executions_by_size == {100: 2}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_error_stays_with_its_caller(protocol: Protocol, endpoint: Endpoint) -> None:
    url = endpoint.http if protocol is Protocol.HTTP else endpoint.grpc
    requests = [row(i) for i in range(20)]
    requests[3] = row(-1)
    requests[5] = {"Q": np.zeros((1, 1), np.float32)}
    requests[7] = {**row(0), "X": np.zeros((1, 3), np.complex64)}
    answers = ask_all(url, protocol, "plain", requests, 20, 60)
    assert len(answers) == 20
    failed = {answer.index: answer.error for answer in answers if answer.error is not None}
    assert set(failed) == {3, 5, 7}
    assert failed[3].status == ("500" if protocol is Protocol.HTTP else "INTERNAL")
    assert failed[5].status == ("400" if protocol is Protocol.HTTP else "INVALID_ARGUMENT")
    assert "complex64" in failed[7].message
    assert all(answer.outputs is None for answer in answers if answer.index in failed)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_waiting_is_bounded_and_recorded(protocol: Protocol, endpoint: Endpoint) -> None:
    url = endpoint.http if protocol is Protocol.HTTP else endpoint.grpc
    answers = ask_all(url, protocol, "patient", [row(i) for i in range(3)], 2, 0.5)
    assert [answer.error is not None and answer.error.timed_out for answer in answers] == [True] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_server_is_an_error_for_every_caller(protocol: Protocol) -> None:
    answers = ask_all("127.0.0.1:1", protocol, "plain", [row(i) for i in range(5)], 3, 20)
    assert [answer.index for answer in answers] == list(range(5))
    assert all(answer.error is not None and answer.outputs is None for answer in answers)


def test_callers_that_make_no_sense(endpoint: Endpoint) -> None:
    assert ask_all(endpoint.http, "http", "plain", [], 5, 1) == []
    with pytest.raises(InputError, match="concurrency 0"):
        ask_all(endpoint.http, "http", "plain", [row(1)], 0, 1)
    with pytest.raises(InputError, match="timeout_s 0"):
        ask_all(endpoint.http, "http", "plain", [row(1)], 1, 0)


def test_both_protocols_read_the_same_statistics(endpoint: Endpoint) -> None:
    ask_all(endpoint.grpc, "grpc", "plain", [row(i) for i in range(10)], 5, 60)
    over_grpc = triton_grpc.InferenceServerClient(endpoint.grpc)
    over_http = endpoint.http_client()
    try:
        read = partial(snapshot, over_grpc, "plain")
        assert settled(read).versions == snapshot(over_http, "plain").versions
    finally:
        over_grpc.close()
        over_http.close()
