"""Load tests: callers of an open loop, and what they send over HTTP. gevent's loop runs in the test; nothing is patched."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import gevent
import numpy as np
import pytest

from brim.errors import InputError, ServerFailed
from brim.measure.accounting import Objective, Outcome, Reply
from brim.measure.callers import Row
from brim.measure.plan import Distribution
from brim_loadtest.callers import Callers
from brim_loadtest.http_line import HttpLine
from brim_loadtest.job import Job
from brim_loadtest.payload import Payload, References, make_payload, outputs_over_grpc
from brim_loadtest.schedule import Arrival, Caller, Schedule
from brim_loadtest.shapes import Behaviour, Shape, Travel, profile
from brim_loadtest.tally import Ended

S = 1_000_000
CLOSE_WAIT = 8
"""State of a connection whose other side has closed it (Linux, tcp_states.h)."""
ROWS: list[Row] = [{"X": np.full((1, 4), value, np.float32)} for value in range(3)]
ANSWERS = [{"Y": row["X"] * 2} for row in ROWS]
CALLERS = (Caller("interactive", 0.5, Objective(99, S)), Caller("batch", 0.5, Objective(99, S), deadline_us=1_500_000))
ANSWERED = Ended(Reply(Outcome.ANSWERED))


def payload() -> Payload:
    return make_payload("doubler", ROWS, ANSWERS, 1e-4)


def job(**changes: Any) -> Job:
    schedule = Schedule(
        profile(Shape.STEADY, 100, 200, S // 5), CALLERS, Distribution.CONSTANT, Travel.HTTP, rows=len(ROWS), tenants=2
    )
    usual = Job(
        schedule=schedule,
        payload=payload(),
        model="doubler",
        http="127.0.0.1:1",
        grpc="127.0.0.1:1",
        workers=1,
        in_flight=100,
        patience_us=60 * S,
        leaving=False,
        folder=".",
    )
    return replace(usual, **changes)


# The open loop.


class Events:
    """What Locust would be told."""

    def __init__(self) -> None:
        self.request = self
        self.fired: list[dict[str, Any]] = []

    def fire(self, **what: Any) -> None:
        self.fired.append(what)


@dataclass
class FakeLine:
    """A server that does as it is told with each request."""

    ask_it: Callable[[Arrival], Ended]
    asked: list[Arrival] = field(default_factory=list)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, arrival: Arrival) -> Ended:
        self.asked.append(arrival)
        return self.ask_it(arrival)


def never(arrival: Arrival) -> Ended:
    gevent.sleep(3_600)
    raise AssertionError("nobody waits for an hour")


def sent_by(
    one: Job, ask: Callable[[Arrival], Ended], *, stop_after: int | None = None
) -> tuple[dict[str, int], Callers, Events]:
    events = Events()
    callers = Callers(one, {False: FakeLine(ask)}, events, worker=0)
    if stop_after is not None:

        def stop() -> None:
            while callers.tally.progress()["offered"] + len(callers.under_way) < stop_after:
                gevent.sleep(0.001)
            callers.stop()

        gevent.spawn(stop)
    with gevent.Timeout(60):
        callers.run(time.monotonic())
    return callers.tally.progress(), callers, events


def test_requests_leave_although_nothing_is_answered() -> None:
    counts, callers, events = sent_by(job(patience_us=S // 10, leaving=True), never)
    assert counts["offered"] == counts["cancelled"] == 20
    assert not callers.under_way
    assert callers.evidence.most_under_way > 1
    assert events.fired == []


def test_a_caller_whose_patience_is_the_generators_own_had_no_answer() -> None:
    counts, _, events = sent_by(job(patience_us=S // 10), never)
    assert counts["offered"] == counts["timed_out"] == 20
    assert {one["exception"] for one in events.fired} == {"timed_out"}


def test_requests_under_way_are_bounded() -> None:
    counts, callers, _ = sent_by(job(in_flight=3, patience_us=S), never)
    assert counts["offered"] == callers.evidence.most_under_way == 3
    assert counts["not_sent"] == 17


def test_every_request_has_an_outcome_whatever_is_raised_inside() -> None:
    def ask(arrival: Arrival) -> Ended:
        if arrival.number % 2:
            raise RuntimeError("a bug")
        return ANSWERED

    counts, callers, events = sent_by(job(), ask)
    assert (counts["offered"], counts["answered"], counts["failed"]) == (20, 10, 10)
    assert sum(sum(one.account.messages.values()) for one in callers.tally.classes) == 10
    assert sorted(one["exception"] or "" for one in events.fired) == [""] * 10 + ["failed"] * 10
    assert {(one["request_type"], one["name"]) for one in events.fired} <= {("HTTP", "interactive"), ("HTTP", "batch")}


def test_callers_that_leave_are_cancelled_and_all_others_are_not() -> None:
    schedule = replace(job().schedule, misbehaviour=Behaviour.LEAVING)

    def ask(arrival: Arrival) -> Ended:
        return never(arrival) if arrival.behaviour is Behaviour.LEAVING else ANSWERED

    leaving = sum(one.behaviour is Behaviour.LEAVING for one in schedule.arrivals())
    assert leaving
    counts, callers, _ = sent_by(job(schedule=schedule), ask)
    assert (counts["cancelled"], counts["answered"]) == (leaving, 20 - leaving)
    assert sum(one.judged for one in callers.tally.classes) == 20 - leaving


def test_a_stop_ends_everything_and_says_what_it_cut_short() -> None:
    slow = replace(job().schedule, profile=profile(Shape.STEADY, 100, 200, 3_600 * S))
    counts, callers, _ = sent_by(
        job(schedule=slow), lambda arrival: never(arrival) if arrival.number % 2 else ANSWERED, stop_after=10
    )
    assert counts["offered"] == counts["answered"] + counts["cancelled"] < 100
    assert counts["answered"] and counts["cancelled"]
    shown = callers.tally.as_json()["classes"].values()
    assert sum(one["stopped"] for one in shown) == counts["cancelled"]
    assert sum(one.judged for one in callers.tally.classes) == counts["answered"]
    assert not callers.under_way


def test_workers_send_each_its_part() -> None:
    numbers: list[int] = []

    def ask(arrival: Arrival) -> Ended:
        numbers.append(arrival.number)
        return ANSWERED

    for worker in range(2):
        callers = Callers(job(workers=2), {False: FakeLine(ask)}, Events(), worker=worker)
        callers.run(time.monotonic())
        assert callers.tally.progress()["offered"] == 10
    assert sorted(numbers) == list(range(20))


# What is sent, and what comes back.


def test_a_payload_survives_the_way_to_another_process() -> None:
    one = payload()
    assert Payload.from_json(one.as_json()) == one
    assert Job.from_json(job().as_json()) == job()


def test_texts_are_references_too() -> None:
    texts = [{"T": np.array([["a"], ["ü\0"]], dtype=object)}]
    made = make_payload("texts", [{"X": np.zeros((2, 1), np.float32)}], texts, 1e-4)
    (got,) = (outputs_over_grpc(one) for one in made.references)
    assert got["T"].tolist() == [[b"a"], ["ü\0".encode()]]
    assert References(made).fault(0, got) == ""
    assert "differs" in References(made).fault(0, {"T": np.array([[b"a"], [b"b"]], dtype=object)})


def test_large_rows_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(payload().grpc[0])
    monkeypatch.setattr("brim_loadtest.payload.MOST_BYTES", 2 * size)
    made = payload()
    assert len(made.grpc) == len(made.http) == len(made.references) == 2
    monkeypatch.setattr("brim_loadtest.payload.MOST_BYTES", 1)
    assert len(payload().grpc) == 1
    with pytest.raises(InputError):
        make_payload("doubler", [], [], 1e-4)


Script = Callable[[socket.socket, bytes, bytes], bool]
"""Answers one request, given its head and body; False closes the connection."""


class Server:
    """An HTTP server in a thread of its own, which does with each request what a script says."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.ended: list[int] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with closing(connection):
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    more = connection.recv(65_536)
                    if not more:
                        self.ended.append(number)
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                while len(data) < length:
                    more = connection.recv(65_536)
                    if not more:
                        self.ended.append(number)
                        return
                    data += more
                body, data = data[:length], data[length:]
                self.heads.append(head.decode())
                self.bodies.append(body)
                if not self.script(connection, head, body):
                    return


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


