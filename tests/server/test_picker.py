"""The picker behind a real Envoy: it is followed, and nothing depends on it."""

from __future__ import annotations

import http.client
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brim.gateway.picking import BodyMode
from tests.server.picked import Picked, at_once, picked, wait_until

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
    answers = [fleet.story(f"{LONG} and then {number}") for number in range(6)]
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


def test_a_gateway_that_streams_bodies_both_ways_is_answered_as_well(tmp_path: Path) -> None:
    with picked(tmp_path, BodyMode.FULL_DUPLEX) as fleet:
        long = LONG * 200
        answers = [fleet.story(f"{long}{number}") for number in range(3)]
        assert len({answer["replica"] for answer in answers}) == 1
        assert all(answer["picked"] for answer in answers)
        # The body has arrived as it was.
        assert {answer["bytes"] for answer in answers} == {len(long) + 1 + len('{"text_input": ""}')}
        assert fleet.sort()["picked"]
        assert in_flight(fleet) == {}
