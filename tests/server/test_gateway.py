from __future__ import annotations

import http.client
import json
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brim.errors import InputError, ServerFailed
from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway, validate
from brim.gateway.envoy_config import envoy_config
from brim.gateway.limits import RequestLimits, request_limits
from brim.gateway.xds import Listen, Upstream
from brim.isolation.contract import read_contract
from brim.isolation.fuzz import FuzzPlan, run_fuzz
from brim.isolation.pool import make_pool
from brim.isolation.rows import random_rows
from brim.isolation.suite import Options, run_suite
from brim.isolation.waiting import waiting_requests
from brim.paths import Project
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.ports import choose_ports
from brim.service.load import find_services
from tests.conftest import Brim
from tests.server.settled import executed

IMAGE = np.zeros((1, 1, 8, 8), np.float32)
INFER = "/v2/models/image_classifier/infer"


@pytest.fixture(scope="module")
def gateway(shipped: EmbeddedServer, exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    limits = request_limits(find_services(exported.services, []))
    with Gateway(shipped.endpoint, log_file=tmp_path_factory.mktemp("gateway") / "envoy.log", limits=limits) as running:
        yield running
        # A fault in the filter would let the request pass.
        assert "script log" not in running.log_file.read_text()
    assert not leftovers.processes_of(running._prefix)


def asked(gateway: Gateway, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(gateway.endpoint.http, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def alive(server: EmbeddedServer, gateway: Gateway) -> bool:
    inputs = triton_http.InferInput("IMAGE", [1, 1, 8, 8], "FP32")
    inputs.set_data_from_numpy(IMAGE)
    with gateway.endpoint.http_client() as client:
        client.infer("image_classifier", [inputs])
    return server.how_it_ended() is None


def test_envoy_itself_takes_the_configuration() -> None:
    document = envoy_config(
        Upstream("127.0.0.1:1", "[::1]:2"), Listen("127.0.0.1", 3, 4, "127.0.0.1", 5), RequestLimits()
    )
    assert validate(document) == ""
    document["static_resources"]["clusters"][0]["no_such_field"] = 1
    assert "no_such_field" in validate(document)


def test_the_page_for_prometheus_offers_nothing_else(gateway: Gateway) -> None:
    for path in ("/quitquitquit", "/stats/prometheus", "/config_dump", "/metrics/../quitquitquit"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{gateway.metrics}{path}")
        assert caught.value.code == 404
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics") as answer:
        assert b"envoy_cluster_upstream_rq_active" in answer.read()


def test_an_envoy_that_others_start_gets_the_same_configuration(brim: Brim, tmp_path: Path) -> None:
    done = brim("gateway", "image_classifier", "--http", "triton:8000", "--grpc", "triton:8001", "--port", "1234")
    assert done.code == 0
    document = json.loads(done.out)
    assert validate(document) == ""
    clusters = {one["name"]: one for one in document["static_resources"]["clusters"]}
    assert clusters["triton/image_classifier"]["type"] == "STRICT_DNS"
    assert clusters["triton/image_classifier"]["health_checks"]
    file = tmp_path / "deploy" / "envoy.json"
    assert brim("gateway", "image_classifier", "--out", str(file)).code == 0
    static = {one["type"] for one in json.loads(file.read_text())["static_resources"]["clusters"]}
    assert static == {"STATIC"}
    wrong = brim("gateway", "--http", "http://triton", "--grpc", ":8001")
    assert wrong.code == 2
    assert "--http http://triton" in wrong.err and "--grpc :8001" in wrong.err


def test_the_deployed_configuration_is_that_of_the_service_files(brim: Brim, checkout: Path, tmp_path: Path) -> None:
    """docs/gateway.md has the command that makes it anew."""
    file = tmp_path / "envoy.json"
    upstream = ("--http", "tritonserver:8000", "--grpc", "tritonserver:8001")
    services = ("image_classifier", "text_embedding", "text_generation")
    assert brim("gateway", *services, *upstream, "--out", file).code == 0
    assert (checkout / "deploy" / "gateway" / "envoy.json").read_text() == file.read_text()


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_answers_are_those_of_the_server(shipped: EmbeddedServer, gateway: Gateway, rows: int) -> None:
    images = np.random.default_rng(rows).uniform(0, 16, (rows, 1, 8, 8)).astype(np.float32)
    answers = []
    for endpoint in (shipped.endpoint, gateway.endpoint):
        for module, client in ((triton_http, endpoint.http_client()), (triton_grpc, endpoint.grpc_client())):
            for binary in (True, False) if module is triton_http else (True,):
                tensor: Any = module.InferInput("IMAGE", list(images.shape), "FP32")
                tensor.set_data_from_numpy(images, **({} if module is triton_grpc else {"binary_data": binary}))
                answers.append(client.infer("image_classifier", [tensor]).as_numpy("PROBABILITIES"))
            client.close()
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=1e-6)


def test_a_stream_goes_on_after_a_message_that_was_refused(shipped: EmbeddedServer, gateway: Gateway) -> None:
    answers: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
    client = gateway.endpoint.grpc_client()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    try:
        for rows in (1, 100):
            images = np.random.default_rng(rows).uniform(0, 16, (rows, 1, 8, 8)).astype(np.float32)
            tensor = triton_grpc.InferInput("IMAGE", list(images.shape), "FP32")
            tensor.set_data_from_numpy(images)
            client.async_stream_infer("image_classifier", [tensor])
            result, error = answers.get(timeout=30)
            assert error is None
            assert result.as_numpy("PROBABILITIES").shape == (rows, 10)
            tensor._raw_content = tensor._raw_content[:-4]
            client.async_stream_infer("image_classifier", [tensor])
            result, error = answers.get(timeout=30)
            assert error is not None and "refused by the gateway: input IMAGE carries" in error.message()
    finally:
        client.stop_stream()
        client.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[2147483648,1,8,8],"data":[1]}]}',
        b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[4294967297,1,8,8],"data":[1]}]}',
        b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[9223372036854775807,1,8,8],"data":[1]}]}',
        b'{"inputs":' + b"[" * 250_000 + b"]" * 250_000 + b"}",
        b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[1,8589934592,8,8],"data":[1]}]}',
        b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[-1,1,8,8],"data":[1]}]}',
    ],
    ids=["2^31 rows", "2^32+1 rows", "2^63-1 rows", "250,000 brackets", "2^33 channels", "-1 rows"],
)
def test_what_ends_the_server_does_not_reach_it(shipped: EmbeddedServer, gateway: Gateway, body: bytes) -> None:
    status, text = asked(gateway, "POST", INFER, body)
    assert status == 400
    assert set(json.loads(text)) == {"error", "reason"}
    assert alive(shipped, gateway)


