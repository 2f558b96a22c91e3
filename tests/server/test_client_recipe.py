"""examples/brim_client.py against the real gateway before a model of known batch time: both protocols, threads and asyncio."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.brim_client import (
    AsyncGrpcClient,
    AsyncHttpClient,
    Call,
    CallFailed,
    GrpcClient,
    HttpClient,
    Retries,
    RetryBudget,
)

from brim.gateway.admission import Admission, ClassBounds
from brim.gateway.envoy import Gateway
from brim.gateway.limits import RequestLimits
from brim.measure.known_time import KnownTime, write_known_time
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.ports import choose_ports
from brim.service.schema import BatchTime, TenantRate
from tests.server.test_gateway import counters

MODEL, BATCH_US, BOUND = "known", 300_000, 5
KINDS: list[type[Any]] = [HttpClient, AsyncHttpClient, GrpcClient, AsyncGrpcClient]
OVER_HTTP = (HttpClient, AsyncHttpClient)


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("recipe")
    write_known_time(folder / "models", MODEL, KnownTime(tau0_us=BATCH_US, alpha_us=0))
    cache = Project(checkout).cache
    with EmbeddedServer(folder / "models", [MODEL], cache=cache, log_file=folder / "triton.log") as running:
        yield running


def behind(endpoint: Endpoint, folder: Path, **bounds: Any) -> Gateway:
    time = BatchTime(tau0_us=BATCH_US, alpha_us=0)
    admitted = {MODEL: Admission(max_rows=10, batch_time=time, **bounds)}
    limits = RequestLimits(body_bytes=100_000)
    return Gateway(endpoint, log_file=folder / "envoy.log", limits=limits, admitted=admitted)


@dataclass
class Told:
    """What each call was told, and what each of its tries was given."""

    outcomes: dict[int, str] = field(default_factory=dict)
    left_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def tries(self) -> int:
        return sum(map(len, self.left_s.values()))


def ask(
    kind: type[Any],
    address: str,
    calls: int = 1,
    *,
    rows: int = 1,
    at_once: int = 100,
    timeout_s: float = 20.0,
    **options: Any,
) -> Told:
    """So many calls, each of which carries its number."""
    told = Told()

    class Recording(kind):  # type: ignore[misc]
        def _send(self, model: str, inputs: Any, left_s: float) -> Any:
            told.left_s[int(inputs["X"][0, 0])].append(left_s)
            return super()._send(model, inputs, left_s)

    def note(number: int, outputs: dict[str, Any]) -> None:
        assert (outputs["Y"] == 2 * number).all() and len(outputs["Y"]) == rows
        told.outcomes[number] = "answered"

    def inputs(number: int) -> dict[str, Any]:
        return {"X": np.full((rows, 4), number, np.float32)}

    def in_threads() -> None:
        with Recording(address, **options) as client, ThreadPoolExecutor(at_once) as pool:

            def one(number: int) -> None:
                try:
                    note(number, client.infer(MODEL, inputs(number), timeout_s=timeout_s))
                except CallFailed as error:
                    told.outcomes[number] = f"{error.status} {error.reason}".strip()

            list(pool.map(one, range(calls)))

    async def in_tasks() -> None:
        places = asyncio.Semaphore(at_once)

        async def one(client: Any, number: int) -> None:
            async with places:
                try:
                    note(number, await client.infer(MODEL, inputs(number), timeout_s=timeout_s))
                except CallFailed as error:
                    told.outcomes[number] = f"{error.status} {error.reason}".strip()

        async with Recording(address, **options) as client:
            await asyncio.gather(*(one(client, number) for number in range(calls)))

    asyncio.run(in_tasks()) if kind in (AsyncHttpClient, AsyncGrpcClient) else in_threads()
    assert len(told.outcomes) == calls
    return told


def budget(left: float) -> Retries:
    return Retries(first_s=0.02, budget=RetryBudget(ratio=0.1, most=left, left=left))


@pytest.mark.parametrize("kind", KINDS)
def test_an_overload_grows_by_the_budget_and_no_more(kind: type[Any], server: EmbeddedServer, tmp_path: Path) -> None:
    calls, saved = 40, 3
    with behind(server.endpoint, tmp_path, in_flight=BOUND) as gateway:
        told = ask(kind, gateway.endpoint.http, calls, retries=budget(saved))
        seen = Counter[str]()
        for series, count in counters(gateway).items():
            seen[series.reason] += count
    busy = "429 queue_full" if kind in OVER_HTTP else "RESOURCE_EXHAUSTED queue_full"
    assert set(told.outcomes.values()) == {"answered", busy}
    retries = told.tries - calls
    assert 1 <= retries <= saved + calls * 0.1
    # The gateway has seen every try, and nothing else.
    assert seen.total() == told.tries
    assert seen["queue_full"] == retries + list(told.outcomes.values()).count(busy)
    for left_s in told.left_s.values():
        # One deadline for all tries, of which each later one has a second (Retry-After) less at least.
        assert all(later <= earlier - 1 for earlier, later in pairwise(left_s))


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_pass_is_not_tried_again(kind: type[Any], server: EmbeddedServer, tmp_path: Path) -> None:
    http = kind in OVER_HTTP
    wrong, late, large = (
        ("400 unknown_class", "504", "413 too_large")
        if http
        else ("INVALID_ARGUMENT unknown_class", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED too_large")
    )
    with behind(server.endpoint, tmp_path, classes=(ClassBounds("page", 1),)) as gateway:
        address = gateway.endpoint.http
        for told, expected in (
            (ask(kind, address, caller_class="nobody"), wrong),
            (ask(kind, address, timeout_s=0.1), late),
            (ask(kind, address, rows=100_000 // 16), large),
        ):
            assert told.outcomes[0].startswith(expected)
            assert told.tries == 1
        assert ask(kind, address, caller_class="page").outcomes == {0: "answered"}


@pytest.mark.parametrize("kind", [HttpClient, AsyncGrpcClient])
def test_a_tenant_that_comes_back_after_the_time_it_was_told_is_answered(
    kind: type[Any], server: EmbeddedServer, tmp_path: Path
) -> None:
    with behind(server.endpoint, tmp_path, tenant_rate=TenantRate(rate_per_s=1, burst=1)) as gateway:
        told = ask(kind, gateway.endpoint.http, 2, at_once=1, tenant="one", retries=budget(5))
        assert told.outcomes == {0: "answered", 1: "answered"}
        assert len(told.left_s[0]) == 1
        assert len(told.left_s[1]) >= 2
        assert {series.reason for series in counters(gateway)} == {"", "tenant_rate"}
        # Too little time to wait for that: the refusal is passed on at once.
        impatient = ask(kind, gateway.endpoint.http, 6, timeout_s=0.9, tenant="two", retries=budget(5))
        assert impatient.tries == 6
        assert sum("tenant_rate" in outcome for outcome in impatient.outcomes.values()) >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_gone_is_tried_as_often_as_the_plan_says(kind: type[Any], tmp_path: Path) -> None:
    free = choose_ports("127.0.0.1", {"http": None, "grpc": None})
    nobody = Endpoint(http=f"127.0.0.1:{free['http']}", grpc=f"127.0.0.1:{free['grpc']}")
    gone = "503" if kind in OVER_HTTP else "UNAVAILABLE"
    with behind(nobody, tmp_path) as gateway:
        told = ask(kind, gateway.endpoint.http, retries=budget(5))
        assert (told.outcomes[0], told.tries) == (f"{gone} unavailable", 4)
    # No gateway either.
    told = ask(kind, nobody.http, retries=budget(2))
    assert (told.outcomes[0], told.tries) == (gone, 3)


def test_connections_are_used_again(server: EmbeddedServer, tmp_path: Path) -> None:
    with behind(server.endpoint, tmp_path) as gateway:
        for number, kind in enumerate(KINDS, start=1):
            assert set(ask(kind, gateway.endpoint.http, 3, at_once=1).outcomes.values()) == {"answered"}
            with urllib.request.urlopen(
                f"http://{gateway.admin}/stats?filter=^http.callers.downstream_cx_total$"
            ) as page:
                assert int(page.read().decode().rpartition(":")[2]) == number


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def planned(clock: Clock, **more: Any) -> Retries:
    return Retries(now_s=clock, uniform=lambda low, high: high, **more)


def test_pauses_double_and_end_with_the_tries() -> None:
    clock = Clock()
    call = Call(planned(clock, tries=7, longest_s=1.0), 1_000)
    busy = CallFailed("429", "busy", "queue_full", 1.0)
    pauses = []
    for _ in range(6):
        call.left_s()
        pauses.append(call.pause_s(busy))
    assert pauses == pytest.approx([1.1, 1.2, 1.4, 1.8, 2.0, 2.0])
    call.left_s()
    with pytest.raises(CallFailed):
        call.pause_s(busy)


def test_a_deadline_holds_for_all_tries() -> None:
    clock = Clock()
    call = Call(planned(clock), 2)
    assert call.left_s() == 2
    clock.now_s += call.pause_s(CallFailed("503", "gone", "unavailable", 1.0))
    assert call.left_s() == pytest.approx(0.9)
    with pytest.raises(CallFailed, match="gone"):
        call.pause_s(CallFailed("503", "gone", "unavailable", 1.0))
    clock.now_s = 2
    with pytest.raises(CallFailed, match="the deadline has passed") as caught:
        call.left_s()
    assert not caught.value.may_pass


def test_a_budget_is_spent_by_retries_only() -> None:
    spent = RetryBudget(ratio=0.25, most=2, left=0)
    plan = planned(Clock(), budget=spent)
    retried = 0
    for _ in range(40):
        call = Call(plan, 60)
        call.left_s()
        for error in (CallFailed("504", "late", "deadline"), CallFailed("503", "gone", "unavailable")):
            try:
                call.pause_s(error)
                retried += 1
            except CallFailed as raised:
                assert raised is error
    assert retried == 10
    for _ in range(100):
        spent.earn()
    assert spent.left == 2


def test_every_reason_of_the_gateway_is_explained_to_clients(checkout: Path) -> None:
    def reasons(document: str) -> set[str]:
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| \d{3}", (checkout / "docs" / document).read_text(), re.MULTILINE)
        return {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert "queue_full" in reasons("gateway.md")
    assert reasons("clients.md") == reasons("gateway.md")
