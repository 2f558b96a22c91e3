"""A soak of a real server behind the real gateway: what leaks is found, and what does not is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway
from brim.measure.accounting import Outcome
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.report.run_folder import read_run
from brim.report.soaked import section as section_of
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.server.supervise import Supervisor
from brim.soak.run import SoakPlan, SoakResult, Stack, run_soak
from brim.soak.sample import Sample
from brim.soak.verdict import Answer

PATIENCE_S = 120
ROWS = [{"X": np.full((1, 4), number, np.float32)} for number in range(5)]
LEAKED = 1 << 18
"""Bytes a request: 5 MiB a second at 20 requests."""
RUINED = 40
"""Requests after which answers are wrong."""


MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model, self.kept, self.seen = args["model_name"], [], 0

    def execute(self, requests):
        if self.model == "leaky":
            self.kept += [b"x" * {leaked} for _ in requests]
        self.seen += len(requests)
        more = self.model == "ruined" and self.seen > {ruined}
        xs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2 + more)]) for x in xs]
"""
CONFIG = """
backend: "python" max_batch_size: 100 dynamic_batching {}
input { name: "X" data_type: TYPE_FP32 dims: [4] } output { name: "Y" data_type: TYPE_FP32 dims: [4] }
instance_group { count: 1 kind: KIND_CPU }
"""


@pytest.fixture(scope="module")
def stack(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Models ``known``; ``leaky``, which keeps memory for each request; ``ruined``, which answers wrongly after a while."""
    folder = tmp_path_factory.mktemp("soak")
    for model in ("known", "leaky", "ruined"):
        (folder / "models" / model / "1").mkdir(parents=True)
        (folder / "models" / model / "config.pbtxt").write_text(CONFIG)
        code = MODEL.replace("{leaked}", str(LEAKED)).replace("{ruined}", str(RUINED))
        (folder / "models" / model / "1" / "model.py").write_text(code)
    server = EmbeddedServer(
        folder / "models",
        ["known", "leaky", "ruined"],
        cache=Project(checkout).cache,
        log_file=folder / "triton.log",
    )
    admitted = {model: Admission(max_rows=100) for model in server.models}
    with (
        server,
        Supervisor(server) as supervisor,
        Gateway(server.endpoint, log_file=folder / "envoy.log", admitted=admitted) as gateway,
    ):
        yield Stack(server, supervisor, gateway)


def soaked(stack: Stack, model: str, folder: Path, protocol: Protocol = Protocol.HTTP) -> SoakResult:
    """84 requests, fourteen samples of a quarter of a second."""
    plan = SoakPlan(3.5, 20, protocol=protocol, least_every_us=250_000)
    return run_soak(stack, model, ROWS, plan, folder=folder, truth=[{"Y": row["X"] * 2} for row in ROWS])


def test_what_does_not_leak_is_not_blamed(stack: Stack, tmp_path: Path) -> None:
    result = soaked(stack, "known", tmp_path)
    data = json.loads((tmp_path / "soak.json").read_text())
    assert data["answered"] == data["offered"] == 84
    assert data["failed"] == data["refused"] == 0
    # Of throughput nothing is said here: other work beside this one may hold it up for a moment.
    assert not [
        reason for reason in data["reasons"] if not reason.startswith(("throughput", "the generator", "the serv"))
    ]
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == data["samples"] == len(result.samples) == 14
    for line in lines:
        assert min(line["rss"]["tritonserver"], line["rss"]["envoy"]) > 1 << 20
        assert line["rss"]["stubs"] > 1 << 20
        assert line["shm_regions"] >= 3 and line["shm_bytes"] > 0
        assert 1 <= line["connections"] <= 84
        assert 0 <= line["in_flight"] <= line["most_in_flight"] <= 84
        assert line["upstream"] >= 1
        assert line["busy_us"] > line["own_us"] > 0
    assert lines[-1]["own_us"] > lines[0]["own_us"]


def test_a_model_that_leaks_is_found(stack: Stack, tmp_path: Path) -> None:
    result = soaked(stack, "leaky", tmp_path, Protocol.GRPC)
    assert result.account.counts[Outcome.ANSWERED] == 84
    assert result.verdict.answer is Answer.NOT_FLAT
    assert any("memory of stubs grew" in reason for reason in result.verdict.reasons)
    assert not any("memory of envoy" in reason for reason in result.verdict.reasons)
    assert result.verdict.bytes_per_request is not None
    assert LEAKED / 2 < result.verdict.bytes_per_request < LEAKED * 2


def test_wrong_answers_are_found(stack: Stack, tmp_path: Path) -> None:
    result = soaked(stack, "ruined", tmp_path)
    assert result.verdict.answer is Answer.NOT_FLAT
    wrong = result.account.messages["wrong answer"]
    # The model has seen canaries, and rows that were asked alone, as well.
    assert 84 - RUINED <= wrong < 84
    assert any(f"{wrong} of them were answered wrongly" in reason for reason in result.verdict.reasons)


def test_a_server_that_dies_ends_the_run_with_a_no(stack: Stack, tmp_path: Path) -> None:
    """The last one of this stack: it is healed, but not the same any more."""

    def on_sample(sample: Sample) -> None:
        if sample.at_us > 1_000_000 and not killed:
            killed.append(stack.server.pid)
            os.kill(stack.server.pid, signal.SIGKILL)

    killed: list[int] = []
    plan = SoakPlan(10, 20, least_every_us=250_000)
    result = run_soak(stack, "known", ROWS, plan, folder=tmp_path, on_sample=on_sample)
    assert killed and not result.interrupted
    assert result.verdict.answer is Answer.NOT_FLAT
    assert any("supervisor" in reason or "tritonserver" in reason for reason in result.verdict.reasons)
    assert json.loads((tmp_path / "soak.json").read_text())["answer"] == "not flat"


def test_an_interrupt_ends_it_with_a_verdict_and_leaves_nothing(tmp_path: Path, checkout: Path) -> None:
    command = [
        "soak",
        "--known-time",
        "2000,10",
        "--duration",
        "3600",
        "--rate",
        "20",
        "--out",
        str(tmp_path),
        "--json",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "brim", *command],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    samples = tmp_path / "samples.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not samples.is_file() or len(samples.read_text().splitlines()) < 2:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    made = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    # Too few samples for a verdict, and no sign of anything worse.
    assert child.returncode == 3, err
    data = json.loads(out)["data"]
    assert data["interrupted"] and data["answer"] == "could not tell"
    assert data["offered"] == data["answered"] > 40
    assert {"first", "last", "ratio", "rss_growth", "shm_growth"} <= set(data)
    assert Path(data["plot"]).read_bytes().startswith(b"<?xml")
    reported = read_run(tmp_path)
    assert reported.soak is not None and len(reported.samples) == reported.soak.samples
    told = section_of(reported.soak, reported.samples).figures[0]
    assert told.picture is not None and told.command.startswith(
        "brim soak --known-time 2000,10 --duration 3600 --rate 20 "
    )
    assert "cores" in told.conditions
    assert not psutil.wait_procs(made, timeout=10)[1]
    assert not leftovers.regions_of(f"brim_{child.pid}_")
