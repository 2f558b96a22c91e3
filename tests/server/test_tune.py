"""``brim tune`` on real servers: a model of known batch time, short runs; what is measured, what is written, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from brim.measure.known_time import KnownTime, write_known_time
from brim.paths import Project
from brim.server import leftovers
from brim.tune.verify import MOST_SETTINGS

PATIENCE_S = 240
QUICK = ("--repeats", "1", "--run-ms", "300", "--tau-budget-ms", "500")
SERVICE = """
# answered by a model whose batch time is known
name: known
model: {onnx: known.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
slo: {latency_ms: 400, percentile: 99}
traffic: {rate_per_s: 100, peak_per_s: 200}
instances:
  - {count: 1, kind: CPU}
samples:
  - inputs: {X: [1, 2, 3, 4]}
"""
TRUTH = KnownTime(tau0_us=10_000, alpha_us=100)


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    made.services.mkdir()
    (made.services / "known.yaml").write_text(SERVICE, encoding="utf-8")
    folder = write_known_time(made.model_repository, "known", TRUTH)
    # What the model is made of is not looked at, but a service without its graph counts as not exported.
    (folder / "1" / "model.onnx").write_bytes(b"not read")
    made.cache.symlink_to(Project(checkout).cache_folder(), target_is_directory=True)
    return made


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "brim", "tune", "known", *QUICK, *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def scratch(project: Project) -> list[Path]:
    return list(project.cache.glob("tune-*"))


def test_a_choice_among_what_was_measured(project: Project, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in project.services.iterdir()}
    config = (project.model_repository / "known" / "config.pbtxt").read_bytes()
    left = scratch(project)
    folder = tmp_path / "run"
    child = start(project, "--settings", "2", "--json", "--out", str(folder))
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode in (0, 1), err
    answer = json.loads(out)
    data: dict[str, Any] = answer["data"]
    assert answer["ok"] is data["slo_met"] is (child.returncode == 0)
    assert data == json.loads((folder / "choice.json").read_text(encoding="utf-8"))
    measured = [one["setting"] for one in data["measurements"]]
    assert len(measured) == 2 < MOST_SETTINGS
    assert data["default"]["setting"] in measured
    assert {key: data["choice"][key] for key in measured[0]} in measured
    assert any(one["instances"] > 1 for one in measured)
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
        assert run["p50_us"] >= TRUTH.time_us(1)
    tau = json.loads((folder / "batch_time.json").read_text(encoding="utf-8"))
    for point in tau["points"]:
        assert point["measured_us"] >= TRUTH.time_us(point["rows"])
    assert data["candidates"]["generated"] > 2_000
    assert data["conditions"]["simulations"] > 1_000
    assert data["applied"] is False
    assert {path: path.read_bytes() for path in project.services.iterdir()} == before
    assert (project.model_repository / "known" / "config.pbtxt").read_bytes() == config
    assert scratch(project) == left


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
        child.send_signal(signal.SIGTERM)
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
