"""The adapter inside the real tritonserver: right rows, own errors, nobody hurt by who shares the batch."""

from __future__ import annotations

import itertools
import json
import re
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from brim.errors import ServerFailed
from brim.paths import Project
from brim.server.canary import infer_inputs
from brim.server.embedded import EmbeddedServer
from tests.server import adapter_models as models

DELAY_US = 300_000
"""Long enough that requests sent at once share a batch."""
PATIENCE_S = 60
NAMES = ["linear", "lookup", "strings", "flags", "half", "two", "tokens"]


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("adapters")
    repository = folder / "models"
    models.add_linear(repository, DELAY_US)
    models.add_lookup(repository, DELAY_US)
    models.add_identity(repository, "strings", "STRING", TensorProto.STRING, 1)
    models.add_identity(repository, "flags", "BOOL", TensorProto.BOOL, 4)
    models.add_identity(repository, "half", "FP16", TensorProto.FLOAT16, 2)
    models.add_sum_of_two(repository, {"check_cancelled": True})
    models.add_tokens(repository, DELAY_US)
    with EmbeddedServer(repository, NAMES, cache=Project(checkout).cache, log_file=folder / "server.log") as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[triton_grpc.InferenceServerClient]:
    made = server.endpoint.grpc_client()
    yield made
    made.close()


def together(client: triton_grpc.InferenceServerClient, model: str, requests: Sequence[Mapping[str, Any]]) -> list[Any]:
    """All requests at once, in this order. For each its result, or the exception."""
    answers: list[Any] = [None] * len(requests)
    arrived = threading.Semaphore(0)

    def keep(number: int, result: Any, error: Any) -> None:
        answers[number] = error or result
        arrived.release()

    for number, tensors in enumerate(requests):
        client.async_infer(
            model,
            infer_inputs(tensors, triton_grpc),
            callback=lambda result, error, number=number: keep(number, result, error),
            client_timeout=PATIENCE_S,
        )
    for _ in requests:
        assert arrived.acquire(timeout=PATIENCE_S), "a request was never answered"
    return answers


def executions(client: triton_grpc.InferenceServerClient, model: str) -> int:
    stats = client.get_inference_statistics(model, as_json=True)
    return int(stats["model_stats"][0].get("execution_count", 0))


def post(server: EmbeddedServer, model: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://{server.endpoint.http}/v2/models/{model}/infer", data=body, headers=dict(headers), method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def post_json(server: EmbeddedServer, model: str, *inputs: Mapping[str, Any], **more: Any) -> tuple[int, str]:
    return post(server, model, json.dumps({"inputs": inputs, **more}).encode(), {"Content-Type": "application/json"})


def post_binary(
    server: EmbeddedServer, model: str, name: str, kind: str, shape: Sequence[int], payload: bytes
) -> tuple[int, str]:
    described = {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(payload)}}
    head = json.dumps({"inputs": [described]}).encode()
    return post(server, model, head + payload, {"Inference-Header-Content-Length": str(len(head))})


