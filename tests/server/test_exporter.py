"""The exporter before the real server and the real gateway, read by a real Prometheus with the committed rules."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from brim.errors import InputError, MissingTool, ServerFailed
from brim.exporter.gateway_said import limits
from brim.exporter.page import Page, Source
from brim.exporter.serve import Exporter, ExporterBeside
from brim.exporter.sources import Sources
from brim.gateway.admission import Admission, admissions
from brim.gateway.envoy import Gateway
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Replicas
from brim.monitor.programs import Program, find_program
from brim.monitor.prometheus import Alert, Prometheus, scrape_config, start
from brim.paths import Project
from brim.plan import series
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.ports import choose_ports
from brim.service.load import find_services
from tests.conftest import Brim

MODEL = "image_classifier"
PATIENCE_S = 60
T = TypeVar("T")
RIGHT, WRONG = 30, 5


class Stack(NamedTuple):
    """Everything that runs, and what Triton had counted before anybody was asked."""

    server: EmbeddedServer
    gateway: Gateway
    exporter: ExporterBeside
    rows_before: int
    checkout: Path


def executed_rows(server: EmbeddedServer) -> int:
    with urllib.request.urlopen(f"http://{server.endpoint.http}/v2/models/{MODEL}/stats") as answer:
        (entry,) = json.load(answer)["model_stats"]
    return sum(one["batch_size"] * one["compute_infer"]["count"] for one in entry["batch_stats"])


def ask(address: str, shape: list[int]) -> int:
    values = [0.0] * 64
    body = {"inputs": [{"name": "IMAGE", "shape": shape, "datatype": "FP32", "data": values}]}
    request = urllib.request.Request(f"http://{address}/v2/models/{MODEL}/infer", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def stack(shipped: EmbeddedServer, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("exporter")
    admitted = admissions(find_services(checkout / "services", [MODEL]))
    with Gateway(shipped.endpoint, log_file=folder / "envoy.log", admitted=admitted) as gateway:
        sources = Sources(shipped.endpoint.http, gateway_admin=gateway.admin)
        with ExporterBeside(sources) as exporter:
            rows_before = executed_rows(shipped)
            for _ in range(RIGHT):
                assert ask(gateway.endpoint.http, [1, 1, 8, 8]) == 200
            for _ in range(WRONG):
                assert ask(gateway.endpoint.http, [1 << 31, 1, 8, 8]) == 400
            yield Stack(shipped, gateway, exporter, rows_before, checkout)


def page_of(sources: Sources) -> Page:
    async def once() -> Page:
        async with Exporter(sources) as exporter:
            return await exporter.page()

    return asyncio.run(once())


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_what_was_sent_is_on_the_page(stack: Stack) -> None:
    with urllib.request.urlopen(f"http://{stack.exporter.address}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        found = values(answer.read().decode())
    version = labelled(model=MODEL, version="1")
    rows = executed_rows(stack.server)
    assert rows - stack.rows_before == RIGHT
    assert found["brim_batch_rows_sum", version] == rows
    assert found["brim_batch_rows_count", version] == found["brim_batch_rows_bucket", version | labelled(le="+Inf")] > 0
    assert found["brim_busy_us_total", version] > 0
    assert found["brim_max_batch_rows", version] == 100 and found["brim_instances", version] >= 1
    assert found["brim_model_loaded", version] == 1

    def ended(outcome: str, reason: str = "") -> float:
        """Of every class: what is refused before its class is known has none."""
        wanted = labelled(model=MODEL, outcome=outcome, reason=reason)
        return sum(
            value for (name, labels), value in found.items() if name == "brim_requests_total" and wanted <= labels
        )

    assert ended("right") == RIGHT
    assert ended("own_error", "bad_request") == WRONG
    assert found["brim_gateway_in_flight", labelled(model=MODEL)] == 0
    assert found["brim_gateway_in_flight_limit", labelled(model=MODEL)] > 0
    assert found["brim_exporter_source_up", labelled(source="triton")] == 1
    assert found["brim_exporter_source_up", labelled(source="gateway")] == 1


def test_the_gateways_page_for_prometheus_does_as_well_but_for_its_limits(stack: Stack) -> None:
    found, limited = (
        values(page_of(sources).text().decode())
        for sources in (
            Sources(stack.server.endpoint.http, gateway_metrics=stack.gateway.metrics),
            Sources(stack.server.endpoint.http, gateway_admin=stack.gateway.admin),
        )
    )
    same = {key: value for key, value in limited.items() if key[0] in ("brim_requests_total", "brim_gateway_in_flight")}
    assert same and same.items() <= found.items()
    assert {name for name, _ in limited} - {name for name, _ in found} == {"brim_gateway_in_flight_limit"}


def test_the_limit_is_that_of_all_replicas_together(tmp_path: Path) -> None:
    """Envoy's circuit breaker as it stands, not as the configuration has it; no server is needed for that."""
    admitted = {"m": Admission(in_flight=40, max_rows=10)}
    ReplicaFiles(tmp_path, list(admitted))
    nobody = Endpoint("127.0.0.1:1", "127.0.0.1:2")
    with Gateway(nobody, log_file=tmp_path / "envoy.log", admitted=admitted, replicas=Replicas(tmp_path)) as gateway:
        seen = []
        for serving in (1, 3):
            gateway.allow_for(serving)
            with urllib.request.urlopen(f"http://{gateway.admin}/clusters?format=json", timeout=PATIENCE_S) as answer:
                seen.append(limits(json.load(answer)))
    assert seen == [{"m": 40}, {"m": 120}]


