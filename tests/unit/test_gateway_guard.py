from __future__ import annotations

import json

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from brim.gateway.limits import RequestLimits
from brim.isolation.contract import ModelContract, TensorSpec
from brim.isolation.malformed import framing_requests
from brim.isolation.wire import HEADER_LENGTH, WireTensor, grpc_message, http_json_message, http_message
from brim.measure.plan import Protocol
from tests.unit.gateway_guard import LuaGuard

CONTRACT = ModelContract(
    "m", (TensorSpec("X", "FP32", (2,)), TensorSpec("T", "BYTES", (1,))), (TensorSpec("Y", "FP32", (2,)),), 100, True
)
ROW = {"X": np.ones((1, 2), np.float32), "T": np.array([[b"hello"]], np.object_)}
TENSORS = (
    WireTensor("X", "FP32", (1, 2), np.ones(2, np.float32).tobytes()),
    WireTensor("T", "BYTES", (1, 1), b"\x05\x00\x00\x00hello"),
)


@pytest.fixture(scope="module")
def guard() -> LuaGuard:
    return LuaGuard()


def test_right_requests_pass_in_every_form(guard: LuaGuard) -> None:
    binary = http_message(TENSORS, "1")
    assert guard.http(binary.body, binary.headers[HEADER_LENGTH]).status is None
    assert guard.http(http_json_message(TENSORS, "1").body).status is None
    assert guard.grpc(grpc_message("m", TENSORS, "1")).status is None


def test_every_lying_size_is_refused_and_named(guard: LuaGuard) -> None:
    requests = framing_requests(CONTRACT, ROW)
    assert {request.protocol for request in requests} == set(Protocol)
    for request in requests:
        tensors = request.tensors
        assert tensors is not None
        if request.protocol is Protocol.HTTP:
            message = http_message(tensors, "1")
            verdict = guard.http(message.body, message.headers[HEADER_LENGTH])
        else:
            verdict = guard.grpc(grpc_message("m", tensors, "1"))
            assert verdict.grpc_status == 3
        assert verdict.status == 400, request.what
        assert "input " in verdict.text
        assert not verdict.log


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_dimensions_that_end_the_server_are_refused(guard: LuaGuard, size: int, datatype: str) -> None:
    body = {"inputs": [{"name": "X", "datatype": datatype, "shape": [size, 2], "data": [1, 2]}]}
    assert guard.http(json.dumps(body).encode()).status == 400
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="X", datatype=datatype, shape=[size, 2])
    assert guard.grpc(message.SerializeToString()).status == 400
    message.raw_input_contents.append(b"")
    assert guard.grpc(message.SerializeToString()).status == 400


def test_a_shape_may_not_promise_more_than_the_message_could_carry(guard: LuaGuard) -> None:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2**30, 2], "data": [1, 2]}]}
    assert "more than its message has bytes" in guard.http(json.dumps(body).encode()).text


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/generate"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 250_000,
        b'{"inputs": ' + b"[" * 250_000,
        b'{"inputs": [' + b'{"a": ' * 100_000,
        b'{"parameters": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001,
        b'{"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": ' + b"[" * 300 + b"]" * 300 + b"}]}",
    ],
    ids=["lists", "open lists", "open objects", "objects", "data"],
)
def test_deep_nesting_is_refused(guard: LuaGuard, path: str, body: bytes) -> None:
    assert guard(path, body).status == 400


def test_nesting_of_a_right_request_passes_at_the_largest_rank(guard: LuaGuard) -> None:
    rank = RequestLimits().rank
    data = "[" * rank + "1" + "]" * rank
    body = f'{{"inputs": [{{"name": "X", "shape": {[1] * rank}, "datatype": "FP32", "data": {data}}}]}}'
    assert guard.http(body.encode()).status is None
    body = body.replace(str([1] * rank), str([1] * (rank + 1)))
    assert "33 dimensions" in guard.http(body.encode()).text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"inputs": [], "inputs": []}', "twice"),
        ('{"inputs": [{"shape": [1], "shape": [4294967297], "data": [1]}]}', "twice"),
        ('{"inputs": [{"sh\\u0061pe": [4294967297], "data": [1]}]}', "escape"),
        ('{"inputs": [{"shape": [1e10], "data": [1]}]}', "whole number"),
        ('{"inputs": [{"shape": [1.0], "data": [1]}]}', "whole number"),
        ('{"inputs": [{"shape": ["1"], "data": [1]}]}', "whole number"),
        ('{"inputs": [{"shape": 1, "data": [1]}]}', "no list"),
        ('{"inputs": [{"name": "X", "data": [1]}]}', "no shape"),
        ('{"inputs": {"shape": [1]}}', "no list"),
        ('{"inputs": [3]}', "no object"),
        ('{"inputs": []} {"inputs": []}', "behind the JSON"),
        ('{"inputs": [', "no object"),
        ('{"a": "b', "ends inside a string"),
        ("", "begin with a JSON object"),
        ("[]", "begin with a JSON object"),
        ('{"inputs": [{"shape": [1], "parameters": {"shared_memory_region": "x"}}]}', "shared memory"),
        (
            '{"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]}',
            "left",
        ),
        (
            '{"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": -4}}]}',
            "left",
        ),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(guard: LuaGuard, body: str, text: str) -> None:
    verdict = guard.http(body.encode())
    assert verdict.status == 400
    assert text in verdict.text
    assert not verdict.log


