"""Envoy with a picker before three servers that say who they are, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.gateway.admission import Admission
from brim.gateway.clusters import OTHERS
from brim.gateway.envoy import find_envoy
from brim.gateway.envoy_config import envoy_config
from brim.gateway.limits import RequestLimits
from brim.gateway.picking import BodyMode, picking
from brim.gateway.replica_files import ReplicaFiles, write_whole
from brim.gateway.replicas import Member, Replicas, file_of
from brim.gateway.xds import Listen, Upstream
from brim.server.ports import choose_ports
from tests.conftest import ROOT

MODELS = {"story": Admission(pieces=True), "sorter": Admission()}
PATIENCE_S = 30.0


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def post(address: str, path: str, body: Any, **headers: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{address}{path}",
        json.dumps(body).encode(),
        {name.replace("_", "-"): value for name, value in headers.items()},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return dict(json.loads(answer.read()))


@dataclass
class Picked:
    """All of it, running."""

    files: ReplicaFiles
    servers: dict[str, subprocess.Popen[str]]
    upstreams: dict[str, Upstream]
    gateway: str = ""
    admin: str = ""
    picker: subprocess.Popen[str] | None = None
    picker_ready: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def file(self) -> Path:
        return file_of(self.folder, OTHERS)

    def publish(self, **draining: bool) -> None:
        """Write the files that Envoy and the picker watch."""
        members = [
            Member(name, upstream, draining=draining.get(name, False), metrics=upstream.http)
            for name, upstream in self.upstreams.items()
        ]
        self.files.publish(members)

    def put(self, text: str) -> None:
        """Write one of them otherwise."""
        write_whole(self.file, text)

    def story(self, prompt: str, **headers: str) -> dict[str, Any]:
        return post(self.gateway, "/v2/models/story/generate_stream", {"text_input": prompt}, **headers)

    def sort(self, **headers: str) -> dict[str, Any]:
        return post(self.gateway, "/v2/models/sorter/infer", {"inputs": []}, **headers)

    def tell(self, name: str, **told: float) -> None:
        post(self.upstreams[name].http, "/told", told)

    def page(self) -> dict[str, float]:
        lines = get(self.picker_ready["metrics"], "/metrics").splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def looked(self) -> None:
        """Wait until the picker has seen every page again."""
        before = self.page()["brim_picker_scrape_total"]
        wait_until(lambda: self.page()["brim_picker_scrape_total"] >= before + 2 * len(self.upstreams) + 1, "no scrape")

    def envoy(self, name: str) -> int:
        found = json.loads(get(self.admin, f"/stats?format=json&filter=^{name}$"))["stats"]
        return sum(one.get("value", 0) for one in found)


@contextmanager
def child(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def picked(folder: Path, mode: BodyMode = BodyMode.BUFFERED) -> Iterator[Picked]:
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(child(["tests/server/replica_stub.py", name, "0"])) for name in ("a", "b", "c")
        }
        upstreams = {
            name: Upstream(*(f"127.0.0.1:{ready[protocol]}" for protocol in ("http", "grpc")))
            for name, (_, ready) in started.items()
        }
        files = ReplicaFiles(folder / "hosts", list(MODELS))
        all_of_it = Picked(files, {name: process for name, (process, _) in started.items()}, upstreams)
        all_of_it.publish()
        ports = choose_ports("127.0.0.1", {"gateway": None, "admin": None, "metrics": None})
        all_of_it.gateway, all_of_it.admin = (f"127.0.0.1:{ports[name]}" for name in ("gateway", "admin"))
        arguments = ["-m", "brim", "picker", "--json", "--eds", str(all_of_it.file), "--gateway-admin", all_of_it.admin]
        all_of_it.picker, all_of_it.picker_ready = stack.enter_context(child(arguments))
        document = envoy_config(
            Replicas(files.folder, picking=picking(all_of_it.picker_ready["picker"], MODELS, ["story"], mode)),
            Listen("127.0.0.1", ports["gateway"], ports["admin"], "127.0.0.1", ports["metrics"]),
            RequestLimits(),
            MODELS,
        )
        path = folder / "envoy.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        command = [str(find_envoy()), "-c", str(path), "--disable-hot-restart", "--concurrency", "1"]
        envoy = subprocess.Popen([*command, "--service-node", "x", "--service-cluster", "x", "--log-level", "error"])
        stack.callback(envoy.wait)
        stack.callback(envoy.kill)
        wait_until(lambda: _answers(all_of_it.admin), "Envoy does not answer")
        wait_until(lambda: all_of_it.envoy("cluster.picker.membership_healthy") == 1, "the picker is not healthy")
        all_of_it.looked()
        yield all_of_it


def _answers(admin: str) -> bool:
    try:
        return get(admin, "/ready").startswith("LIVE")
    except OSError:
        return False


def at_once(count: int, call: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))