def test_a_source_that_is_down_does_not_hide_the_other(stack: Stack) -> None:
    nobody = f"127.0.0.1:{choose_ports('127.0.0.1', {'nobody': None})['nobody']}"
    without_server = page_of(Sources(nobody, gateway_admin=stack.gateway.admin))
    assert without_server.up == {Source.TRITON: False, Source.GATEWAY: True}
    text = without_server.text().decode()
    assert "brim_requests_total{" in text and "brim_batch_rows" not in text
    without_gateway = page_of(Sources(stack.server.endpoint.http, gateway_admin=nobody))
    assert without_gateway.up == {Source.TRITON: True, Source.GATEWAY: False}
    # Somebody answers there, who is neither.
    wrong = page_of(Sources(stack.exporter.address, gateway_admin=stack.server.endpoint.http))
    assert wrong.up == {Source.TRITON: False, Source.GATEWAY: False}


def test_the_command_prints_it_once(stack: Stack, brim: Brim) -> None:
    done = brim("exporter", "--server", stack.server.endpoint.http, "--gateway-admin", stack.gateway.admin, "--once")
    assert done.code == 0, done.err
    assert 'brim_exporter_source_up{source="gateway"} 1.0' in done.out
    nobody = f"127.0.0.1:{choose_ports('127.0.0.1', {'nobody': None})['nobody']}"
    done = brim("exporter", "--server", nobody, "--once", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["ok"], answer["data"]["sources"]) == (3, False, {"triton": False})
    assert "triton does not answer" in done.err
    done = brim("exporter", "--server", "x", "--gateway-admin", "a:1", "--gateway-metrics", "b:2")
    assert done.code == 2
    assert "--server x: expected host:port" in done.err and "give one of them" in done.err


def test_the_command_serves_until_it_is_told_to_stop(stack: Stack) -> None:
    command = [sys.executable, "-m", "brim", "exporter", "--server", stack.server.endpoint.http, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            ready = json.loads(child.stdout.readline())
            with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=PATIENCE_S) as answer:
                page = answer.read().decode()
            child.send_signal(signal.SIGTERM)
            rest, said = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
    assert ready["event"] == "ready" and f'brim_batch_rows_count{{model="{MODEL}"' in page
    assert 'source="gateway"' not in page
    assert (child.returncode, rest, said) == (0, "", "")


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    cache = Project(stack.checkout).cache_folder()
    try:
        find_program(Program.PROMETHEUS, cache)
    except MissingTool as missing:
        pytest.skip(missing.message)
    assert stack.server.endpoint.metrics is not None
    jobs = {
        series.FLEET_JOB: stack.server.endpoint.metrics,
        series.GATEWAY_JOB: stack.gateway.metrics,
        series.EXPORTER_JOB: stack.exporter.address,
    }
    rules = tuple((stack.checkout / "monitoring" / "rules").glob("*.yml"))
    assert {path.name for path in rules} == {"scaling.yml", "service.yml"}
    with start(scrape_config(jobs, rules=rules), tmp_path_factory.mktemp("prometheus"), cache=cache) as running:
        yield running


