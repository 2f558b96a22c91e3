"""``brim serve`` ends without a trace, whatever ends it. Real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http

from brim.paths import Project
from brim.server import leftovers
from brim.server.canary import infer_inputs
from brim.server.endpoint import LOOPBACK, NO_ANSWER
from brim.server.ports import choose_ports
from tests.conftest import Brim
from tests.server.doubler import MODEL, make_project

PATIENCE_S = 90


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@contextmanager
def serving(project: Project, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """``brim serve --json`` as a child process, from its ready line on. Killed at the end if it still lives."""
    child = subprocess.Popen(
        [sys.executable, "-m", "brim", "serve", "--json", *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            pytest.fail(f"no ready line: {child.communicate(timeout=PATIENCE_S)}")
        yield child, json.loads(line)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE_S)


def prefix_of(server_pid: int) -> str:
    """The shared-memory prefix on a server's command line."""
    for part in psutil.Process(server_pid).cmdline():
        if "shm-region-prefix-name=" in part:
            return part.rpartition("=")[2]
    raise AssertionError("no prefix on the command line")


def prefixes_of(owner: int) -> str:
    """What the prefixes of all servers that a process has started begin with."""
    return f"brim_{owner}_"


def trace_of(prefix: str) -> list[object]:
    """Everything that is left of a server: processes, regions, the note."""
    note = leftovers.notes_folder() / f"{prefix}.json"
    return [*leftovers.processes_of(prefix), *leftovers.regions_of(prefix), *([note] if note.exists() else [])]


def until_gone(prefix: str) -> list[object]:
    """What is left once everything has had time to end."""
    deadline = time.monotonic() + PATIENCE_S
    while trace_of(prefix) and time.monotonic() < deadline:
        time.sleep(0.1)
    return trace_of(prefix)


def test_ready_line_and_right_answers_over_both_protocols(project: Project) -> None:
    with serving(project, "--exporter-port", "0") as (child, ready):
        assert ready["event"] == "ready"
        assert ready["models"] == ["doubler"]
        through_gateway = ready["gateway"]
        assert psutil.Process(ready["pid"]).ppid() == child.pid
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        for module, address in (
            (triton_http, ready["http"]),
            (triton_grpc, ready["grpc"]),
            (triton_http, through_gateway),
            (triton_grpc, through_gateway),
        ):
            client = module.InferenceServerClient(address)
            answer = client.infer("doubler", infer_inputs({"X": x}, module)).as_numpy("Y")
            np.testing.assert_array_equal(answer, 2 * x)
            client.close()
        with urllib.request.urlopen(f"http://{ready['exporter']}/metrics", timeout=PATIENCE_S) as answer:
            page = answer.read().decode()
        assert 'brim_requests_total{class="default",model="doubler",outcome="right",reason=""} 2.0' in page
        assert 'brim_model_loaded{model="doubler",version="1"} 1.0' in page
        prefix = prefix_of(ready["pid"])
        assert leftovers.regions_of(prefix), "the check below would prove nothing"
    assert child.returncode == 0
    assert trace_of(prefix) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_it_without_a_trace(project: Project, number: signal.Signals) -> None:
    with serving(project) as (child, ready):
        prefix = prefix_of(ready["pid"])
        child.send_signal(number)
        child.wait(PATIENCE_S)
    assert child.returncode == 0
    assert trace_of(prefix) == []


def test_a_second_signal_does_not_break_the_clean_up(project: Project) -> None:
    with serving(project) as (child, ready):
        prefix = prefix_of(ready["pid"])
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGINT)
        child.wait(PATIENCE_S)
    assert trace_of(prefix) == []


def test_killed_outright_then_started_again(project: Project) -> None:
    with serving(project) as (child, ready):
        first = prefix_of(ready["pid"])
        child.kill()
        child.wait(PATIENCE_S)
        with serving(project) as (_, again):
            assert again["models"] == ["doubler"]
            second = prefix_of(again["pid"])
            assert trace_of(first) == []
    assert trace_of(second) == []


def test_killed_together_with_its_server_then_started_again(project: Project) -> None:
    with serving(project) as (child, ready):
        first = prefix_of(ready["pid"])
        child.kill()
        psutil.Process(ready["pid"]).kill()
        child.wait(PATIENCE_S)
        # The stub and the regions are orphans now: nobody is left to clear them but the next start.
        assert leftovers.regions_of(first)
        with serving(project):
            assert trace_of(first) == []