def test_strings_hide_their_brackets(guard: LuaGuard) -> None:
    body = {"id": '"}]{[\\"', "inputs": [{"name": "]}", "datatype": "BYTES", "shape": [1], "data": ['{"\\']}], "p": {}}
    assert guard.http(json.dumps(body).encode()).status is None


def test_there_is_a_bound_on_keys(guard: LuaGuard) -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [0]}
    many = {f"k{number}": 0 for number in range(4096)}
    assert guard.http(json.dumps({"inputs": [tensor], "parameters": many}).encode()).status is None
    for body in (
        {"inputs": [tensor], "parameters": many | {"one": 0}},
        {"inputs": [tensor | {"parameters": many | {"one": 0}}]},
        many | {"inputs": [tensor]},
    ):
        verdict = guard.http(json.dumps(body).encode())
        assert (verdict.status, verdict.text) == (400, "an object of the JSON has more than 4096 keys")


def test_there_is_a_bound_on_inputs(guard: LuaGuard) -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
    most = RequestLimits().inputs
    assert guard.http(json.dumps({"inputs": [tensor] * most}).encode()).status is None
    assert "more than 256 inputs" in guard.http(json.dumps({"inputs": [tensor] * (most + 1)}).encode()).text
    message = service_pb2.ModelInferRequest()
    for _ in range(most + 1):
        message.inputs.add(name="X", datatype="FP32", shape=[1])
    assert "more than 256 inputs" in guard.grpc(message.SerializeToString()).text


@pytest.mark.parametrize("length", ["-5", "many", "1e2", "0x10", "", "99999999999999999999"])
def test_a_header_length_is_a_number_inside_the_body(guard: LuaGuard, length: str) -> None:
    assert guard.http(http_message(TENSORS, "1").body, length).status == 400


def test_a_body_of_raw_values_passes(guard: LuaGuard) -> None:
    assert guard.http(b"\x00" * 8, "0").status is None


def test_bytes_behind_the_last_input_are_refused(guard: LuaGuard) -> None:
    message = http_message(TENSORS, "1")
    assert "stand behind" in guard.http(message.body + b"x", message.headers[HEADER_LENGTH]).text


def test_compressed_bodies_are_refused(guard: LuaGuard) -> None:
    assert guard("/v2/models/m/infer", b"{}", content_encoding="gzip").status == 415
    right = grpc_message("m", TENSORS, "1")
    framed = b"\x01" + len(right).to_bytes(4, "big") + right
    assert "compressed" in guard("/inference.GRPCInferenceService/ModelInfer", framed).text


@pytest.mark.parametrize("cut", [0, 3, 5, 20])
def test_a_call_carries_one_whole_message(guard: LuaGuard, cut: int) -> None:
    right = grpc_message("m", TENSORS, "1")
    framed = b"\x00" + len(right).to_bytes(4, "big") + right
    path = "/inference.GRPCInferenceService/ModelInfer"
    assert guard(path, framed[:cut]).status == 400
    assert guard(path, framed + framed).status == 400
    assert guard.grpc(right[:-cut] if cut else right + b"\x3a\xff").status == 400


def test_a_packed_and_an_unpacked_shape_add_up(guard: LuaGuard) -> None:
    # shape [1] packed, then 2^32+1 as a single varint: protocol buffers read both as one list.
    tensor = b"\x0a\x01X" + b"\x12\x04FP32" + b"\x1a\x01\x01" + b"\x18\x81\x80\x80\x80\x10"
    message = b"\x0a\x01m" + b"\x2a" + bytes([len(tensor)]) + tensor
    assert "dimension 2 of input X is 4294967297" in guard.grpc(message).text


