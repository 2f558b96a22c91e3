"""A language model's host on the real server: callers who do not read, callers who go, and processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc.service_pb2 import ModelStreamInferResponse

from brim.config.generation import MODEL_NAMES
from brim.engine.lifecycle import Reason
from brim.engine.step_file import VARIABLE, step_file
from brim.measure.text.stream import STREAM, Ask
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.healing import Heard
from brim.server.model_control import NO_ENGINE, ModelControl
from brim.server.options import ServerOptions
from brim.service.load import find_service
from brim.service.samples import sample_rows
from brim_export.service_export import out_folder
from tests.server import story_model
from tests.server.story_model import BLOCK_TOKENS, LAST_WORDS, story
from tests.server.text_callers import MODEL, WAIT_S, Stream, metric, post

STORY = story_model.MODEL
GREEDY = {"temperature": 0, "ignore_eos": True}
LOAD_LIMIT_S = 300.0
"""Of an engine with its model, on a machine with much else to do."""
MOST_GROWTH_BYTES = 64 << 20
"""Of a process that keeps texts of less than 2 MB for their callers."""


def until(true: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    give_up = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def served(project: Project, model: str, log: Path, **canary: Any) -> EmbeddedServer:
    return EmbeddedServer(
        project.model_repository,
        [model],
        cache=project.cache,
        log_file=log,
        options=ServerOptions(exit_timeout_s=5, extra_environment={VARIABLE: str(log.parent)}),
        **canary,
    )


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The fake engine served."""
    folder = tmp_path_factory.mktemp("story")
    with served(story_model.make_project(folder, step_s=0.01), STORY, folder / "log") as server:
        yield server


@pytest.fixture
def endpoint(teller: EmbeddedServer) -> Iterator[Endpoint]:
    """Where it answers; afterwards nothing may be left of any request."""
    yield teller.endpoint
    until(lambda: holds_nothing(teller.endpoint))
    assert metric(teller.endpoint, "brim_llm_kv_blocks_free") == metric(teller.endpoint, "brim_llm_kv_blocks_total")


def holds_nothing(endpoint: Endpoint) -> bool:
    names = ("requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_promised")
    return not any(metric(endpoint, f"brim_llm_{name}") for name in names)


def tell(endpoint: Endpoint, prompt: str, tokens: int) -> Stream:
    return Stream(endpoint, prompt.encode(), {**GREEDY, "max_tokens": tokens}, STORY, prompt[:20])


def open_http(endpoint: Endpoint, path: str, body: dict[str, Any], *, window: int | None = None) -> socket.socket:
    """Send a request, and read nothing."""
    host, _, port = endpoint.http.partition(":")
    line = socket.socket()
    if window is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    line.settimeout(WAIT_S)
    line.connect((host, int(port)))
    text = json.dumps({**GREEDY, **body}).encode()
    head = f"POST /v2/models/{STORY}/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(text)}\r\n\r\n"
    line.sendall(head.encode() + text)
    return line


def read_events(line: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
    seen = b""
    while not enough(seen):
        more = line.recv(1 << 16)
        assert more, seen[-300:]
        seen += more
    return seen


def resident_bytes(server: EmbeddedServer) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in (server.pid, *server.stubs()))


def test_callers_who_read_nothing_hold_up_nobody_and_lose_nothing(teller: EmbeddedServer, endpoint: Endpoint) -> None:
    tokens = 300
    before = resident_bytes(teller)
    # A pool of its own: on a connection that others use, the window that is not read would be theirs, too.
    channel = grpc.insecure_channel(endpoint.grpc, [("grpc.use_local_subchannel_pool", 1)])
    body = {"text_input": "Two", "stream": True, "max_tokens": tokens}
    with channel, closing(open_http(endpoint, "generate_stream", body, window=2_048)) as line:
        options = {**GREEDY, "max_tokens": tokens}
        call = channel.stream_stream(STREAM, response_deserializer=ModelStreamInferResponse.FromString)
        unread = call(iter([Ask(b"One", options).message(STORY)]), timeout=WAIT_S)
        until(lambda: metric(endpoint, "brim_llm_requests_running") == 2)
        for first in "abcabc":
            with tell(endpoint, first, 20) as stream:
                assert (stream.finish().error, stream.text) == (None, story(first, 20))
        until(lambda: holds_nothing(endpoint))
        assert resident_bytes(teller) - before < MOST_GROWTH_BYTES
        pieces = [response.infer_response for response in unread]
        text = b"".join(
            content[4:]
            for piece in pieces
            for output, content in zip(piece.outputs, piece.raw_output_contents, strict=True)
            if output.name == "text_output"
        )
        assert text.decode() == story("O", tokens)
        seen = read_events(line, lambda seen: seen.endswith(b"0\r\n\r\n"))
        lines = [event for event in seen.split(b"\r\n") if event.startswith(b"data: ")]
        assert "".join(json.loads(event[6:])["text_output"] for event in lines) == story("T", tokens)