def test_killed_outright_takes_the_server_along(project: Project) -> None:
    with serving(project) as (child, ready):
        prefix, server = prefix_of(ready["pid"]), psutil.Process(ready["pid"])
        child.kill()
        child.wait(PATIENCE_S)
        psutil.wait_procs([server], timeout=PATIENCE_S)
        assert not server.is_running()
        assert all(one.startswith(prefixes_of(child.pid)) for one in leftovers.clear_stale())
    assert trace_of(prefix) == []


def test_server_that_dies_is_an_error_where_nobody_heals_it(project: Project) -> None:
    with serving(project, "--no-supervise") as (child, ready):
        prefix = prefix_of(ready["pid"])
        psutil.Process(ready["pid"]).kill()
        out, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 2
    # The error shape on stdout, since --json was given.
    assert "tritonserver ended" in json.loads(out)["error"]["message"]
    assert trace_of(prefix) == []


def test_dead_stub_is_healed_in_one_line_on_stderr(project: Project) -> None:
    with serving(project) as (child, ready):
        (stub,) = [one for one in psutil.Process(ready["pid"]).children() if "stub" in one.name()]
        stub.kill()
        assert child.stderr is not None
        said = []
        for line in child.stderr:
            said.append(line)
            if line.startswith("supervision:"):
                break
        assert any(line.startswith("doubler has no in_flight_bound: up to 1,000 requests are let in") for line in said)
        assert "doubler: dead stub: model loaded anew after" in line
        assert f"stub process {stub.pid} has died" in line
        client = triton_http.InferenceServerClient(ready["http"])
        x = np.ones((1, 4), np.float32)
        np.testing.assert_array_equal(client.infer("doubler", infer_inputs({"X": x})).as_numpy("Y"), 2 * x)
        client.close()
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=PATIENCE_S)
        assert out == "", "one line on stdout and no more"
    assert child.returncode == 0
    assert until_gone(prefixes_of(child.pid)) == []


def test_signal_in_the_middle_of_a_heal_leaves_nothing(tmp_path: Path) -> None:
    slow = "import time\n" + MODEL.replace(
        "    def execute", "    def initialize(self, args):\n        time.sleep(2)\n\n    def execute"
    )
    project = make_project(tmp_path, model=slow)
    with serving(project) as (child, ready):
        server = psutil.Process(ready["pid"])
        server.send_signal(signal.SIGSEGV)
        deadline = time.monotonic() + PATIENCE_S
        # The next server has been started, and its model still loads.
        while not (
            again := [
                one
                for one in psutil.Process(child.pid).children()
                if one.pid != server.pid and one.name() == "tritonserver"
            ]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        child.wait(PATIENCE_S)
        assert all(not one.is_running() for one in again)
    assert child.returncode == 0
    assert trace_of(prefixes_of(child.pid)) == []
    assert list(leftovers.notes_folder().glob(f"{prefixes_of(child.pid)}*")) == []


def test_two_servers_at_once_do_not_touch_each_other(project: Project) -> None:
    with serving(project) as (_, one), serving(project) as (_, two):
        assert {one["http"], one["grpc"], one["metrics"]}.isdisjoint({two["http"], two["grpc"], two["metrics"]})
        assert leftovers.regions_of(prefix_of(one["pid"])) and leftovers.regions_of(prefix_of(two["pid"]))


def run(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One brim command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "brim", *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def brim(project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch) -> Brim:
    """The same in this process, for what is refused."""
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    return brim


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, int], dict[str, object]]]:
    """The ports that were asked for, and the ready line of a server that nobody here harms."""
    ports = choose_ports(LOOPBACK, {"http": None, "grpc": None, "metrics": None})
    arguments = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    with serving(make_project(tmp_path_factory.mktemp("served")), *arguments) as (_, ready):
        yield ports, ready


def test_given_ports_are_used(served: tuple[dict[str, int], dict[str, object]]) -> None:
    ports, ready = served
    assert {name: ready[name] for name in ports} == {name: f"{LOOPBACK}:{port}" for name, port in ports.items()}


