"""The model of known batch time on a real server: it is one GPU to all its instances, and tau(b) is measured from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from brim.config.textformat import parse
from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats, batch_time_run
from brim.measure.batch_time_run import Design, Sent, measure_batch_time
from brim.measure.callers import Row, ask_all
from brim.measure.known_time import KnownTime, read_executions, write_known_time
from brim.measure.measure import ask_target, read_snapshot
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint

TWO = KnownTime(
    tau0_us=4_000, alpha_us=250.5, prepare_us=3_000, instances=2, max_batch=8, preferred=(4,), delay_us=500, record=True
)
ONE = KnownTime(tau0_us=3_000, alpha_us=40, step_rows=16, record=True)
SLOW = KnownTime(tau0_us=400_000, alpha_us=0)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("known") / "repository"
    for name, settings in {"two": TWO, "one": ONE, "slow": SLOW}.items():
        write_known_time(folder, name, settings)
    return folder


@pytest.fixture(scope="module")
def endpoint(repository: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    log_file = tmp_path_factory.mktemp("log") / "server.log"
    models = ["two", "one", "slow"]
    with EmbeddedServer(repository, models, cache=Project(checkout).cache, log_file=log_file) as server:
        yield server.endpoint


def rows(count: int) -> list[Row]:
    return [{"X": np.full((1, 4), i, np.float32)} for i in range(count)]


def test_instances_prepare_together_and_never_compute_together(endpoint: Endpoint, repository: Path) -> None:
    target = ask_target(endpoint, "two")
    before, noted_before = read_snapshot(target), len(read_executions(repository / "two"))
    answers = ask_all(endpoint.grpc, Protocol.GRPC, "two", rows(400), 40, 60)
    for i, answer in enumerate(answers):
        assert answer.outputs is not None, answer.error
        np.testing.assert_array_equal(answer.outputs["Y"], np.full((1, 4), 2 * i, np.float32))
    after, settled = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    assert settled
    executions = read_executions(repository / "two")[noted_before:]
    in_order = sorted(executions, key=lambda one: one.locked_ns)
    assert all(one.free_ns <= later.locked_ns for one, later in pairwise(in_order)), "never two at a time"
    assert len({one.instance for one in executions}) == 2
    assert any(
        one.instance != other.instance and one.began_ns < other.free_ns and other.locked_ns < one.locked_ns
        for one, other in zip(in_order[1:], in_order, strict=False)
    ), "one prepares while the other computes"
    for one in executions:
        assert one.free_ns - one.locked_ns >= TWO.time_us(one.rows) * 1_000
        assert one.locked_ns - one.began_ns >= TWO.prepare_us * 1_000
    stats = batch_stats.difference(before, after, instances=2)
    assert stats.executions_by_size == dict(sorted(Counter(one.rows for one in executions).items()))
    for size, time_us in stats.execution_us_by_size.items():
        assert time_us >= TWO.prepare_us + TWO.time_us(size) - 1


def test_a_batch_time_is_measured(endpoint: Endpoint, repository: Path) -> None:
    noted_before = len(read_executions(repository / "one"))
    progress: list[str] = []
    design = Design(sizes=(1, 16, 17, 48, 100), repeats=3, executions=4)
    measured = measure_batch_time(endpoint, "one", rows(7), design, on_progress=progress.append)
    points = measured.fit.points
    assert [point.rows for point in points] == [1, 16, 17, 48, 100]
    assert [point.runs for point in points] == [3] * 5
    for point in points:
        assert point.measured_us >= ONE.time_us(point.rows)
    times = [point.time_us for point in points]
    assert times == sorted(times)
    assert measured.overhead_us is not None
    assert measured.overhead_us >= 0
    assert measured.outside_us is not None
    assert measured.outside_us > 0
    assert measured.provenance["instances"] == 1
    assert len(progress) == 3
    # Two requests warm up before each run of four.
    noted = Counter(one.rows for one in read_executions(repository / "one")[noted_before:])
    assert noted == dict.fromkeys((1, 16, 17, 48, 100), 3 * (4 + 2))


def test_a_batch_time_of_single_rows(endpoint: Endpoint) -> None:
    design = Design(sizes=(1, 4, 8), repeats=4, executions=10, sent=Sent.SINGLY)
    measured = measure_batch_time(endpoint, "one", rows(3), design)
    for point in measured.fit.points:
        assert 1 <= point.rows <= 16
        assert point.measured_us >= ONE.time_us(point.rows)


def test_what_cannot_be_measured_is_one_clear_error(endpoint: Endpoint) -> None:
    with pytest.raises(InputError, match="max_batch_size 8"):
        measure_batch_time(endpoint, "two", rows(1), Design(sizes=(1, 9)))
    with pytest.raises(InputError, match="nope"):
        measure_batch_time(endpoint, "nope", rows(1))
    with pytest.raises(InputError, match="no row"):
        measure_batch_time(endpoint, "one", [])
    with pytest.raises(InputError, match="does not answer a request of 1 rows"):
        measure_batch_time(endpoint, "one", [{"X": np.zeros((1, 3), np.float32)}], Design(sizes=(1,)))
    with pytest.raises(CouldNotTell, match=r"within 0\.05 s"):
        measure_batch_time(endpoint, "slow", rows(1), Design(sizes=(1,), timeout_s=0.05))
    with pytest.raises(CouldNotTell, match="at least 3 are needed"):
        measure_batch_time(endpoint, "one", rows(1), Design(sizes=(1, 2), repeats=3, executions=1))
    with pytest.raises(ServerFailed, match="no server answers"):
        measure_batch_time(Endpoint("127.0.0.1:1", "127.0.0.1:1"), "one", rows(1))


def test_somebody_elses_requests_are_noticed(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_time_run, "SETTLE_TIMEOUT_S", 0.3)
    enough = threading.Event()

    def others() -> None:
        while not enough.is_set():
            ask_all(endpoint.grpc, Protocol.GRPC, "one", rows(60), 3, 60)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        with pytest.raises(CouldNotTell, match=r"under way|leave the server alone|executions of"):
            measure_batch_time(endpoint, "one", rows(1), Design(sizes=(5,), repeats=3))
    finally:
        enough.set()
        thread.join()


def test_the_configuration_says_what_was_asked(repository: Path) -> None:
    parsed = parse((repository / "two" / "config.pbtxt").read_bytes(), "config.pbtxt")
    assert parsed.findings == []
    config = parsed.message
    assert config is not None
    assert config.max_batch_size == 8
    assert config.instance_group[0].count == 2
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500


def test_settings_that_make_no_sense_name_every_fault(repository: Path) -> None:
    with pytest.raises(InputError) as caught:
        KnownTime(
            -1, float("nan"), step_rows=0, prepare_us=-1, instances=0, max_batch=101, preferred=(102,), delay_us=-1
        )
    for words in (
        "tau0_us -1",
        "alpha_us nan",
        "step_rows 0",
        "prepare_us -1",
        "instances 0",
        "max_batch 101",
        "preferred 102",
    ):
        assert words in caught.value.message
    with pytest.raises(FileExistsError):
        write_known_time(repository, "two", TWO)


def test_the_time_of_a_step() -> None:
    settings = KnownTime(100, 2, step_rows=32)
    assert [settings.time_us(rows) for rows in (1, 32, 33, BATCH_LIMIT)] == [164, 164, 228, 356]
