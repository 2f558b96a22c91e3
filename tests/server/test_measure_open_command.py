"""``brim measure --open-loop`` against the real server: both sides count the same, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.measure.open_point import FILE_NAME, read_open_points
from brim.paths import Project
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from tests.conftest import Brim
from tests.server.doubler import make_project
from tests.server.settled import executed

PATIENCE_S = 120
CONTRACT = {"mode", "rate", "throughput", "p50_us", "p99_us", "mean_batch", "fill", "duty", "stable", "generator_bound"}


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("project"))
    # The tools of the checkout are used, so that none is fetched again.
    made.cache.symlink_to(Project(checkout).cache_folder(), target_is_directory=True)
    return made


@pytest.fixture(scope="module")
def endpoint(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    log_file = tmp_path_factory.mktemp("log") / "triton.log"
    with EmbeddedServer(project.model_repository, ["doubler"], cache=project.cache, log_file=log_file) as server:
        yield server.endpoint


@pytest.fixture(autouse=True)
def root(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(project.root))


def at(endpoint: Endpoint) -> tuple[str, ...]:
    return ("--url", endpoint.http, "--grpc-port", endpoint.grpc.rpartition(":")[2])


def points(done: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = done
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["data"]["points"]
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_both_sides_count_the_same_and_a_second_time_nothing_is_sent(
    brim: Brim, endpoint: Endpoint, protocol: str, tmp_path: Path
) -> None:
    given = ("measure", "doubler", *at(endpoint), "--open-loop", "--rate", "50,150", "--arrival", "constant")
    given = (*given, "--duration", "0.6", "--protocol", protocol, "--out", str(tmp_path), "--json")
    before = executed(endpoint, "doubler")
    found = points(brim(*given))
    assert [(point["rate"], point["offered"], point["answered"]) for point in found] == [(50, 30, 30), (150, 90, 90)]
    assert [point["inferences"] for point in found] == [30, 90]
    assert executed(endpoint, "doubler") - before == 15 + 30 + 90, "the warm-up is sent and not counted"
    for point in found:
        assert point.keys() >= CONTRACT and point["latency_from"] == "schedule"
        assert (point["protocol"], point["mode"], point["in_slo"]) == (protocol, "rate", point["answered"])
        assert point["p50_us"] <= point["p99_us"] and 0 < point["duty"] < 1
        assert point["slo"] == {"percentile": 99.0, "latency_us": 1_000_000}
    assert found == [json.loads(line) for line in (tmp_path / FILE_NAME).read_text(encoding="utf-8").splitlines()]
    assert points(brim(*given)) == found
    assert executed(endpoint, "doubler") - before == 15 + 30 + 90


def test_a_trace_is_sent_as_it_was_recorded_and_the_report_shows_it(
    brim: Brim, endpoint: Endpoint, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    due = [*range(0, 300_000, 20_000), *[400_000] * 40]
    trace.write_text("".join(f'{{"offset_us": {at_us}}}\n' for at_us in due), encoding="utf-8")
    run = tmp_path / "run"
    given = ("measure", "doubler", *at(endpoint), "--open-loop", "--trace", trace, "--duration", "0.6")
    code, out, err = brim(*given, "--out", run)
    assert code == 0, err
    assert out.splitlines()[0].split()[0] == "load" and "trace 91.6667/s" in out
    assert f"{len(due)} of {len(due)} offered requests" in err or "could not tell" in err
    (point,) = read_open_points(run)
    assert (point.offered, point.duration_us, point.inferences) == (len(due), 600_000, len(due))
    assert [segment.offered for segment in point.segments if segment.begin_us == 400_000] == [40]
    assert point.mean_batch is not None and point.mean_batch > 1
    code, _, err = brim("report", run, "--json")
    assert code == 0, err
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "p99 within 1000 ms (openloop.jsonl)" in page and "Over the run" in page


def test_a_driver_that_cannot_keep_up_says_so(brim: Brim, endpoint: Endpoint, tmp_path: Path) -> None:
    given = ("measure", "doubler", *at(endpoint), "--open-loop", "--rate", "100000", "--duration", "0.05")
    code, out, err = brim(*given, "--protocol", "http", "--out", tmp_path)
    assert code == 0, err
    assert out.splitlines()[1].endswith("generator") and "the driver is the limit" in err and "could not tell" in err
    (point,) = read_open_points(tmp_path)
    assert point.generator_bound and point.limits and point.slo_met is None
    assert point.offered == sum(segment.offered for segment in point.segments)


def test_its_own_server_and_several_driver_processes(brim: Brim, tmp_path: Path) -> None:
    given = ("measure", "doubler", "--open-loop", "--rate", "40,80", "--arrival", "steps", "--duration", "1")
    before = leftovers.regions_of(f"brim_{os.getpid()}_")
    (point,) = points(brim(*given, "--processes", "2", "--out", tmp_path, "--json"))
    assert point["generator"]["processes"] == 2 and point["rates"] == [40, 80]
    assert point["answered"] == point["offered"] == point["inferences"] > 0
    assert leftovers.regions_of(f"brim_{os.getpid()}_") == before


def test_a_signal_keeps_what_was_measured(project: Project, tmp_path: Path) -> None:
    given = ("measure", "doubler", "--open-loop", "--rate", "20,21", "--duration", "3", "--out", str(tmp_path))
    child = subprocess.Popen(
        [sys.executable, "-m", "brim", *given],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not read_open_points(tmp_path) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        started = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 130 and "Traceback" not in err, err
    assert started and [process for process in started if process.is_running()] == []
    assert leftovers.regions_of(f"brim_{child.pid}_") == []
    assert f"interrupted: 1 of 2 points are kept in {tmp_path}" in err
    assert [point.rate for point in read_open_points(tmp_path)] == [20]


def test_a_folder_that_cannot_be_one(brim: Brim, endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file"):
        given = ("measure", "doubler", *at(endpoint), "--open-loop", "--rate", "20", "--duration", "0.2")
        code, _, err = brim(*given, "--out", folder)
        assert code == 2 and f"the run folder {folder} cannot be used" in err