def test_refusals_have_the_code_of_their_protocol(gateway: Gateway) -> None:
    tensor = triton_grpc.InferInput("IMAGE", [1, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(IMAGE)
    tensor._raw_content = tensor._raw_content[:-4]
    client = gateway.endpoint.grpc_client()
    with pytest.raises(InferenceServerException, match="carries 252 bytes, its shape and type make 256") as caught:
        client.infer("image_classifier", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    client.close()
    assert asked(gateway, "POST", INFER, b"{}", content_encoding="gzip")[0] == 415


def test_an_error_with_a_long_text_does_not_end_the_connection_that_others_share(gateway: Gateway) -> None:
    """A caller's text in Triton's answer was a header too long for Envoy, which reset every call on the connection."""
    tensor = triton_grpc.InferInput("IMAGE", [1, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(IMAGE)
    client = gateway.endpoint.grpc_client()
    for parameters in ({f"sequence_{name}": "x" * 200_000 for name in "abc"}, {"triton_" + "x" * 4_000: 1}):
        for outputs in (None, [triton_grpc.InferRequestedOutput("y" * 4_000)]):
            message = triton_grpc._utils._get_inference_request(  # the client itself takes no such parameters
                "image_classifier", [tensor], "", "i" * 4_000, outputs, 0, False, False, 0, None, None
            )
            for key, value in parameters.items():
                message.parameters[key].string_param = str(value)
            with suppress(grpc.RpcError):
                client._client_stub.ModelInfer(message, timeout=30)
    client.close()
    with urllib.request.urlopen(f"http://{gateway.admin}/stats?filter=upstream_cx_protocol_error") as answer:
        assert {line.rpartition(":")[2].strip() for line in answer.read().decode().splitlines()} == {"0"}


def test_what_changes_the_server_is_not_offered(shipped: EmbeddedServer, gateway: Gateway) -> None:
    for method, path in (
        ("POST", "/v2/repository/models/image_classifier/unload"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/logging"),
        ("POST", f"{INFER}/"),
        ("POST", f"{INFER}/../../../repository/index"),
        ("PUT", INFER),
    ):
        status, text = asked(gateway, method, path, b"{}")
        assert (status, json.loads(text)["reason"]) == (404, "not_offered"), path
    client = gateway.endpoint.grpc_client()
    for call in (lambda: client.unload_model("image_classifier"), lambda: client.get_log_settings()):
        with pytest.raises(InferenceServerException, match="not offered") as caught:
            call()
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    client.close()
    assert alive(shipped, gateway)


def test_what_callers_read_is_offered(gateway: Gateway) -> None:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/image_classifier"):
        assert asked(gateway, "GET", path)[0] == 200
    for rest in ("/ready", "/config", "/stats", "/versions/1", "/versions/1/ready"):
        assert asked(gateway, "GET", f"/v2/models/image_classifier{rest}")[0] == 200
    client = gateway.endpoint.grpc_client()
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("image_classifier")
    assert client.get_server_metadata().name == "triton"
    assert client.get_model_metadata("image_classifier").name == "image_classifier"
    assert client.get_model_config("image_classifier").config.max_batch_size == 100
    assert client.get_inference_statistics("image_classifier").model_stats
    client.close()


def test_a_body_above_the_limit_is_refused(shipped: EmbeddedServer, tmp_path: Path) -> None:
    limits = RequestLimits(body_bytes=100_000)
    with Gateway(shipped.endpoint, log_file=tmp_path / "envoy.log", limits=limits) as small:
        status, text = asked(small, "POST", INFER, b"x" * 200_000)
        assert (status, json.loads(text)["reason"]) == (413, "too_large")
        channel = grpc.insecure_channel(small.endpoint.grpc)
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        # Bytes that are a message of unknown fields: nothing but its size is wrong with it.
        for size in (200_000, 3_000_000):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"x" * size, timeout=30)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == "Payload Too Large"
        with pytest.raises(grpc.RpcError) as caught:
            call(b"x" * 90_000, timeout=30)
        assert caught.value.details() != "Payload Too Large"
        channel.close()
        assert alive(shipped, small)


def test_a_header_that_ends_the_server_does_not_reach_it(shipped: EmbeddedServer, gateway: Gateway) -> None:
    for weight in ("1e999", "1e-999"):
        assert asked(gateway, "GET", "/v2", accept_encoding=f"gzip;q={weight}")[0] == 200
        body = (
            b'{"inputs":[{"name":"IMAGE","datatype":"FP32","shape":[1,1,8,8],"data":' + str([0] * 64).encode() + b"}]}"
        )
        assert asked(gateway, "POST", INFER, body, accept_encoding=f"gzip;q={weight}")[0] == 200
    assert alive(shipped, gateway)


def test_the_fuzz_with_all_that_is_known_to_end_the_server_hurts_nobody(
    shipped: EmbeddedServer, gateway: Gateway
) -> None:
    contract = read_contract(gateway.endpoint, "image_classifier")
    rows = random_rows(contract, 20, np.random.default_rng(0))
    pool = make_pool(gateway.endpoint, contract, rows, timeout_s=30.0, tolerance=1e-4)
    outcome = run_fuzz(gateway.endpoint, pool, FuzzPlan(bodies=400, seed=5, killers=True))
    assert outcome.troubles == ()
    assert not outcome.tally.hurt
    assert outcome.tally.sent > 800
    assert alive(shipped, gateway)


def test_no_lying_size_hurts_a_neighbour_behind_it(gateway: Gateway) -> None:
    for model in ("text_embedding", "image_classifier"):
        options = Options(requests=400, checks=("framing_neighbours", "malformed_neighbours"))
        for result in run_suite(gateway.endpoint, model, options):
            assert result.ok, f"{model}: {result.message}"
            assert result.own_error > 0
            assert (result.wrong, result.neighbour_errors, result.hung) == (0, 0, 0)


def test_the_bound_on_requests_in_flight_is_one_for_both_protocols(shipped: EmbeddedServer, tmp_path: Path) -> None:
    bound, callers, answers, most_tries = 5, 30, 3, 2_000
    counts: Counter[str] = Counter()
    seen: list[int] = []
    with Gateway(
        shipped.endpoint, log_file=tmp_path / "envoy.log", admitted={"text_embedding": Admission(in_flight=bound)}
    ) as narrow:

        def call(number: int) -> None:
            module, endpoint = ((triton_http, narrow.endpoint.http_client), (triton_grpc, narrow.endpoint.grpc_client))[
                number % 2
            ]
            client = endpoint()
            tensor: Any = module.InferInput("TEXT", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[b"some words to work on " * 20]], np.object_))
            answered = tries = 0
            while answered < answers and tries < most_tries:
                tries += 1
                try:
                    client.infer("text_embedding", [tensor])
                    answered += 1
                    counts[f"{module.__name__} answered"] += 1
                except InferenceServerException as error:
                    counts[f"{module.__name__} {error.status()} {error.message()}"] += 1
                    time.sleep(0.01)
            client.close()

        threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            seen.append(gauge(narrow, "upstream_rq_active"))
        text = "the model has as many requests in flight as it can answer in time"
        refused = {f"tritonclient.http 429 {text}", f"tritonclient.grpc StatusCode.RESOURCE_EXHAUSTED {text}"}
        assert set(counts) == refused | {"tritonclient.http answered", "tritonclient.grpc answered"}
        for module in ("http", "grpc"):
            assert counts[f"tritonclient.{module} answered"] == callers // 2 * answers
        assert max(seen) <= bound
        assert gauge(narrow, "upstream_rq_active") == 0
        counted = counters(narrow)
        assert sum(counted[key] for key in counted if key.reason == "queue_full") == sum(
            counts[name] for name in refused
        )
        answered = [key for key in counted if (key.code, key.grpc_status) in (("200", ""), ("200", "0"))]
        assert sum(counted[key] for key in answered) == callers * answers


class Series(NamedTuple):
    """The labels of one series of the gateway's own count of inferences."""

    model: str
    caller_class: str
    code: str
    grpc_status: str
    reason: str
    flags: str


def counters(gateway: Gateway) -> dict[Series, int]:
    """``envoy_brim_requests``: inferences that have ended."""
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics") as answer:
        page = answer.read().decode()
    found = {}
    for labels, value in re.findall(r"^envoy_brim_requests\{(.*)\} (\d+)$", page, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        named["caller_class"] = named.pop("class")
        found[Series(**named)] = int(value)
    return found


def gauge(gateway: Gateway, name: str) -> int:
    with urllib.request.urlopen(
        f"http://{gateway.admin}/stats?filter=^cluster.triton/text_embedding.{name}$"
    ) as answer:
        return int(answer.read().decode().rpartition(":")[2])


SLEEPER = """
import time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self._go = Path(args["model_repository"]) / "go"

    def execute(self, requests):
        values = [request.inputs()[0].as_numpy() for request in requests]
        held_until = time.monotonic() + (60 if min(values) < 0 else 0.4)
        while time.monotonic() < held_until and not (min(values) < 0 and self._go.exists()):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value)]) for value in values]
"""


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory, exported: Project) -> Iterator[EmbeddedServer]:
    """One instance, one request a batch: 0.4 s, or for a negative value until the file ``go`` is there."""
    folder = tmp_path_factory.mktemp("sleeper")
    model = folder / "models" / "sleeper"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(SLEEPER)
    (model / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 1\n'
        'input { name: "X" data_type: TYPE_FP32 dims: [1] } output { name: "Y" data_type: TYPE_FP32 dims: [1] }\n'
        "dynamic_batching {} instance_group { count: 1 kind: KIND_CPU }"
    )
    with EmbeddedServer(folder / "models", ["sleeper"], cache=exported.cache, log_file=folder / "triton.log") as server:
        yield server


def sleep_over_http(
    endpoint: Endpoint, *, timeout_ms: int | None = None, timeout_us: int | None = None
) -> tuple[int, str]:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    body = {"inputs": [tensor], "parameters": {} if timeout_us is None else {"timeout": timeout_us}}
    connection = http.client.HTTPConnection(endpoint.http, timeout=60)
    try:
        headers = {} if timeout_ms is None else {"X-Brim-Timeout-Ms": str(timeout_ms)}
        connection.request("POST", "/v2/models/sleeper/infer", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def sleep_over_grpc(
    endpoint: Endpoint, *, timeout_us: int | None = None, deadline_s: float | None = None, value: float = 1.0
) -> str:
    tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
    client = endpoint.grpc_client()
    try:
        client.infer("sleeper", [tensor], timeout=timeout_us, client_timeout=deadline_s)
        return "answered"
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    finally:
        client.close()


def test_the_callers_own_deadline_ends_its_wait(sleeper: EmbeddedServer, tmp_path: Path) -> None:
    late = "no answer before the deadline"
    with Gateway(sleeper.endpoint, log_file=tmp_path / "envoy.log") as gateway:
        endpoint = gateway.endpoint
        assert sleep_over_http(endpoint)[0] == 200
        assert sleep_over_http(endpoint, timeout_ms=30_000)[0] == 200
        for status, text in (sleep_over_http(endpoint, timeout_ms=50), sleep_over_http(endpoint, timeout_us=50_000)):
            assert (status, json.loads(text)) == (504, {"error": late, "reason": "deadline"})
        assert sleep_over_grpc(endpoint) == "answered"
        assert sleep_over_grpc(endpoint, timeout_us=50_000) == f"StatusCode.DEADLINE_EXCEEDED {late}"
        assert sleep_over_grpc(endpoint, deadline_s=0.05).startswith("StatusCode.DEADLINE_EXCEEDED")
        assert sleep_over_grpc(endpoint, deadline_s=30) == "answered"


def test_a_model_whose_callers_give_up_has_a_deadline_for_all(sleeper: EmbeddedServer, tmp_path: Path) -> None:
    admitted = {"sleeper": Admission(timeout_us=100_000)}
    with Gateway(sleeper.endpoint, log_file=tmp_path / "envoy.log", admitted=admitted) as gateway:
        assert sleep_over_http(gateway.endpoint)[0] == 504
        assert sleep_over_grpc(gateway.endpoint).startswith("StatusCode.DEADLINE_EXCEEDED")


def test_a_call_whose_deadline_passes_in_the_queue_is_not_executed(sleeper: EmbeddedServer, tmp_path: Path) -> None:
    """Over gRPC: Triton drops a cancelled call until it is in a batch. Over HTTP it notices nothing (server#7077)."""
    waiting = 10

    def pending() -> int:
        with urllib.request.urlopen(f"http://{sleeper.endpoint.metrics}/metrics") as page:
            return waiting_requests(page.read().decode(), "sleeper")

    # What earlier tests gave up over HTTP is behind this one.
    assert sleep_over_grpc(sleeper.endpoint) == "answered"
    before = executed(sleeper.endpoint, "sleeper")
    found: list[str] = []
    runs = threading.Thread(target=lambda: found.append(sleep_over_grpc(sleeper.endpoint, value=-1.0)))
    runs.start()
    admitted = {"sleeper": Admission(timeout_us=100_000)}
    with Gateway(sleeper.endpoint, log_file=tmp_path / "envoy.log", admitted=admitted) as gateway:
        late: list[str] = []
        threads = [
            threading.Thread(target=lambda: late.append(sleep_over_grpc(gateway.endpoint))) for _ in range(waiting)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [text.split()[0] for text in late] == ["StatusCode.DEADLINE_EXCEEDED"] * waiting
    (sleeper.repository / "sleeper" / "go").touch()
    runs.join()
    assert found == ["answered"]
    # One more waits behind all that Triton still holds.
    assert sleep_over_grpc(sleeper.endpoint) == "answered"
    assert pending() == 0
    # The one that ran, two payloads that Triton had already taken out of the queue, and the last.
    assert executed(sleeper.endpoint, "sleeper") - before <= 4


def test_a_server_that_is_gone_is_an_answer(tmp_path: Path, shipped: EmbeddedServer) -> None:
    free = choose_ports("127.0.0.1", {"http": None, "grpc": None})
    nobody = Endpoint(http=f"127.0.0.1:{free['http']}", grpc=f"127.0.0.1:{free['grpc']}")
    with Gateway(nobody, log_file=tmp_path / "envoy.log") as lonely:
        status, text = asked(lonely, "GET", "/v2/health/ready")
        assert (status, json.loads(text)["reason"]) == (503, "unavailable")
        client = lonely.endpoint.grpc_client()
        with pytest.raises(InferenceServerException) as caught:
            client.is_server_ready()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        client.close()
        assert psutil.pid_exists(pid := lonely.pid)
    assert not psutil.pid_exists(pid)
    assert not leftovers.processes_of(lonely._prefix)
    with pytest.raises(ServerFailed):
        _ = lonely.endpoint


def test_a_port_that_is_taken_is_named(gateway: Gateway, shipped: EmbeddedServer, tmp_path: Path) -> None:
    port = int(gateway.endpoint.http.rpartition(":")[2])
    with (
        pytest.raises(InputError, match=f"gateway port {port}"),
        Gateway(shipped.endpoint, log_file=tmp_path / "envoy.log", port=port),
    ):
        pass
