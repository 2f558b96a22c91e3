"""Requests to a language model in the gateway's filter, and its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from brim.engine.lifecycle import Reason
from brim.gateway.admission import Admission, ClassBounds
from brim.gateway.clusters import OTHERS
from brim.gateway.counters import STREAM_OUTCOMES
from brim.gateway.routes import ANSWER_TIMEOUT_S, virtual_host
from tests.unit.gateway_guard import LuaGuard, LuaStream, Verdict
from tests.unit.test_gateway_filter import framed, messages

CLASSES = (ClassBounds("interactive", 1), ClassBounds("batch", 2, None, 5_000_000))
EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"
PIECES = '{"stream": true}'
BEGIN = 'data: {"model_name":"m"}\n\n'


def filter_of(
    *, tells: bool = True, classes: tuple[ClassBounds, ...] = CLASSES, in_flight: int | None = None
) -> LuaGuard:
    return LuaGuard(admitted={"m": Admission(in_flight, classes=classes, pieces=True, tells=tells)})


def ask(guard: LuaGuard, sent: str, path: str = "generate_stream", **headers: str) -> Verdict:
    return guard(f"/v2/models/m/{path}", sent.encode(), **headers)


def told(verdict: Verdict) -> Any:
    """What the host reads, which takes the last of two equal keys, and Triton the first: there must be none."""
    assert verdict.status is None and verdict.body is not None, verdict.text
    assert verdict.set_headers["content-length"] == str(len(verdict.body))
    pairs: list[tuple[str, Any]] = json.loads(verdict.body, object_pairs_hook=lambda found: found)
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys)
    return json.loads(verdict.body)


@pytest.mark.parametrize(
    ("sent", "headers", "more"),
    [
        ("{}", {}, {"brim_class": "interactive"}),
        (' {\n"text_input" : "{"}', {"x_brim_class": "batch"}, {"brim_class": "batch", "timeout": 5_000_000}),
        ('{"brim_class": "batch"}', {}, {"timeout": 5_000_000}),
        ('{"priority": 2}', {}, {"brim_class": "batch", "timeout": 5_000_000}),
        ('{"timeout": 9000000}', {"x_brim_timeout_ms": "40"}, {"brim_class": "interactive", "timeout": 40_000}),
        ('{"timeout":7000}', {"x_brim_timeout_ms": "40"}, {"brim_class": "interactive", "timeout": 7_000}),
        ('{"timeout": 7000 , "x": 1}', {}, {"brim_class": "interactive", "timeout": 7_000}),
        ("{}", {"x_brim_timeout_ms": "soon"}, {"brim_class": "interactive"}),
    ],
)
def test_the_host_is_told_class_and_time_in_the_body(sent: str, headers: dict[str, str], more: dict[str, Any]) -> None:
    asked = {"stream": True, **json.loads(sent)}
    assert told(
        ask(filter_of(), sent.replace("{", '{"stream": true' + ("," if len(sent) > 2 else ""), 1), **headers)
    ) == {
        **asked,
        **more,
    }


def test_what_a_nested_object_says_is_known_and_put_right() -> None:
    sent = {"stream": True, "parameters": {"brim_class": "batch", "timeout": 9_000_000}}
    verdict = ask(filter_of(), json.dumps(sent))
    assert told(verdict) == {"stream": True, "parameters": {"brim_class": "batch", "timeout": 5_000_000}}


def test_a_whole_text_is_begun_at_once() -> None:
    assert told(ask(filter_of(classes=()), "{}", "generate")) == {"brim_begin": True}
    assert told(ask(filter_of(classes=()), '{"stream":false}')) == {"brim_begin": True, "stream": False}
    verdict = ask(filter_of(), "{}", "versions/1/generate?x=/generate_stream")
    assert told(verdict) == {"brim_begin": True, "brim_class": "interactive"}
    assert "x-envoy-upstream-rq-timeout-ms" not in verdict.set_headers


def test_who_is_not_told_is_cut_off_by_the_gateway() -> None:
    verdict = ask(filter_of(tells=False), "{}", x_brim_class="batch")
    assert verdict.body is None
    assert verdict.set_headers["x-envoy-upstream-rq-timeout-ms"] == "5000"


@pytest.mark.parametrize(
    ("sent", "headers", "reason"),
    [
        ('{"brim_class": "batch"}', {"x_brim_class": "interactive"}, "unknown_class"),
        ('{"brim_class": "vip"}', {}, "unknown_class"),
        ('{"brim_class": 1}', {}, "bad_request"),
        ('{"brim_begin": true}', {}, "bad_request"),
        ('{"parameters": {"brim_canary": true}}', {}, "bad_request"),
        ('{"timeout": 0.5}', {}, "bad_request"),
        ('{"timeout": 1, "timeout": 2}', {}, "bad_request"),
        ('{"stream": true}', {}, "bad_request"),
    ],
)
def test_what_could_be_understood_in_two_ways_is_refused(sent: str, headers: dict[str, str], reason: str) -> None:
    verdict = ask(filter_of(), sent, "generate", **headers)
    assert (verdict.status, verdict.reason) == (400, reason)


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("word", "status", "again"),
    [
        ("room_full", "429", "1"),
        ("shed", "429", "1"),
        ("deadline", "503", "1"),
        ("expired", "504", ""),
        ("failed", "500", ""),
    ],
)
def test_a_refusal_of_the_hosts_is_one_of_the_gateways(path: str, word: str, status: str, again: str) -> None:
    guard = filter_of()
    said = f'{{"error":"{word}: as \\"it\\" says"}}'
    answer = guard.reworded(ask(guard, "{}", path), 400, EVENTS, f"data: {said}\n\n")
    assert answer[:4] == (status, word, again, "")
    assert json.loads(answer[4]) == {"error": f'{word}: as "it" says', "reason": word}
    begun = guard.reworded(ask(guard, "{}", "generate"), 200, EVENTS, f"{BEGIN}data: {said}\n\n")
    assert begun == answer


def test_a_whole_answer_is_the_last_event() -> None:
    guard = filter_of()
    last = '{"model_name":"m","text_output":"a\\n\\ndata: {"}'
    answer = guard.reworded(ask(guard, "{}", "generate"), 200, EVENTS, f"{BEGIN}data: {last}\n\n")
    assert answer == ("200", "", "", "", last)
    event = guard.reworded(ask(guard, "{}"), 200, EVENTS, f"{BEGIN}data: {last}\n\n")
    assert event == ("200", "", "", "", f"data: {last}\n\n")
    for path in ("generate", "generate_stream"):
        wrong = guard.reworded(ask(guard, "{}", path), 200, EVENTS, BEGIN + 'data: {"error":"n is 2"}\n\n')
        assert wrong == ("400", "", "", "", '{"error":"n is 2"}')
    tritons_own = '{"error":"failed to parse the request JSON buffer"}'
    assert guard.reworded(ask(guard, "{}", "generate"), 404, JSON, tritons_own) == ("404", "", "", "", tritons_own)


def test_an_error_among_the_pieces_is_noted_and_passes() -> None:
    guard = filter_of()
    for said, noted in (("expired: late", "expired"), ("what?", "failed")):
        events = f'data: {{"text_output":"\\"error\\":\\"shed: \\""}}\n\ndata: {{"error":"{said}"}}\n\n'
        assert guard.reworded(ask(guard, PIECES), 200, EVENTS, events) == ("200", "", "", noted, events)
    quiet = 'data: {"text_output":"data: {\\"error\\":\\"shed: "}\n\n'
    assert guard.reworded(ask(guard, PIECES), 200, EVENTS, quiet) == ("200", "", "", "", quiet)


def request(**parameters: str | int) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m")
    for name, value in parameters.items():
        setattr(message.parameters[name], "int64_param" if isinstance(value, int) else "string_param", value)
    return framed(message.SerializeToString())


def piece(*, last: bool = False, error: str = "", name: str = "m", request_id: str = "") -> bytes:
    answer = service_pb2.ModelStreamInferResponse(error_message=error)
    answer.infer_response.model_name, answer.infer_response.id = name, request_id
    answer.infer_response.parameters["triton_final_response"].bool_param = last
    answer.infer_response.raw_output_contents.append(b"\x00" * 10_000)
    return framed(answer.SerializeToString())


def noted(stream: LuaStream) -> dict[str, int]:
    return {one: int(stream.noted(one)) for one in STREAM_OUTCOMES if stream.noted(one)}


@pytest.mark.parametrize(
    ("headers", "parameters", "known"),
    [
        ({}, {}, ("interactive", None)),
        ({"x_brim_class": "batch"}, {"timeout": 9_000_000}, ("batch", 5_000_000)),
        ({}, {"brim_class": "batch"}, ("batch", 5_000_000)),
        ({"x_brim_timeout_ms": "300"}, {}, ("interactive", 300_000)),
        ({"grpc_timeout": "2S"}, {}, ("interactive", 1_500_000)),
    ],
)
def test_the_host_is_told_class_and_time_on_a_stream(
    headers: dict[str, str], parameters: dict[str, str | int], known: tuple[str, int | None]
) -> None:
    guard = filter_of()
    stream = guard.stream(**headers)
    guard.now_ms += 500
    (message,) = messages(stream.send(request(**parameters)))
    assert message.parameters["brim_class"].string_param == known[0]
    assert (message.parameters["timeout"].int64_param or None) == known[1]


def test_a_class_on_a_stream_is_said_once() -> None:
    stream = filter_of().stream(x_brim_class="interactive")
    for one in (request(brim_class="batch"), request(brim_canary="x")):
        assert b"refused by the gateway" in stream.send(one)
    assert noted(stream) == {"unknown_class": 1, "bad_request": 1}


def test_a_request_on_a_stream_has_its_place_until_its_last_answer() -> None:
    guard = filter_of(classes=(), in_flight=2)
    stream, other = guard.stream(), guard.stream()
    for _ in range(3):
        stream.send(request())
    for _ in range(5):
        stream.answer(piece(request_id="x" * 4_000))
    other.send(request())
    assert (noted(stream), noted(other)) == ({"admitted": 2, "left": 2, "queue_full": 1}, {"queue_full": 1})
    stream.answer(piece(last=True))
    other.send(request())
    assert noted(other) == {"queue_full": 1, "admitted": 1, "left": 1}
    stream.answer(piece(error="room_full: full", last=True))
    assert noted(stream) == {"admitted": 2, "answered": 1, "host_room_full": 1, "queue_full": 1}
    other.send(request())
    other.answer(piece(error="n is 2", last=True))
    other.finish()
    assert noted(other) == {"queue_full": 1, "admitted": 2, "failed": 1, "left": 1}
    stream.send(request())
    stream.send(request())
    assert noted(stream)["admitted"] == 4, "what an ended stream held is free"


def test_every_reason_of_the_host_is_counted() -> None:
    assert {f"host_{reason}" for reason in Reason} < set(STREAM_OUTCOMES)


def test_no_route_to_the_server_has_envoys_own_timeout() -> None:
    models = {"m": Admission(timeout_us=1_000_000, pieces=True, tells=True), "b": Admission(timeout_us=2_000_000)}
    timeouts: dict[str, str] = {}
    for route in virtual_host(models)["routes"]:
        if to := route.get("route"):
            match = route["match"]
            path = match.get("path") or match.get("prefix") or match["safe_regex"]["regex"]
            timeouts[f"{to['cluster']} {path}"] = to["timeout"]
            assert to["timeout"] != "0s" or to["max_stream_duration"]["max_stream_duration"] == "0s"
    endless = {where for where, timeout in timeouts.items() if timeout == "0s"}
    assert {where.rpartition("/")[2] for where in endless} == {"", "ModelStreamInfer", "generate_stream", "generate"}
    assert not any(where.startswith("triton/b") for where in endless)
    assert f"{ANSWER_TIMEOUT_S}.000000s" in {timeouts[where] for where in timeouts if where.startswith(OTHERS + " ")}
