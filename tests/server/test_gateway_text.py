"""A language model behind the gateway, before the real server and engine: two seats, and one place to wait for one."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from brim.config.files import generated
from brim.config.generate import Profile
from brim.config.generation import MODEL_NAMES
from brim.gateway import health
from brim.gateway.admission import Admission, admissions
from brim.gateway.envoy import Gateway
from brim.measure.text.stream import Ask, Heard, TextCallers
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions
from brim.service.load import find_service
from brim.service.samples import sample_rows
from brim.service.schema import Service
from brim_export.service_export import out_folder
from tests.server.test_cases_isolation import until
from tests.server.test_gateway import counters
from tests.server.text_callers import MODEL, WAIT_S, metric

LONG = 2_000
"""Tokens of a text that is never waited for."""
ENOUGH = 25
"""Tokens of a text that takes longer than the bound that the gateway has for it."""


@pytest.fixture(scope="module")
def service(checkout: Path) -> Service:
    shipped = find_service(Project(checkout).services, MODEL)
    assert shipped.generation is not None
    small = {"max_sequences": 2, "max_waiting": 1, "kv_blocks": 256}
    return shipped.model_copy(update={"generation": shipped.generation.model_copy(update=small)})


@pytest.fixture(scope="module")
def server(
    exported_text: Project, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    project = exported_text
    folder = tmp_path_factory.mktemp("text")
    for path, text in generated(folder / "models", service, [Profile.DEFAULT]).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    version = folder / "models" / MODEL / "1"
    version.mkdir(exist_ok=True)
    for name in (MODEL_NAMES["gguf"], "model.py", "model.json"):
        if not (version / name).exists():
            (version / name).symlink_to(out_folder(project, service) / name)
    with EmbeddedServer(
        folder / "models",
        [MODEL],
        cache=project.cache,
        log_file=folder / "triton.log",
        canaries={MODEL: sample_rows(service)[0]},
        options=ServerOptions(exit_timeout_s=5),
    ) as running:
        yield running


def bounds_of(service: Service, **changes: Any) -> Admission:
    return replace(admissions([service])[MODEL], **changes)


@contextmanager
def behind(
    server: EmbeddedServer, service: Service, folder: Path, *, canary: bool = False, **changes: Any
) -> Iterator[Gateway]:
    canaries = {MODEL: sample_rows(service)[0]} if canary else {}
    admitted = {MODEL: bounds_of(service, **changes)}
    with Gateway(server.endpoint, log_file=folder / "envoy.log", admitted=admitted, canaries=canaries) as gateway:
        yield gateway
        assert "script log" not in gateway.log_file.read_text()


def body(tokens: int, **more: Any) -> str:
    options = json.dumps({"max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    return json.dumps({"text_input": "Once upon a time", "sampling_parameters": options, **more})


class Call:
    """One request over HTTP: its answer is read when the test asks for it, and closing it is leaving."""

    def __init__(self, gateway: Gateway, path: str, sent: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(gateway.endpoint.http, timeout=WAIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", f"/v2/models/{MODEL}/{path}", sent, named)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def answer(self) -> http.client.HTTPResponse:
        self._answer = self._connection.getresponse()
        return self._answer

    def leave(self) -> None:
        if hasattr(self, "_answer"):
            self._answer.close()
        self._connection.close()


def text_stream(gateway: Gateway, tokens: int, **headers: str) -> Call:
    return Call(gateway, "generate_stream", body(tokens, stream=True), **headers)


def pieces(answer: http.client.HTTPResponse) -> list[dict[str, Any]]:
    events = [line for line in answer.read().decode().split("\n") if line]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def ask(gateway: Gateway, tokens: int, *, leaves: bool = False, **headers: str) -> Heard:
    """One request on a gRPC stream of its own; who leaves does so after its first piece."""

    async def go() -> Heard:
        async with TextCallers(gateway.endpoint, MODEL, channels=1) as callers:
            options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            request = Ask(b"Once upon a time", options)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await callers.ask(request, leaves=lambda heard: leaves, limit_s=WAIT_S, headers=named)

    return asyncio.run(go())


def ends(server: EmbeddedServer) -> Counter[str]:
    """How the host's requests have ended."""
    kinds = ("stop", "length", "cancelled", "refused", "expired", "failed")
    return Counter({kind: int(metric(server.endpoint, "brim_llm_requests_total", end=kind)) for kind in kinds})


def held(server: EmbeddedServer) -> tuple[float, ...]:
    names = ("requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_promised")
    return tuple(metric(server.endpoint, f"brim_llm_{name}") for name in names)


