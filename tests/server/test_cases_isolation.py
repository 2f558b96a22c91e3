"""Cases restated from public reports, against the real server with the adapter that every shipped model uses."""

from __future__ import annotations

import json
import runpy
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2

from brim.isolation.exchange import exchange
from brim.isolation.known_batches import DELAY, Queue, load_anew
from brim.isolation.request import Came, Leaving, Request
from brim.isolation.waiting import waiting_requests
from brim.isolation.wire import HttpMessage, WireTensor, grpc_message, http_message
from brim.measure import batch_stats
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions
from tests.server import adapter_models as models
from tests.server.settled import settled_totals

PATIENCE_S = 60.0
DELAY_US = 300_000
"""Long enough that requests sent at once share a batch."""
HTTP, GRPC = Protocol.HTTP, Protocol.GRPC


SLOW = """
import pathlib
import time
import urllib.request

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        wanted = [x for one, x in zip(requests, arrays) if not one.is_cancelled()]
        for name, some in (("given", arrays), ("wanted", wanted)):
            with (self.folder / name).open("a") as rows:
                rows.writelines(f"{x.item():g}\\n" for x in some)
        deadline = time.monotonic() + 30
        while not (self.folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x + 1)]) for x in arrays]
"""
SLOW_CONFIG = """
name: "slow"
backend: "python"
max_batch_size: 100
input [ { name: "X" data_type: TYPE_FP32 dims: [1] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [1] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
"""


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("cases")
    repository = folder / "models"
    models.add_linear(repository, DELAY_US)
    models.add_identity(repository, "strings", "STRING", TensorProto.STRING, 1)
    models.add_identity(repository, "flags", "BOOL", TensorProto.BOOL, 4)
    models.add_identity(repository, "half", "FP16", TensorProto.FLOAT16, 2)
    models.add_sum_of_two(repository)
    add_variable(repository)
    add_slow(repository)
    names = ["linear", "strings", "flags", "half", "two", "variable", "slow"]
    with EmbeddedServer(repository, names, cache=Project(checkout).cache, log_file=folder / "server.log") as running:
        yield running


def add_variable(repository: Path) -> None:
    """``variable``: what comes in goes out, FP32 of any length."""
    sizes = ["rows", "length"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["X"], ["Y"])],
        "variable",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, sizes)],
    )
    models.add_model(repository, "variable", graph, [("X", "FP32", [-1])], [("Y", "FP32", [-1])])


def add_slow(repository: Path) -> None:
    """``slow``: y = 2x + 1, notes every row that it is given and whose caller waits; a run lasts until ``go`` is there."""
    version = repository / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(SLOW, encoding="utf-8")
    (version.parent / "config.pbtxt").write_text(SLOW_CONFIG, encoding="utf-8")
    (version.parent / "go").touch()


def ask(server: EmbeddedServer, *requests: Request) -> list[Came]:
    """All at once, each over a connection of its own; what each got."""
    came: dict[int, Came] = {}
    exchange(
        server.endpoint,
        [replace(one, breaks=True) for one in requests],
        callers=len(requests),
        timeout_s=PATIENCE_S,
        prefix="case",
        on_came=lambda number, request, request_id, what: came.__setitem__(number, what),
    )
    return [came[number] for number in range(len(requests))]


FOUR = np.array([1, 2, 3, 4], "<f4").tobytes()


def tensor(name: str, datatype: str, shape: Sequence[int], data: bytes) -> WireTensor:
    return WireTensor(name, datatype, tuple(shape), data)


def as_json(model: str, *inputs: Mapping[str, Any], **more: Any) -> Request:
    body = json.dumps({"inputs": inputs, **more}).encode()
    return Request(model, HTTP, raw=HttpMessage(body, {"Content-Type": "application/json"}))


def both(model: str, *tensors: WireTensor) -> list[Request]:
    return [Request(model, protocol, tensors=tensors) for protocol in Protocol]


def described(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}


