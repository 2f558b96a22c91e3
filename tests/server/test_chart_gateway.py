"""The chart's gateway as it is rendered, with its sidecar, before the real server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.gateway.envoy import find_envoy
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import LOOPBACK
from brim.server.ports import choose_ports
from tests.golden.helm import render
from tests.golden.test_chart import containers

PATIENCE_S = 60
MODEL = "image_classifier"
LISTENING = {"callers": 8080, "metrics": 9090, "admin": 9901}


def file_of(resources: list[dict[str, Any]], name: str) -> str:
    """A file of the chart's config maps."""
    (text,) = (one["data"][name] for one in resources if one["kind"] == "ConfigMap" and name in one["data"])
    return str(text)


def with_ports(document: Any, ports: dict[int, int]) -> Any:
    """The document with every port that it listens on exchanged."""
    if isinstance(document, dict):
        return {
            key: ports.get(value, value) if key == "port_value" else with_ports(value, ports)
            for key, value in document.items()
        }
    return [with_ports(one, ports) for one in document] if isinstance(document, list) else document


def until(true: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            if true():
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def status(address: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}", body), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_callers_reach_every_replica_that_the_name_stands_for(shipped: EmbeddedServer, tmp_path: Path) -> None:
    chosen = choose_ports(LOOPBACK, dict.fromkeys(LISTENING))
    folder = tmp_path / "replicas"
    folder.mkdir()
    resources = render()
    text = file_of(resources, "envoy.json").replace('"/replicas', f'"{folder}')
    text = text.replace('SERVING_FILE = \\"/replicas', f'SERVING_FILE = \\"{folder}')
    config = tmp_path / "envoy.json"
    config.write_text(json.dumps(with_ports(json.loads(text), {LISTENING[name]: chosen[name] for name in LISTENING})))
    script = file_of(resources, "endpoints.py")
    for given, real in (("8000", shipped.endpoint.http), ("8001", shipped.endpoint.grpc)):
        assert given in script
        script = script.replace(given, real.rpartition(":")[2], 1)
    (tmp_path / "endpoints.py").write_text(script)
    (envoy,) = (one for one in containers(resources) if one["name"] == "envoy")
    arguments = [one.replace("/etc/brim/envoy.json", str(config)).replace("$(POD_NAME)", "x") for one in envoy["args"]]
    sidecar = subprocess.Popen(
        [sys.executable, "-I", str(tmp_path / "endpoints.py"), LOOPBACK, str(config), "--every", "0.1"],
        stderr=subprocess.DEVNULL,
    )
    processes = [sidecar]
    try:
        assert until((folder / "serving").exists, *processes)
        processes.append(
            subprocess.Popen(
                [str(find_envoy()), *arguments, "--use-dynamic-base-id"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        callers, admin = f"{LOOPBACK}:{chosen['callers']}", f"{LOOPBACK}:{chosen['admin']}"
        assert until(lambda: status(f"{callers}/v2/models/{MODEL}/ready") == 200, *processes)
        row = {"name": "IMAGE", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}
        asked = json.dumps({"inputs": [row]}).encode()
        assert status(f"{callers}/v2/models/{MODEL}/infer", asked) == 200
        assert status(f"{LOOPBACK}:{chosen['metrics']}/metrics") == 200

        def bounds_are_set() -> bool:
            with urllib.request.urlopen(f"http://{admin}/runtime", timeout=10) as answer:
                entries = json.loads(answer.read())["entries"]
            return f"circuit_breakers.triton/{MODEL}.default.max_requests" in entries

        assert until(bounds_are_set)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_S)
