"""Callers that mean harm, by the hundred: others go on being served, and the gateway's memory keeps to its bounds.

Each kind of harm holds what the gateway gives to a connection for as long as it can. What that is at most follows from the
configuration: twice ``per_connection_buffer_limit_bytes`` (what has come and what waits to be read) and the connection itself.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http

from brim.gateway import envoy_config, routes
from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway
from brim.gateway.limits import RequestLimits
from brim.isolation.request import Came, Leaving, Request
from brim.measure.known_time import KnownTime, write_known_time
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions
from tests.server.settled import executed
from tests.server.test_cases_isolation import GRPC, HTTP, LINES, ask, begin_anew, case_24, line, one_row, until
from tests.server.test_cases_isolation import server as server_of_cases  # noqa: F401

MODEL = "known"
INFER = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: gateway\r\n".encode()
BODY_BYTES = 256 << 10
HASTY = ((envoy_config, "HEADERS_TIMEOUT_S", 3), (envoy_config, "BODY_TIMEOUT_S", 1), (routes, "ANSWER_TIMEOUT_S", 4))
"""What a caller may take for its headers; and, added up, for its request with its answer."""
PATIENCE_S = 60
MOST_CONNECTIONS = 9_000
SPARE_FILES = 500
CONNECTION_BYTES = 16 << 10
"""Of a connection that holds no data; measured are some 8 KiB."""
PAGES_BYTES = 32 << 20
"""What the gateway's allocator keeps beside what is in use, and its caches."""


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("hostile")
    write_known_time(folder / "models", MODEL, KnownTime(tau0_us=2_000, alpha_us=0))
    cache = Project(checkout).cache
    with EmbeddedServer(
        folder / "models",
        [MODEL],
        cache=cache,
        log_file=folder / "triton.log",
        options=ServerOptions(exit_timeout_s=2),
    ) as running:
        yield running