def test_shared_memory_is_not_for_callers(guard: LuaGuard) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    tensor.parameters["shared_memory_region"].string_param = "other"
    assert "shared memory" in guard.grpc(message.SerializeToString()).text


def test_a_message_never_repeats_what_could_break_it(guard: LuaGuard) -> None:
    body = json.dumps({"inputs": [{"name": 'a"\r\nx: y', "shape": [0], "datatype": "FP32"}]}).encode()
    assert guard.http(body).text == "dimension 1 of input ? is 0, expected 1 to 2147483647"


def test_the_routes_learn_the_model_of_a_call_from_its_message_only(guard: LuaGuard) -> None:
    assert guard.grpc(grpc_message("m", TENSORS, "1")).set_headers == {"x-brim-model": "m"}
    assert guard.grpc(grpc_message('m"\n', TENSORS, "1")).set_headers == {}
    binary = http_message(TENSORS, "1")
    passed = guard("/v2/models/m/infer", binary.body, x_brim_model="other", inference_header_content_length="0")
    assert (passed.status, passed.set_headers) == (None, {})


def test_plain_http_2_goes_around_once(guard: LuaGuard) -> None:
    assert guard("/v2/models/m/infer", b"no JSON", protocol="HTTP/2").set_headers == {"x-brim-around": "1"}
    assert guard("/v2/models/m/infer", b"no JSON", protocol="HTTP/1.1", x_brim_around="1").status == 400


def test_other_paths_are_not_held_back(guard: LuaGuard) -> None:
    assert guard("/v2/models/m/config", b"", method="GET").status is None
    assert guard("/inference.GRPCInferenceService/ModelConfig", b"\xff").status is None


@pytest.mark.parametrize(
    ("asked_ms", "timeout_us", "expected"),
    [
        (None, None, None),
        ("250", None, "250"),
        (None, 1_500, "2"),
        ("3", 1_500, "2"),
        ("1", 1_500, "1"),
        ("soon", 7_000, "7"),
        ("-5", None, None),
        ("0", 0, None),
        ("1e99", 2**63, None),
    ],
)
def test_the_shortest_of_a_requests_own_bounds_is_kept(
    guard: LuaGuard, asked_ms: str | None, timeout_us: int | None, expected: str | None
) -> None:
    headers = {"x_brim_timeout_ms": asked_ms} if asked_ms else {}
    body = {"inputs": [], "parameters": {"a": {"b": 1}} | ({} if timeout_us is None else {"timeout": timeout_us})}
    set_by_http = guard("/v2/models/m/infer", json.dumps(body).encode(), **headers).set_headers
    message = service_pb2.ModelInferRequest(model_name="m")
    message.parameters["a"].string_param = "timeout"
    if timeout_us is not None and timeout_us < 2**63:
        message.parameters["timeout"].int64_param = timeout_us
    framed = b"\x00" + message.ByteSize().to_bytes(4, "big") + message.SerializeToString()
    path = "/inference.GRPCInferenceService/ModelInfer"
    set_by_grpc = guard(path, framed, content_type="application/grpc", **headers).set_headers
    for found in (set_by_http, set_by_grpc):
        assert found.get("x-envoy-upstream-rq-timeout-ms") == expected


def test_a_timeout_that_is_no_number_is_refused(guard: LuaGuard) -> None:
    assert "timeout is no whole number" in guard.http(b'{"parameters": {"timeout": "1"}, "inputs": []}').text


def test_names_that_are_too_long_to_be_quoted_are_refused_in_grpc(guard: LuaGuard) -> None:
    long = "n" * 4097
    for spoil in (
        lambda message: setattr(message, "model_name", long),
        lambda message: setattr(message, "model_version", long),
        lambda message: setattr(message, "id", long),
        lambda message: setattr(message.inputs[0], "name", long),
        lambda message: setattr(message.inputs[0], "datatype", long),
        lambda message: message.outputs.add(name=long),
        lambda message: message.parameters[long].MergeFrom(service_pb2.InferParameter(bool_param=True)),
    ):
        message = service_pb2.ModelInferRequest.FromString(grpc_message("m", TENSORS, "1"))
        assert guard.grpc(message.SerializeToString()).status is None
        spoil(message)
        verdict = guard.grpc(message.SerializeToString())
        assert (verdict.status, verdict.grpc_status) == (400, 3)
        assert "4097 bytes" in verdict.text
    frame = b"\x00" + (5000).to_bytes(4, "big") + b"x" * 5000
    read = guard("/inference.GRPCInferenceService/ModelReady", frame, content_type="application/grpc")
    assert (read.status, read.grpc_status) == (400, 3)
