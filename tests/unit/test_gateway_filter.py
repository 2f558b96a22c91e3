from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from brim.gateway.admission import Admission, ClassBounds
from brim.gateway.limits import RequestLimits
from brim.gateway.replicas import Replicas, count_file
from brim.service.schema import BatchTime
from tests.unit.gateway_guard import LuaGuard, Verdict

TENS_OF_100_MS = BatchTime(tau0_us=50_000, alpha_us=5_000)
"""Ten rows take 100 ms."""
CLASSES = (ClassBounds("interactive", 1, 20), ClassBounds("batch", 2, 10))


def filter_of(
    in_flight: int | None = 20, batch_time: BatchTime | None = TENS_OF_100_MS, classes: tuple[ClassBounds, ...] = ()
) -> LuaGuard:
    return LuaGuard(admitted={"m": Admission(in_flight, None, 10, batch_time, classes)})


def http(guard: LuaGuard, *, priority: int | None = None, timeout_us: int | None = None, **headers: str) -> Verdict:
    asked = {"priority": priority, "timeout": timeout_us}
    body = {"inputs": [], "parameters": {name: value for name, value in asked.items() if value is not None}}
    return guard("/v2/models/m/infer", json.dumps(body).encode(), **headers)


def grpc(guard: LuaGuard, *, priority: int | None = None, **headers: str) -> Verdict:
    message = service_pb2.ModelInferRequest(model_name="m")
    if priority is not None:
        message.parameters["priority"].uint64_param = priority
    framed = b"\x00" + message.ByteSize().to_bytes(4, "big") + message.SerializeToString()
    return guard("/inference.GRPCInferenceService/ModelInfer", framed, content_type="application/grpc", **headers)


def refusal(verdict: Verdict) -> tuple[int | None, str]:
    assert not verdict.log
    return verdict.status, verdict.reason


def test_what_comes_over_the_bound_is_refused_until_an_answer_makes_room() -> None:
    guard = filter_of()
    inside = [(http, grpc)[number % 2](guard) for number in range(20)]
    assert {refusal(one) for one in inside} == {(None, "")}
    over = http(guard)
    assert refusal(over) == (429, "queue_full")
    assert over.retry_after == "1"
    assert grpc(guard).grpc_status == 8
    guard.answered(inside[0])
    guard.answered(inside[1])
    assert [refusal(http(guard)) for _ in range(1)] == [(None, "")]


def test_the_less_important_are_refused_first_and_all_count_together() -> None:
    guard = filter_of(classes=CLASSES)
    kept = [http(guard, x_brim_class="interactive") for _ in range(10)]
    assert refusal(http(guard, x_brim_class="batch")) == (429, "shed")
    kept += [http(guard) for _ in range(10)]
    assert {refusal(one) for one in kept} == {(None, "")}
    assert refusal(http(guard)) == (429, "queue_full")
    for one in kept[:11]:
        guard.answered(one)
    assert refusal(http(guard, x_brim_class="batch")) == (None, "")


def test_a_class_is_known_by_its_name_or_its_priority() -> None:
    guard = filter_of(classes=CLASSES)
    kept = [http(guard) for _ in range(10)]
    for verdict in (http(guard, priority=2), grpc(guard, priority=2), grpc(guard, x_brim_class="batch")):
        assert refusal(verdict) == (429, "shed")
    for verdict in (
        http(guard, priority=1),
        grpc(guard, priority=9),
        grpc(guard, x_brim_class="interactive", priority=2),
    ):
        assert refusal(verdict) == (None, "")
        kept.append(verdict)
    wrong = http(guard, x_brim_class="bacth")
    assert refusal(wrong) == (400, "unknown_class")
    assert wrong.text == "x-brim-class bacth is no class of callers of m: interactive, batch"


def left(guard: LuaGuard, verdicts: list[Verdict]) -> None:
    """Their callers have left: Envoy lets go of their streams and tells nobody."""
    for verdict in verdicts:
        verdict.handle = None
    guard.now_ms += 10


