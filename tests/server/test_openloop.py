"""The open loop against a real server: every arrival has one outcome, and both sides count the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from brim.config.textformat import parse, write
from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.measure import batch_stats
from brim.measure.accounting import Objective, Outcome
from brim.measure.arrivals import offsets, steady
from brim.measure.callers import Row
from brim.measure.known_time import KnownTime, write_known_time
from brim.measure.measure import ask_target, read_snapshot
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_processes import run_in_processes
from brim.measure.openloop_run import Alarm, run_open_loop
from brim.measure.plan import Distribution, Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint

PROTOCOLS = list(Protocol)
S = 1_000_000
QUICK = KnownTime(tau0_us=2_000, alpha_us=10)
SLOW = KnownTime(tau0_us=400_000, alpha_us=0, max_batch=1)


def rows(count: int = 5) -> list[Row]:
    return [{"X": np.full((1, 4), i, np.float32)} for i in range(count)]


def bound_queue(folder: Path, size: int) -> None:
    """Give the model a bounded queue."""
    path = folder / "config.pbtxt"
    config = parse(path.read_bytes(), path.name).message
    assert config is not None
    config.dynamic_batching.default_queue_policy.max_queue_size = size
    path.write_text(write(config), encoding="utf-8")


def serve(folder: Path, checkout: Path, models: dict[str, KnownTime]) -> EmbeddedServer:
    repository = folder / "repository"
    for name, settings in models.items():
        write_known_time(repository, name, settings)
    if "bounded" in models:
        bound_queue(repository / "bounded", 2)
    return EmbeddedServer(repository, list(models), cache=Project(checkout).cache, log_file=folder / "server.log")


@pytest.fixture(scope="module")
def endpoint(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    models = {"quick": QUICK, "slow": SLOW, "bounded": SLOW, "fresh": SLOW}
    with serve(tmp_path_factory.mktemp("open"), checkout, models) as server:
        yield server.endpoint


def go(
    endpoint: Endpoint,
    protocol: Protocol,
    model: str,
    due_us: list[int],
    plan: OpenLoopPlan,
    what: list[Row] | None = None,
) -> OpenLoopResult:
    return run_open_loop(endpoint, protocol, model, what or rows(), due_us, plan)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_sides_count_the_same(protocol: Protocol, endpoint: Endpoint) -> None:
    target = ask_target(endpoint, "quick")
    before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    due_us = list(offsets(steady(300, S), Distribution.POISSON, seed=4))
    result = go(
        endpoint, protocol, "quick", due_us, OpenLoopPlan(S, objective=Objective(99, 10 * S), segment_us=S // 4)
    )
    whole = result.whole
    assert whole.counts[Outcome.ANSWERED] == whole.offered == len(due_us)
    assert whole.messages == {}
    after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    assert batch_stats.difference(before, after, instances=1).inferences == len(due_us)
    assert [account.offered for account in result.accounts] == [
        sum(at_us // (S // 4) == number for at_us in due_us) for number in range(4)
    ]
    assert whole.since_due.min_us is not None
    assert whole.since_due.min_us >= QUICK.tau0_us
    assert whole.since_sent.sum_us + whole.send_delay.sum_us == whole.since_due.sum_us
    assert whole.in_slo == len(due_us)
    document = result.as_json()
    assert document["goodput_per_s"] == document["offered_per_s"] == len(due_us)
    assert result.evidence.loop_cores is not None
    assert 0 < result.evidence.loop_cores <= 1.1
    assert result.evidence.lag_us is not None
    assert result.server_alive


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refusals_are_counted_as_such(protocol: Protocol, endpoint: Endpoint) -> None:
    result = go(endpoint, protocol, "bounded", [0] * 12, OpenLoopPlan(S))
    counts = result.whole.counts
    assert counts[Outcome.ANSWERED] + counts[Outcome.REFUSED] == 12
    assert counts[Outcome.ANSWERED] >= 2
    assert counts[Outcome.REFUSED] >= 4
    assert result.whole.until_refused.count == counts[Outcome.REFUSED]
    (message,) = result.whole.messages
    assert "Exceeds maximum queue size" in message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_callers_that_go_and_answers_that_do_not_come(protocol: Protocol, endpoint: Endpoint) -> None:
    """The first is executed at once, for 400 ms; nobody waits that long."""
    for outcome, plan in (
        (Outcome.CANCELLED, OpenLoopPlan(S, give_up_us=100_000)),
        (Outcome.TIMED_OUT, OpenLoopPlan(S, timeout_us=100_000)),
    ):
        # A driver that gets no processor for as long as an execution takes finds the answer there first.
        tries = (go(endpoint, protocol, "slow", [0] * 4, plan).whole.counts for _ in range(5))
        assert any(counts[outcome] == 4 for counts in tries)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_errors_are_counted_and_quoted(protocol: Protocol, endpoint: Endpoint) -> None:
    unknown = go(endpoint, protocol, "nope", [0, 1_000], OpenLoopPlan(S)).whole
    assert unknown.counts[Outcome.FAILED] == 2
    assert "nope" in next(iter(unknown.messages))
    misfit = go(endpoint, protocol, "quick", [0], OpenLoopPlan(S), [{"X": np.zeros((1, 3), np.float32)}]).whole
    assert misfit.counts[Outcome.FAILED] == 1


def test_processes_share_a_schedule(endpoint: Endpoint) -> None:
    target = ask_target(endpoint, "quick")
    before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    due_us = list(offsets(steady(200, S), Distribution.CONSTANT))
    plan = OpenLoopPlan(S, objective=Objective(99, 10 * S), segment_us=S // 2, in_flight_limit=100)
    result = run_in_processes(endpoint, Protocol.HTTP, "quick", rows(), due_us, plan, processes=2)
    assert result.plan == plan
    assert result.evidence.processes == 2
    assert [account.counts[Outcome.ANSWERED] for account in result.accounts] == [100, 100]
    assert result.whole.since_due.count == 200
    after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    assert batch_stats.difference(before, after, instances=1).inferences == 200


def test_what_goes_wrong_in_a_process_is_told(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = OpenLoopPlan(S)
    with pytest.raises(ServerFailed, match="no server answers"):
        run_in_processes(Endpoint("127.0.0.1:1", "127.0.0.1:1"), Protocol.GRPC, "quick", rows(), [0], plan, processes=2)
    with pytest.raises(InputError, match="processes 0"):
        run_in_processes(endpoint, Protocol.GRPC, "quick", rows(), [0], plan, processes=0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CouldNotTell, match="a generator process"):
        run_in_processes(endpoint, Protocol.GRPC, "quick", rows(), [0], plan, processes=2)
    assert [one for one in psutil.Process().children() if "openloop_worker" in " ".join(one.cmdline())] == []


def test_nothing_is_sent_beyond_the_bound(endpoint: Endpoint) -> None:
    target = ask_target(endpoint, "fresh")
    before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    result = go(endpoint, Protocol.GRPC, "fresh", [0] * 6, OpenLoopPlan(S, in_flight_limit=2))
    assert result.whole.counts[Outcome.NOT_SENT] == 4
    assert any("generator bound" in text for text in result.limits)
    after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=10)
    assert batch_stats.difference(before, after, instances=1).inferences == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_server(protocol: Protocol) -> None:
    with pytest.raises(ServerFailed, match="no server answers"):
        go(Endpoint("127.0.0.1:1", "127.0.0.1:1"), protocol, "quick", [0], OpenLoopPlan(S))


def test_no_row(endpoint: Endpoint) -> None:
    with pytest.raises(InputError, match="no row"):
        run_open_loop(endpoint, Protocol.GRPC, "quick", [], [0], OpenLoopPlan(S))
    with pytest.raises(InputError, match="complex64"):
        go(endpoint, Protocol.HTTP, "quick", [0], OpenLoopPlan(S), [{"X": np.zeros((1, 4), np.complex64)}])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_ends_meanwhile_leaves_nobody_waiting(protocol: Protocol, checkout: Path, tmp_path: Path) -> None:
    with serve(tmp_path, checkout, {"slow": SLOW}) as server:
        timer = threading.Timer(0.2, os.kill, (server.pid, signal.SIGKILL))
        timer.start()
        try:
            due_us = list(range(0, 600_000, 20_000))
            result = go(server.endpoint, protocol, "slow", due_us, OpenLoopPlan(S, timeout_us=60 * S))
        finally:
            timer.join()
    whole = result.whole
    assert whole.offered == 30
    assert whole.counts[Outcome.FAILED] == 30
    assert whole.counts[Outcome.REFUSED] == 0, "a connection that is gone is no refusal"
    assert not result.server_alive
    with pytest.raises(ServerFailed, match="ended during the run, which answered 0 of 30"):
        result.verdict()


def test_the_alarm_never_comes_early() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        with Alarm(loop) as alarm:
            for wait_s in (-1, 0, 0.0001, 0.0015, 0.02):
                at_s = loop.time() + wait_s
                await alarm.wait_until(at_s)
                assert loop.time() >= at_s - 1e-6
            # One that is given up does not disturb the next.
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(alarm.wait_until(loop.time() + 60), 0.005)
            at_s = loop.time() + 0.01
            await alarm.wait_until(at_s)
            assert loop.time() >= at_s - 1e-6

    asyncio.run(wait())