def test_port_in_use_names_port_and_holder(brim: Brim, served: tuple[dict[str, int], dict[str, object]]) -> None:
    ports, ready = served
    answer = brim("serve", "--http-port", ports["http"])
    assert answer.code == 2
    assert f"http port {ports['http']} on 127.0.0.1 is in use by tritonserver (pid {ready['pid']})" in answer.err
    assert "hint:" in answer.err


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda p: (p.model_repository / "doubler/1/model.onnx").unlink(),
            "model_repository/doubler/1/model.onnx is missing",
        ),
        (lambda p: (p.model_repository / "doubler/1/model.onnx").write_bytes(b""), "model.onnx is empty"),
        (lambda p: (p.model_repository / "doubler/config.pbtxt").unlink(), "`brim config doubler --write` makes it"),
        (lambda p: (p.services / "doubler.yaml").write_text("name: doubler\nmodle: 3\n"), "did you mean 'model'?"),
    ],
    ids=["missing model", "empty model", "missing configuration", "misspelt key"],
)
def test_what_is_missing_is_said_at_once(project: Project, brim: Brim, spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    spoil(project)
    answer = brim("serve")
    assert answer.code == 2
    assert said in answer.err


def test_unknown_service_lists_the_known(brim: Brim) -> None:
    answer = brim("serve", "dubler", "--json")
    assert answer.code == 2
    error = json.loads(answer.out)["error"]
    assert error["code"] == "unknown_service"
    assert "known: doubler" in error["message"] and "did you mean doubler?" in error["hint"]


def test_model_that_cannot_load_fails_with_the_servers_own_words(project: Project, brim: Brim) -> None:
    broken = MODEL.replace("class Triton", "raise ValueError('no such weights')\nclass Triton")
    (project.model_repository / "doubler" / "1" / "model.py").write_text(broken, encoding="utf-8")
    before = set(leftovers.notes_folder().glob("*.json"))
    answer = brim("serve")
    assert answer.code == 2
    assert "no such weights" in answer.err
    assert set(leftovers.notes_folder().glob("*.json")) <= before


def test_running_url_is_used_as_it_is(
    project: Project, served: tuple[dict[str, int], dict[str, object]], brim: Brim
) -> None:
    _, ready = served
    answer = run(project, "serve", "--url", f"http://{ready['http']}", "--json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["http"] == ready["http"]
    nobody = choose_ports(LOOPBACK, {"http": None})["http"]
    refused = brim("serve", "--url", f"http://{LOOPBACK}:{nobody}")
    assert refused.code == 2
    assert "did not answer its canary" in refused.err


def test_signal_in_the_middle_of_the_end_leaves_nothing(project: Project) -> None:
    """The first signal may arrive while the server is being stopped for another reason."""
    program = f"""
import os, signal
from pathlib import Path
from brim.server.embedded import EmbeddedServer

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
root = Path({str(project.root)!r})
server = EmbeddedServer(root / "model_repository", ["doubler"], cache=root / ".cache", log_file=root / "log")
try:
    with server:
        print(server.prefix, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        server.stop()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    prefix, *rest = done.stdout.split()
    assert rest == ["interrupted"], done.stderr
    assert trace_of(prefix) == []


def envoys_of(pid: int) -> list[psutil.Process]:
    """Envoys that this ``brim serve`` started and that run."""
    children = psutil.Process(pid).children()
    return [one for one in children if one.name() == "envoy" and one.status() != psutil.STATUS_ZOMBIE]


def test_without_a_gateway_there_is_no_envoy(project: Project) -> None:
    with serving(project, "--no-gateway") as (child, ready):
        assert ready["gateway"] is None
        assert envoys_of(child.pid) == []


def test_a_gateway_that_dies_is_started_again_on_its_port(project: Project) -> None:
    (port,) = choose_ports(LOOPBACK, {"gateway": None}).values()
    with serving(project, "--gateway-port", str(port)) as (child, ready):
        assert ready["gateway"] == f"{LOOPBACK}:{port}"
        (first,) = envoys_of(child.pid)
        first.kill()
        deadline = time.monotonic() + PATIENCE_S
        answer = None
        while answer is None and time.monotonic() < deadline:
            client = triton_http.InferenceServerClient(ready["gateway"])
            try:
                answer = client.infer("doubler", infer_inputs({"X": np.ones((1, 4), np.float32)})).as_numpy("Y")
            except NO_ANSWER:
                time.sleep(0.05)
            finally:
                client.close()
        np.testing.assert_array_equal(answer, 2 * np.ones((1, 4)))
        (second,) = envoys_of(child.pid)
        assert second.pid != first.pid
    assert child.returncode == 0
    assert not second.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_gateway_ends_with_brim(project: Project, number: signal.Signals) -> None:
    with serving(project) as (child, _):
        (envoy,) = envoys_of(child.pid)
        child.send_signal(number)
        child.wait(PATIENCE_S)
        psutil.wait_procs([envoy], timeout=PATIENCE_S)
        assert not envoy.is_running()
