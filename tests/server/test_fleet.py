"""Three real servers behind the real gateway: killed, stopped, drained, spoilt, while callers go on. Counts, not times."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest

from brim.errors import InputError, ServerFailed
from brim.fleet import replica as replica_module
from brim.fleet.fleet import HOSTS_FOLDER, Fleet
from brim.fleet.orders import Order, place_order, read_status
from brim.fleet.replica import Replica, State
from brim.gateway.admission import Admission, admissions
from brim.gateway.envoy import Gateway
from brim.gateway.hosts import hosts
from brim.gateway.replicas import file_of
from brim.measure.known_time import KnownTime, read_executions, write_known_time
from brim.measure.text.events import body_of, take_line
from brim.measure.text.stream import Ask, Heard
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.healing import Bounds
from brim.server.options import ServerOptions
from brim.service.load import load_service
from tests.server import story_model
from tests.server.story_model import story
from tests.server.text_callers import Stream

KNOWN, STORY = "known", story_model.MODEL
BATCH_US = 20_000
PATIENCE_S = 60.0
RATE_PER_S = 60
X = np.zeros((1, 4), np.float32)
GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass
class Place:
    """A fleet, its gateway, and somebody who looks after the fleet."""

    fleet: Fleet
    gateway: Gateway
    repositories: Path
    said: list[str]
    paused: threading.Event = field(default_factory=threading.Event)
    failed: list[Exception] = field(default_factory=list)

    def look_after(self, over: threading.Event) -> None:
        while not over.wait(0.1):
            if not self.paused.is_set():
                try:
                    self.fleet.tick()
                except Exception as error:  # noqa: BLE001 - seen at the end of the test
                    self.failed.append(error)

    def replica(self, name: str) -> Replica:
        return next(one for one in self.fleet.replicas if one.name == name)

    def states(self) -> dict[str, State]:
        return {one.name: one.state for one in self.fleet.replicas}

    def executions(self, name: str) -> int:
        return len(read_executions(self.repositories / name / KNOWN))

    def stat(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self.gateway.admin}/stats?filter=^{name}$") as answer:
            return sum(int(line.rpartition(":")[2]) for line in answer.read().decode().splitlines())

    def serving(self) -> list[str]:
        """Names of the replicas whose HTTP port Envoy gives requests, as far as the fleet has told it."""
        names = {one.server.endpoint.http: one.name for one in self.fleet.replicas if one.endpoint}
        known = hosts(self.gateway.admin)
        return sorted(name for address, name in names.items() if address in known and not known[address].draining)


def until(holds: Callable[[], bool], what: object = "") -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


@contextmanager
def placed(checkout: Path, folder: Path, count: int, *, heals: int = 2) -> Iterator[Place]:
    (folder / "base").mkdir()
    base = story_model.make_project(folder / "base", step_s=0.01)
    service = load_service(base.services / f"{STORY}.yaml")
    said: list[str] = []

    def make(name: str) -> EmbeddedServer:
        repository = folder / "repositories" / name
        shutil.copytree(base.model_repository, repository)
        write_known_time(repository, KNOWN, KnownTime(tau0_us=BATCH_US, alpha_us=0, record=True))
        return EmbeddedServer(
            repository,
            [KNOWN, STORY],
            cache=Project(checkout).cache,
            log_file=folder / f"{name}.log",
            options=ServerOptions(exit_timeout_s=2),
        )

    admitted = {KNOWN: Admission(), STORY: admissions([service])[STORY]}
    with ExitStack() as stack:
        fleet = Fleet(
            make,
            count,
            models=[KNOWN, STORY],
            folder=folder / "replicas" / str(os.getpid()),
            bounds=Bounds(heals=heals),
            on_progress=said.append,
        )
        stack.enter_context(fleet)
        gateway = stack.enter_context(
            Gateway(
                fleet.first.server.endpoint,
                log_file=folder / "envoy.log",
                admitted=admitted,
                canaries={KNOWN: {"X": X}},
                replicas=fleet.for_gateway,
            )
        )
        fleet.gateway = gateway
        place, over = Place(fleet, gateway, folder / "repositories", said), threading.Event()
        thread = threading.Thread(target=place.look_after, args=(over,), daemon=True)
        thread.start()
        try:
            yield place
        finally:
            over.set()
            thread.join()
        assert place.failed == []
        assert "script log" not in gateway.log_file.read_text()


@pytest.fixture(scope="module")
def place(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(checkout, tmp_path_factory.mktemp("fleet"), 3) as running:
        yield running


@pytest.fixture
def whole(place: Place) -> Place:
    """All three serve."""
    until(lambda: list(place.states().values()) == [State.SERVING] * 3 and len(place.serving()) == 3, place.states())
    return place


@dataclass
class Calls:
    """An open loop: one request every so often, whether or not others have been answered."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    under_way: int = 0

    async def one(self, session: aiohttp.ClientSession, address: str, number: int) -> None:
        self.sent += 1
        self.under_way += 1
        body = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}]}
        try:
            async with session.post(f"http://{address}/v2/models/{KNOWN}/infer", json=body) as answer:
                told = await answer.json(content_type=None)
                if answer.status == 200:
                    right = told["outputs"][0]["data"] == [2 * number] * 4
                    self.answers["right" if right else "wrong"] += 1
                else:
                    self.answers[f"{answer.status} {told.get('reason')}"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
        finally:
            self.under_way -= 1

    async def drive(self, address: str, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            while not stop.is_set():
                group.create_task(self.one(session, address, self.sent % 100))
                await asyncio.sleep(1 / RATE_PER_S)


@contextmanager
def calling(gateway: Gateway) -> Iterator[Calls]:
    """Callers for as long as the block lasts; at its end every one has been answered."""
    calls, stop = Calls(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(calls.drive(gateway.endpoint.http, stop),))
    thread.start()
    try:
        yield calls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    assert calls.under_way == 0
    assert calls.answers.total() == calls.sent


def answered(calls: Calls, more: int) -> None:
    """Wait for so many further right answers."""
    target = calls.answers["right"] + more
    until(lambda: calls.answers["right"] >= target, calls)


def test_every_replica_gets_requests_and_bounds_are_those_of_all(whole: Place) -> None:
    before = {name: whole.executions(name) for name in whole.states()}
    with calling(whole.gateway) as calls:
        answered(calls, 60)
    assert set(calls.answers) == {"right"}
    assert all(whole.executions(name) > before[name] for name in before)
    until(lambda: whole.stat(f"cluster.triton/{KNOWN}.circuit_breakers.default.remaining_rq") == 3_000)
    assert (whole.fleet.folder / HOSTS_FOLDER / "serving").read_text() == "3\n"


def test_killed_under_load_and_back_again(whole: Place) -> None:
    victim = whole.replica("r2")
    before = victim.server.pid
    retried = whole.stat(f"cluster.triton/{KNOWN}.upstream_rq_retry")
    with calling(whole.gateway) as calls:
        answered(calls, 30)
        under_way = calls.under_way
        os.kill(before, signal.SIGKILL)
        answered(calls, 30)
        until(lambda: victim.state is State.SERVING and victim.server.pid != before, whole.said)
        until(lambda: whole.serving() == ["r1", "r2", "r3"])
        again = whole.executions("r2")
        until(lambda: whole.executions("r2") > again, "the replica that has come back gets requests")
    failed = {kind: count for kind, count in calls.answers.items() if kind != "right"}
    assert set(failed) <= {"503 unavailable"}, "nothing but what may be sent again"
    assert sum(failed.values()) <= under_way + 1
    again_sent = whole.stat(f"cluster.triton/{KNOWN}.upstream_rq_retry") - retried
    assert again_sent + sum(failed.values()) > 0, "nobody noticed: nothing was proven"
    assert any(line.startswith("r2: supervision: crashed server") for line in whole.said)


def test_stopped_process_gets_no_requests_and_is_replaced(whole: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still takes connections: only that it answers nothing tells."""
    monkeypatch.setattr(replica_module, "SILENT_AFTER_S", 1.5)
    monkeypatch.setattr(replica_module, "HUNG_AFTER_S", 4.0)
    monkeypatch.setattr(replica_module, "PROBE_TIMEOUT_S", 1.0)
    victim = whole.replica("r3")
    process = psutil.Process(victim.server.pid)
    with calling(whole.gateway) as calls:
        answered(calls, 20)
        process.suspend()
        until(lambda: "r3" not in whole.serving(), whole.said)
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        until(lambda: victim.state is State.SERVING, whole.said)
    assert set(calls.answers) <= {"right", "503 unavailable"}
    assert any("nothing heard" in line for line in whole.said)


def test_a_dead_stub_is_healed_while_others_answer(whole: Place) -> None:
    """Triton goes on saying that it is ready, and fails whatever comes at once: nothing would have fewer requests under way."""
    victim = whole.replica("r2")
    with calling(whole.gateway) as calls:
        answered(calls, 10)
        (stub,) = [stub for stub in victim.server.living_stubs() if stub.model == KNOWN]
        os.kill(stub.process.pid, signal.SIGKILL)
        until(lambda: any(line.startswith("r2: supervision: known: dead stub") for line in whole.said), whole.said)
        until(lambda: victim.state is State.SERVING, whole.states())
        answered(calls, 20)
    assert "wrong" not in calls.answers and "TimeoutError" not in calls.answers
    assert calls.answers["right"] > calls.sent / 2


def test_a_spoilt_file_changes_nothing_and_is_put_right(whole: Place) -> None:
    cluster = f"triton/{KNOWN}"
    path = file_of(whole.fleet.folder / HOSTS_FOLDER, cluster)
    rejected = whole.stat(f"cluster.{cluster}.update_rejected") + whole.stat(f"cluster.{cluster}.update_failure")
    right = path.read_text()
    whole.paused.set()
    try:
        for text in ("{", json.dumps({"resources": [{"no": "type"}]})):
            beside = path.with_suffix(".new")
            beside.write_text(text)
            beside.replace(path)
        until(
            lambda: (
                whole.stat(f"cluster.{cluster}.update_rejected") + whole.stat(f"cluster.{cluster}.update_failure")
                > rejected
            )
        )
        with calling(whole.gateway) as calls:
            answered(calls, 20)
        assert set(calls.answers) == {"right"}
        assert whole.serving() == ["r1", "r2", "r3"]
    finally:
        whole.paused.clear()
    until(lambda: path.read_text() == right)
    assert any("written anew" in line for line in whole.said)


def test_a_replica_with_another_version_gets_no_requests(whole: Place) -> None:
    odd = whole.replica("r1")
    model = odd.server.repository / KNOWN
    shutil.copytree(model / "1", model / "2")
    with calling(whole.gateway) as calls:
        answered(calls, 10)
        odd.server.endpoint.http_client().load_model(KNOWN)
        until(lambda: odd.state is State.UNFIT, whole.states())
        assert odd.detail == f"{KNOWN} has version 2 there and 1 elsewhere"
        until(lambda: "r1" not in whole.serving())
        shutil.rmtree(model / "2")
        odd.server.endpoint.http_client().load_model(KNOWN)
        until(lambda: odd.state is State.SERVING, whole.states())
    assert set(calls.answers) == {"right"}


def test_drained_under_load_and_with_streams(whole: Place) -> None:
    """No stream is cut, nothing new goes there, and it ends when the last stream there has ended."""
    with calling(whole.gateway) as calls, ExitStack() as stack:
        lines = stack.enter_context(ExitStack())
        streams = [
            lines.enter_context(
                Stream(whole.gateway.endpoint, b"a", {**GREEDY, "max_tokens": 250}, STORY, f"s{number}")
            )
            for number in range(6)
        ]
        for stream in streams:
            assert not stream.next()
        victim = max(
            whole.fleet.replicas, key=lambda one: hosts(whole.gateway.admin)[one.server.endpoint.grpc].under_way
        )
        address = victim.server.endpoint.grpc
        assert hosts(whole.gateway.admin)[address].under_way > 0, "else this would prove nothing"
        place_order(whole.fleet.folder, Order(drain=victim.name, deadline_s=600))
        until(lambda: hosts(whole.gateway.admin)[address].draining)
        ports = (address, victim.server.endpoint.http)
        sent = [hosts(whole.gateway.admin)[port].sent for port in ports]
        later = lines.enter_context(Stream(whole.gateway.endpoint, b"b", {**GREEDY, "max_tokens": 5}, STORY, "later"))
        answered(calls, 30)
        assert victim in whole.fleet.replicas, "streams are under way"
        for stream in [*streams, later]:
            stream.finish()
            assert stream.error is None
        assert {"".join(stream.texts) for stream in streams} == {story("a", 250)}
        assert "".join(later.texts) == story("b", 5)
        assert [hosts(whole.gateway.admin)[port].sent for port in ports] == sent
        assert victim in whole.fleet.replicas, "their callers have not closed them yet"
        lines.close()
        until(lambda: victim not in whole.fleet.replicas, whole.said)
        answered(calls, 10)
    assert set(calls.answers) == {"right"}
    assert victim.name not in [one["name"] for one in read_status(whole.fleet.folder)["replicas"]]
    with pytest.raises(ServerFailed):
        _ = victim.server.pid
    # And another one in its place.
    place_order(whole.fleet.folder, Order(replicas=3))
    until(lambda: list(whole.states().values()) == [State.SERVING] * 3, whole.states())
    until(lambda: whole.serving() == sorted(whole.states()))
    assert victim.name not in whole.states()


@dataclass
class Events:
    """One caller of ``/generate_stream``, who has heard the beginning of the text."""

    gateway: Gateway
    tokens: int
    heard: Heard = field(default_factory=Heard)

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.gateway.endpoint.http, timeout=PATIENCE_S)
        ask = Ask(b"a", {**GREEDY, "max_tokens": self.tokens})
        self._connection.request("POST", f"/v2/models/{STORY}/generate_stream", json.dumps(body_of(ask)))
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        while not self.heard.pieces:
            self._take()

    def _take(self) -> bool:
        line = self._answer.readline().decode()
        return bool(line) and take_line(self.heard, line.rstrip(), 0)

    def finish(self) -> Heard:
        """Listen to the end of the answer."""
        while self._take():
            pass
        self._connection.close()
        return self.heard


def test_drained_while_server_sent_events_come(whole: Place) -> None:
    """No stream is cut, each is what it is alone, and the replica ends by itself when the last of them has ended."""
    alone = Events(whole.gateway, 200).finish()
    assert alone.complete and alone.text == story("a", 200)
    streams = [Events(whole.gateway, 200) for _ in range(6)]
    ports = {one.name: one.server.endpoint.http for one in whole.fleet.replicas}
    known = hosts(whole.gateway.admin)
    victim = max(whole.fleet.replicas, key=lambda one: known[ports[one.name]].under_way)
    assert known[ports[victim.name]].under_way > 0, "else this would prove nothing"
    place_order(whole.fleet.folder, Order(drain=victim.name, deadline_s=600))
    until(lambda: hosts(whole.gateway.admin)[ports[victim.name]].draining)
    assert not all(stream.heard.finish_reason for stream in streams)
    assert victim in whole.fleet.replicas, "streams are under way"
    heard = [stream.finish() for stream in [*streams, Events(whole.gateway, 200)]]
    assert [(one.error, one.strange, one.finish_reason, one.text) for one in heard] == [
        ("", [], "length", alone.text)
    ] * 7
    until(lambda: victim not in whole.fleet.replicas, whole.said)
    place_order(whole.fleet.folder, Order(replicas=3))
    until(lambda: list(whole.states().values()) == [State.SERVING] * 3, whole.states())


def test_past_the_deadline_a_text_ends_with_an_error_of_its_own(whole: Place) -> None:
    with ExitStack() as stack:
        streams = [
            stack.enter_context(
                Stream(whole.gateway.endpoint, b"a", {**GREEDY, "max_tokens": 400}, STORY, f"d{number}")
            )
            for number in range(3)
        ]
        for stream in streams:
            assert not stream.next()
        busy = {
            one.name: hosts(whole.gateway.admin)[one.server.endpoint.grpc].under_way for one in whole.fleet.replicas
        }
        victim = whole.replica(max(busy, key=lambda name: busy[name]))
        place_order(whole.fleet.folder, Order(drain=victim.name, deadline_s=0.5))
        for stream in streams:
            stream.finish()
        errors = [stream.error for stream in streams if stream.error is not None]
        assert len(errors) == busy[victim.name] and all(
            "draining: the server is being stopped" in one for one in errors
        )
        assert {"".join(one.texts) for one in streams if one.error is None} <= {story("a", 400)}
        assert f"{victim.name}: its deadline has passed: what is under way ends" in whole.said
    until(lambda: victim not in whole.fleet.replicas, whole.said)
    place_order(whole.fleet.folder, Order(replicas=3))
    until(lambda: list(whole.states().values()) == [State.SERVING] * 3, whole.states())


def test_orders_that_cannot_be_carried_out_say_why(whole: Place) -> None:
    name = place_order(whole.fleet.folder, Order(drain="r99"))
    until(lambda: name in read_status(whole.fleet.folder)["orders"])
    answer = read_status(whole.fleet.folder)["orders"][name]
    assert not answer["ok"] and "no replica 'r99'" in answer["message"]
    (whole.fleet.folder / "orders" / "junk.json").write_text("{")
    until(lambda: "junk" in read_status(whole.fleet.folder)["orders"])
    # Nor does it end anybody that the status cannot be written.
    status = whole.fleet.folder / "status.json"
    status.unlink()
    status.mkdir()
    (whole.fleet.folder / "orders" / "more.json").write_text("{")
    until(lambda: any(line.endswith("replicas are asked as before") for line in whole.said), whole.said)
    status.rmdir()
    until(lambda: status.is_file() and "more" in read_status(whole.fleet.folder)["orders"])
    with pytest.raises(InputError, match="only one"):
        for one in whole.fleet.replicas:
            whole.fleet.drain(one.name, 600)
    for one in whole.fleet.replicas:
        one.drain_until_s = None


def test_one_that_restarts_in_a_loop_is_given_up_by_name_while_others_serve(whole: Place) -> None:
    """Last, since it does not come back."""
    victim = whole.replica(min(whole.states()))
    (victim.server.repository / KNOWN / "1" / "model.py").write_text("raise RuntimeError('broken for good')")
    with calling(whole.gateway) as calls:
        os.kill(victim.server.pid, signal.SIGKILL)
        until(lambda: victim.state is State.GIVEN_UP, whole.said)
        answered(calls, 30)
    assert set(calls.answers) <= {"right", "503 unavailable"}
    assert any(line.startswith(f"{victim.name}: given_up") for line in whole.said)
    assert sorted(whole.states().values()) == sorted([State.GIVEN_UP, State.SERVING, State.SERVING])
    assert victim.name not in whole.serving()
