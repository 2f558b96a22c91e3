"""The file that tells a picker which replicas there are."""

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


def hosts(document: dict[str, list[dict[str, list[dict[str, list[dict[str, object]]]]]]]) -> list[dict[str, object]]:
    (assignment,) = document["resources"]
    (locality,) = assignment["endpoints"]
    return locality["lb_endpoints"]


def test_each_replica_is_two_hosts(endpoints: ModuleType) -> None:
    found = hosts(endpoints.document("x", ["10.0.0.1", "10.0.0.2"]))
    assert len(found) == 4
    assert json.dumps(found[1]) == json.dumps(
        {
            "endpoint": {
                "address": {"socket_address": {"address": "10.0.0.1", "port_value": 8001}},
                "health_check_config": {"port_value": 8000},
            },
            "metadata": {"filter_metadata": {"envoy.lb": {"protocol": "grpc"}}},
        }
    )


def test_the_last_good_file_stays(endpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "replicas.json"
    answers = iter([OSError("no such name"), ["10.0.0.1"], OSError("no such name"), ["10.0.0.1", "10.0.0.2"]])
    seen = []

    def addresses(_: str) -> list[str]:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return list(answer)

    def pause(_: float) -> None:
        seen.append(len(hosts(json.loads(path.read_text()))))
        if len(seen) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(endpoints, "addresses", addresses)
    monkeypatch.setattr(endpoints.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        endpoints.main("x", str(path))
    assert seen == [0, 2, 2, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["replicas.json"]


def test_a_real_name_is_resolved(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    child = subprocess.Popen([sys.executable, "-I", str(SCRIPT), "localhost", str(path), "0.05"])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        found = hosts(json.loads(path.read_text()))
    finally:
        child.terminate()
        child.wait(PATIENCE_S)
    addresses = {found["endpoint"]["address"]["socket_address"]["address"] for found in found}  # type: ignore[index]
    assert addresses == {found[4][0] for found in socket.getaddrinfo("localhost", 8000, type=socket.SOCK_STREAM)}