def value(name: str, kind: str, shape: Sequence[int], data: Sequence[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": shape, "data": data}


def test_large_and_small_batches_in_turn(client: triton_grpc.InferenceServerClient, cases: Path) -> None:
    case = json.loads((cases / "20_batch_sizes.json").read_text(encoding="utf-8"))
    for index, size in enumerate(case["send_in_order_one_instance"]):
        r, c = np.mgrid[0:size, 0:4]
        x = (1000 * index + r + c / 8).astype(np.float32)
        (answer,) = together(client, "linear", [{"X": x}])
        assert np.array_equal(answer.as_numpy("Y"), 2 * x + 1)


LOOKUPS = {"A": [1, 2], "B": [99], "C": [3, 4, 0]}


@pytest.mark.parametrize("order", list(itertools.permutations("ABC")))
def test_one_bad_request_neither_fails_nor_shifts_the_others(
    client: triton_grpc.InferenceServerClient, order: Sequence[str]
) -> None:
    before = executions(client, "lookup")
    answers = dict(
        zip(
            order,
            together(client, "lookup", [{"IDS": np.array([LOOKUPS[name]], np.int64).T} for name in order]),
            strict=True,
        )
    )
    assert executions(client, "lookup") - before < 3, "the three did not meet, so nothing was tested"
    assert answers["A"].as_numpy("Y").tolist() == [[10], [20]]
    assert answers["C"].as_numpy("Y").tolist() == [[30], [40], [0]]
    error = answers["B"]
    assert isinstance(error, InferenceServerException) and error.status() == "StatusCode.INTERNAL"
    # The incident's random digits may spell anything.
    words, incidents = re.subn(r"incident [0-9a-f]{12}", "incident", error.message())
    assert incidents == 1
    assert not any(word in words for word in ("99", "Gather", "Traceback", ".py"))


def test_a_full_batch_with_poison_answers_the_other_99(client: triton_grpc.InferenceServerClient) -> None:
    ids = [number % 5 for number in range(100)]
    ids[63] = -77
    before = executions(client, "lookup")
    answers = together(client, "lookup", [{"IDS": np.array([[number]], np.int64)} for number in ids])
    assert executions(client, "lookup") - before < 100
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InferenceServerException)] == [63]
    assert all(answer.as_numpy("Y").item() == 10 * ids[n] for n, answer in enumerate(answers) if n != 63)


def test_a_refused_caller_leaves_its_neighbours_bit_identical(client: triton_grpc.InferenceServerClient) -> None:
    good = [np.array([[1, 2, 3, 4]], np.float32), np.array([[5, 6, 7, 8]], np.float32) / 3]
    alone = [together(client, "linear", [{"X": x}])[0].as_numpy("Y") for x in good]
    first, refused, third = together(
        client, "linear", [{"X": good[0]}, {"X": np.array([[np.nan, 2, np.inf, 4]], np.float32)}, {"X": good[1]}]
    )
    assert first.as_numpy("Y").tobytes() == alone[0].tobytes()
    assert third.as_numpy("Y").tobytes() == alone[1].tobytes()
    assert refused.status() == "StatusCode.INVALID_ARGUMENT"
    assert "[non_finite]" in refused.message() and "[0, 0] is nan" in refused.message()


def test_texts_of_any_length_share_a_batch(client: triton_grpc.InferenceServerClient) -> None:
    counts = {"": 2, "hello world": 4, "word " * 300: 302, "word " * 600: 512, "ä": 3}
    texts = list(counts) * 8
    requests = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    before = executions(client, "tokens")
    answers = together(client, "tokens", requests)
    assert executions(client, "tokens") - before < len(texts)
    assert [answer.as_numpy("COUNT").item() for answer in answers] == [counts[text] for text in texts]


def test_callers_are_asked_for_inside_the_server(client: triton_grpc.InferenceServerClient) -> None:
    x = np.ones((1, 4), np.float32)
    answers = together(client, "two", [{"X": x * number, "W": x} for number in range(5)])
    assert [answer.as_numpy("Y")[0, 0] for answer in answers] == [1, 2, 3, 4, 5]


def test_many_rows_and_single_rows_together(client: triton_grpc.InferenceServerClient) -> None:
    sizes = [1, 40, 1, 33, 20, 5]
    sent = [np.full((size, 4), number, np.float32) for number, size in enumerate(sizes)]
    answers = together(client, "linear", [{"X": x} for x in sent])
    assert all(np.array_equal(answer.as_numpy("Y"), 2 * x + 1) for answer, x in zip(answers, sent, strict=True))