RIGHT = answer("200 OK", b'{"outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 4], "data": [2, 2, 2, 2]}]}')
WRONG = answer("200 OK", b'{"outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 4], "data": [2, 2, 2, 3]}]}')


def says(*whole: bytes) -> Script:
    """These, one after the other; then the connection is closed."""
    left = iter(whole)

    def script(connection: socket.socket, head: bytes, body: bytes) -> bool:
        said = next(left, b"")
        connection.sendall(said)
        return bool(said)

    return script


@pytest.fixture
def serve() -> Iterator[Callable[[Script], tuple[Server, HttpLine]]]:
    servers, lines = [], []

    def start(script: Script) -> tuple[Server, HttpLine]:
        servers.append(Server(script))
        one = job(http=servers[-1].address)
        lines.append(HttpLine(one, References(one.payload)))
        return servers[-1], lines[-1]

    yield start
    for line in lines:
        line.close()
    for server in servers:
        server.listener.close()


ROW_1 = Arrival(0, 0, 0, 1, 0, False, Behaviour.PLAIN, 0)
Serve = Callable[[Script], tuple[Server, HttpLine]]


@pytest.mark.parametrize(
    ("said", "outcome", "reason", "wrong"),
    [
        (RIGHT, Outcome.ANSWERED, "", False),
        (WRONG, Outcome.FAILED, "", True),
        (answer("200 OK", b"{}"), Outcome.FAILED, "", True),
        (answer("200 OK", b"\xff"), Outcome.FAILED, "", True),
        (answer("429 Too Many Requests", b"{}", "X-Brim-Reason: queue_full"), Outcome.REFUSED, "queue_full", False),
        (answer("503 Service Unavailable", b"{}", "x-brim-reason: draining"), Outcome.REFUSED, "draining", False),
        (answer("504 Gateway Timeout", b"{}", "x-brim-reason: deadline"), Outcome.EXPIRED, "deadline", False),
        (answer("503 Service Unavailable", b'{"error":"Request timeout expired"}'), Outcome.EXPIRED, "", False),
        (answer("400 Bad Request", b"{}"), Outcome.FAILED, "", False),
        (answer("500 Oops", b"{}"), Outcome.FAILED, "", False),
        (b"", Outcome.FAILED, "", False),
        (b"no HTTP at all\r\n\r\n", Outcome.FAILED, "", False),
    ],
)
def test_what_an_answer_means(serve: Serve, said: bytes, outcome: Outcome, reason: str, wrong: bool) -> None:
    _, line = serve(says(said))
    ended = line.ask(ROW_1)
    assert (ended.reply.outcome, ended.reason, ended.wrong, ended.stopped) == (outcome, reason, wrong, False)