@pytest.fixture
def few_files() -> Iterator[int]:
    """Most connections that this process and the gateway can hold; the limit is as before afterwards."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield min(MOST_CONNECTIONS, most - SPARE_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For gateways that are started after it."""
    for module, name, seconds in HASTY:
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def gateway(server: EmbeddedServer, tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(
        server.endpoint,
        log_file=tmp_path / "envoy.log",
        limits=RequestLimits(body_bytes=BODY_BYTES),
        admitted={MODEL: Admission(max_rows=100)},
    ) as running:
        yield running
        assert "script log" not in running.log_file.read_text()


def flooded(gateway: Gateway) -> int:
    """Connections that Envoy ended since too many answers waited on them. It counts nothing before the first."""
    with urllib.request.urlopen(f"http://{gateway.admin}/stats?filter=^http1.response_flood$") as answer:
        return int(answer.read().decode().rpartition(":")[2] or 0)


def memory_of(gateway: Gateway) -> int:
    return int(psutil.Process(gateway.pid).memory_info().rss)


class Polite(threading.Thread):
    """A caller over both protocols in turn, each answer of which must be its own."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(daemon=True)
        self.endpoint = gateway.endpoint
        self.right = 0
        self.wrong: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        with self.endpoint.http_client() as over_http, self.endpoint.grpc_client() as over_grpc:
            while not self.done.is_set():
                for client, module in ((over_http, triton_http), (over_grpc, triton_grpc)):
                    row = np.full((1, 4), self.right, np.float32)
                    tensor: Any = module.InferInput("X", [1, 4], "FP32")
                    tensor.set_data_from_numpy(row)
                    try:
                        answer = client.infer(MODEL, [tensor]).as_numpy("Y")
                    except Exception as error:  # noqa: BLE001 - told by the test
                        self.wrong.append(repr(error))
                        return
                    if not np.array_equal(answer, 2 * row):
                        self.wrong.append(f"{answer} to {row}")
                    self.right += 1
                time.sleep(0.005)


@contextmanager
def served_meanwhile(gateway: Gateway, *, least: int = 20) -> Iterator[Polite]:
    """Somebody is served during the whole block, and goes on until so many answers have come."""
    polite = Polite(gateway)
    polite.start()
    try:
        yield polite
        begun = polite.right
        deadline = time.monotonic() + PATIENCE_S
        while polite.right < begun + least and not polite.wrong and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        polite.done.set()
        polite.join(PATIENCE_S)
    assert polite.wrong == []
    assert polite.right >= begun + least


def connected(
    gateway: Gateway, count: int, stack: ExitStack, *, receive_bytes: int | None = None
) -> list[socket.socket]:
    """``receive_bytes``: of the kernel's buffer for answers; as large as it pleases when absent."""
    host, _, port = gateway.endpoint.http.rpartition(":")
    made = []
    for _ in range(count):
        one = stack.enter_context(socket.socket())
        one.settimeout(PATIENCE_S)
        if receive_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        one.connect((host, int(port)))
        one.setblocking(False)
        made.append(one)
    return made


def what_came(one: socket.socket) -> bytes | None:
    """None while nothing has come, empty when the gateway has hung up."""
    try:
        return one.recv(65536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("head", "drop"),
    [(INFER, b"X-Slow: 1\r\n"), (INFER + b"Content-Length: 100000\r\n\r\n", b"x")],
    ids=["headers", "bodies"],
)
def test_requests_that_come_drop_by_drop_are_let_go(
    server: EmbeddedServer, gateway: Gateway, head: bytes, drop: bytes
) -> None:
    """And none of them is let in: the server executes those of the polite caller only."""
    ended: Counter[bytes] = Counter()
    before = executed(server.endpoint, MODEL)
    with ExitStack() as stack, served_meanwhile(gateway) as polite:
        slow = connected(gateway, 300, stack)
        for one in slow:
            one.send(head)
        deadline = time.monotonic() + PATIENCE_S
        while slow:
            assert time.monotonic() < deadline, f"{len(slow)} are still connected"
            for one in list(slow):
                came = what_came(one)
                if came is None:
                    with suppress(OSError):
                        one.send(drop)
                else:
                    ended[came[:12]] += 1
                    slow.remove(one)
            time.sleep(0.05)
    assert ended.total() == 300
    assert set(ended) <= {b"HTTP/1.1 408", b""}
    assert ended[b"HTTP/1.1 408"] > 0
    assert executed(server.endpoint, MODEL) - before == polite.right


def test_thousands_of_idle_connections_cost_little_and_their_number_is_bounded(
    server: EmbeddedServer, tmp_path: Path, few_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = min(few_files, 5_000)
    # Room for the polite caller's two and one more.
    monkeypatch.setattr(envoy_config, "MOST_CONNECTIONS", idle + 3)
    with (
        Gateway(server.endpoint, log_file=tmp_path / "envoy.log", admitted={MODEL: Admission(max_rows=100)}) as gateway,
        ExitStack() as stack,
        served_meanwhile(gateway) as polite,
    ):
        until(lambda: polite.right >= 2, "nobody is served")
        before = memory_of(gateway)
        held = connected(gateway, idle + 1, stack)
        assert memory_of(gateway) - before <= idle * CONNECTION_BYTES + PAGES_BYTES
        beyond = connected(gateway, 50, stack)
        until(lambda: not [one for one in beyond if what_came(one) is None], "connections beyond the bound stay open")
        assert [one for one in held if what_came(one) is not None] == []
        # Who leaves makes room.
        for one in held[:10]:
            one.close()
        until(lambda: takes_a_request(gateway), "no room was made")


def takes_a_request(gateway: Gateway) -> bool:
    try:
        with gateway.endpoint.http_client(timeout_s=5) as client:
            return bool(client.is_model_ready(MODEL))
    except Exception:  # noqa: BLE001 - a connection that is refused has many forms
        return False


def test_callers_that_never_read_hold_no_more_than_a_buffer_each(gateway: Gateway) -> None:
    hostile, page = 50, b"GET /v2/models/known/config HTTP/1.1\r\nHost: gateway\r\n\r\n"
    pages = page * 500
    with ExitStack() as stack, served_meanwhile(gateway):
        before = memory_of(gateway)
        deaf = connected(gateway, hostile, stack, receive_bytes=4096)
        sent = Counter[socket.socket]()
        quiet = 0
        deadline = time.monotonic() + PATIENCE_S
        # Until the gateway takes nothing more of any of them, ten times in a row.
        while quiet < 10 and time.monotonic() < deadline:
            _, writable, _ = select.select([], deaf, [], 0)
            quiet = 0 if writable else quiet + 1
            for one in writable:
                try:
                    # Goes on where it stopped: half a request is none, for which the gateway would hang up.
                    sent[one] += one.send(pages[sent[one] % len(page) :])
                except BlockingIOError:
                    pass
                except ConnectionError:
                    deaf.remove(one)
            time.sleep(0.05)
        assert quiet == 10, "the gateway goes on reading from callers that read nothing"
        # Envoy may also hang up on one, once answers to several of its requests wait; for nothing else here.
        assert hostile - len(deaf) <= flooded(gateway)
        assert memory_of(gateway) - before <= hostile * (2 * BODY_BYTES + CONNECTION_BYTES) + PAGES_BYTES


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_flood_of_the_largest_bodies_holds_no_more_than_a_buffer_each(gateway: Gateway, protocol: Protocol) -> None:
    """All of them but for the end, which never comes; over gRPC as many streams of one connection."""
    hostile, waves = 150, 5
    with served_meanwhile(gateway):
        before = memory_of(gateway)
        for wave in range(waves):
            with ExitStack() as stack:
                (hold_bodies if protocol is HTTP else hold_messages)(gateway, hostile, stack)
                until(lambda: active(gateway) >= hostile, "the bodies are not under way")
                grown = memory_of(gateway) - before
                # Each wave takes what the one before has left.
                assert grown <= hostile * (2 * BODY_BYTES + CONNECTION_BYTES) + PAGES_BYTES, f"wave {wave}"
            until(lambda: active(gateway) <= 2, "those who have left are still counted")


def hold_bodies(gateway: Gateway, count: int, stack: ExitStack) -> None:
    body = INFER + f"Content-Length: {BODY_BYTES - 1}\r\n\r\n".encode() + b"x" * (BODY_BYTES - 2)
    for one in connected(gateway, count, stack):
        one.setblocking(True)
        one.sendall(body)


def hold_messages(gateway: Gateway, count: int, stack: ExitStack) -> None:
    channel = stack.enter_context(grpc.insecure_channel(gateway.endpoint.grpc))
    call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
    released = threading.Event()

    def message() -> Iterator[bytes]:
        yield b"x" * (BODY_BYTES - 100)
        released.wait(PATIENCE_S)

    calls = [call.future(message()) for _ in range(count)]
    stack.callback(lambda: [one.cancel() for one in calls])
    stack.callback(released.set)


def active(gateway: Gateway) -> int:
    with urllib.request.urlopen(f"http://{gateway.admin}/stats?filter=^http.callers.downstream_rq_active$") as answer:
        return int(answer.read().decode().rpartition(":")[2])


# What follows is restated from public reports, and held at the gateway: the values are those of the cases.


class Guarded(NamedTuple):
    """The models of the other tests of these cases, behind a gateway that lets nine requests of ``slow`` in."""

    gateway: Gateway
    slow: Path


@pytest.fixture(scope="module")
def guarded(server_of_cases: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:  # noqa: F811
    log_file = tmp_path_factory.mktemp("guarded") / "envoy.log"
    with Gateway(server_of_cases.endpoint, log_file=log_file, admitted={"slow": Admission(in_flight=9)}) as running:
        yield Guarded(running, server_of_cases.repository / "slow")


def asked(gateway: Gateway, request: Request) -> Came:
    (came,) = ask(gateway, request)  # type: ignore[arg-type]
    return came


def begin_asking(guarded: Guarded, request: Request, came: dict[int, Came], number: int) -> threading.Thread:
    thread = threading.Thread(target=lambda: came.__setitem__(number, asked(guarded.gateway, request)), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("letter", LINES)
def test_wrong_contents_get_their_own_client_error(guarded: Guarded, cases: Path, letter: str) -> None:
    """Line f, a negative size, is the client's error here; Triton itself answers 500 over HTTP."""
    case = line(cases, letter)
    for request in case_24()[case["id"]]:
        came = asked(guarded.gateway, request)
        if case["expect_status"] == 200:
            assert came.outputs is not None and came.outputs["OUT"].tolist() == [[b"a\x00\x00"]]
            continue
        assert came.status == ("400" if request.protocol is HTTP else "INVALID_ARGUMENT"), came
        assert all(word in came.error for word in case.get("must_say", ()))


@pytest.mark.parametrize("protocol", list(Protocol))
def test_twenty_behind_one_that_runs(guarded: Guarded, cases: Path, protocol: Protocol) -> None:
    expected = json.loads((cases / "09_traffic.json").read_text(encoding="utf-8"))["expect"]
    begin_anew(guarded.slow)
    came: dict[int, Came] = {}
    threads = [begin_asking(guarded, one_row(0, protocol), came, 0)]
    try:
        until(lambda: (guarded.slow / "given").exists(), "the first never ran")
        threads += [begin_asking(guarded, one_row(value, protocol), came, value) for value in range(1, 21)]
        # While the first is still held: at once, not when the queue moves.
        until(lambda: len(came) == expected["rejected"], "not refused at once")
    finally:
        (guarded.slow / "go").touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    right = {value: one.outputs["Y"].item() for value, one in came.items() if one.outputs}
    assert right == {value: 2 * value + 1 for value in right}
    assert len(right) == expected["accepted"]
    status = "429" if protocol is HTTP else "RESOURCE_EXHAUSTED"
    assert Counter(one.status for one in came.values() if not one.outputs) == {status: expected["rejected"]}


@pytest.mark.parametrize("leaving", [Leaving.CANCEL, Leaving.CLOSE, Leaving.RESET])
def test_a_caller_that_leaves_gives_its_place_back_at_once(guarded: Guarded, cases: Path, leaving: Leaving) -> None:
    """A runs, B and C wait, B leaves: its place is free before anything else is executed."""
    expected = json.loads((cases / "25_disconnect.json").read_text(encoding="utf-8"))["expect"]
    begin_anew(guarded.slow)
    came: dict[int, Came] = {}
    threads = [begin_asking(guarded, one_row(1, HTTP), came, 0)]
    try:
        until(lambda: (guarded.slow / "given").exists(), "A never ran")
        protocol = GRPC if leaving is Leaving.CANCEL else HTTP
        threads.append(begin_asking(guarded, one_row(2, protocol, leaving), came, 1))
        threads.append(begin_asking(guarded, one_row(3, GRPC), came, 2))
        until(lambda: active(guarded.gateway) == 3, "B and C never came")
        until(lambda: active(guarded.gateway) == 2, "B's place was never freed")
    finally:
        (guarded.slow / "go").touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert came[1].left
    assert [came[number].outputs["Y"].item() for number in (0, 2)] == [expected["A"], expected["C"]]  # type: ignore[index]
