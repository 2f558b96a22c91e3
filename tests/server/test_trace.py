from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from brim.errors import InputError
from brim.gateway.access_log import AccessLog
from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway
from brim.measure.known_time import INPUT, WIDTH, KnownTime, write_known_time
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.options import ServerOptions
from brim.service.schema import Tracing
from brim.trace.callers import call_all, tensor_requests
from brim.trace.run import Run, new_prefix, trace
from brim.trace.switch import followed_all
from brim.trace.waterfall import TENSOR_WAY
from tests.conftest import Brim

MODEL = "known_time"
ROWS = [{INPUT: np.full((1, WIDTH), number, np.float32)} for number in range(4)]
KNOWN = [part for _, part in TENSOR_WAY if part]
PATIENCE_S = 60


class Served(NamedTuple):
    server: EmbeddedServer
    folder: Path


def serve(repository: Path, folder: Path, models: Sequence[str], **options: Any) -> EmbeddedServer:
    return EmbeddedServer(
        repository,
        list(models),
        cache=Path(options.pop("cache")),
        log_file=folder / "triton.log",
        canaries={MODEL: ROWS[0]},
        options=ServerOptions(exit_timeout_s=1, **options),
    )


@pytest.fixture(scope="module")
def served(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that takes 40 ms a batch, and a shipped one, on a server that can be told to follow requests."""
    folder = tmp_path_factory.mktemp("trace")
    repository = folder / "models"
    write_known_time(repository, MODEL, KnownTime(tau0_us=40_000, alpha_us=0.0))
    shutil.copytree(exported.model_repository / "image_classifier", repository / "image_classifier")
    models = [MODEL, "image_classifier"]
    with serve(repository, folder, models, cache=exported.cache, trace_file=folder / "trace.json") as server:
        yield Served(server, folder)


def followed(served: Served, name: str, requests: int, concurrency: int, admission: Admission | None = None) -> Run:
    prefix = new_prefix()
    access = AccessLog(served.folder / f"{name}.access", prefix)
    log = served.folder / f"{name}.log"
    admitted = {MODEL: admission or Admission()}
    with Gateway(served.server.endpoint, log_file=log, admitted=admitted, access=access) as gateway:
        return trace(
            served.server.endpoint,
            gateway.endpoint.http,
            MODEL,
            ROWS,
            requests=requests,
            concurrency=concurrency,
            timeout_s=PATIENCE_S,
            prefix=prefix,
            access=access,
        )


def test_every_request_is_found_in_the_batch_that_it_was_in(served: Served) -> None:
    run = followed(served, "all", requests=60, concurrency=20)
    assert [one.call.request_id for one in run.traced] == [f"{run.prefix}{number}" for number in range(60)]
    assert all(one.call.outcome == "right" and one.told and one.told.in_order for one in run.traced), run.as_json()
    # In one batch each, in those that Triton counts; and callers that wait together share some.
    members = [member for batch in run.batches for member in batch.members]
    assert sorted(members) == sorted(one.call.request_id for one in run.traced)
    assert run.agrees is True, run.as_json()
    assert max(len(batch.members) for batch in run.batches) > 1
    for one in run.traced:
        assert [part.name for part in one.way.parts] == KNOWN
        assert sum(part.took_us for part in one.way.parts) == one.way.took_us
        assert one.way.took_us == round((one.call.answered_ns - one.call.sent_ns) / 1_000)
        computed = {part.name: part.took_us for part in one.way.parts}["compute"]
        assert computed >= 40_000
        (batch,) = one.batches
        assert one.call.request_id in batch.members


def test_the_server_follows_nobody_afterwards(served: Served) -> None:
    followed(served, "afterwards", requests=3, concurrency=1)
    there = sorted(served.folder.glob("trace.json.*"))
    assert there
    with served.server.endpoint.http_client() as client:
        settings = client.get_trace_settings(MODEL)
        assert settings == client.get_trace_settings()
        assert settings["trace_level"] == ["OFF"]
    call_all(served.server.endpoint.http, tensor_requests(MODEL, ROWS, ["x-1"]), 1, PATIENCE_S)
    assert sorted(served.folder.glob("trace.json.*")) == there
    assert "x-1" not in "".join(path.read_text() for path in there)


def test_a_refusal_is_shown_with_its_reason(served: Served) -> None:
    run = followed(served, "refused", requests=12, concurrency=12, admission=Admission(in_flight=1))
    refused = [one for one in run.traced if one.call.outcome == "refused"]
    assert refused
    assert {one.refused_for for one in refused} == {"queue_full"}
    assert all(one.batches == () and one.told is None for one in refused)
    assert all([part.name for part in one.way.parts] == ["to_gateway", "refused", "to_caller"] for one in refused)
    assert run.agrees is True
    assert run.way_as_json(refused[0])["status"] == 429


def test_who_is_given_up_is_shown_until_then(served: Served) -> None:
    run = followed(served, "late", requests=1, concurrency=1, admission=Admission(timeout_us=10_000))
    (late,) = run.traced
    assert (late.call.outcome, late.refused_for) == ("expired", "deadline")
    assert "given_up" in [part.name for part in late.way.parts]
    assert sum(part.took_us for part in late.way.parts) == late.way.took_us


def test_other_callers_are_counted_and_not_told(served: Served) -> None:
    stop = threading.Event()

    def somebody(pause_s: float) -> None:
        # Out of step with each other and with the run: who waits for a whole batch in step never shares one.
        while not stop.wait(pause_s):
            call_all(served.server.endpoint.http, tensor_requests(MODEL, ROWS, ['some"body']), 1, PATIENCE_S)

    threads = [threading.Thread(target=somebody, args=(number / 97,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    try:
        run = followed(served, "others", requests=60, concurrency=10)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    told = run.as_json()
    assert sum(batch["others"] for batch in told["batches"]) > 0
    assert told["agrees_with_batch_stats"] is None
    assert "some" not in json.dumps([told, *map(run.way_as_json, run.traced)])


def test_the_command_on_a_server_that_runs(
    served: Served, exported: Project, brim: Brim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    url = f"http://{served.server.endpoint.http}"
    asked = ("trace", "image_classifier", "--url", url, "--requests", "20", "--concurrency", "4")
    done = brim(*asked, "--request-id", "7", "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)["data"]
    assert data["followed"] == data["requests"] == 20
    assert data["agrees_with_batch_stats"] is True
    assert data["request"]["request_id"].endswith("-7")
    # No gateway between, which is all that nobody tells of.
    assert {"queue", "compute", "unaccounted"} <= {part["name"] for part in data["request"]["parts"]}
    assert json.loads(Path(data["files"]["trace"]).read_text())["traceEvents"]
    assert data["request"]["request_id"] in Path(data["files"]["waterfall"]).read_text()
    wrong = brim(*asked, "--request-id", "brim-trace-of-another-run-1")
    assert wrong.code == 2
    assert "no request of this run has that id" in wrong.err


def test_a_request_keeps_its_id_and_loses_its_trace_context_on_the_way(tmp_path: Path, collector: Collector) -> None:
    address = f"127.0.0.1:{collector.server_port}"
    with Gateway(Endpoint(address, address), log_file=tmp_path / "gateway.log", untraced=True) as gateway:
        context = {"traceparent": f"00-{'a' * 32}-{'c' * 16}-01", "tracestate": "a=b"}
        assert ask_with(gateway.endpoint, {"x-request-id": "my own", **context}) == 200
        assert ask_with(gateway.endpoint, {}) == 200
    own, given = collector.headers
    assert own["x-request-id"] == "my own"
    assert given["x-request-id"]
    assert not context.keys() & own.keys()


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.headers: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Taking)

    def has(self, text: str) -> bool:
        return any(text in one for one in self.taken)


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append(f"{self.path} {self.headers['Content-Type']} {body!r} {body.hex()}")
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join(PATIENCE_S)


def ask_with(endpoint: Endpoint, headers: Mapping[str, str]) -> int:
    line = http.client.HTTPConnection(endpoint.http, timeout=PATIENCE_S)
    body = {"inputs": [{"name": INPUT, "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}]}
    try:
        line.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(body), dict(headers))
        return line.getresponse().status
    finally:
        line.close()


def test_a_collector_gets_the_callers_own_trace_only_through_a_gateway_that_lets_it(
    exported: Project, tmp_path: Path, collector: Collector
) -> None:
    write_known_time(tmp_path / "models", MODEL, KnownTime(tau0_us=1_000, alpha_us=0.0))
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    tracing = Tracing(mode="opentelemetry", rate=1_000_000, endpoint=endpoint)
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    hidden, wanted = "a" * 32, "b" * 32
    with (
        serve(
            tmp_path / "models", tmp_path, [MODEL], cache=exported.cache, tracing=tracing, extra_environment=soon
        ) as server,
        Gateway(server.endpoint, log_file=tmp_path / "hides.log", untraced=True) as hides,
        Gateway(server.endpoint, log_file=tmp_path / "lets.log") as lets,
    ):
        with pytest.raises(InputError, match="collector"), followed_all(server.endpoint, MODEL):
            pass
        assert ask_with(hides.endpoint, {"traceparent": f"00-{hidden}-{'c' * 16}-01"}) == 200
        assert ask_with(lets.endpoint, {"traceparent": f"00-{wanted}-{'c' * 16}-01"}) == 200
        deadline = time.monotonic() + PATIENCE_S
        while not collector.has(wanted) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert collector.has(wanted)
    assert not collector.has(hidden)
    assert collector.taken[0].startswith("/v1/traces ")
    assert all(collector.has(event) for event in ("QUEUE_START", "COMPUTE_START", MODEL))