def with_output(model: str, name: str, *tensors: WireTensor) -> list[Request]:
    message = http_message(tensors, "")
    length = int(message.headers["Inference-Header-Content-Length"])
    head = json.dumps({**json.loads(message.body[:length]), "outputs": [{"name": name}]}).encode()
    sent = service_pb2.ModelInferRequest.FromString(grpc_message(model, tensors, ""))
    sent.outputs.add(name=name)
    return [
        Request(
            model,
            HTTP,
            raw=HttpMessage(head + message.body[length:], {"Inference-Header-Content-Length": str(len(head))}),
        ),
        Request(model, GRPC, raw=sent.SerializeToString()),
    ]


def case_24() -> dict[str, list[Request]]:
    """Id of the line -> the requests that restate it: over HTTP as JSON or binary, and over gRPC."""
    x = tensor("X", "FP32", [1, 4], FOUR)

    def rows(name: str, count: int) -> WireTensor:
        return tensor(name, "FP32", [count, 4], FOUR * count)

    def text(data: str) -> list[Request]:
        return both("strings", tensor("IN", "BYTES", [1, 1], bytes.fromhex(data)))

    return {
        "a_fp64_bytes": both("linear", replace(x, data=np.array([1, 2, 3, 4], "<f8").tobytes())),
        "b_fp64_declared": [
            as_json("linear", described("X", "FP64", [1, 4], [1, 2, 3, 4])),
            *both("linear", replace(x, datatype="FP64", data=np.array([1, 2, 3, 4], "<f8").tobytes())),
        ],
        "c_fp16_json": [as_json("half", described("IN", "FP16", [1, 2], [1, 2]))],
        "d_huge_shape": [
            as_json("linear", described("X", "FP32", [1 << 62, 4], [])),
            *both("linear", replace(x, shape=(1 << 62, 4), data=b"")),
        ],
        "e_mul_overflow": [
            as_json("variable", described("X", "FP32", [1 << 32, 1 << 32], [])),
            *both("variable", replace(x, shape=(1 << 32, 1 << 32), data=b"")),
        ],
        "f_negative_dim": [
            as_json("linear", described("X", "FP32", [-1, 4], [1, 2, 3, 4])),
            *both("linear", replace(x, shape=(-1, 4))),
        ],
        "g_batch_101": [
            as_json("linear", described("X", "FP32", [101, 4], [0] * 404)),
            *both("linear", rows("X", 101)),
        ],
        "h_batch_0": [
            as_json("linear", described("X", "FP32", [0, 4], [])),
            *both("linear", replace(x, shape=(0, 4), data=b"")),
        ],
        "i_rank": [
            as_json("linear", described("X", "FP32", [4], [1, 2, 3, 4])),
            *both("linear", replace(x, shape=(4,))),
        ],
        "j_unequal_batches": both("two", rows("X", 3), rows("W", 4)),
        "k_bytes_lying_prefix": text("e803000068656c6c6f"),
        "l_bytes_no_prefix": text("68656c6c6f"),
        "m_bytes_two_for_one": text("01000000610100000062"),
        "n_bytes_nul": text("03000000610000"),
        "o_missing_input": both("two", x),
        "p_unknown_output": with_output("linear", "NOPE", x),
        "q_bool_values": both("flags", tensor("IN", "BOOL", [1, 4], bytes([0, 1, 2, 255]))),
    }


WORDS = {
    "a_fp64_bytes": ["32", "16"],
    "b_fp64_declared": ["FP64", "FP32"],
    "c_fp16_json": ["binary"],
    "g_batch_101": ["100"],
    "h_batch_0": ["X"],
    "i_rank": ["batch"],
    "j_unequal_batches": ["batch"],
    "m_bytes_two_for_one": ["1", "2"],
    "o_missing_input": ["W"],
    "p_unknown_output": ["NOPE"],
    "q_bool_values": ["bool_value", "255"],
}
"""Beyond the case's own words: zero rows and BOOL bytes other than 0 and 1 are refused, which is what is documented."""
LINES = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"]