def test_the_step_log_tells_who_sat_in_which_step(teller: EmbeddedServer, endpoint: Endpoint) -> None:
    """Two long texts, a shorter one in the last seat, and one that waits: it takes the seat in the step after the shorter
    one's last, and the long ones miss no step."""
    with ExitStack() as stack:
        for name in ("long", "longer", "short"):
            assert not stack.enter_context(tell(endpoint, name, 100 if name == "short" else 300)).next()
        assert stack.enter_context(tell(endpoint, "waits", 4)).finish().error is None
    until(lambda: holds_nothing(endpoint))
    lines = step_file(teller.log_file.parent, STORY).read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["number"] for step in steps] == list(range(len(steps)))

    def place(kind: str, name: str) -> int:
        (found,) = [step["number"] for step in steps if any(id_.endswith(f" {name}") for id_ in step[kind])]
        return int(found)

    last = place("ended", "short")
    assert place("prefill", "waits") == place("first", "waits") == last + 1
    for step in steps[place("first", "short") + 1 : last]:
        assert [id_.partition(" ")[2] for id_ in step["decoded"]] == ["long", "longer", "short"]


def three_events(seen: bytes) -> bool:
    return seen.count(b"data: ") >= 3


def leave_sse(endpoint: Endpoint, tokens: int) -> None:
    body = {"text_input": "hello", "stream": True, "max_tokens": tokens}
    with closing(open_http(endpoint, "generate_stream", body)) as line:
        read_events(line, three_events)


def leave_grpc(endpoint: Endpoint, tokens: int) -> None:
    with tell(endpoint, "hello", tokens) as stream:
        for _ in range(3):
            assert not stream.next()
        stream.cancel()
        stream.cancel()


def leave_waiting(endpoint: Endpoint, tokens: int) -> None:
    """The cache holds one of them: who comes behind it has no seat."""
    with tell(endpoint, "first", tokens) as first:
        assert not first.next()
        with tell(endpoint, "second", tokens) as second:
            until(lambda: metric(endpoint, "brim_llm_requests_waiting") == 1)
            second.cancel()
            until(lambda: metric(endpoint, "brim_llm_requests_waiting") == 0)
        first.cancel()


def leave_waiting_sse(endpoint: Endpoint, tokens: int) -> None:
    """Triton 24.10 looks at an HTTP connection from the first response on, so it is noticed when it has a seat."""
    body = {"text_input": "second", "stream": True, "max_tokens": tokens}
    with tell(endpoint, "first", tokens) as first:
        assert not first.next()
        with closing(open_http(endpoint, "generate_stream", body)):
            until(lambda: metric(endpoint, "brim_llm_requests_waiting") == 1)
        first.cancel()


def blocks_of(case: dict[str, Any]) -> tuple[int, int]:
    """Blocks of the pool, and those that a request afterwards needs."""
    pool, size = (int(word) for word in case["engine"].split() if word.isdigit())
    assert size == BLOCK_TOKENS
    return pool, int(next(key for key in case["expect"] if key.startswith("request_needing_")).split("_")[2])


@pytest.mark.parametrize("leave", [leave_sse, leave_grpc, leave_waiting, leave_waiting_sse])
def test_blocks_come_back_from_callers_who_left(
    endpoint: Endpoint, cases: Path, leave: Callable[[Endpoint, int], None]
) -> None:
    """``max_tokens`` is as many as the pool holds: the reported 10,000 are refused, see below."""
    pool, needed = blocks_of(json.loads((cases / "33_kv_release.json").read_text(encoding="utf-8")))
    assert metric(endpoint, "brim_llm_kv_blocks_free") == pool
    tokens = (pool - 1) * BLOCK_TOKENS
    ends = {end: metric(endpoint, "brim_llm_requests_total", end=end) for end in ("cancelled", "length")}
    before = metric(endpoint, "brim_llm_output_tokens_total")
    leave(endpoint, tokens)
    until(lambda: holds_nothing(endpoint))
    assert metric(endpoint, "brim_llm_requests_total", end="cancelled") > ends["cancelled"]
    assert metric(endpoint, "brim_llm_requests_total", end="length") == ends["length"]
    assert metric(endpoint, "brim_llm_output_tokens_total") - before < tokens
    with tell(endpoint, "x" * (needed * BLOCK_TOKENS - 4), 4) as stream:
        assert (stream.finish().error, stream.reasons[-1]) == (None, "length")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"max_tokens": 10_000}, "max_tokens is 10000; the model takes 4096"), ({"n": 2, "max_tokens": 9}, "n is 2;")],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_the_pool_cannot_hold_is_refused_by_name(
    endpoint: Endpoint, options: dict[str, int], said: str, stream: bool
) -> None:
    """And not cut down to what it holds: a text that ends at ``length`` after fewer tokens than were asked would look
    complete to whoever counts on them, and every block has to be promised before a text begins."""
    before = metric(endpoint, "brim_llm_output_tokens_total")
    body = {"text_input": "hello", "stream": stream, **options}
    code, text = post(endpoint, "generate_stream" if stream else "generate", body, model=STORY)
    assert code == 400 and said in text
    assert metric(endpoint, "brim_llm_output_tokens_total") == before and holds_nothing(endpoint)


