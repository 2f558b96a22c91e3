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
from brim.gateway.clusters import cluster_name
from brim.gateway.envoy import find_envoy
from brim.gateway.envoy_config import ROUTER
from brim.gateway.picking import BodyMode, around, asking, picker_cluster, picking_filters
from brim.gateway.routes import virtual_host
from brim.gateway.xds import TYPE, Document, socket_address
from brim.server.ports import choose_ports
from tests.conftest import ROOT

MODELS = {"story": Admission(pieces=True), "sorter": Admission()}
PATIENCE_S = 30.0
POLICIES = f"{TYPE}extensions.load_balancing_policies"
LEAST_REQUEST = {
    "typed_extension_config": {
        "name": "envoy.load_balancing_policies.subset",
        "typed_config": {
            "@type": f"{POLICIES}.subset.v3.Subset",
            "fallback_policy": "NO_FALLBACK",
            "subset_selectors": [{"keys": ["protocol"]}],
            "subset_lb_policy": {
                "policies": [
                    {
                        "typed_extension_config": {
                            "name": "envoy.load_balancing_policies.least_request",
                            "typed_config": {"@type": f"{POLICIES}.least_request.v3.LeastRequest"},
                        }
                    }
                ]
            },
        },
    }
}


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

    folder: Path
    servers: dict[str, subprocess.Popen[str]]
    pages: dict[str, str]
    gateway: str = ""
    admin: str = ""
    picker: subprocess.Popen[str] | None = None
    picker_ready: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "replicas.json"

    def publish(self, names: Sequence[str], **status: str) -> None:
        hosts = []
        for name in names:
            host, port = self.pages[name].split(":")
            brim = {"replica": name, "metrics": self.pages[name]}
            hosts.append(
                {
                    "endpoint": {"address": socket_address(host, int(port))},
                    "metadata": {"filter_metadata": {"envoy.lb": {"protocol": "http"}, "brim": brim}},
                    **({"health_status": status[name]} if name in status else {}),
                }
            )
        assignment = {"cluster_name": "all", "endpoints": [{"lb_endpoints": hosts}]}
        self.put(
            json.dumps({"resources": [{"@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment", **assignment}]})
        )

    def put(self, text: str) -> None:
        """The file that Envoy and the picker watch."""
        new = self.folder / "new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.file)

    def story(self, prompt: str, **headers: str) -> dict[str, Any]:
        return post(self.gateway, "/v2/models/story/generate_stream", {"text_input": prompt}, **headers)

    def sort(self, **headers: str) -> dict[str, Any]:
        return post(self.gateway, "/v2/models/sorter/infer", {"inputs": []}, **headers)

    def tell(self, name: str, **told: float) -> None:
        post(self.pages[name], "/told", told)

    def page(self) -> dict[str, float]:
        lines = get(self.picker_ready["metrics"], "/metrics").splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def looked(self) -> None:
        """Wait until the picker has seen every page again."""
        before = self.page()["brim_picker_scrape_total"]
        wait_until(lambda: self.page()["brim_picker_scrape_total"] >= before + 2 * len(self.pages) + 1, "no scrape")

    def envoy(self, name: str) -> int:
        found = json.loads(get(self.admin, f"/stats?format=json&filter=^{name}$"))["stats"]
        return sum(one.get("value", 0) for one in found)


def config(folder: Path, picker: str, port: int, admin_port: int, mode: BodyMode) -> Document:
    eds = {
        "resource_api_version": "V3",
        "path_config_source": {"path": str(folder / "replicas.json"), "watched_directory": {"path": str(folder)}},
    }
    clusters = [
        {
            "name": name,
            "type": "EDS",
            "eds_cluster_config": {"service_name": "all", "eds_config": eds},
            "connect_timeout": "1s",
            "load_balancing_policy": {"policies": [around(LEAST_REQUEST)]},
        }
        for name in ("triton", "around", *map(cluster_name, MODELS))
    ]
    manager = {
        "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "callers",
        "route_config": {"virtual_hosts": [asking(virtual_host(MODELS), MODELS, ["story"], mode)]},
        "http_filters": [*picking_filters(mode), ROUTER],
    }
    return {
        "admin": {"address": socket_address("127.0.0.1", admin_port)},
        "static_resources": {
            "listeners": [
                {
                    "name": "callers",
                    "address": socket_address("127.0.0.1", port),
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [*clusters, picker_cluster(picker)],
        },
    }


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
        pages = {name: f"127.0.0.1:{ready['http']}" for name, (_, ready) in started.items()}
        all_of_it = Picked(folder, {name: process for name, (process, _) in started.items()}, pages)
        all_of_it.publish(list(pages))
        ports = choose_ports("127.0.0.1", {"gateway": None, "admin": None})
        all_of_it.gateway, all_of_it.admin = (f"127.0.0.1:{ports[name]}" for name in ("gateway", "admin"))
        arguments = ["-m", "brim", "picker", "--json", "--eds", str(all_of_it.file), "--gateway-admin", all_of_it.admin]
        all_of_it.picker, all_of_it.picker_ready = stack.enter_context(child(arguments))
        document = config(folder, all_of_it.picker_ready["picker"], ports["gateway"], ports["admin"], mode)
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