def line(cases: Path, letter: str) -> dict[str, Any]:
    lines = (cases / "24_tensors.jsonl").read_text(encoding="utf-8").splitlines()
    (found,) = [one for one in map(json.loads, lines) if one["id"].startswith(f"{letter}_")]
    return found


@pytest.mark.parametrize("letter", LINES)
def test_wrong_contents_get_their_own_client_error(server: EmbeddedServer, cases: Path, letter: str) -> None:
    case = line(cases, letter)
    words = WORDS.get(case["id"], [])
    assert set(case.get("must_say", [])) <= set(words)
    for request in case_24()[case["id"]]:
        (came,) = ask(server, request)
        if case["expect_status"] == 200:
            assert came.outputs is not None and came.outputs["OUT"].tolist() == [[b"a\x00\x00"]]
            continue
        if letter == "f" and request.protocol is HTTP:
            # Triton's own JSON reader answers before any code of ours is asked.
            assert came.status == "500" and "non-unsigned-integer" in came.error
            continue
        assert came.status == ("400" if request.protocol is HTTP else "INVALID_ARGUMENT"), came
        assert all(word in came.error for word in words), came.error
        if request.protocol is HTTP:
            assert set(json.loads(came.error)) == {"error"}


def test_all_lines_of_the_case_are_sent(cases: Path) -> None:
    lines = (cases / "24_tensors.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(one)["id"] for one in lines] == list(case_24())
    assert [one["id"][0] for one in map(json.loads, lines)] == LINES


HELD_BACK = 7


@pytest.fixture(scope="module")
def held_back(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that runs nothing of a model, after each load, before seven requests wait."""
    folder = tmp_path_factory.mktemp("held-back")
    models.add_linear(folder / "models")
    add_sum_of_no_negatives(folder / "models")
    with EmbeddedServer(
        folder / "models",
        [],
        cache=Project(checkout).cache,
        log_file=folder / "server.log",
        options=ServerOptions(extra_environment={DELAY: str(HELD_BACK)}),
    ) as running:
        yield running


def add_sum_of_no_negatives(repository: Path) -> None:
    """``sums``: the sum of each row of four; the run fails when any element of any row is negative."""
    constants = [
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0]),
        helper.make_tensor("far", TensorProto.FLOAT, [], [1000]),
        helper.make_tensor("table", TensorProto.FLOAT, [1], [0]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["X", "axis"], ["sum"], keepdims=1),
        helper.make_node("Min", ["X", "zero"], ["negative"]),
        helper.make_node("ReduceSum", ["negative", "axis"], ["below"], keepdims=1),
        helper.make_node("Mul", ["below", "far"], ["outside"]),
        helper.make_node("Cast", ["outside"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["nothing"]),
        helper.make_node("Add", ["sum", "nothing"], ["Y"]),
    ]
    rows = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size]) for name, size in (("X", 4), ("Y", 1))
    ]
    graph = helper.make_graph(nodes, "sums", rows[:1], rows[1:], constants)
    models.add_model(repository, "sums", graph, [("X", "FP32", [4])], [("Y", "FP32", [1])])


def in_known_batches(
    server: EmbeddedServer, model: str, requests: Sequence[Request]
) -> tuple[list[Came], dict[int, int]]:
    """Seven requests that wait in this order when the batcher begins; what each got, and the batches by size."""
    assert len(requests) == HELD_BACK
    load_anew(server.endpoint, model)
    queue = Queue(server.endpoint, model)
    came: dict[int, Came] = {}
    before = settled_totals(server.endpoint, model)
    exchange(
        server.endpoint,
        requests,
        callers=HELD_BACK,
        timeout_s=PATIENCE_S,
        prefix="known",
        on_came=lambda number, request, request_id, what: came.__setitem__(number, what),
        gate=queue.wait_for_all_sent,
    )
    after = settled_totals(server.endpoint, model)
    assert not queue.trouble
    sizes = batch_stats.difference(before, after, instances=1).executions_by_size
    return [came[number] for number in range(HELD_BACK)], sizes


def rows_of(model: str, array: np.ndarray[Any, Any], protocol: Protocol, *, as_json: bool = False) -> Request:
    x = tensor("X", "FP32", array.shape, array.astype("<f4").tobytes())
    return Request(model, protocol, tensors=(x,), as_json=as_json)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_large_and_small_requests_in_turn(held_back: EmbeddedServer, cases: Path, protocol: Protocol) -> None:
    case = json.loads((cases / "20_batch_sizes.json").read_text(encoding="utf-8"))
    sent = []
    for index, size in enumerate(case["send_in_order_one_instance"]):
        r, c = np.mgrid[0:size, 0:4]
        sent.append((1000 * index + r + c / 8).astype(np.float32))
    came, sizes = in_known_batches(held_back, "linear", [rows_of("linear", x, protocol) for x in sent])
    assert sizes == {100: 3, 3: 1, 60: 1}
    for x, one in zip(sent, came, strict=True):
        assert one.outputs is not None and np.array_equal(one.outputs["Y"], 2 * x + 1)


@pytest.mark.parametrize(("order", "size"), [("ABC", 1), ("CBA", 1), ("BAC", 88)])
def test_a_bad_request_of_any_size_in_the_same_batch(
    held_back: EmbeddedServer, cases: Path, order: str, size: int
) -> None:
    case = runpy.run_path(str(cases / "21_poison_row_model.py"))
    bad = np.ones((size, 4), np.float32)
    bad[size // 2] = case["REQUESTS"]["B"][0]
    rows = {**case["REQUESTS"], "B": bad}
    others = [rows_of("sums", np.full((1, 4), number, np.float32), HTTP) for number in range(HELD_BACK - 3)]
    sent = [rows_of("sums", rows[name], protocol) for name, protocol in zip(order, (GRPC, HTTP, GRPC), strict=True)]
    came, sizes = in_known_batches(held_back, "sums", [*sent, *others])
    assert sizes == {size + 9: 1}
    found = dict(zip(order, came, strict=False))
    for name in "AC":
        assert found[name].outputs is not None, found[name].error
        assert found[name].outputs["Y"].tolist() == case["EXPECT"][name]
    assert found["B"].status in ("500", "INTERNAL") and "incident" in found["B"].error
    assert [one.outputs["Y"].item() for one in came[3:] if one.outputs] == [0, 4, 8, 12]


def test_values_that_are_not_finite_are_their_own_callers_error(held_back: EmbeddedServer, cases: Path) -> None:
    lines = (cases / "22_nan_requests.jsonl").read_text(encoding="utf-8").splitlines()
    case = {one["id"]: one for one in map(json.loads, lines)}

    def row(name: str) -> np.ndarray[Any, Any]:
        return np.array([[float(value) for value in case[name]["x"]]], np.float32)

    n1, n2 = rows_of("linear", row("n1"), GRPC), rows_of("linear", row("n2"), GRPC)
    n3 = rows_of("linear", row("n3"), HTTP, as_json=True)
    n4 = replace(n2, protocol=HTTP, tensors=rows_of("linear", row("n4"), HTTP).tensors)
    n5 = Request("linear", HTTP, raw=HttpMessage(case["n5"]["raw"].encode(), {"Content-Type": "application/json"}))
    alone, sizes = in_known_batches(held_back, "linear", [n1, n3] + [rows_of("linear", row("n1"), GRPC)] * 5)
    together, sizes = in_known_batches(held_back, "linear", [n1, n2, n3, n4, n5, n1, n3])
    assert sizes == {7: 1}
    for number, solo in ((0, 0), (2, 1), (5, 0), (6, 1)):
        got, want = together[number].outputs, alone[solo].outputs
        assert got is not None and want is not None and got["Y"].tobytes() == want["Y"].tobytes()
    for refused, status in zip(together[1:5:1], ("INVALID_ARGUMENT", None, "400", "400"), strict=True):
        if status is None:
            continue
        assert refused.status == status and "[non_finite]" in refused.error
        if status == "400":
            assert "non_finite" in json.loads(refused.error)["error"]


def begin_anew(folder: Path) -> None:
    for name in ("go", "given", "wanted"):
        (folder / name).unlink(missing_ok=True)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def waiting(server: EmbeddedServer) -> int:
    with urllib.request.urlopen(f"http://{server.endpoint.metrics}/metrics", timeout=PATIENCE_S) as answer:
        return waiting_requests(answer.read().decode(), "slow")


def one_row(value: float, protocol: Protocol, leaving: Leaving | None = None) -> Request:
    x = tensor("X", "FP32", [1, 1], np.array([value], "<f4").tobytes())
    return Request("slow", protocol, tensors=(x,), leaving=leaving, leaves_after_us=1_000_000 if leaving else 0)


@pytest.mark.parametrize(
    ("leaving", "noticed"),
    [(Leaving.CANCEL, True), (Leaving.CLOSE, False), (Leaving.RESET, False)],
)
def test_a_caller_that_leaves_while_it_waits(server: EmbeddedServer, leaving: Leaving, noticed: bool) -> None:
    """A runs, B and C wait, B leaves. Over gRPC a model that asks can drop its row; over HTTP Triton does not notice."""
    folder = server.repository / "slow"
    begin_anew(folder)
    protocol = GRPC if leaving is Leaving.CANCEL else HTTP
    came: dict[str, Came] = {}

    def caller(name: str, request: Request) -> threading.Thread:
        thread = threading.Thread(target=lambda: came.__setitem__(name, ask(server, request)[0]), daemon=True)
        thread.start()
        return thread

    threads = [caller("A", one_row(1, HTTP))]
    try:
        until(lambda: (folder / "given").exists(), "A never ran")
        threads.append(caller("B", one_row(2, protocol, leaving)))
        until(lambda: waiting(server) >= 1, "B never waited")
        threads.append(caller("C", one_row(3, GRPC)))
        until(lambda: waiting(server) == 2, "C never waited beside B")
        until(lambda: "B" in came, "B never left")
    finally:
        (folder / "go").touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert came["B"].left
    assert [came[name].outputs["Y"].item() for name in "AC" if came[name].outputs] == [3, 7]
    until(lambda: waiting(server) == 0, "B's place in the queue was never freed")
    (again,) = ask(server, one_row(4, HTTP))
    assert again.outputs is not None and again.outputs["Y"].item() == 9
    # The batch behind the running one is composed ahead, so that Triton hands over a row whose caller has gone.
    assert (folder / "given").read_text(encoding="utf-8").split() == ["1", "2", "3", "4"]
    wanted = (folder / "wanted").read_text(encoding="utf-8").split()
    assert wanted == (["1", "3", "4"] if noticed else ["1", "2", "3", "4"])


@pytest.mark.parametrize("leaving", [Leaving.CANCEL, Leaving.CLOSE, Leaving.RESET])
def test_a_caller_that_leaves_while_it_runs_cuts_nobody_short(server: EmbeddedServer, leaving: Leaving) -> None:
    """All three in one execution; B leaves in the middle of it, and the others get what is theirs."""
    folder = server.repository / "slow"
    begin_anew(folder)
    protocol = GRPC if leaving is Leaving.CANCEL else HTTP
    came: dict[int, Came] = {}

    def keep(number: int, request: Request, request_id: str, what: Came) -> None:
        came[number] = what
        if what.left:
            (folder / "go").touch()

    requests = [one_row(1, HTTP), one_row(2, protocol, leaving), one_row(3, GRPC)]
    exchange(server.endpoint, requests, callers=3, timeout_s=PATIENCE_S, prefix="leaves", on_came=keep)
    assert came[1].left
    assert [came[number].outputs["Y"].item() for number in (0, 2) if came[number].outputs] == [3, 7]
    until(lambda: waiting(server) == 0, "B's place was never freed")
