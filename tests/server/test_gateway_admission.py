"""Classes, tenants, leavers and health at the gateway, before the real server and a model of known batch time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brim.gateway.admission import Admission, ClassBounds
from brim.gateway.envoy import Gateway
from brim.measure.known_time import KnownTime, write_known_time
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.service.schema import BatchTime, TenantRate
from tests.server.settled import executed
from tests.server.test_gateway import counters

MODEL, BATCH_US, BOUND = "known", 300_000, 20
ROW = np.zeros((1, 4), np.float32)
TIME = BatchTime(tau0_us=BATCH_US, alpha_us=0)
INFER = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}]})


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("known")
    write_known_time(folder / "models", MODEL, KnownTime(tau0_us=BATCH_US, alpha_us=0))
    cache = Project(checkout).cache
    with EmbeddedServer(folder / "models", [MODEL], cache=cache, log_file=folder / "triton.log") as running:
        yield running


def behind(server: EmbeddedServer, folder: Path, **bounds: object) -> Gateway:
    admitted = {MODEL: Admission(max_rows=10, batch_time=TIME, **bounds)}  # type: ignore[arg-type]
    return Gateway(server.endpoint, log_file=folder / "envoy.log", admitted=admitted)


def ask(gateway: Gateway, protocol: Protocol, headers: dict[str, str]) -> str:
    module = triton_http if protocol is Protocol.HTTP else triton_grpc
    tensor = module.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(ROW)
    endpoint = gateway.endpoint
    client = endpoint.http_client() if protocol is Protocol.HTTP else endpoint.grpc_client()
    try:
        client.infer(MODEL, [tensor], headers=dict(headers))  # the HTTP client adds to them
        return "answered"
    except InferenceServerException as error:
        return f"{error.status()}"
    finally:
        client.close()


def at_once(gateway: Gateway, callers: list[dict[str, str]]) -> list[str]:
    """Outcomes of callers over both protocols, in the order of their headers."""
    with ThreadPoolExecutor(len(callers)) as pool:
        return list(pool.map(lambda one: ask(gateway, list(Protocol)[one[0] % 2], one[1]), enumerate(callers)))


def refused(outcomes: list[str]) -> int:
    return sum(outcome in ("429", "StatusCode.RESOURCE_EXHAUSTED") for outcome in outcomes)


def test_less_important_callers_are_refused_before_others(server: EmbeddedServer, tmp_path: Path) -> None:
    classes = (ClassBounds("page", 1, BOUND), ClassBounds("nightly", 2, BOUND // 2))
    with behind(server, tmp_path, in_flight=BOUND, classes=classes) as gateway:
        alone = at_once(gateway, [{"x-brim-class": "nightly"}] * 40)
        assert refused(alone) + alone.count("answered") == 40
        assert alone.count("answered") >= BOUND // 2
        # The important ones fill all of it; that they come in at the same time as others costs none of them its place.
        mixed = at_once(gateway, [{"x-brim-class": "page"}, {"x-brim-class": "nightly"}] * 10)
        assert mixed[::2] == ["answered"] * 10
        by_class = Counter[str]()
        for series, count in counters(gateway).items():
            assert series.model == MODEL
            by_class[f"{series.caller_class} {series.reason}".strip()] += count
        assert by_class["nightly shed"] == refused(alone) + refused(mixed)
        assert set(by_class) <= {"page", "nightly", "nightly shed"}
        assert by_class.total() == 60


def test_a_tenant_that_sends_too_much_is_refused_alone(server: EmbeddedServer, tmp_path: Path) -> None:
    rate = TenantRate(rate_per_s=1, burst=5)
    with behind(server, tmp_path, tenant_rate=rate) as gateway:
        outcomes = at_once(gateway, [{"x-brim-tenant": "loud"}] * 20 + [{"x-brim-tenant": "quiet"}] * 4 + [{}] * 4)
        assert outcomes[20:] == ["answered"] * 8
        assert 5 <= outcomes[:20].count("answered") < 20
        assert refused(outcomes) == 20 - outcomes[:20].count("answered")
        reasons = Counter[str]()
        for series, count in counters(gateway).items():
            reasons[series.reason] += count
        assert reasons == {"": outcomes.count("answered"), "tenant_rate": refused(outcomes)}


def test_http_callers_that_leave_at_once_do_not_fill_the_servers_queue(server: EmbeddedServer, tmp_path: Path) -> None:
    """Triton executes them all the same: more of them than are let in would be a queue without a bound."""
    before, leavers = executed(server.endpoint, MODEL), 10_000
    with behind(server, tmp_path, in_flight=BOUND) as gateway:
        begun = time.monotonic()
        for _ in range(leavers):
            connection = http.client.HTTPConnection(gateway.endpoint.http, timeout=30)
            connection.request("POST", f"/v2/models/{MODEL}/infer", INFER)
            connection.close()
        batches = (time.monotonic() - begun) * 1_000_000 / BATCH_US
        while ask(gateway, Protocol.HTTP, {}) != "answered":
            assert time.monotonic() - begun < 60
        assert executed(server.endpoint, MODEL) - before <= BOUND + (batches + 1) * 10 + BOUND
        assert refused([ask(gateway, Protocol.GRPC, {})]) == 0


def test_a_model_that_answers_no_canary_is_not_ready(server: EmbeddedServer, tmp_path: Path) -> None:
    def get(gateway: Gateway, method: str, path: str, body: str | None = None) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(gateway.endpoint.http, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.getheader("x-brim-reason")
        finally:
            connection.close()

    ready, infer = f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/infer"
    with Gateway(
        server.endpoint,
        log_file=tmp_path / "envoy.log",
        admitted={MODEL: Admission(max_rows=10)},
        canaries={MODEL: {"X": ROW}},
    ) as gateway:
        assert get(gateway, "GET", ready) == get(gateway, "POST", infer, INFER) == (200, None)
        for stub in server.living_stubs():
            os.kill(stub.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while get(gateway, "GET", ready) != (503, "unavailable"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert get(gateway, "POST", infer, INFER) == (503, "unavailable")