def until(look: Callable[[], T], enough: Callable[[T], bool]) -> T:
    deadline_s = time.monotonic() + PATIENCE_S
    while not enough(found := look()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return found


def test_a_real_prometheus_reads_it_and_the_rules_record(stack: Stack, prometheus: Prometheus) -> None:
    targets = until(prometheus.targets, lambda found: len(found) == 3 and all(one.health == "up" for one in found))
    assert {(one.job, one.health, one.error) for one in targets} == {
        (job, "up", "") for job in (series.FLEET_JOB, series.GATEWAY_JOB, series.EXPORTER_JOB)
    }
    assert prometheus.value(f'{series.REQUESTS}{{outcome="right"}}') == RIGHT
    # A rate needs two readings between which somebody has come.
    for expression in (
        f'{series.MEAN_BATCH}{{model="{MODEL}"}}',
        f'{series.FILL}{{model="{MODEL}"}}',
        f'{series.GOODPUT_RATIO}{{model="{MODEL}", window="5m"}}',
        f'{series.LATENCY_P99}{{model="{MODEL}"}}',
        f'{series.QUEUED}{{model="{MODEL}"}}',
    ):

        def asked(expression: str = expression) -> float | None:
            assert ask(stack.gateway.endpoint.http, [1, 1, 8, 8]) == 200
            return prometheus.value(expression)

        value = until(asked, lambda found: found is not None)
        assert value is not None and value >= 0, expression
    # Nobody asks this one, and a mean of nothing is nothing.
    assert prometheus.query(f'{series.MEAN_BATCH}{{model="text_embedding"}}') == []
    assert prometheus.rule_faults() == []

    def wrong() -> list[Alert]:
        return [one for one in prometheus.alerts() if one.name in ("BrimExporterBlind", "BrimNobodyAnswered")]

    # Rules may be evaluated once before any page has been read, when the exporter was not there yet.
    assert until(wrong, lambda found: not found) == []


def test_a_query_that_is_wrong_says_why(prometheus: Prometheus) -> None:
    with pytest.raises(InputError, match="parse error"):
        prometheus.query("sum by (")
    with pytest.raises(InputError, match="expected one"):
        prometheus.value("up")
    assert prometheus.value("1 + 1") == 2 and prometheus.value("absent_metric") is None
    assert prometheus.value("0 / 0") is None


def test_rules_are_read_anew_and_wrong_ones_leave_the_old_in_force(prometheus: Prometheus, tmp_path: Path) -> None:
    rules = tmp_path / "own.yml"
    rules.write_text('groups: [{name: own, interval: 1s, rules: [{record: "own:two", expr: "vector(2)"}]}]')
    before = json.loads((prometheus.folder / "prometheus.json").read_text())
    prometheus.reload({**before, "rule_files": [*before["rule_files"], str(rules)]})
    assert until(lambda: prometheus.value("own:two"), lambda value: value is not None) == 2
    rules.write_text("groups: [{name: own, rules: [{record: not a name, expr: x}]}]")
    with pytest.raises(InputError, match="does not take the configuration"):
        prometheus.reload()
    assert prometheus.value("own:two") == 2
    prometheus.reload(before)


def test_one_that_cannot_start_says_why_and_one_that_is_stopped_is_gone(stack: Stack, tmp_path: Path) -> None:
    cache = Project(stack.checkout).cache_folder()
    with pytest.raises(ServerFailed, match="no_such_key"):
        start({"no_such_key": 1}, tmp_path / "wrong", cache=cache)
    running = start({"scrape_configs": []}, tmp_path / "right", cache=cache)
    pid = running.pid
    assert psutil.pid_exists(pid)
    running.stop()
    running.stop()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ServerFailed, match="not running"):
        _ = running.pid
