"""``brim load`` against real servers: both sides of the gateway, an overload, an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gevent.monkey
import psutil
import pytest

from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from tests.conftest import Brim
from tests.server.doubler import SERVICE, make_project

FIVE = ("answered", "refused", "expired", "cancelled", "failed")
CAPACITY_PER_S = 20
"""Two rows every 100 ms."""
SLOW_MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1)
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]) for x in rows]
"""
OVERLOADED = (
    SERVICE
    + """
  - inputs: {X: [5, 6, 7, 8]}
max_batch_size: 2
slo: {latency_ms: 1000, percentile: 90, caller_gives_up_ms: 5000}
traffic: {rate_per_s: 20}
callers:
  - {name: interactive, priority: 1, share: 0.5}
  - {name: batch, priority: 2, share: 0.5, deadline_ms: 2000}
batching: {in_flight_bound: 6}
"""
)


def generators() -> list[psutil.Process]:
    """Load generators that this process, or one that it started, has left."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.is_running() and "brim_loadtest" in " ".join(child.cmdline())]


def add_up(classes: dict[str, dict[str, Any]]) -> None:
    for one in classes.values():
        assert one["offered"] == sum(one[name] for name in FIVE)


def test_an_overload_is_refused_by_class_and_every_request_is_accounted_for(
    brim: Brim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: Project
) -> None:
    project = make_project(tmp_path / "checkout", model=SLOW_MODEL, service=OVERLOADED)
    project.cache.symlink_to(exported.cache)
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    run = tmp_path / "run"
    done = brim(
        *("load", "doubler", "--rate", 5 * CAPACITY_PER_S, "--duration", 3, "--workers", 2, "--tenants", 3),
        *("--out", run, "--json"),
    )
    data = json.loads(done.out)["data"]
    # A generator that is held up says so; met it cannot be.
    assert (done.code, data["verdict"]) in {(1, "missed"), (3, "could not tell")}, done.err
    assert set(data["classes"]) == {"interactive", "batch"}
    add_up(data["classes"])
    for one in data["classes"].values():
        assert one["refused"] > 0
        assert sum(one["reasons"].values()) >= one["refused"]
        assert one["reject_p99_us"] is not None
        assert one["wrong"] == one["failed"] == 0, one["messages"]
    interactive, batch = (data["classes"][name] for name in ("interactive", "batch"))
    assert interactive["answered"] > batch["answered"]
    assert interactive["in_slo"] > 0
    assert (interactive["latency_us"], batch["latency_us"]) == (1_000_000, 2_000_000)
    for name in ("offered", "answered", "in_slo", "refused"):
        assert sum(entry[name] for entry in data["timeline"]) == interactive[name] + batch[name]
    assert [entry["second"] for entry in data["timeline"]] == [0, 1, 2]
    assert data["slo"] == {"latency_ms": 1000, "percentile": 90}
    assert data["generator"]["processes"] == 2 and data["generator"]["lost"] == 0
    assert " 2 s: offered" in done.err

    kept = json.loads((run / "loadtest.json").read_text())
    assert kept == {name: value for name, value in data.items() if name != "folder"}
    assert "interactive" in (run / "locust.html").read_text()
    assert not generators()
    assert not gevent.monkey.saved


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_answer_is_held_against_the_reference(
    protocol: str,
    brim: Brim,
    shipped: EmbeddedServer,
    tmp_path: Path,
    exported: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    done = brim(
        *(
            "load",
            "image_classifier",
            "--url",
            shipped.endpoint.http,
            "--grpc-port",
            shipped.endpoint.grpc.split(":")[1],
        ),
        *("--protocol", protocol, "--rate", 50, "--duration", 1, "--out", tmp_path / "run", "--json"),
    )
    data = json.loads(done.out)["data"]
    (one,) = data["classes"].values()
    assert one["offered"] == one["answered"] > 20, (one, done.err)
    assert one["wrong"] == one["not_sent"] == 0
    assert data["conditions"]["reference"] == "torch"
    assert data["conditions"]["protocol"] == protocol
    assert not generators()


def test_an_interrupt_keeps_what_was_measured(shipped: EmbeddedServer, tmp_path: Path, exported: Project) -> None:
    run = tmp_path / "run"
    # Without torch, which takes long to import: the references are then the server's own answers, row by row.
    text = (exported.services / "image_classifier.yaml").read_text()
    project = Project(tmp_path / "checkout")
    for folder in (project.services, project.model_repository):
        folder.mkdir(parents=True)
    torchless = text.replace("torch: brim_export.models.image_classifier:factory", "onnx: image_classifier.onnx")
    assert torchless != text
    (project.services / "image_classifier.yaml").write_text(torchless)
    command = [
        *(sys.executable, "-m", "brim", "load", "image_classifier", "--url", shipped.endpoint.http),
        *("--grpc-port", shipped.endpoint.grpc.split(":")[1], "--rate", "20", "--duration", "600", "--workers", "2"),
        *("--out", str(run)),
    ]
    child = subprocess.Popen(
        command,
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        assert any(" 2 s: offered" in line for line in child.stderr)
        assert len(generators()) == 3
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    kept = json.loads((run / "loadtest.json").read_text())
    assert kept["interrupted"] is True
    assert kept["verdict"] == "could not tell"
    assert kept["conditions"]["reference"] == "the same row alone"
    (one,) = kept["classes"].values()
    add_up(kept["classes"])
    assert one["answered"] > 0
    assert one["cancelled"] == one["stopped"]
    assert (run / "locust.html").is_file()
    until = time.monotonic() + 30
    while generators():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "192.0.2.1:8000"], "another machine"),
        (["--url", "example.com:8000"], "another machine"),
        (["--url", "0.0.0.0:8000"], "another machine"),
        (["--grpc-port", "1"], "--grpc-port without --url"),
        (["--web-port", "1"], "--web-port without --web"),
        (["--shape", "slow-client", "--protocol", "grpc"], "a message whole"),
        (["--rate", "10", "--peak", "5"], "is below the rate"),
        (["--rate", "inf"], "a rate of inf"),
        (["--rate", "100000", "--duration", "86400"], "arrivals are expected"),
        (["--shape", "sideways"], "sideways"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_anything_starts(
    arguments: list[str], words: str, brim: Brim, tmp_path: Path, exported: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    done = brim("load", "image_classifier", "--out", tmp_path / "run", *arguments)
    assert done.code == 2, done.err
    assert words in done.err
    assert not (tmp_path / "run").exists()


def test_a_closed_port_is_said(brim: Brim, tmp_path: Path, exported: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    done = brim("load", "image_classifier", "--out", tmp_path / "run", "--url", "127.0.0.1:1")
    assert done.code == 2
    assert "127.0.0.1:1" in done.err and "canary" in done.err
