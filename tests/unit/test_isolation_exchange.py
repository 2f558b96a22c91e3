"""Sending: every wait ends, whatever the other side does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from brim.isolation.exchange import HUNG_LIMIT, LOST, exchange, read_grpc, read_http
from brim.isolation.request import Came, Leaving, Request
from brim.isolation.wire import WireTensor
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint

TENSORS = (WireTensor("X", "FP32", (1, 1), np.ones(1, np.float32).tobytes()),)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where connections are taken and nobody ever says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=300) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def ask(address: str, requests: list[Request], callers: int, timeout_s: float) -> dict[int, Came]:
    came: dict[int, Came] = {}

    def keep(number: int, request: Request, request_id: str, what: Came) -> None:
        assert request is requests[number] and request_id == f"test-{number}" and number not in came
        came[number] = what

    exchange(Endpoint(address, address), requests, callers=callers, timeout_s=timeout_s, prefix="test", on_came=keep)
    return came


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_server_that_never_answers_costs_few_waits(silent: str, protocol: Protocol) -> None:
    came = ask(silent, [Request("m", protocol, tensors=TENSORS)] * 200, callers=10, timeout_s=0.2)
    assert all(one.hung for one in came.values())
    assert HUNG_LIMIT <= len(came) < HUNG_LIMIT + 10


@pytest.mark.parametrize(("protocol", "status"), [(Protocol.HTTP, LOST), (Protocol.GRPC, "UNAVAILABLE")])
def test_a_server_that_is_not_there_is_an_error_for_each(closed: str, protocol: Protocol, status: str) -> None:
    came = ask(closed, [Request("m", protocol, tensors=TENSORS)] * 30, callers=7, timeout_s=20)
    assert len(came) == 30
    assert {(one.status, bool(one.error), one.hung) for one in came.values()} == {(status, True, False)}


@pytest.mark.parametrize("leaving", list(Leaving))
def test_every_way_of_leaving_is_told_as_leaving(silent: str, leaving: Leaving) -> None:
    protocol = Protocol.GRPC if leaving in (Leaving.CANCEL, Leaving.DEADLINE) else Protocol.HTTP
    leaver = Request("m", protocol, tensors=TENSORS, leaving=leaving, leaves_after_us=20_000)
    came = ask(silent, [leaver] * 3, callers=3, timeout_s=20)
    assert [one.left for one in came.values()] == [True] * 3


def test_a_gate_lets_requests_go_in_their_order_and_all_times_are_kept(closed: str) -> None:
    open_at = 0

    async def gate() -> None:
        nonlocal open_at
        open_at += 1

    requests = [Request("m", Protocol.HTTP, f"number {number}", tensors=TENSORS) for number in range(20)]
    ends: list[int] = []
    flights = exchange(
        Endpoint(closed, closed),
        iter(requests),
        callers=5,
        timeout_s=20,
        prefix="test",
        on_came=lambda number, request, request_id, came: ends.append(number),
        gate=gate,
    )
    assert open_at == 20 and sorted(ends) == list(range(20))
    assert [one.what for one in flights.requests] == [one.what for one in requests]
    assert len(flights.in_flight(flights.now_us())) == 0
    assert all(flights.took_us(number) >= 0 for number in range(20))


def test_callers_stop_when_the_requests_end(closed: str) -> None:
    sent = 0

    def some() -> Iterator[Request]:
        nonlocal sent
        for _ in range(7):
            sent += 1
            yield Request("m", Protocol.HTTP, tensors=TENSORS)

    flights = exchange(
        Endpoint(closed, closed), some(), callers=3, timeout_s=20, prefix="test", on_came=lambda *_: None, pause_s=0.01
    )
    assert sent == len(flights.requests) == 7


def test_an_answer_that_cannot_be_read_has_no_outputs() -> None:
    assert read_http(b"not json", None) == Came()
    assert read_http(b"{}", "17") == Came()
    assert read_http(b"{}", "many") == Came()
    assert read_grpc(b"\xff\xff") == Came()


def test_answers_are_read_with_their_ids() -> None:
    output = {"name": "Y", "datatype": "INT32", "shape": [1, 1], "data": [7]}
    over_http = read_http(json.dumps({"id": "a", "outputs": [output]}).encode(), None)
    message = service_pb2.ModelInferResponse(id="b", raw_output_contents=[np.array([7], np.int32).tobytes()])
    message.outputs.add(name="Y", datatype="INT32", shape=[1, 1])
    over_grpc = read_grpc(message.SerializeToString())
    assert (over_http.echoed, over_grpc.echoed) == ("a", "b")
    for came in (over_http, over_grpc):
        assert came.outputs is not None and came.outputs["Y"].tolist() == [[7]]
