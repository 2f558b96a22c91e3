"""Whole runs: measured batches, the bounded queue and its stall, queueing theory, and the time that a run takes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.batcher.arrivals import ClosedLoop, OpenLoop, constant, poisson, waiting
from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.batcher.queue import QueuePolicy, TimeoutAction
from brim.batcher.result import End, Result
from brim.batcher.settings import Settings, settings_of
from brim.batcher.simulate import simulate
from brim.config.textformat import parse
from brim.errors import InputError

MS = 1_000
FIVE_MS = Machine(AffineBatchTime(5 * MS, 0), lost_wakeup=0)
BOUNDED = QueuePolicy(max_queue_size=400)


def sizes(result: Result) -> list[int]:
    return result.batches.rows.tolist()


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(
    ("preferred", "delay_us", "waited_us", "expected"),
    [
        ((32, 64), 0, 0, [(64, "preferred"), (64, "preferred"), (22, "drained")]),
        ((32, 64), 3_000 * MS, 0, [(65, "preferred"), (65, "preferred"), (20, "delay")]),
        ((32, 64), 3 * MS, 3 * MS, [(100, "full"), (50, "delay")]),
        ((), 0, 0, [(100, "full"), (50, "drained")]),
    ],
)
def test_the_batches_measured_with_150_waiting(
    preferred: tuple[int, ...], delay_us: int, waited_us: int, expected: list[tuple[int, str]], general: bool
) -> None:
    chosen = Settings(100, preferred=preferred, delay_us=delay_us)
    result = simulate(chosen, FIVE_MS, waiting(150, waited_us=waited_us), general=general)
    assert [(rows, reason.value) for rows, reason in result.batches.pairs()] == expected


@pytest.mark.parametrize(("limit", "served"), [(8, 9), (0, 21)])
def test_what_executes_is_not_counted_by_the_bound(cases: Path, limit: int, served: int) -> None:
    config = parse((cases / "09_bounded_queue.pbtxt").read_bytes(), "config.pbtxt").message
    assert config is not None
    config.dynamic_batching.default_queue_policy.max_queue_size = limit
    traffic = json.loads((cases / "09_traffic.json").read_text(encoding="utf-8"))
    machine = Machine(AffineBatchTime(traffic["model_sleep_s"] * 1_000_000, 0))
    result = simulate(settings_of(config), machine, OpenLoop([0, *(100 * MS + at for at in range(20))]))
    assert (result.offered, result.count(End.ANSWERED), result.count(End.REFUSED)) == (21, served, 21 - served)
    refused = result.ends == End.REFUSED
    assert (result.ended_us[refused] == result.sent_us[refused]).all()


def test_equal_shapes_share_a_batch_only_when_they_are_neighbours() -> None:
    result = simulate(Settings(100), FIVE_MS, OpenLoop([0] * 8, shapes=list("ABABABAB")))
    assert sizes(result) == [1] * 8
    assert result.launches()["shape"] == 7
    together = simulate(Settings(100), FIVE_MS, OpenLoop([0] * 8, shapes=list("AAAABBBB")))
    assert sizes(together) == [4, 4]


def test_without_dynamic_batching_every_request_is_a_batch() -> None:
    result = simulate(Settings(100, batches=False, instances=2), FIVE_MS, OpenLoop([0] * 5))
    assert sizes(result) == [1] * 5
    assert result.ended_us.tolist() == [5 * MS, 5 * MS, 10 * MS, 10 * MS, 15 * MS]
    assert result.launches()["unbatched"] == 5


def test_the_smallest_preferred_size_rules_while_the_instance_is_busy() -> None:
    """Server issue 3116: rows that come one by one close a payload at 32 though 64 are on their way."""
    chosen = Settings(100, preferred=(32, 64))
    result = simulate(chosen, Machine(AffineBatchTime(40 * MS, 0)), OpenLoop([0, *range(1, 34)]))
    assert sizes(result) == [1, 32, 1]


def test_with_a_delay_a_scheduled_batch_does_not_take_what_comes_later() -> None:
    """The batcher sleeps until 32 rows wait, and the instance takes the ten of its payload meanwhile."""
    chosen = Settings(100, preferred=(32,), delay_us=2 * MS)
    sent = [0, *[10 * MS] * 10, *[20 * MS] * 20]
    result = simulate(chosen, Machine(AffineBatchTime(40 * MS, 0)), OpenLoop(sent))
    assert sizes(result) == [1, 10, 20]


@pytest.mark.parametrize(("behind_us", "merged"), [(37 * MS, [1, 32, 1, 1]), (37 * MS - 1, [1, 33, 1])])
def test_payloads_that_have_waited_beyond_the_delay_are_merged_when_taken(behind_us: int, merged: list[int]) -> None:
    chosen = Settings(100, preferred=(31,), delay_us=5 * MS)
    sent = [0, *[6 * MS] * 32, behind_us, 60 * MS]
    result = simulate(chosen, Machine(AffineBatchTime(37 * MS, 0)), OpenLoop(sent))
    assert sizes(result) == merged


class TestStall:
    """The lost wake-up of a bounded queue with one instance."""

    two = OpenLoop([0, 1 * MS])

    @pytest.mark.parametrize(
        ("policy", "instances", "lost", "ended_us"),
        [
            (BOUNDED, 1, 1.0, 510 * MS),
            (QueuePolicy(default_timeout_us=5_000 * MS), 1, 1.0, 510 * MS),
            (QueuePolicy(allow_timeout_override=True), 1, 1.0, 510 * MS),
            (QueuePolicy(), 1, 1.0, 10 * MS),
            (BOUNDED, 1, 0.0, 10 * MS),
            (BOUNDED, 2, 1.0, 6 * MS),
        ],
    )
    def test_it_takes_a_policy_one_instance_and_a_lost_wakeup(
        self, policy: QueuePolicy, instances: int, lost: float, ended_us: int
    ) -> None:
        chosen = Settings(100, default_policy=policy, instances=instances)
        result = simulate(chosen, replace(FIVE_MS, lost_wakeup=lost), self.two)
        assert result.ended_us.tolist() == [5 * MS, ended_us]

    def test_levels_alone_bring_it_about(self) -> None:
        chosen = Settings(100, priority_levels=2, default_priority_level=1)
        result = simulate(chosen, replace(FIVE_MS, lost_wakeup=1), self.two)
        assert result.ended_us.tolist() == [5 * MS, 510 * MS]

    def test_the_next_request_ends_it(self) -> None:
        chosen = Settings(100, default_policy=BOUNDED)
        result = simulate(chosen, replace(FIVE_MS, lost_wakeup=1), OpenLoop([0, 1 * MS, 50 * MS]))
        assert result.ended_us.tolist() == [5 * MS, 55 * MS, 55 * MS]

    def test_a_refused_request_does_not(self) -> None:
        chosen = Settings(100, default_policy=QueuePolicy(max_queue_size=1))
        result = simulate(chosen, replace(FIVE_MS, lost_wakeup=1), OpenLoop([0, 1 * MS, 50 * MS]))
        assert result.ended_us.tolist() == [5 * MS, 510 * MS, 50 * MS]
        assert result.ends.tolist() == [End.ANSWERED, End.ANSWERED, End.REFUSED]

    def test_it_is_the_throughput_of_callers_who_all_wait(self) -> None:
        """Answers leave before the instance is ready, and nobody sends anything afterwards."""
        machine = Machine(AffineBatchTime(5 * MS, 100), release_row_us=20, lost_wakeup=1)
        bounded, free = (
            simulate(Settings(100, default_policy=policy), machine, ClosedLoop(100, 2_000)).as_json()
            for policy in (BOUNDED, QueuePolicy())
        )
        assert free["p99_us"] < 50 * MS
        assert bounded["p99_us"] > 500 * MS
        assert bounded["throughput"] < free["throughput"] / 10


def test_a_timeout_is_noticed_when_the_batcher_looks() -> None:
    """The instance is taken for 2 s: the tick that rejects comes up to a second later, never the timeout itself."""
    chosen = Settings(100, default_policy=QueuePolicy(default_timeout_us=100 * MS))
    result = simulate(chosen, Machine(AffineBatchTime(2_000 * MS, 0)), OpenLoop([0, 10 * MS]))
    assert result.ends.tolist() == [End.ANSWERED, End.EXPIRED]
    assert result.ended_us.tolist() == [2_000 * MS, 1_000 * MS]


def test_late_requests_under_delay_go_last() -> None:
    policy = QueuePolicy(default_timeout_us=10 * MS, timeout_action=TimeoutAction.DELAY)
    machine = Machine(AffineBatchTime(20 * MS, 0), lost_wakeup=0)
    result = simulate(Settings(1, default_policy=policy), machine, OpenLoop([0, 1 * MS, 19 * MS]))
    assert result.ended_us.tolist() == [20 * MS, 60 * MS, 40 * MS]


def test_a_cancelled_request_is_not_executed_and_holds_its_place_until_then() -> None:
    chosen = Settings(1, default_policy=QueuePolicy(max_queue_size=1))
    traffic = OpenLoop([0, 1 * MS, 3 * MS], cancelled_us=[1 << 61, 2 * MS, 1 << 61])
    result = simulate(chosen, FIVE_MS, traffic)
    assert result.ends.tolist() == [End.ANSWERED, End.CANCELLED, End.REFUSED]
    assert sizes(result) == [1]


def test_higher_levels_are_served_first() -> None:
    chosen = Settings(1, priority_levels=2, default_priority_level=2)
    result = simulate(chosen, FIVE_MS, OpenLoop([0, 1, 2, 3], priorities=[1, 0, 9, 1]))
    assert result.ended_us.tolist() == [5 * MS, 15 * MS, 20 * MS, 10 * MS]


def test_instances_that_share_a_device_prepare_together_and_compute_in_turn() -> None:
    machine = Machine(AffineBatchTime(10 * MS, 0), prepare_us=2 * MS, prepare_row_us=1 * MS, serialised=True)
    result = simulate(Settings(1, instances=2), machine, OpenLoop([0, 0]))
    assert result.ended_us.tolist() == [13 * MS, 23 * MS]


def test_overheads_come_before_and_around() -> None:
    machine = Machine(AffineBatchTime(5 * MS, 0), request_us=100, overhead_us=7)
    result = simulate(Settings(1, instances=4), machine, OpenLoop([0, 0, 1 * MS]))
    assert result.latency_us.tolist() == [5107, 5207, 5107]


@pytest.mark.parametrize(
    ("delay", "instances", "callers", "measured"),
    [
        (False, 1, 100, 2875),
        (False, 1, 200, 3732),
        (False, 1, 400, 3727),
        (False, 2, 100, 2534),
        (False, 2, 200, 3986),
        (False, 2, 400, 4763),
        (False, 3, 100, 2002),
        (False, 3, 200, 3307),
        (False, 3, 400, 4765),
        (True, 2, 100, 3539),
        (True, 2, 200, 4800),
        (True, 2, 400, 4798),
    ],
)
def test_throughputs_measured_on_an_emulated_gpu(delay: bool, instances: int, callers: int, measured: int) -> None:
    """Closed loops measured on tritonserver 24.10, python backend, 10 ms + 0.1 ms a row under one lock, infer/s.

    65 us a row of preparation and 20 us a request of front end stand for the two cores that the server had.
    """
    machine = Machine(AffineBatchTime(10 * MS, 100), serialised=True, prepare_row_us=65, request_us=20, jitter=0.05)
    chosen = Settings(100, preferred=(100,) if delay else (), delay_us=10 * MS if delay else 0, instances=instances)
    assert simulate(chosen, machine, ClosedLoop(callers, 20_000)).throughput == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_mean_wait_of_one_row_batches_is_that_of_pollaczek_and_khinchine(utilisation: float) -> None:
    """M/D/1: mean wait = rho * tau / (2 * (1 - rho))."""
    sent = poisson(utilisation * 1e6 / (5 * MS), 200_000, np.random.default_rng(7))
    waits = simulate(Settings(1), FIVE_MS, OpenLoop(sent)).latency_us - 5 * MS
    # Standard error from the means of 40 stretches, which are nearly independent of each other.
    means = waits.reshape(40, -1).mean(axis=1)
    expected = utilisation * 5 * MS / (2 * (1 - utilisation))
    assert abs(means.mean() - expected) < 4 * means.std(ddof=1) / math.sqrt(40)


@pytest.mark.parametrize(
    "chosen",
    [Settings(100), Settings(100, preferred=(20,), delay_us=3 * MS, instances=2), Settings(8, default_policy=BOUNDED)],
)
def test_littles_law(chosen: Settings) -> None:
    """Mean number in the system = rate of arrivals * mean time in it, the former taken at 5,000 moments."""
    sent = poisson(1000, 20_000, np.random.default_rng(3))
    result = simulate(chosen, FIVE_MS, OpenLoop(sent))
    moments = np.linspace(sent[0], result.ended_us.max(), 5_000)
    inside = np.searchsorted(sent, moments, "right") - np.searchsorted(np.sort(result.ended_us), moments, "right")
    rate_per_us = result.offered / (result.ended_us.max() - sent[0])
    assert inside.mean() == pytest.approx(rate_per_us * (result.ended_us - result.sent_us).mean(), rel=0.02)


def test_duty_and_fill() -> None:
    machine = Machine(AffineBatchTime(10 * MS, 0))
    result = simulate(Settings(4), machine, OpenLoop(constant(50, 100)))
    assert result.mean_batch == 1
    assert result.duty == pytest.approx(0.5, abs=0.01)
    assert result.as_json()["fill"] == 0.01


def test_seeds_decide() -> None:
    machine = replace(FIVE_MS, jitter=0.5)
    one, again, other = (simulate(Settings(10), machine, ClosedLoop(9, 500, 4 * MS), seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.ended_us, again.ended_us)
    assert not np.array_equal(one.ended_us, other.ended_us)


def test_jitter_keeps_the_mean_time() -> None:
    result = simulate(Settings(1), replace(FIVE_MS, jitter=0.4), OpenLoop(constant(10, 20_000)))
    assert result.batches.compute_us.mean() == pytest.approx(5 * MS, rel=0.01)
    assert np.log(result.batches.compute_us).std() == pytest.approx(0.4, rel=0.02)


def test_a_request_above_the_largest_batch_is_explained() -> None:
    with pytest.raises(InputError, match=r"9 rows, and a batch takes 8"):
        simulate(Settings(8), FIVE_MS, OpenLoop([0], rows=[9]))