def wait_until_free(server: EmbeddedServer) -> None:
    until(lambda: not any(held(server)), "seats or blocks are not free again")


def outcomes(gateway: Gateway) -> Counter[str]:
    """Of the requests of gRPC streams."""
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics") as answer:
        page = answer.read().decode()
    found = Counter[str]()
    for outcome, value in re.findall(r'^envoy_brim_stream_requests\{.*outcome="(\w+)".*\} (\d+)$', page, re.MULTILINE):
        found[outcome] += int(value)
    return +found


def calls(gateway: Gateway) -> Counter[str]:
    """Of requests over HTTP: "left", a reason, or the code."""
    found = Counter[str]()
    for series, count in counters(gateway).items():
        found["left" if "DC" in series.flags else series.reason or series.code] += count
    return +found


def in_flight(gateway: Gateway) -> int:
    page = urllib.request.urlopen(f"http://{gateway.admin}/stats?filter=^cluster.triton/{MODEL}.upstream_rq_active$")
    with page as answer:
        return int(answer.read().decode().rpartition(":")[2])


@contextmanager
def taken(gateway: Gateway, server: EmbeddedServer, *, waiting: int = 0) -> Iterator[None]:
    """Both seats, and the place to wait, by callers that stay to the end of the block."""
    with ExitStack() as stack:
        for _ in range(2):
            assert stack.enter_context(text_stream(gateway, LONG)).answer().readline().startswith(b"data: {")
        for _ in range(waiting):
            stack.enter_context(text_stream(gateway, LONG))
        until(lambda: held(server)[:2] == (2, waiting), "they have not come")
        yield
    wait_until_free(server)


def test_pieces_pass_as_they_come_and_who_leaves_frees_its_blocks(
    server: EmbeddedServer, service: Service, tmp_path: Path
) -> None:
    with behind(server, service, tmp_path) as gateway:
        before = ends(server)
        with text_stream(gateway, LONG) as caller:
            assert caller.answer().readline().startswith(b"data: {")
            # A piece goes out before the step that made it is counted.
            until(lambda: held(server)[0] == 1, "its text is not finished")
            assert in_flight(gateway) == 1, "who is being answered is in flight"
        wait_until_free(server)
        until(lambda: in_flight(gateway) == 0, "who has left is in flight")
        assert ask(gateway, LONG, leaves=True).pieces
        wait_until_free(server)
        for path in ("generate", "generate_stream"):
            with Call(gateway, path, body(LONG)):
                until(lambda: held(server)[0] == 1, "it has not come")
            wait_until_free(server)
        until(lambda: calls(gateway) == {"left": 3}, f"counted: {calls(gateway)}")
        until(lambda: outcomes(gateway) == {"admitted": 1, "left": 1}, f"counted: {outcomes(gateway)}")
        until(lambda: ends(server) - before == {"cancelled": 4}, f"{ends(server) - before}")


def test_what_the_gateway_counts_is_what_the_host_counts(
    server: EmbeddedServer, service: Service, tmp_path: Path
) -> None:
    with behind(server, service, tmp_path) as gateway:
        before = ends(server)
        for tokens in (1, 5):
            with text_stream(gateway, tokens) as caller:
                assert len(pieces(caller.answer())) == tokens
            with Call(gateway, "generate", body(tokens)) as caller:
                answer = caller.answer()
                told = json.loads(answer.read())
                assert (answer.status, set(told)) == (200, {"model_name", "model_version", "text_output"})
                assert told["text_output"].startswith("Once upon a time")
            assert ask(gateway, tokens).complete
        with taken(gateway, server, waiting=1):
            for path in ("generate", "generate_stream"):
                with Call(gateway, path, body(1)) as caller:
                    answer = caller.answer()
                    told = json.loads(answer.read())
                    assert (answer.status, told["reason"]) == (429, "room_full")
                    assert "max_waiting" in told["error"]
                    assert answer.getheader("content-type") == "application/json"
                    assert (answer.getheader("x-brim-reason"), answer.getheader("retry-after")) == ("room_full", "1")
            assert ask(gateway, 1).error.startswith("room_full: ")
        with Call(gateway, "generate", body(10_000)) as caller:
            answer = caller.answer()
            assert (answer.status, "context_tokens" in json.loads(answer.read())["error"]) == (400, True)
        until(lambda: calls(gateway) == {"200": 4, "left": 3, "room_full": 2, "400": 1}, f"{calls(gateway)}")
        counted = {"admitted": 3, "answered": 2, "host_room_full": 1}
        until(lambda: outcomes(gateway) == counted, f"{outcomes(gateway)}")
        expected = {"length": 6, "cancelled": 3, "refused": 3}
        until(lambda: ends(server) - before == expected, f"{ends(server) - before}")