def test_who_leaves_makes_room_at_once_over_grpc() -> None:
    guard = filter_of()
    kept = [grpc(guard) for _ in range(20)]
    assert refusal(grpc(guard)) == (429, "queue_full")
    left(guard, kept)
    kept = [grpc(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}


def test_who_leaves_over_http_keeps_its_place_until_the_server_has_worked_it_off() -> None:
    guard = filter_of()
    kept = [http(guard) for _ in range(20)]
    left(guard, kept)
    assert refusal(http(guard)) == (429, "queue_full")
    guard.now_ms += 100  # a full batch
    kept = [http(guard) for _ in range(9)]
    assert {refusal(one) for one in kept} == {(None, "")}
    guard.now_ms += 5
    assert refusal(http(guard)) == (None, "")


def test_http_that_calls_itself_grpc_is_charged_like_http() -> None:
    guard = filter_of()
    kept = [http(guard, content_type="application/grpc") for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}
    left(guard, kept)
    assert refusal(http(guard)) == (429, "queue_full")
    assert refusal(http(guard, content_type="application/grpc", content_length=str(2**40))) == (503, "unavailable")


def test_bodies_that_are_on_their_way_have_a_bound_together() -> None:
    guard = filter_of()
    limits = RequestLimits()
    small, large = limits.small_body_bytes, limits.held_bytes + 1
    assert refusal(http(guard, content_length=str(small))) == (None, "")
    over = http(guard, content_length=str(large))
    assert refusal(over) == (503, "unavailable")
    assert over.retry_after == "1"
    assert refusal(http(guard, content_length=str(limits.held_bytes))) == (None, "")


def test_a_wall_clock_that_is_set_back_holds_nobody_up() -> None:
    guard = filter_of()
    kept = [grpc(guard) for _ in range(20)]
    guard.now_ms -= 3_600_000
    assert refusal(grpc(guard)) == (429, "queue_full")
    left(guard, kept)
    kept = [http(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}
    left(guard, kept)
    assert refusal(http(guard)) == (429, "queue_full")
    guard.now_ms -= 3_600_000
    assert refusal(http(guard)) == (429, "queue_full")
    guard.now_ms += 200  # two full batches, which work all of them off
    kept = [grpc(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}


def test_an_answer_that_comes_too_late_over_http_is_still_worked_on() -> None:
    guard = filter_of()
    kept = [http(guard) for _ in range(20)]
    for one in kept:
        guard.answered(one, 504)
    assert refusal(http(guard)) == (429, "queue_full")
    guard.now_ms += 200
    assert refusal(http(guard)) == (None, "")


@pytest.mark.parametrize(
    ("ahead", "least_ms"),
    [(0, 55), (1, 88), (9, 148), (10, 105), (19, 150)],
    ids=["alone", "behind one", "fills the batch", "begins the next", "fills the next"],
)
def test_what_cannot_be_in_time_is_refused_before_it_waits(ahead: int, least_ms: int) -> None:
    guard = filter_of(in_flight=None)
    kept = [http(guard) for _ in range(ahead)]
    for early in (
        http(guard, x_brim_timeout_ms=str(least_ms - 1)),
        http(guard, timeout_us=(least_ms - 1) * 1_000),
        grpc(guard, grpc_timeout=f"{least_ms - 1}m"),
        grpc(guard, grpc_timeout=f"{(least_ms - 1) * 1_000}u"),
    ):
        assert refusal(early) == (504, "deadline_unreachable")
    assert refusal(http(guard, x_brim_timeout_ms=str(least_ms))) == (None, "")
    assert len(kept) == ahead


def test_without_a_batch_time_every_deadline_is_believed() -> None:
    guard = filter_of(batch_time=None)
    kept = [grpc(guard, grpc_timeout="1m") for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}


def test_a_class_has_a_deadline_of_its_own() -> None:
    guard = filter_of(classes=(ClassBounds("a", 1, 20), ClassBounds("b", 2, 10, 3_000_000)))
    assert http(guard, x_brim_class="b").set_headers["x-envoy-upstream-rq-timeout-ms"] == "3000"
    assert http(guard, x_brim_class="b", x_brim_timeout_ms="200").set_headers["x-envoy-upstream-rq-timeout-ms"] == "200"
    assert "x-envoy-upstream-rq-timeout-ms" not in http(guard).set_headers


def test_a_fault_of_the_filter_lets_nothing_through() -> None:
    guard = filter_of()
    guard._lua.execute(b"last = unpack; unpack = nil")
    kept = [http(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}
    broken = http(guard)
    assert (broken.status, broken.reason) == (500, "internal")
    assert len(broken.log) == 1


def framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def on_stream(model: str, request_id: str, *, short: int = 0) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[b"\x00" * (8 - short)])
    message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    return framed(message.SerializeToString())


def messages(text: bytes) -> list[service_pb2.ModelInferRequest]:
    found = []
    while text:
        length = int.from_bytes(text[1:5], "big")
        found.append(service_pb2.ModelInferRequest.FromString(text[5 : 5 + length]))
        text = text[5 + length :]
    return found


@pytest.mark.parametrize("size", [1, 3, 7, 64, 10_000])
def test_a_stream_loses_its_bad_messages_only_however_it_is_cut(size: int) -> None:
    guard = filter_of()
    sent = [on_stream("m", "a"), on_stream("m", "b", short=1), on_stream("m", "c")]
    whole = b"".join(sent)
    stream = guard.stream()
    passed = [stream.send(whole[at : at + size]) for at in range(0, len(whole), size)]
    first, refused, last = messages(b"".join(passed))
    assert (framed(first.SerializeToString()), framed(last.SerializeToString())) == (sent[0], sent[2])
    assert (refused.model_name, refused.id) == (
        "(refused by the gateway: input X carries 7 bytes, its shape and type make 8)",
        "b",
    )
    # No part of a message before the whole.
    assert all(not text or messages(text) for text in passed)


def test_the_pieces_of_a_long_message_are_put_together_once() -> None:
    """Not anew with each piece, which would take the square of their number."""
    guard = filter_of()
    guard._lua.execute(
        b"joined = 0; local concat = table.concat; table.concat = function(...) joined = joined + 1; return concat(...) end"
    )
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"\x00" * 80_000])
    message.inputs.add(name="X", datatype="FP32", shape=[1, 20_000])
    whole = framed(message.SerializeToString())
    stream = guard.stream()
    passed = [stream.send(whole[at : at + 80]) for at in range(0, len(whole), 80)]
    assert passed[-1] == whole and not any(passed[:-1])
    # The head, all of it, and what goes on.
    assert guard._lua.eval(b"joined") <= 5


def test_after_a_message_without_a_bound_nothing_of_a_stream_goes_on() -> None:
    guard = filter_of()
    huge = b"\x00" + (2**32 - 1).to_bytes(4, "big")
    good = on_stream("m", "a")
    stream = guard.stream()
    assert [stream.send(text) for text in (good, huge + b"x", good)] == [good, b"", b""]
    assert stream.log == [
        f"a stream was cut off: a message of {2**32 - 1} bytes is more than the {64 << 20} that are taken"
    ]


def answer_of(model: str, *, rows: int = 1) -> bytes:
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.model_name = model
    answer.infer_response.raw_output_contents.append(b"\x01" * 1_000 * rows)
    return framed(answer.SerializeToString())


def error(text: str = "no") -> bytes:
    return framed(service_pb2.ModelStreamInferResponse(error_message=text * 500).SerializeToString())


def refused_on(passed: bytes) -> list[str]:
    """Why, of the messages that were refused."""
    marks = [one.model_name.removeprefix("(refused by the gateway: ") for one in messages(passed)]
    return [mark.removesuffix(")") for mark in marks if mark != "m"]


def test_requests_of_streams_and_calls_count_together() -> None:
    guard = filter_of()
    stream = guard.stream()
    assert refused_on(stream.send(on_stream("m", "") * 19)) == []
    last = grpc(guard)
    assert refusal(last) == (None, "")
    assert refusal(grpc(guard)) == (429, "queue_full")
    (why,) = refused_on(stream.send(on_stream("m", "x")))
    assert why == "queue_full: the model has as many requests in flight as it can answer in time"
    guard.answered(last)
    assert refused_on(stream.send(on_stream("m", "x"))) == []
    assert [stream.noted(what) for what in ("admitted", "queue_full", "shed", "model", "class")] == [
        20,
        1,
        0,
        "m",
        "default",
    ]


@pytest.mark.parametrize("size", [1, 4, 600, 100_000])
def test_every_answer_on_a_stream_makes_room_for_one_however_it_is_cut(size: int) -> None:
    guard = filter_of()
    stream = guard.stream()
    assert refused_on(stream.send(on_stream("m", "") * 20)) == []
    whole = answer_of("m") * 3 + error() + answer_of("m", rows=100)
    for at in range(0, len(whole), size):
        stream.answer(whole[at : at + size])
    assert len(refused_on(stream.send(on_stream("m", "") * 6))) == 1


def test_an_error_is_not_taken_for_an_answer_to_a_request_that_was_let_in() -> None:
    """While it may be the answer to one that was not: else who sends both would have more in flight than it may."""
    guard = filter_of()
    stream = guard.stream()
    assert refused_on(stream.send(on_stream("m", "") * 20 + on_stream("m", "", short=1))) != []
    stream.send(on_stream("other", ""))
    stream.answer(error())
    stream.answer(error())
    assert len(refused_on(stream.send(on_stream("m", "")))) == 1
    stream.answer(error())  # to the last refusal
    stream.answer(error())
    assert refused_on(stream.send(on_stream("m", ""))) == []


def test_a_stream_that_ends_has_nothing_in_flight() -> None:
    guard = filter_of()
    stream = guard.stream()
    stream.send(on_stream("m", "") * 20)
    assert refusal(grpc(guard)) == (429, "queue_full")
    stream.finish()
    kept = [grpc(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}


def test_who_leaves_a_stream_makes_room_at_once() -> None:
    guard = filter_of()
    stream = guard.stream()
    stream.send(on_stream("m", "") * 20)
    assert refusal(grpc(guard)) == (429, "queue_full")
    del stream
    guard.now_ms += 10
    kept = [grpc(guard) for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}


def test_requests_of_a_stream_have_the_class_and_the_deadline_of_its_headers() -> None:
    guard = filter_of(classes=CLASSES)
    stream = guard.stream(x_brim_class="batch", x_brim_timeout_ms="54")
    (why,) = refused_on(stream.send(on_stream("m", "")))
    assert why.startswith("deadline_unreachable: ")
    patient = guard.stream(x_brim_class="batch", x_brim_timeout_ms="1000")
    assert [why.split(":")[0] for why in refused_on(patient.send(on_stream("m", "") * 11))] == ["shed"]
    assert patient.noted("class") == "batch"
    (why,) = refused_on(guard.stream(x_brim_class="bacth").send(on_stream("m", "")))
    assert why == "x-brim-class bacth is no class of callers of m: interactive, batch"


def test_bounds_and_speed_are_those_of_all_replicas_that_serve(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    count_file(tmp_path).write_text("2\n")
    guard = LuaGuard(admitted={"m": Admission(20, None, 10, TENS_OF_100_MS, CLASSES)}, replicas=replicas)
    kept = [http(guard, x_brim_class="batch") for _ in range(20)]
    assert {refusal(one) for one in kept} == {(None, "")}
    assert refusal(http(guard, x_brim_class="batch")) == (429, "shed")
    # Ten are ahead on each of two, and a batch of them takes 100 ms: half of it, and one more of its own.
    assert refusal(http(guard, x_brim_timeout_ms="104")) == (504, "deadline_unreachable")
    kept.append(http(guard, x_brim_timeout_ms="106"))
    assert refusal(kept[-1]) == (None, "")
    for text in ("1\n", "", "junk\n", "0\n"):
        count_file(tmp_path).write_text(text)
        guard.now_ms += 100
        assert refusal(http(guard)) == (429, "queue_full"), text
    count_file(tmp_path).unlink()
    guard.now_ms += 100
    assert refusal(http(guard)) == (429, "queue_full"), "the last count holds"
    count_file(tmp_path).write_text("3\n")
    assert refusal(http(guard)) == (429, "queue_full"), "read now and then only"
    guard.now_ms += 100
    kept.append(http(guard))
    assert refusal(kept[-1]) == (None, "")
