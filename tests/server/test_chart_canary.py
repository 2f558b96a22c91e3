"""What the chart's probe says of the real server, and of one that only looks alive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from brim.cli.commands.serve import canaries
from brim.gateway.admission import admissions
from brim.gateway.envoy_config import envoy_config
from brim.gateway.health import canary_of
from brim.gateway.limits import request_limits
from brim.gateway.xds import Listen, Upstream
from brim.paths import Project
from brim.plan import series
from brim.server.embedded import EmbeddedServer
from brim.service.load import find_services
from tests.conftest import ROOT

SCRIPT = ROOT / "deploy" / "chart" / "files" / "canary.py"
MODEL = "image_classifier"
PATIENCE_S = 60


@pytest.fixture
def config(tmp_path: Path) -> Path:
    services = find_services(ROOT / "services", [MODEL])
    admitted = admissions(services)
    row = canaries(services)[MODEL]
    assert row is not None
    document = envoy_config(
        Upstream("tritonserver:8000", "tritonserver:8001"),
        Listen("0.0.0.0", 8080, 9901, "0.0.0.0", 9090),
        request_limits(services),
        admitted,
        canaries={MODEL: canary_of(row, admitted[MODEL])},
    )
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(document))
    return path


def probe(
    config: Path, tmp_path: Path, http: str, metrics: str, *models: str, patience_s: float = 25
) -> subprocess.CompletedProcess[str]:
    """The script against other addresses than the container's."""
    text = SCRIPT.read_text()
    for given, here in (
        ("http://127.0.0.1:8000", f"http://{http}"),
        ("http://127.0.0.1:8002/metrics", f"http://{metrics}/metrics"),
        ("ANSWER_TIMEOUT_S = 25", f"ANSWER_TIMEOUT_S = {patience_s}"),
    ):
        assert given in text
        text = text.replace(given, here)
    script = tmp_path / "canary.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-I", str(script), str(config), *models],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_real_server_answers_until_its_stub_is_dead(exported: Project, config: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with EmbeddedServer(exported.model_repository, [MODEL], cache=exported.cache, log_file=log) as server:
        where = server.endpoint
        assert where.metrics is not None
        done = probe(config, tmp_path, where.http, where.metrics, MODEL)
        assert done.returncode == 0, done.stderr
        with urllib.request.urlopen(f"http://{where.metrics}/metrics") as page:
            shown = page.read().decode()
        for name in (series.PENDING, series.QUEUE_US, series.SUCCESS):
            assert f'\n{name}{{model="{MODEL}",version="1"}} ' in shown
        unknown = probe(config, tmp_path, where.http, where.metrics, MODEL, "other")
        assert unknown.returncode == 1
        assert "other: the gateway's configuration has no canary" in unknown.stderr
        for stub in server.stubs():
            os.kill(stub, signal.SIGKILL)
        dead = probe(config, tmp_path, where.http, where.metrics, MODEL)
        assert dead.returncode == 1
        assert f"{MODEL}: 500" in dead.stderr
    gone = probe(config, tmp_path, where.http, where.metrics, MODEL)
    assert gone.returncode == 1
    assert "no answer" in gone.stderr


@pytest.fixture
def stand_in() -> Iterator[tuple[str, dict[str, float]]]:
    """A server that never answers an inference, and whose counts grow at each look by what the test puts there."""
    growth: dict[str, float] = {}
    counts: dict[str, float] = {}
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            for name, by in growth.items():
                counts[name] = counts.get(name, 0.0) + by
            page = "".join(f'{name}{{model="{MODEL}",version="1"}} {count}\n' for name, count in counts.items())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def do_POST(self) -> None:
            over.wait(PATIENCE_S)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", growth
    over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("name", "by", "code"),
    [
        ("nv_inference_request_success", 0.0, 1),
        ("nv_inference_request_success", 1.0, 0),
        ("vllm:generation_tokens_total", 1.0, 0),
        ("nv_inference_count", 1.0, 1),
    ],
)
def test_busy_is_not_dead(
    stand_in: tuple[str, dict[str, float]], config: Path, tmp_path: Path, name: str, by: float, code: int
) -> None:
    address, growth = stand_in
    growth[name] = by
    done = probe(config, tmp_path, address, address, MODEL, patience_s=0.5)
    assert done.returncode == code, done.stderr
