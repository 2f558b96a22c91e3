"""``brim tune`` on real servers: a model that sleeps, short runs; what is measured, what is written, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from brim.config.files import differences
from brim.paths import Project
from brim.runtime.padding import PaddingCost
from brim.runtime.template import MODEL_PY
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.service.load import load_service
from brim.tune.demand import demand_of
from brim.tune.predict import Served
from brim.tune.server_bench import ServerBench
from brim.tune.setting import DEFAULT, Setting, setting_of
from brim.tune.verify import MOST_SETTINGS
from brim.tune.weigh import weigh
from tests.server.doubler import make_project

PATIENCE_S = 240
QUICK = ("--repeats", "1", "--run-ms", "300", "--tau-budget-ms", "500")
SERVICE = """\
# answered by a model that sleeps
name: doubler
model: {onnx: doubler.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
max_batch_size: 16
slo: {latency_ms: 100, percentile: 99}
traffic: {rate_per_s: 100, peak_per_s: 200}
batching:
  # too long for anybody
  max_queue_delay_ms: 150  # at 100 requests a second
  preserve_ordering: true  # kept
instances:
  - {count: 1, kind: CPU}
samples:
  - inputs: {X: [1, 2, 3, 4]}
"""
COMMENTS = ("# answered by a model that sleeps", "# too long for anybody", "# at 100 requests a second")
TAU0_US, ALPHA_US = 20_000, 500
MODEL = f"""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(({TAU0_US} + {ALPHA_US} * sum(len(x) for x in inputs)) / 1e6)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]) for x in inputs]
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("its weights are those of another model")
"""


def with_cache(project: Project, checkout: Path) -> Project:
    project.cache.symlink_to(Project(checkout).cache_folder(), target_is_directory=True)
    return project


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return with_cache(make_project(tmp_path_factory.mktemp("project"), model=MODEL, service=SERVICE), checkout)


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "brim", "tune", "doubler", *QUICK, *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def scratch(project: Project) -> list[Path]:
    return list(project.cache.glob("tune-*"))


def answer(project: Project, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the answer's data, what was said."""
    child = start(project, "--json", *arguments)
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode in (0, 1), err
    found = json.loads(out)
    assert found["ok"] is found["data"]["slo_met"] is (child.returncode == 0)
    return child.returncode, found["data"], err


