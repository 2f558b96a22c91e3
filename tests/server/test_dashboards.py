"""Every panel's query, asked of a real Prometheus that reads real servers under load; but for what needs a GPU or the picker."""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from brim.dashboards.board import Needs
from brim.dashboards.check import with_values
from brim.dashboards.files import BOARDS
from brim.dashboards.known import EXPORTER, GATEWAY, TRITON, known_series
from brim.errors import MissingTool
from brim.exporter.serve import ExporterBeside
from brim.exporter.sources import Sources
from brim.gateway.admission import admissions
from brim.gateway.envoy import Gateway
from brim.monitor.programs import Program, find_program
from brim.monitor.prometheus import Prometheus, Sample, start
from brim.paths import Project
from brim.plan import series
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions
from brim.service.load import find_service, find_services
from brim.service.samples import sample_rows

TEXT, IMAGE, BOUNDED = "text_generation", "image_classifier", "text_embedding"
CALLERS = 3
PATIENCE_S = 120
WINDOW = "30s"
ON_A_GPU = {series.GPU_UTILISATION}


def post(address: str, path: str, body: object) -> None:
    request = urllib.request.Request(f"http://{address}/v2/models/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()
    except urllib.error.HTTPError as refused:
        assert refused.code in (429, 503), refused.read()


class Load:
    """Callers that go on until they are told to stop: of both tensor models through the gateway, of texts from their server."""

    def __init__(self, gateway: str, text: str) -> None:
        image = {"inputs": [{"name": "IMAGE", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}
        words = {"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["one two three " * 20]}]}
        prompt = {"text_input": "Once upon a time", "max_tokens": 3, "temperature": 0}
        asked = [
            (gateway, f"{IMAGE}/infer", image),
            *[(gateway, f"{BOUNDED}/infer", words)] * CALLERS,
            (text, f"{TEXT}/generate", prompt),
        ]
        self._over = threading.Event()
        self.faults: list[str] = []
        self._callers = [threading.Thread(target=self._go_on, args=one, daemon=True) for one in asked]

    def __enter__(self) -> None:
        for caller in self._callers:
            caller.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for caller in self._callers:
            caller.join(PATIENCE_S)

    def _go_on(self, address: str, path: str, body: object) -> None:
        while not self._over.wait(0.05):
            try:
                post(address, path, body)
            except (AssertionError, OSError) as fault:
                self.faults.append(f"{path}: {fault}")
                return


@pytest.fixture(scope="module")
def prometheus(
    shipped: EmbeddedServer, exported_text: Project, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has read for a while what a loaded stack says, and that goes on reading it."""
    cache = Project(checkout).cache_folder()
    try:
        find_program(Program.PROMETHEUS, cache)
    except MissingTool as missing:
        pytest.skip(missing.message)
    folder = tmp_path_factory.mktemp("dashboards")
    admitted = admissions(find_services(checkout / "services", [IMAGE, BOUNDED]))
    # One at a time, so that others are refused.
    admitted[BOUNDED] = replace(admitted[BOUNDED], in_flight=1, classes=())
    with ExitStack() as stack:
        text = stack.enter_context(
            EmbeddedServer(
                exported_text.model_repository,
                [TEXT],
                cache=exported_text.cache,
                log_file=folder / "text.log",
                canaries={TEXT: sample_rows(find_service(checkout / "services", TEXT))[0]},
                options=ServerOptions(exit_timeout_s=5),
            )
        )
        gateway = stack.enter_context(Gateway(shipped.endpoint, log_file=folder / "envoy.log", admitted=admitted))
        exporter = stack.enter_context(ExporterBeside(Sources(shipped.endpoint.http, gateway_admin=gateway.admin)))
        jobs = {
            series.FLEET_JOB: [shipped.endpoint.metrics, text.endpoint.metrics],
            series.GATEWAY_JOB: [gateway.metrics],
            series.EXPORTER_JOB: [exporter.address],
        }
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in sorted((checkout / "monitoring" / "rules").glob("*.yml"))],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
            ],
        }
        running = stack.enter_context(start(config, folder / "prometheus", cache=cache))
        load = Load(gateway.endpoint.http, text.endpoint.http)
        stack.enter_context(load)
        yield running
        assert load.faults == []


def has_data(samples: list[Sample]) -> bool:
    return any(not math.isnan(one.value) for one in samples)


def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    asked = {
        f"{board.name}: {panel.title}: {query.expression}": with_values(query.expression, window=WINDOW)
        for board in BOARDS
        for panel in board.panels
        if panel.needs is Needs.NOTHING
        for query in panel.queries
    }
    assert len(asked) > 60
    deadline_s = time.monotonic() + PATIENCE_S
    while asked and time.monotonic() < deadline_s:
        time.sleep(1)
        asked = {where: expression for where, expression in asked.items() if not has_data(prometheus.query(expression))}
    assert not asked, "\n".join(asked)
    assert prometheus.rule_faults() == []


def test_the_models_to_choose_from_are_those_that_are_there(prometheus: Prometheus) -> None:
    offered = {board.name: {one.labels["model"] for one in prometheus.query(board.models_of)} for board in BOARDS}
    assert offered["tokens"] == {TEXT}
    assert offered["batcher"] == {IMAGE, BOUNDED} <= offered["overview"]
    assert offered["fleet"] == {TEXT, IMAGE, BOUNDED}


def test_what_is_thought_to_exist_does_with_those_labels(prometheus: Prometheus, checkout: Path) -> None:
    for name, thought in {**TRITON, **EXPORTER, **GATEWAY}.items():
        found = prometheus.query(name)
        assert found or name in ON_A_GPU, name
        for one in found:
            assert set(one.labels) - {"__name__"} <= thought.labels, (name, one.labels)
    known = known_series(find_services(checkout / "services", []))
    recorded = prometheus.query('{__name__=~"brim_(service|model|fleet):.+"}')
    assert recorded
    for one in recorded:
        name = one.labels["__name__"]
        assert set(one.labels) - {"__name__"} <= known[name].labels, one.labels


def test_a_model_that_is_not_chosen_is_not_shown(prometheus: Prometheus) -> None:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                if '"$model"' in query.expression:
                    shown = prometheus.query(with_values(query.expression, model="nobody", window=WINDOW))
                    assert not shown, query.expression
