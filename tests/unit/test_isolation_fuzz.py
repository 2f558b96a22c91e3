"""The fuzz: what it sends follows from a seed and stays clear of known killers, and every fault of a server shows."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from tritonclient.grpc import service_pb2

from brim.errors import InputError
from brim.isolation.contract import ModelContract, TensorSpec
from brim.isolation.exchange import INFER
from brim.isolation.fuzz import FuzzOutcome, run_fuzz
from brim.isolation.fuzz_avoid import (
    AVOIDED,
    INFLATES,
    LARGE,
    NESTED,
    TEXTS_LIE,
    WEIGHT,
    WRAPS,
    avoided_grpc,
    avoided_http,
    killers,
)
from brim.isolation.fuzz_bodies import BODY_LIMIT_BYTES, KILLER_EVERY, FuzzSource, GrpcCall
from brim.isolation.fuzz_draft import HttpDraft, Stage, right_draft
from brim.isolation.fuzz_grpc import GRPC_KINDS, right_call
from brim.isolation.fuzz_grpc import broken as broken_call
from brim.isolation.fuzz_http import HTTP_KINDS
from brim.isolation.fuzz_plan import WINDOW, FuzzPlan, Window
from brim.isolation.judge import Verdict
from brim.isolation.pool import Pool
from brim.isolation.rows import random_rows
from brim.isolation.wire import HEADER_LENGTH, WireTensor, wire_tensors
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.service.samples import Row

MODEL = "m"
logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
"""A library in the place of the server writes a traceback for each broken request."""


def doubled(row: Row) -> Row:
    return {"Y": (row["I0"] * 2).astype(np.float32)}


def pool_of(*kinds: str, shape: tuple[int, ...] = (4,), answer: Callable[[Row], Row] | None = None) -> Pool:
    inputs = tuple(TensorSpec(f"I{number}", kind, shape) for number, kind in enumerate(kinds))
    contract = ModelContract(MODEL, inputs, (TensorSpec("Y", "FP32", shape),), 100, True)
    rows = random_rows(contract, 20, np.random.default_rng(0))
    answers = [answer(row) if answer else {"Y": np.zeros((1, *shape), np.float32)} for row in rows]
    return Pool(contract, rows, [wire_tensors(contract, row) for row in rows], answers, 1_000, [])


POOLS = {
    "numbers": pool_of("FP32", shape=(1, 8, 8)),
    "texts": pool_of("BYTES", shape=(1,)),
    "mixed": pool_of("INT64", "BYTES", "FP16", "BOOL", shape=(3,)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("protocol", Protocol)
def test_a_body_is_a_function_of_seed_protocol_and_number(name: str, protocol: Protocol) -> None:
    one, same, other = (FuzzSource(POOLS[name], seed) for seed in (3, 3, 4))
    forwards = [one.body(protocol, number) for number in range(120)]
    backwards = [same.body(protocol, number) for number in reversed(range(120))]
    assert forwards == backwards[::-1]
    assert sum(body != other.body(protocol, body.number) for body in forwards) > 110
    assert len({body.data for body in forwards}) > 100


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(("protocol", "kinds"), [(Protocol.HTTP, HTTP_KINDS), (Protocol.GRPC, GRPC_KINDS)])
def test_every_kind_takes_its_turn(name: str, protocol: Protocol, kinds: tuple[Any, ...]) -> None:
    source = FuzzSource(POOLS[name], 0)
    for number in range(2 * len(kinds)):
        assert kinds[number % len(kinds)].name in source.body(protocol, number).kinds


NUMBER = re.compile(rb"-?\d+")


@pytest.mark.parametrize("name", POOLS)
def test_no_body_is_large_or_comes_near_a_known_killer(name: str) -> None:
    """By the bytes alone, without the rules that the source itself applies."""
    source = FuzzSource(POOLS[name], 1)
    values = 0
    for number in range(1_000):
        data = source.body(Protocol.HTTP, number).data
        assert len(data) <= BODY_LIMIT_BYTES
        assert data.count(b"[") + data.count(b"{") <= 20_000
        assert not re.search(rb"q=[\d.]+[eE]", data)
        for sizes in re.findall(rb'shape": ?\[([^\]]*)\]', data):
            if b'"data": ' not in data or not all(NUMBER.fullmatch(one.strip()) for one in sizes.split(b",")):
                continue
            product = 1
            for one in sizes.split(b","):
                product *= max(1, abs(int(one)))
            # A pipelined request says everything twice.
            values = max(values, product)
    assert 0 < values <= 1 << 21
    for number in range(400):
        call = source.body(Protocol.GRPC, number).payload
        assert isinstance(call, GrpcCall) and len(call.data) <= BODY_LIMIT_BYTES
        assert call.method.startswith("/inference.GRPCInferenceService/")
        assert not re.search("Register|Unload|Load|Setting|Log", call.method)


def finished(draft: HttpDraft) -> HttpDraft:
    for stage in Stage:
        draft.finish(stage)
    return draft


def draft_of(tensors: tuple[WireTensor, ...], *, as_json: bool) -> HttpDraft:
    return right_draft(MODEL, 0, tensors, ("Y",), as_json, "x")


@pytest.mark.parametrize("name", POOLS)
def test_nothing_right_is_avoided(name: str) -> None:
    pool = POOLS[name]
    for tensors in pool.tensors:
        assert avoided_http(finished(draft_of(tensors, as_json=False))) is None
        assert avoided_grpc(broken_call(right_call(MODEL, 0, tensors, ("Y",), "x"), [], None)) is None  # type: ignore[arg-type]
    if name == "numbers":
        assert avoided_http(finished(draft_of(pool.tensors[0], as_json=True))) is None


def test_every_known_killer_is_recognised() -> None:
    known = killers(MODEL, "I0", "FP32", [1, 1, 8, 8])
    assert {what.partition(":")[0] for what, _, _ in known} == {NESTED.name, LARGE.name, INFLATES.name, WEIGHT.name}
    for what, data, headers in known:
        draft = draft_of((), as_json=True)
        draft.document, draft.headers = data, [*draft.headers, *headers]
        found = avoided_http(finished(draft))
        assert found is not None and what.startswith(f"{found.name}:")


@pytest.mark.parametrize(
    "sizes",
    [[1 << 31, 4], [(1 << 32) + 1, 4], [1, 1 << 40], [1 << 62, 4], [1 << 63, 0], [1 << 20, 1 << 20], [0, 1 << 40]],
)
def test_sizes_that_wrap_are_avoided_however_they_travel(sizes: list[int]) -> None:
    tensors = POOLS["numbers"].tensors[0]
    for as_json, escaped in ((True, False), (True, True), (False, False)):
        draft = draft_of(tensors, as_json=as_json)
        draft.document["inputs"][0]["shape"] = sizes
        if escaped:
            draft.document = json.dumps(draft.document).replace('"shape"', '"sh\\u0061pe"').encode()
        assert avoided_http(finished(draft)) is (LARGE if as_json else WRAPS)
    if max(sizes) < 1 << 63:
        call = right_call(MODEL, 0, tensors, ("Y",), "x")
        del call.message.inputs[0].shape[:]
        call.message.inputs[0].shape.extend(-size for size in sizes)
        call.data = call.message.SerializeToString()
        assert avoided_grpc(call) is WRAPS


@pytest.mark.parametrize(
    "data", [b"", b"\xe8\x03\x00\x00hello", b"\x05\x00", b"\x01\x00\x00\x00a" * 2, b"\xff\xff\xff\xffx"]
)
def test_texts_whose_lengths_lie_are_avoided(data: bytes) -> None:
    (tensor,) = POOLS["texts"].tensors[0]
    wrong = (WireTensor(tensor.name, tensor.datatype, tensor.shape, data),)
    call = broken_call(right_call(MODEL, 0, wrong, ("Y",), "x"), [], None)  # type: ignore[arg-type]
    assert avoided_grpc(call) is TEXTS_LIE
    if data:
        assert avoided_http(finished(draft_of(wrong, as_json=False))) is TEXTS_LIE


def test_each_avoided_thing_says_what_was_measured() -> None:
    assert len({one.name for one in AVOIDED}) == len(AVOIDED) == 6
    assert all(len(one.fact) > 40 for one in AVOIDED)


def test_killers_are_sent_when_asked_for_and_only_then() -> None:
    tame, wild = FuzzSource(POOLS["numbers"], 0), FuzzSource(POOLS["numbers"], 0, killers=True)
    count = len(killers(MODEL, "I0", "FP32", [1, 1, 8, 8]))
    numbers = [KILLER_EVERY * turn + KILLER_EVERY - 1 for turn in range(count)]
    names = {wild.body(Protocol.HTTP, number).kinds[0].partition(":")[0] for number in numbers}
    assert names == {NESTED.name, LARGE.name, INFLATES.name, WEIGHT.name}
    assert all(":" not in tame.body(Protocol.HTTP, number).kinds[0] for number in numbers)


@pytest.mark.parametrize("text", ["http:0-49", "grpc:7", "http:5-5"])
def test_a_window_reads_what_it_writes(text: str) -> None:
    window = Window.parse(text)
    assert Window.parse(str(window)) == window


@pytest.mark.parametrize(
    "text", ["", "http", "http:", "http:a", "http:5-4", "smtp:1", "http:-1", "http:1-2-3", "grpc:1-"]
)
def test_what_is_no_window_is_refused(text: str) -> None:
    if text == "grpc:1-":
        assert Window.parse(text) == Window(Protocol.GRPC, 1, 1)
        return
    with pytest.raises(InputError, match="no window"):
        Window.parse(text)


def test_windows_cover_every_number_once() -> None:
    windows = list(FuzzPlan(bodies=130).windows())
    for protocol in Protocol:
        mine = [one for one in windows if one.protocol is protocol]
        numbers = [number for one in mine for number in range(one.first, one.last + 1)]
        assert numbers == list(range(130))
        assert max(one.last - one.first + 1 for one in mine) == WINDOW
    only = FuzzPlan(only=Window(Protocol.GRPC, 5, 7)).windows()
    assert [str(one) for one in only] == ["grpc:5", "grpc:6", "grpc:7"]


Fault = Callable[["Fake", bytes, bool], Any]


class Fake:
    """A server of Y = 2 * I0 over both protocols in this process. ``fault`` is told every message and whether it is right."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.released = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.lives = 0
        self.asked: list[bytes] = []
        self.wounded = False
        self.dying = False

    def __enter__(self) -> Fake:
        self.thread.start()
        self.http_port, self.grpc_port = asyncio.run_coroutine_threadsafe(self.start(0, 0), self.loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        asyncio.run_coroutine_threadsafe(self.stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}")

    async def start(self, http_port: int, grpc_port: int) -> tuple[int, int]:
        self.lives += 1
        application = web.Application(client_max_size=1 << 26)
        application.router.add_post(f"/v2/models/{MODEL}/infer", self.http)
        self.runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", http_port, reuse_address=True).start()
        self.server = grpc.aio.server()
        one = grpc.unary_unary_rpc_method_handler(self.unary)
        many = grpc.stream_stream_rpc_method_handler(self.stream)
        service, _, method = INFER.strip("/").partition("/")
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: one, "ModelStreamInfer": many})]
        )
        port = self.server.add_insecure_port(f"127.0.0.1:{grpc_port}")
        await self.server.start()
        return int(self.runner.addresses[0][1]), port

    async def stop(self) -> None:
        await self.server.stop(0)
        await self.runner.cleanup()

    async def die(self, back_after_s: float | None) -> None:
        """Close every connection and listen no more; again after a while where that is wanted."""
        self.dying = True
        await self.stop()
        if back_after_s is not None:
            await asyncio.sleep(back_after_s)
            await self.start(self.http_port, self.grpc_port)
            self.dying = False

    async def answer(self, message: bytes, values: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
        right = values is not None
        if self.fault is not None:
            done = self.fault(self, message, right)
            if asyncio.iscoroutine(done):
                done = await done
            if done is not None:
                return np.asarray(done)
        return None if values is None else values * 2

    async def http(self, request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except (ValueError, web.HTTPException, zlib.error) as error:
            raise web.HTTPBadRequest from error
        values, request_id = http_values(body, request.headers.get(HEADER_LENGTH))
        head = repr(sorted(request.headers.items())).encode()
        answer = await self.answer(head + body, values)
        if answer is None:
            return web.json_response({"error": "no"}, status=400)
        output = {"name": "Y", "datatype": "FP32", "shape": list(answer.shape), "data": answer.ravel().tolist()}
        return web.json_response({"id": request_id, "model_name": MODEL, "outputs": [output]})

    async def _grpc(self, data: bytes) -> bytes | None:
        values, request_id = grpc_values(data)
        answer = await self.answer(data, values)
        if answer is None:
            return None
        message = service_pb2.ModelInferResponse(model_name=MODEL, id=request_id)
        message.outputs.add(name="Y", datatype="FP32", shape=answer.shape)
        message.raw_output_contents.append(answer.astype(np.float32).tobytes())
        return bytes(message.SerializeToString())

    async def unary(self, data: bytes, context: Any) -> bytes:
        answer = await self._grpc(data)
        if answer is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        return answer or b""

    async def stream(self, messages: Any, context: Any) -> Any:
        async for data in messages:
            answer = await self._grpc(data)
            message = service_pb2.ModelStreamInferResponse()
            if answer is None:
                message.error_message = "no"
            else:
                message.infer_response.ParseFromString(answer)
            yield message.SerializeToString()


def http_values(body: bytes, header_length: str | None) -> tuple[np.ndarray[Any, Any] | None, str]:
    """The rows of a right request and its id; None where it is none."""
    try:
        length = len(body) if header_length is None else int(header_length)
        document = json.loads(body[:length])
        (one,) = document["inputs"]
        assert one["name"] == "I0" and one["datatype"] == "FP32"
        data = one["data"] if "data" in one else np.frombuffer(body[length:], np.float32)
        values = np.array(data, np.float32)
        assert values.shape == (4,) and list(one["shape"]) == [1, 4] and np.isfinite(values).all()
        return values.reshape(1, 4), str(document.get("id", ""))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not right
        return None, ""


def grpc_values(data: bytes) -> tuple[np.ndarray[Any, Any] | None, str]:
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
        (one,), (raw,) = message.inputs, message.raw_input_contents
        assert one.name == "I0" and list(one.shape) == [1, 4]
        values = np.frombuffer(raw, np.float32)
        assert np.isfinite(values).all()
        return values.reshape(1, 4), message.id
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not right
        return None, ""


DOUBLER = pool_of("FP32", answer=doubled)


@contextmanager
def fuzzed(fault: Fault | None = None, **plan: Any) -> Iterator[tuple[Fake, FuzzOutcome]]:
    with Fake(fault) as fake:
        yield fake, run_fuzz(fake.endpoint, DOUBLER, FuzzPlan(**{"bodies": 100, "answer_timeout_s": 10.0, **plan}))


def test_a_server_without_faults_passes_and_every_request_has_one_verdict() -> None:
    progress: list[str] = []
    with Fake(None) as fake:
        plan = FuzzPlan(bodies=500, seed=1)
        outcome = run_fuzz(fake.endpoint, DOUBLER, plan, on_progress=progress.append)
    assert outcome.tally.faults == [] and outcome.troubles == () and not outcome.dead and outcome.repeat == ()
    assert outcome.tally.hurt == 0 and outcome.tally.counts[Verdict.OWN_ERROR] > 300
    # 200 right requests first, and then the fuzzed ones.
    assert sum(outcome.statuses.values()) == 200 + 2 * 500
    assert outcome.tally.sent > sum(outcome.statuses.values())
    seen = {kind for one in outcome.evidence for kind in one.sent.partition(":")[0].split(" + ")}
    assert {kind.name for kind in (*HTTP_KINDS, *GRPC_KINDS)} <= seen
    assert all(one.neighbour_count >= len(one.neighbours) for one in outcome.evidence)
    assert any(one.neighbours for one in outcome.evidence)
    assert progress == ["fuzz: 20 of 20 windows sent"]
    assert "answered 5xx for malformed input" in outcome.note


def test_a_server_that_holds_connections_open_hangs_them() -> None:
    async def hold(fake: Fake) -> None:
        while not fake.released.is_set():
            await asyncio.sleep(0.05)

    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        return hold(fake) if b"'deflate'" in message else None

    with fuzzed(fault, answer_timeout_s=0.6) as (_, outcome):
        assert outcome.tally.counts[Verdict.HUNG] > 0
        assert "neither an answer nor the end" in outcome.tally.faults[0]
        assert outcome.repeat[0] == "--fuzz-only" and outcome.repeat[1].startswith("http:")
        assert not outcome.dead


def test_a_server_that_dies_is_reported_with_seed_and_window() -> None:
    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        if b"FP33" in message and not fake.dying:
            fake.asked.append(message)
            asyncio.get_running_loop().create_task(fake.die(None))
        return None

    with fuzzed(fault, seed=5) as (fake, outcome):
        assert fake.asked and outcome.dead
        assert outcome.tally.counts[Verdict.WRONG] == 1
        (crash, unsent) = outcome.troubles
        window = Window.parse(outcome.repeat[1])
        assert f"{window} of seed 5" in crash and "no longer answers" in crash
        assert "were not sent" in unsent
        source = FuzzSource(DOUBLER, 5)
        bodies = [source.body(window.protocol, number) for number in range(window.first, window.last + 1)]
        assert any(b"FP33" in body.data for body in bodies)


TRIGGERS = (b"FP33", b"BF16", b"TYPE_FP32")


def test_a_server_that_is_restarted_names_the_one_request_that_ends_it() -> None:
    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        if any(one in message for one in TRIGGERS) and not fake.dying:
            asyncio.get_running_loop().create_task(fake.die(0.2))
        return None

    with fuzzed(fault, restart_s=20.0) as (fake, outcome):
        assert fake.lives > 2 and not outcome.dead
        window = Window.parse(outcome.repeat[1])
        assert window.first == window.last
        data = FuzzSource(DOUBLER, 0).body(window.protocol, window.first).data
        assert any(one in data for one in TRIGGERS)
        assert "alone does it: " in outcome.troubles[0]
        repeated = run_fuzz(fake.endpoint, DOUBLER, FuzzPlan(only=window, restart_s=20.0))
        assert repeated.repeat == outcome.repeat and repeated.tally.counts[Verdict.WRONG] == 1


def test_a_server_that_is_slow_for_others_afterwards_is_reported() -> None:
    async def dawdle() -> None:
        await asyncio.sleep(0.4)

    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        fake.wounded |= not right
        return dawdle() if right and fake.wounded else None

    with fuzzed(fault, bodies=50) as (_, outcome):
        assert outcome.tally.hurt == 0
        (trouble,) = outcome.troubles
        assert "steady callers were slowed" in trouble


def test_one_stall_hangs_the_steady_callers() -> None:
    async def stall(fake: Fake) -> None:
        for _ in range(120):
            if not fake.released.is_set():
                await asyncio.sleep(0.05)

    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        if b"fuzz-steady" in message and fake.wounded and len(fake.asked) < 4:
            fake.asked.append(message)
            return stall(fake)
        fake.wounded |= not right
        return None

    with fuzzed(fault, bodies=200, stall_s=0.5) as (_, outcome):
        assert outcome.tally.counts[Verdict.HUNG] > 0
        assert any("a steady caller had no answer within" in fault for fault in outcome.tally.faults)


@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.NEIGHBOUR_ERRORS])
def test_a_neighbour_that_gets_something_else_is_hurt(verdict: Verdict) -> None:
    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        if b"fuzz-steady" in message and fake.wounded and len(fake.asked) < 7:
            fake.asked.append(message)
            if verdict is Verdict.NEIGHBOUR_ERRORS:
                raise web.HTTPInternalServerError
            return np.full((1, 4), 77, np.float32)
        fake.wounded |= not right
        return None

    with fuzzed(fault, bodies=200) as (fake, outcome):
        assert outcome.tally.counts[verdict] == outcome.tally.hurt == len(fake.asked) > 0
        assert not outcome.dead
        assert all("steady request" in fault for fault in outcome.tally.faults)
        shown = [one for one in outcome.evidence if one.fault]
        assert len(shown) == outcome.tally.hurt and {one.verdict for one in shown} == {verdict.value}