def test_who_leaves_without_a_stream_is_missed_at_the_end_of_the_text(endpoint: Endpoint) -> None:
    """Triton 24.10 does not look at the connection before the one response, so nothing is there to be noticed by: such a
    text goes on to ``max_tokens`` or its deadline, and holds its blocks no longer."""
    before = metric(endpoint, "brim_llm_requests_total", end="length")
    with closing(open_http(endpoint, "generate", {"text_input": "hello", "max_tokens": 50})):
        until(lambda: metric(endpoint, "brim_llm_requests_running") == 1)
    until(lambda: holds_nothing(endpoint))
    assert metric(endpoint, "brim_llm_requests_total", end="length") == before + 1


def test_a_cancellation_after_the_end_is_harmless(endpoint: Endpoint) -> None:
    with tell(endpoint, "abc", 3) as stream:
        assert stream.finish().text == story("a", 3)
        stream.cancel()
        stream.cancel()
    with tell(endpoint, "abc", 3) as stream:
        assert stream.finish().text == story("a", 3)


def test_a_model_without_an_engine_refuses_at_once_and_its_canary_fails(tmp_path: Path) -> None:
    """And when the server itself is killed, its stub goes, too."""
    with served(story_model.make_project(tmp_path, step_s=0.01), STORY, tmp_path / "log") as server:
        endpoint = server.endpoint
        control = ModelControl(endpoint, {STORY: None})
        assert control.canary(STORY, timeout_s=WAIT_S) == (Heard.ANSWER, "")
        with tell(endpoint, "hello", 900) as stream:
            assert not stream.next()
            with tell(endpoint, LAST_WORDS, 4) as last:
                assert "engine_lost" in str(last.finish().error)
            assert "engine_lost" in str(stream.finish().error)
        until(lambda: metric(endpoint, "brim_llm_requests_total", end="failed") == 2)
        until(lambda: control.canary(STORY, timeout_s=WAIT_S)[0] is Heard.FAILURE)
        code, text = post(endpoint, "generate", {"text_input": "hello", "max_tokens": 4}, model=STORY)
        assert code >= 400 and NO_ENGINE in text and Reason.ENGINE_DOWN.value in NO_ENGINE
        until(lambda: metric(endpoint, "brim_llm_refusals_total", reason="engine_down") > 0)
        assert metric(endpoint, "brim_llm_engine_up") == 0
        (stub,) = server.living_stubs()
        os.kill(server.pid, signal.SIGKILL)
        until(stub.has_gone)


def worker_of(server: EmbeddedServer) -> psutil.Process:
    (stub,) = server.stubs()
    (worker,) = [child for child in psutil.Process(stub).children() if "brim.engine.engine_worker" in child.cmdline()]
    return worker


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_engine_that_is_killed_is_replaced_and_goes_with_its_stub(exported_text: Project, tmp_path: Path) -> None:
    project = exported_text
    service = find_service(project.services, MODEL)
    assert (out_folder(project, service) / MODEL_NAMES["gguf"]).is_file()
    body = {"text_input": "The capital of France is", "max_tokens": 4, **GREEDY}
    canaries = {MODEL: sample_rows(service)[0]}
    with served(project, MODEL, tmp_path / "log", canaries=canaries) as server, ExitStack() as stack:
        endpoint = server.endpoint
        right = post(endpoint, "generate", body)
        streams = [stack.enter_context(Stream(endpoint, b"Once", {**GREEDY, "max_tokens": 3_000})) for _ in range(3)]
        for stream in streams:
            assert not stream.next()
        first = worker_of(server)
        first.kill()
        for stream in streams:
            assert str(stream.finish().error).startswith("engine_lost: ")
        until(lambda: holds_nothing(endpoint))
        until(lambda: metric(endpoint, "brim_llm_engine_restarts_total") == 1, LOAD_LIMIT_S)
        assert metric(endpoint, "brim_llm_engine_up") == 1
        assert post(endpoint, "generate", body) == right
        second = worker_of(server)
        assert not runs(first) and second.pid != first.pid
        second.suspend()
        os.kill(next(iter(server.stubs())), signal.SIGKILL)
        until(lambda: not runs(second))
        # It would wait for its stub to say goodbye.
        os.kill(server.pid, signal.SIGKILL)