def test_a_request_says_whose_it_is(serve: Serve) -> None:
    server, line = serve(says(*[RIGHT] * 2))
    line.ask(ROW_1)
    line.ask(replace(ROW_1, caller=1, tenant=7))
    first, second = (head.lower() for head in server.heads)
    assert first.startswith("post /v2/models/doubler/infer http/1.1\r\n")
    assert "x-brim-class: interactive\r\n" in first
    assert "x-brim-tenant" not in first and "x-brim-timeout-ms" not in first
    for words in ("x-brim-class: batch\r\n", "x-brim-tenant: tenant-7\r\n", "x-brim-timeout-ms: 1500\r\n"):
        assert words in second
    assert server.bodies == [payload().http[1].data] * 2
    assert server.connections == 1


def test_a_connection_that_was_closed_meanwhile_is_not_used_again(serve: Serve) -> None:
    server, line = serve(says(RIGHT))

    def close_then(connection: socket.socket, head: bytes, body: bytes) -> bool:
        connection.sendall(RIGHT)
        return False

    server.script = close_then
    for _ in range(3):
        assert line.ask(ROW_1).reply.outcome is Outcome.ANSWERED
        deadline = time.monotonic() + 30
        # The end of the connection has to arrive here first.
        while line._idle and line._idle[0].getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1)[0] != CLOSE_WAIT:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert server.connections == 3


def test_a_caller_that_leaves_closes_its_connection(serve: Serve) -> None:
    asked = threading.Event()

    def silent(connection: socket.socket, head: bytes, body: bytes) -> bool:
        asked.set()
        return True

    server, line = serve(silent)
    waiting = gevent.spawn(line.ask, ROW_1)
    while not asked.is_set():
        gevent.sleep(0.001)
    waiting.kill()
    deadline = time.monotonic() + 30
    while server.ended != [1]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert line._idle == []


def test_a_slow_caller_sends_the_same_bytes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim_loadtest.http_line.SLOW_BODY_US", 50_000)
    server, line = serve(says(RIGHT))
    assert line.ask(replace(ROW_1, behaviour=Behaviour.SLOW)).reply.outcome is Outcome.ANSWERED
    assert server.bodies == [payload().http[1].data]


def test_an_address_where_nobody_listens_is_said_before_the_run() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    one = job(http=address)
    with pytest.raises(ServerFailed, match=address):
        HttpLine(one, References(one.payload)).open()


# What gevent does to a process.


def run_python(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_the_command_patches_nothing_in_its_own_process() -> None:
    done = run_python(
        "import sys, gevent.monkey, brim.cli.commands.load\n"
        "assert 'locust' not in sys.modules\n"
        "assert not gevent.monkey.saved, gevent.monkey.saved.keys()\n"
    )
    assert done.returncode == 0, done.stderr


COOPERATIVE = """
from gevent import monkey
monkey.patch_all()
from brim_loadtest.grpc_line import check_cooperative, make_cooperative
{switch}
check_cooperative()
"""


def test_a_grpc_call_that_stops_everybody_is_found_at_the_start() -> None:
    assert run_python(COOPERATIVE.format(switch="make_cooperative()")).returncode == 0
    blocked = run_python(COOPERATIVE.format(switch=""))
    assert blocked.returncode != 0
    assert "CouldNotTell" in blocked.stderr and "0 of 30 ticks" in blocked.stderr