def test_a_request_that_keeps_its_meaning_must_get_its_own_answer() -> None:
    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        return np.zeros((1, 4), np.float32) if right and b"'gzip'" in message else None

    with fuzzed(fault, bodies=120) as (_, outcome):
        wrong = [one for one in outcome.evidence if one.verdict == Verdict.WRONG]
        assert outcome.tally.counts[Verdict.WRONG] >= len(wrong) > 0
        assert all("compressed" in one.sent for one in wrong)


def test_a_server_that_never_answers_ends_the_fuzz_early() -> None:
    """After so many hung requests more would only be more of the same, one wait each."""

    async def hold(fake: Fake) -> None:
        while not fake.released.is_set():
            await asyncio.sleep(0.05)

    def fault(fake: Fake, message: bytes, right: bool) -> Any:
        return None if right else hold(fake)

    with fuzzed(fault, bodies=2_000, answer_timeout_s=0.3) as (_, outcome):
        assert 20 <= outcome.tally.counts[Verdict.HUNG] <= 2 * WINDOW
        assert "more fuzzed requests were not sent" in outcome.troubles[-1]


def test_a_chunked_and_a_compressed_request_are_what_they_say() -> None:
    """Read back by hand: the transfer changes, the content does not."""
    source = FuzzSource(DOUBLER, 2)
    found = 0
    for number in range(2_000):
        body = source.body(Protocol.HTTP, number)
        if body.row is None or set(body.kinds) - {"chunked", "compressed", "pieces"} or not body.kinds:
            continue
        head, _, payload = body.data.partition(b"\r\n\r\n")
        if b"chunked" in head:
            payload = unchunked(payload)
        if b"Content-Encoding: gzip" in head:
            payload = gzip.decompress(payload)
        elif b"Content-Encoding: deflate" in head:
            payload = zlib.decompress(payload)
        told = re.search(rb"Inference-Header-Content-Length: (\d+)", head)
        values, request_id = http_values(payload, told[1].decode() if told else None)
        assert values is not None and request_id == body.request_id
        assert np.array_equal(values, DOUBLER.rows[body.row]["I0"])
        found += 1
    assert found > 25


def unchunked(payload: bytes) -> bytes:
    whole = b""
    while True:
        size, _, rest = payload.partition(b"\r\n")
        if int(size, 16) == 0:
            assert rest == b"\r\n"
            return whole
        whole += rest[: int(size, 16)]
        payload = rest[int(size, 16) + 2 :]


def test_a_server_that_is_not_there_is_dead_and_nothing_is_raised() -> None:
    with Fake(None) as fake:
        gone = fake.endpoint
    outcome = run_fuzz(gone, DOUBLER, FuzzPlan(bodies=50))
    assert outcome.dead and "no longer answers" in outcome.troubles[0]
    assert outcome.tally.counts[Verdict.OWN_ERROR] == outcome.tally.counts[Verdict.RIGHT] == 0