def files(project: Project) -> dict[Path, bytes]:
    folders = (project.services, project.model_repository)
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_the_choice_is_applied_and_a_second_run_has_nothing_to_change(project: Project, tmp_path: Path) -> None:
    left = scratch(project)
    before = files(project)
    text = (project.services / "doubler.yaml").read_text(encoding="utf-8")
    current = setting_of(load_service(project.services / "doubler.yaml"))
    folder = tmp_path / "run"
    _, data, said = answer(project, "--settings", "2", "--apply", "--out", str(folder))
    assert data == json.loads((folder / "choice.json").read_text(encoding="utf-8"))
    measured = [one["setting"] for one in data["measurements"]]
    assert len(measured) == 2 < MOST_SETTINGS
    assert measured == [DEFAULT.as_json(), current.as_json()]
    lines = [json.loads(line) for line in (folder / "measurements.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(json.dumps(run) for run in lines) == sorted(
        json.dumps(run) for one in data["measurements"] for run in one["runs"]
    )
    for run in lines:
        assert (
            run["answered"]
            == run["offered"]
            == sum(int(size) * count for size, count in run["executions_by_size"].items())
        )
        assert run["p50_us"] >= TAU0_US + ALPHA_US
    tau = json.loads((folder / "batch_time.json").read_text(encoding="utf-8"))
    for point in tau["points"]:
        assert point["measured_us"] >= TAU0_US + ALPHA_US * point["rows"]
    looked = data["candidates"]
    assert looked["generated"] > looked["generated"] - looked["refused"] > 500
    assert looked["simulated"] >= looked["generated"] - looked["refused"], "all that are sound are tried"
    assert f"simulating {looked['generated'] - looked['refused']} of" in said
    assert data["weighed"]["threads"]["changed"] is data["weighed"]["padding"]["changed"] is False
    assert "model.py of its own" in data["weighed"]["threads"]["why"]

    # The delay alone is beyond the objective, so the other one is chosen, and the file says so.
    assert data["applied"] is True
    changed = load_service(project.services / "doubler.yaml")
    assert setting_of(changed) == DEFAULT
    assert changed.batching.in_flight_bound == data["choice"]["in_flight"]
    assert changed.batching.batch_time is not None
    assert changed.batching.batch_time.tau0_us + changed.batching.batch_time.alpha_us >= TAU0_US
    after = (project.services / "doubler.yaml").read_text(encoding="utf-8")
    assert [comment for comment in COMMENTS if comment not in after] == []
    touched = {path for path, content in files(project).items() if before.get(path) != content}
    assert {path.name for path in touched} >= {"doubler.yaml", "config.pbtxt"}
    lost = [line for line in text.splitlines() if line not in after.splitlines()]
    assert lost == ["  max_queue_delay_ms: 150  # at 100 requests a second"], "what is no part of a setting is kept"
    assert differences(project.model_repository, changed) == []
    check = subprocess.run(
        [sys.executable, "-m", "brim", "config", "doubler", "--check"],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert check.returncode == 0, check.stderr

    applied = files(project)
    _, again, _ = answer(project, "--settings", "1", "--out", str(tmp_path / "again"))
    assert again["diff"] == ""
    assert again["applied"] is False
    assert files(project) == applied
    assert scratch(project) == left


def test_a_model_that_does_not_load_is_an_error_of_the_input(checkout: Path, tmp_path: Path) -> None:
    broken = with_cache(make_project(tmp_path / "project", model=BROKEN, service=SERVICE), checkout)
    child = start(broken, "--out", str(tmp_path / "run"))
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 2, err
    assert "another model" in err and "hint:" in err and "Traceback (most recent call last)" not in out
    assert scratch(broken) == []


def test_ways_to_run_a_batch_are_compared_on_real_servers(checkout: Path, tmp_path: Path) -> None:
    """Two counts of threads of the real adapter; both servers are gone afterwards."""
    project = with_cache(make_project(tmp_path / "project", model=MODEL_PY, service=SERVICE), checkout)
    service = load_service(project.services / "doubler.yaml")
    folder = project.model_repository / "doubler"
    opened: list[EmbeddedServer] = []

    @contextmanager
    def serve(repository: Path) -> Iterator[Endpoint]:
        log_file = tmp_path / f"{repository.name}.log"
        server = EmbeddedServer(repository, ["doubler"], cache=project.cache, log_file=log_file)
        opened.append(server)
        with server:
            yield server.endpoint

    rows = [{"X": np.full((1, 4), number, np.float32)} for number in range(16)]
    bench = ServerBench(folder, serve, rows, demand_of(service), scratch=tmp_path / "scratch")
    machine = Served(tuple(1_000.0 + 10 * rows for rows in range(1, 17)))

    def never() -> PaddingCost:
        raise AssertionError("nothing is padded")

    found = weigh(service, machine, bench.serve, folder, rows, cores=2, fitted=never)
    assert len(opened) == 2
    assert [server.stubs() for server in opened] == [{}, {}]
    about = found.about["threads"]
    assert sorted((one["threads"], one["instances"]) for one in about["weighed"]) == [(1, 2), (2, 1)]
    for one in about["weighed"]:
        assert min(one["time_us"].values()) > 0
        assert (one["side_by_side"] is None) is (one["instances"] == 1)
    assert found.runtimes.measured[0] in (1, 2)
    assert found.served.extra_us(Setting(threads=2)) == (0.0,) * 16, "what the service has now is the reference"
    assert "traffic.size is fixed" in found.about["padding"]["why"]


def test_a_signal_keeps_what_was_measured_and_leaves_nothing_behind(project: Project, tmp_path: Path) -> None:
    left = scratch(project)
    child = start(project, "--out", str(tmp_path))
    try:
        kept = tmp_path / "measurements.jsonl"
        deadline = time.monotonic() + PATIENCE_S
        while child.poll() is None and not (kept.is_file() and kept.stat().st_size):
            assert time.monotonic() < deadline, "no run came"
            time.sleep(0.02)
        started = psutil.Process(child.pid).children(recursive=True)
        assert len(started) >= 2, "the server and its stub are there to be ended"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert [process for process in started if process.is_running()] == []
    assert leftovers.regions_of(f"brim_{child.pid}_") == []
    data = json.loads((tmp_path / "choice.json").read_text(encoding="utf-8"))
    assert data["interrupted"] is True
    assert data["choice"] is None
    assert data["runs"] == [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] != []
    assert scratch(project) == left