FOUR = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        ("linear", [value("X", "FP64", [1, 4], FOUR)], ["FP64", "FP32"]),
        ("half", [value("IN", "FP16", [1, 2], [1, 2])], ["binary"]),
        ("linear", [value("X", "FP32", [2**62, 4], [])], []),
        ("linear", [value("X", "FP32", [2**32, 2**32], [])], []),
        ("linear", [value("X", "FP32", [101, 4], [0] * 404)], ["100"]),
        ("linear", [value("X", "FP32", [0, 4], [])], []),
        ("linear", [value("X", "FP32", [4], FOUR)], ["batch"]),
        ("two", [value("X", "FP32", [3, 4], [0] * 12), value("W", "FP32", [4, 4], [0] * 16)], ["batch"]),
        ("two", [value("X", "FP32", [1, 4], FOUR)], ["W"]),
    ],
)
def test_wrong_tensors_get_a_client_error(
    server: EmbeddedServer, model: str, inputs: list[dict[str, Any]], words: list[str]
) -> None:
    status, text = post_json(server, model, *inputs)
    assert status == 400
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("model", "name", "kind", "shape", "payload", "words"),
    [
        ("linear", "X", "FP32", [1, 4], struct.pack("<4d", *FOUR), ["32", "16"]),
        ("linear", "X", "FP32", [0, 4], struct.pack("<4f", *FOUR), ["batch"]),
        ("linear", "X", "FP32", [1, 4], struct.pack("<4f", 1, float("nan"), 1, 1), ["[0, 1] is nan"]),
        ("strings", "IN", "BYTES", [1, 1], bytes.fromhex("e803000068656c6c6f"), []),
        ("strings", "IN", "BYTES", [1, 1], b"hello", []),
        ("strings", "IN", "BYTES", [1, 1], bytes.fromhex("01000000610100000062"), ["1", "2"]),
        ("tokens", "TEXT", "BYTES", [1, 1], bytes.fromhex("02000000ff61"), ["[not_utf8]", "byte 0"]),
        ("flags", "IN", "BOOL", [1, 4], bytes([0, 1, 2, 255]), ["[bool_value]", "255"]),
    ],
)
def test_wrong_bytes_get_a_client_error(
    server: EmbeddedServer, model: str, name: str, kind: str, shape: list[int], payload: bytes, words: list[str]
) -> None:
    status, text = post_binary(server, model, name, kind, shape, payload)
    assert status == 400
    assert all(word in text for word in words), text


def test_an_unknown_output_gets_a_client_error(server: EmbeddedServer) -> None:
    status, text = post_json(server, "linear", value("X", "FP32", [1, 4], FOUR), outputs=[{"name": "NOPE"}])
    assert status == 400 and "NOPE" in text


def test_nan_as_a_json_literal_gets_a_client_error_and_valid_json(server: EmbeddedServer) -> None:
    body = b'{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[NaN,1,1,1]}]}'
    status, text = post(server, "linear", body, {})
    assert status == 400
    assert "non_finite" in json.loads(text)["error"]


def test_trailing_zero_bytes_of_a_string_are_kept(client: triton_grpc.InferenceServerClient) -> None:
    (answer,) = together(client, "strings", [{"IN": np.array([[b"a\x00\x00"]], dtype=np.object_)}])
    assert answer.as_numpy("OUT").tolist() == [[b"a\x00\x00"]]


def test_bool_bytes_zero_and_one_are_values(client: triton_grpc.InferenceServerClient) -> None:
    (answer,) = together(client, "flags", [{"IN": np.array([[False, True, True, False]])}])
    assert answer.as_numpy("OUT").tolist() == [[False, True, True, False]]


def test_a_model_that_was_never_exported_says_so_at_the_start(checkout: Path, tmp_path: Path) -> None:
    models.add_model(tmp_path / "models", "absent", None, [("X", "FP32", [4])], [("Y", "FP32", [4])])
    with (
        pytest.raises(ServerFailed) as caught,
        EmbeddedServer(
            tmp_path / "models", ["absent"], cache=Project(checkout).cache, log_file=tmp_path / "server.log"
        ),
    ):
        pytest.fail("it started")
    assert "model.onnx is missing" in str(caught.value)
    assert "brim export absent" in str(caught.value)