def test_the_host_is_told_the_class_that_the_gateway_was_told(
    server: EmbeddedServer, service: Service, tmp_path: Path
) -> None:
    """Callers of the class batch have no place to wait: half of one."""
    with behind(server, service, tmp_path) as gateway, taken(gateway, server):
        for sent, headers in (
            (body(1), {"x_brim_class": "batch"}),
            (body(1, brim_class="batch"), {}),
            (body(1, parameters={"brim_class": "batch"}), {}),
            (body(1, brim_class="batch"), {"x_brim_class": "batch"}),
            (body(1, priority=2), {}),
        ):
            with Call(gateway, "generate_stream", sent, **headers) as caller:
                assert b"max_waiting_batch" in caller.answer().read()
        assert "max_waiting_batch" in ask(gateway, 1, x_brim_class="batch").error
        with Call(gateway, "generate", body(1, brim_class="batch"), x_brim_class="interactive") as caller:
            answer = caller.answer()
            assert (answer.status, answer.getheader("x-brim-reason")) == (400, "unknown_class")
        with text_stream(gateway, LONG, x_brim_class="interactive"):
            until(lambda: held(server)[:2] == (2, 1), "an interactive caller does not wait")


def test_the_host_ends_a_text_at_its_deadline_and_nothing_else_does(
    server: EmbeddedServer, service: Service, tmp_path: Path
) -> None:
    with behind(server, service, tmp_path, timeout_us=50_000) as gateway:
        with text_stream(gateway, ENOUGH) as caller:
            assert len(pieces(caller.answer())) == ENOUGH
        assert ask(gateway, ENOUGH).complete
        with Call(gateway, "generate", body(ENOUGH)) as caller:
            answer = caller.answer()
            assert len(json.loads(answer.read())["text_output"]) > ENOUGH
        wait_until_free(server)
        before = ends(server)
        with Call(
            gateway, "generate_stream", body(LONG, stream=True, timeout=3_600_000_000), x_brim_timeout_ms="1000"
        ) as caller:
            *texts, last = pieces(caller.answer())
            assert all("text_output" in one for one in texts)
            assert last["error"].startswith("expired: ")
        with Call(gateway, "generate", body(LONG, timeout=1_000_000)) as caller:
            answer = caller.answer()
            assert (answer.status, answer.getheader("x-brim-reason")) == (504, "expired")
        assert ask(gateway, LONG, x_brim_timeout_ms="1000").error.startswith("expired: ")
        until(lambda: calls(gateway) == {"200": 2, "expired": 2}, f"{calls(gateway)}")
        counted = {"admitted": 2, "answered": 1, "host_expired": 1}
        until(lambda: outcomes(gateway) == counted, f"{outcomes(gateway)}")
        until(lambda: ends(server) - before == {"expired": 3}, f"{ends(server) - before}")


def ready(gateway: Gateway) -> int:
    connection = http.client.HTTPConnection(gateway.endpoint.http, timeout=WAIT_S)
    try:
        connection.request("GET", f"/v2/models/{MODEL}/ready")
        return connection.getresponse().status
    finally:
        connection.close()


def engine_of(server: EmbeddedServer) -> psutil.Process:
    (stub,) = server.living_stubs()
    (engine,) = [
        child for child in stub.process.children(recursive=True) if "engine_worker" in " ".join(child.cmdline())
    ]
    return engine


def test_a_full_room_is_no_sickness_and_an_engine_that_hangs_is(
    server: EmbeddedServer, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LEAST_TIMEOUT_S", 2)
    monkeypatch.setattr(health, "EVERY_S", 0.1)
    monkeypatch.setattr(health, "WHILE_IDLE_EVERY_S", 0.1)
    with behind(server, service, tmp_path / "others") as others, taken(others, server, waiting=1):
        refused = ends(server)["refused"]
        with behind(server, service, tmp_path, canary=True, timeout_us=None) as gateway:
            until(lambda: ends(server)["refused"] >= refused + 5, "no canary has come")
            assert ready(gateway) == 200
            engine = engine_of(server)
            engine.suspend()
            try:
                until(lambda: ready(gateway) == 503, "nobody notices that no text goes on")
                with Call(gateway, "generate", body(1)) as caller:
                    answer = caller.answer()
                    assert (answer.status, answer.getheader("x-brim-reason")) == (503, "unavailable")
            finally:
                # The host itself may have given it up meanwhile.
                with suppress(psutil.NoSuchProcess):
                    engine.resume()
            until(lambda: ready(gateway) == 200, "it stays sick")
