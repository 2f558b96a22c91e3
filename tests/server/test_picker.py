"""The picker behind a real Envoy: it is followed, and nothing depends on it."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from brim.fleet.picker import PickerProcess, choose_place
from brim.gateway.clusters import OTHERS
from brim.gateway.picking import BodyMode
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import file_of
from brim.retries import Budget
from tests.server.picked import Picked, at_once, get, picked, wait_until

LONG = "Once upon a time " * 80


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picked]:
    with picked(tmp_path_factory.mktemp("picked")) as running:
        yield running


@pytest.fixture
def fleet(shared: Picked) -> Picked:
    """With idle replicas, whose pages say so."""
    for name in shared.upstreams:
        shared.tell(name, waiting=0, usage=0.0)
    shared.looked()
    return shared


@pytest.fixture
def own_fleet(tmp_path: Path) -> Iterator[Picked]:
    """One that may be harmed."""
    with picked(tmp_path) as running:
        yield running


def in_flight(fleet: Picked) -> dict[str, float]:
    return {name: value for name, value in fleet.page().items() if name.startswith("brim_picker_in_flight") and value}


def picks(fleet: Picked) -> float:
    return sum(value for name, value in fleet.page().items() if name.startswith("brim_picker_picks_total"))


def test_a_prompt_goes_where_its_beginning_is(fleet: Picked) -> None:
    answers = []
    for number in range(6):
        answers.append(fleet.story(f"{LONG} and then {number}"))
        wait_until(lambda: in_flight(fleet) == {}, "a request stays in flight")
    homes = {answer["replica"] for answer in answers}
    assert len(homes) == 1
    assert all(answer["picked"].split(",")[0] == fleet.upstreams[answer["replica"]].http for answer in answers)
    # Not when that replica has no room.
    (home,) = homes
    fleet.tell(home, usage=0.95)
    fleet.looked()
    assert fleet.story(f"{LONG} and then 7")["replica"] != home
    reasons = {
        name.split('reason="')[1].split('"')[0] for name in fleet.page() if 'model="story"' in name and "reason" in name
    }
    assert {"warm", "warm_saturated"} <= reasons


def test_tensors_go_to_the_shortest_queue(fleet: Picked) -> None:
    fleet.tell("a", waiting=9)
    fleet.tell("b", waiting=9)
    fleet.looked()
    assert {fleet.sort()["replica"] for _ in range(8)} == {"c"}


def test_what_is_under_way_counts_until_its_answer_is_complete(fleet: Picked) -> None:
    answers = at_once(30, lambda number: fleet.sort(x_delay_s="1.0"))
    shares = Counter(answer["replica"] for answer in answers)
    assert set(shares) == set("abc") and max(shares.values()) <= 12
    wait_until(lambda: not in_flight(fleet), "something is in flight for ever")


def test_who_leaves_is_in_flight_no_longer(fleet: Picked) -> None:
    connection = http.client.HTTPConnection(fleet.gateway)
    connection.request("POST", "/v2/models/sorter/infer", b"{}", {"x-delay-s": "3"})
    wait_until(lambda: bool(in_flight(fleet)), "it is not counted")
    connection.close()
    wait_until(lambda: not in_flight(fleet), "it is counted though its caller has gone")


def test_a_caller_names_no_replica(fleet: Picked) -> None:
    fleet.tell("a", waiting=9)
    fleet.tell("b", waiting=9)
    fleet.looked()
    answers = [fleet.sort(**{"x-gateway-destination-endpoint": fleet.upstreams["a"].http}) for _ in range(4)]
    assert {answer["replica"] for answer in answers} == {"c"}


def test_only_inferences_are_asked_about(fleet: Picked) -> None:
    before = fleet.envoy("http.callers.ext_proc.streams_started")
    connection = http.client.HTTPConnection(fleet.gateway)
    for path in ("/v2/health/ready", "/v2/models/story/ready", "/v2/models/sorter"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    assert fleet.envoy("http.callers.ext_proc.streams_started") == before
    fleet.sort()
    assert fleet.envoy("http.callers.ext_proc.streams_started") == before + 1


def test_a_request_is_asked_about_once_whatever_its_protocol(fleet: Picked) -> None:
    def picked_as(model: str) -> float:
        return sum(value for name, value in fleet.page().items() if f'picks_total{{model="{model}"' in name)

    # The servers here speak no gRPC. Its model is known only once its message is there.
    before = picks(fleet)
    with InferenceServerClient(fleet.gateway) as client:
        for model in ("story", "sorter"):
            tensor = InferInput("text_input", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([LONG.encode()], dtype=np.object_))
            asked = picked_as(model)
            with pytest.raises(InferenceServerException):
                client.infer(model, [tensor])
            assert picked_as(model) == asked + 1
    assert picks(fleet) == before + 2
    blocks = sum(value for name, value in fleet.page().items() if 'prefix_blocks{model="story"' in name)
    assert blocks > 0
    # Plain HTTP/2 comes by twice.
    body = '{"inputs": []}'
    url = f"http://{fleet.gateway}/v2/models/sorter/infer"
    answer = subprocess.run(
        ["curl", "-s", "--http2-prior-knowledge", "-d", body, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert '"picked": "127' in answer.stdout
    assert picks(fleet) == before + 3


def test_a_replica_that_starts_anew_holds_no_prefix(fleet: Picked) -> None:
    home = fleet.story(LONG)["replica"]
    blocks = f'brim_picker_prefix_blocks{{model="story",replica="{home}"}}'
    assert fleet.page()[blocks] > 0
    fleet.tell(home, process=77)
    wait_until(lambda: fleet.page()[blocks] == 0, "it still holds what it had")


def test_a_draining_replica_gets_nothing_and_a_broken_file_changes_nothing(fleet: Picked) -> None:
    good = fleet.file.read_text(encoding="utf-8")
    fleet.publish(a=True)
    wait_until(lambda: fleet.page()["brim_picker_file_read_total"] >= 1, "the file is not read")
    assert "a" not in {answer["replica"] for answer in at_once(12, lambda number: fleet.sort(x_delay_s="0.2"))}
    refused = fleet.page()["brim_picker_file_refused_total"]
    fleet.put(good[: len(good) // 2])
    wait_until(lambda: fleet.page()["brim_picker_file_refused_total"] > refused, "the broken file is not noticed")
    assert {answer["replica"] for answer in at_once(12, lambda number: fleet.sort(x_delay_s="0.2"))} == {"b", "c"}
    fleet.publish()
    wait_until(
        lambda: "a" in {answer["replica"] for answer in at_once(9, lambda number: fleet.sort(x_delay_s="0.1"))},
        "a does not come back",
    )


@contextmanager
def traffic(fleet: Picked, errors: list[str], answers: list[str]) -> Iterator[None]:
    """Callers who send one request after another."""
    over = threading.Event()

    def call(number: int) -> None:
        while not over.is_set():
            try:
                answers.append((fleet.sort() if number % 2 else fleet.story(LONG))["replica"])
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
                errors.append(f"{type(error).__name__}: {error}")

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        over.set()
        for caller in callers:
            caller.join()


def test_traffic_goes_on_without_the_picker(own_fleet: Picked) -> None:
    fleet, errors, answers = own_fleet, list[str](), list[str]()
    assert fleet.picker is not None
    with traffic(fleet, errors, answers):
        wait_until(lambda: len(answers) > 50, "no traffic")
        # Hung first: each answer is waited for, until the health check has failed twice.
        fleet.picker.send_signal(signal.SIGSTOP)
        wait_until(lambda: fleet.envoy("cluster.picker.membership_healthy") == 0, "a hung picker is healthy")
        timeouts = fleet.envoy("http.callers.ext_proc.message_timeouts")
        hung = len(answers)
        wait_until(lambda: len(answers) > hung + 50, "no traffic with a picker that hangs")
        assert fleet.envoy("http.callers.ext_proc.message_timeouts") <= timeouts + 8
        fleet.picker.send_signal(signal.SIGCONT)
        wait_until(lambda: fleet.envoy("cluster.picker.membership_healthy") == 1, "it does not come back")
        before = picks(fleet)
        wait_until(lambda: picks(fleet) > before, "it is not asked again")
        fleet.picker.kill()
        fleet.picker.wait()
        dead = len(answers)
        wait_until(lambda: len(answers) > dead + 100, "no traffic without a picker")
    assert errors == []
    assert set(answers[-60:]) == set("abc")


def test_a_replica_that_dies_costs_no_request(own_fleet: Picked) -> None:
    fleet, errors, answers = own_fleet, list[str](), list[str]()
    home = fleet.story(LONG)["replica"]
    fleet.servers[home].kill()
    fleet.servers[home].wait()
    with traffic(fleet, errors, answers):
        wait_until(lambda: len(answers) > 100, "no traffic")
    assert errors == []
    assert home not in answers


def test_a_replica_that_hangs_gets_nothing_once_envoy_holds_it_for_sick(own_fleet: Picked) -> None:
    fleet = own_fleet
    fleet.servers["a"].send_signal(signal.SIGSTOP)
    wait_until(lambda: sick(fleet) == 1, "Envoy holds it for well")
    # The picker asks Envoy ten times a second.
    asked = fleet.page()["brim_picker_gateway_total"]
    wait_until(lambda: fleet.page()["brim_picker_gateway_total"] >= asked + 2, "the picker does not ask")
    # A burst, which would come to all three.
    answers = at_once(12, lambda number: fleet.sort(x_delay_s="0.3"))
    assert {answer["replica"] for answer in answers} == {"b", "c"}
    assert all(fleet.upstreams["a"].http not in answer["picked"] for answer in answers)


def sick(fleet: Picked) -> int:
    name = "cluster.triton/sorter.membership"
    return (fleet.envoy(f"{name}_total") - fleet.envoy(f"{name}_healthy")) // 2


def test_a_gateway_that_streams_bodies_both_ways_is_answered_as_well(tmp_path: Path) -> None:
    with picked(tmp_path, BodyMode.FULL_DUPLEX) as fleet:
        long = LONG * 200
        answers = []
        for number in range(3):
            answers.append(fleet.story(f"{long}{number}"))
            # An answer reaches its caller a moment before the picker hears that it is complete.
            wait_until(lambda: in_flight(fleet) == {}, "a request stays in flight")
        assert len({answer["replica"] for answer in answers}) == 1
        assert all(answer["picked"] for answer in answers)
        # The body has arrived as it was.
        assert {answer["bytes"] for answer in answers} == {len(long) + 1 + len('{"text_input": ""}')}
        assert fleet.sort()["picked"]
        wait_until(lambda: in_flight(fleet) == {}, "a request stays in flight")


def test_a_picker_that_ends_is_started_again_and_one_that_never_stays_is_let_go(tmp_path: Path) -> None:
    files = ReplicaFiles(tmp_path / "hosts", [])
    said: list[str] = []
    place = choose_place("127.0.0.1")

    def answers() -> bool:
        try:
            return "brim_picker_replicas 0" in get(place.metrics, "/metrics")
        except OSError:
            return False

    log_file = tmp_path / "picker.log"
    with PickerProcess(
        place, file_of(files.folder, OTHERS), "127.0.0.1:1", {"batch": 2}, log_file, said.append
    ) as picker:
        wait_until(answers, "the picker does not answer")
        first = picker.pid
        assert first is not None
        picker.keep_running()
        assert picker.pid == first and said == []
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: picker.keep_running() or picker.pid != first, "it is not started again")
        wait_until(answers, "the picker does not answer again")
        assert len(said) == 1 and "started again" in said[0]
        second = picker.pid
    assert second is not None and not psutil.pid_exists(second)
    absent = tmp_path / "nowhere.json"
    with PickerProcess(choose_place("127.0.0.1"), absent, "127.0.0.1:1", {}, log_file, said.append) as picker:
        picker.budget = Budget(1, 600.0)
        wait_until(lambda: picker.keep_running() or picker.pid is None, "it is tried for ever")
    assert "too often" in said[-1] and "nowhere.json" in log_file.read_text(encoding="utf-8")
