"""The files that tell Envoy and the picker which replicas there are."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from brim.gateway.admission import admissions
from brim.gateway.clusters import MOST_REQUESTS, OTHERS, cluster_name
from brim.gateway.envoy_config import envoy_config
from brim.gateway.limits import request_limits
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Member, Replicas
from brim.gateway.xds import Listen, Upstream
from brim.router.replica_file import read_replicas
from brim.service.load import find_services
from tests.conftest import ROOT

SCRIPT = ROOT / "deploy" / "chart" / "files" / "endpoints.py"
PATIENCE_S = 30


@pytest.fixture
def endpoints() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_endpoints", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLUSTERS = (OTHERS, cluster_name("image_classifier"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The gateway's own configuration, with its files in a folder of the test's and an admin page that nobody answers."""
    services = find_services(ROOT / "services", ["image_classifier"])
    (tmp_path / "replicas").mkdir()
    document = envoy_config(
        Replicas(tmp_path / "replicas"),
        Listen("0.0.0.0", 8080, 9, "0.0.0.0", 9090),
        request_limits(services),
        admissions(services),
    )
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(document))
    return path


def test_the_files_are_those_that_brim_serve_writes(endpoints: ModuleType, config: Path, tmp_path: Path) -> None:
    found = ["10.0.0.1", "10.0.0.2"]
    clusters = endpoints.wanted(json.loads(config.read_text()))
    endpoints.publish(clusters, found)
    ours = {path.name: path.read_text() for path in (tmp_path / "replicas").iterdir()}
    files = ReplicaFiles(tmp_path / "others", ["image_classifier"])
    files.publish([Member(one, Upstream(f"{one}:8000", f"{one}:8001"), metrics=f"{one}:8002") for one in found])
    others = {path.name: path.read_text() for path in (tmp_path / "others").iterdir()}
    assert {name: json.loads(text) for name, text in ours.items()} == {
        name: json.loads(text) for name, text in others.items()
    }
    assert set(clusters) == set(CLUSTERS)
    assert {bound for _, bound in clusters.values()} == {MOST_REQUESTS}


def test_the_last_good_files_stay(
    endpoints: ModuleType, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OSError("no such name"), ["10.0.0.1"], OSError("no such name"), ["10.0.0.1", "10.0.0.2"]])
    bounds: list[int] = []
    seen = []

    def addresses(_: str) -> list[str]:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return list(answer)

    def allow_for(_: object, __: object, serving: int) -> None:
        bounds.append(serving)
        if len(bounds) == 1:
            raise OSError("Envoy has not started")

    def pause(_: float) -> None:
        seen.append(int((tmp_path / "replicas" / "serving").read_text()))
        if len(seen) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(endpoints, "addresses", addresses)
    monkeypatch.setattr(endpoints, "allow_for", allow_for)
    monkeypatch.setattr(endpoints.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        endpoints.main("x", str(config))
    assert seen == [0, 1, 1, 2]
    assert bounds == [0, 1, 2]


def test_a_real_name_is_resolved(config: Path, tmp_path: Path) -> None:
    serving = tmp_path / "replicas" / "serving"
    command = [sys.executable, "-I", str(SCRIPT), "localhost", str(config), "--files-only", "--every", "0.05"]
    child = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not serving.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        found = {server.http.rpartition(":")[0] for server in read_replicas(tmp_path / "replicas" / "triton.json")}
    finally:
        child.terminate()
        child.wait(PATIENCE_S)
    wanted = {entry[4][0] for entry in socket.getaddrinfo("localhost", 8000, type=socket.SOCK_STREAM)}
    assert {address.strip("[]") for address in found} == wanted
