"""What goes into a simulation: settings of a configuration, batch times, traffic; wrong ones are explained, all at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.batcher.arrivals import ClosedLoop, OpenLoop, bursty, constant, poisson, waiting
from brim.batcher.batch_time import AffineBatchTime, MeasuredBatchTime, Point, parse_batch_time, read_batch_time
from brim.batcher.machine import Machine
from brim.batcher.queue import QueuePolicy, TimeoutAction
from brim.batcher.settings import Settings, settings_of
from brim.config.textformat import parse
from brim.errors import InputError


def config(text: str) -> ModelConfig:
    message = parse(text, "config.pbtxt").message
    assert message is not None
    return message


def test_settings_of_a_configuration() -> None:
    read = settings_of(
        config(
            "max_batch_size: 64 instance_group [ { count: 2 gpus: [0, 1] }, { count: 1 passive: true } ]"
            " dynamic_batching { preferred_batch_size: [32, 16] max_queue_delay_microseconds: 900 priority_levels: 3"
            " default_priority_level: 2 default_queue_policy { max_queue_size: 7 allow_timeout_override: true }"
            " priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 50 } } }"
        )
    )
    assert read == Settings(
        64,
        preferred=(32, 16),
        delay_us=900,
        instances=4,
        priority_levels=3,
        default_priority_level=2,
        default_policy=QueuePolicy(max_queue_size=7, allow_timeout_override=True),
        level_policies={1: QueuePolicy(default_timeout_us=50, timeout_action=TimeoutAction.DELAY)},
    )
    assert read.rule.preferred == (16, 32)
    assert [read.level(priority) for priority in (0, 1, 3, 4)] == [2, 1, 3, 2]
    assert not read.prefetches


def test_an_omitted_preferred_list_means_the_largest_batch() -> None:
    read = settings_of(config("max_batch_size: 64 dynamic_batching { }"))
    assert read.rule.preferred == (64,)
    assert read.prefetches


@pytest.mark.parametrize("text", ["max_batch_size: 8", "max_batch_size: 0", ""])
def test_without_the_block_nothing_is_batched(text: str) -> None:
    assert not settings_of(config(text)).batches


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("platform: 'ensemble' ensemble_scheduling { }", "is an ensemble"),
        ("max_batch_size: 8 sequence_batching { }", "is a sequence model"),
        ("dynamic_batching { }", "needs max_batch_size of 1 or more, got 0"),
        ("max_batch_size: 128 dynamic_batching { }", "max_batch_size is 128; the project's limit is 1..100"),
        ("max_batch_size: -1", "max_batch_size is -1"),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [0, 4, 9] }",
            r"holds \[0, 9\]; sizes lie in 1..8",
        ),
        ("max_batch_size: 8 dynamic_batching { priority_levels: 2 }", "default_priority_level is 0"),
        (
            "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }",
            "can be simulated",
        ),
    ],
)
def test_what_cannot_be_simulated_is_explained(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings_of(config(text))


def test_all_faults_of_settings_come_at_once() -> None:
    with pytest.raises(InputError) as raised:
        Settings(0, preferred=(-1,), delay_us=-1, instances=0)
    assert raised.value.message.count(";") >= 7


def test_affine_times() -> None:
    time = AffineBatchTime(10, 0.25)
    assert [time.time_us(rows) for rows in (1, 2, 100)] == [10, 10, 35]
    assert AffineBatchTime(0, 0.001).time_us(1) == 1


@pytest.mark.parametrize(
    ("tau0_us", "alpha_us"), [(-1, 5), (1, -5), (float("nan"), 1), (float("inf"), 1), (0, 0), (1e18, 0)]
)
def test_wrong_affine_times(tau0_us: float, alpha_us: float) -> None:
    with pytest.raises(InputError):
        AffineBatchTime(tau0_us, alpha_us)


def test_measured_times_go_through_the_points() -> None:
    time = MeasuredBatchTime([Point(50, 400), Point(10, 200), Point(100, 500)])
    assert [time.time_us(rows) for rows in (1, 10, 30, 50, 75, 100)] == [200, 200, 300, 400, 450, 500]
    assert MeasuredBatchTime([Point(10, 200), Point(50, 400)]).time_us(100) == 650
    assert MeasuredBatchTime([Point(10, 200)]).time_us(100) == 200


def test_noise_never_makes_a_larger_batch_faster() -> None:
    assert MeasuredBatchTime([Point(1, 300), Point(2, 100), Point(3, 400)]).time_us(1) == 200
    weighed = MeasuredBatchTime([Point(1, 300, runs=3), Point(2, 100, runs=1), Point(3, 400, runs=1)])
    assert [weighed.time_us(rows) for rows in (1, 2, 3)] == [250, 250, 400]
    rng = np.random.default_rng(0)
    noisy = MeasuredBatchTime([Point(rows, float(rng.uniform(1, 1000)), stderr_us=1) for rows in range(1, 101)])
    times = [noisy.time_us(rows) for rows in range(1, 101)]
    assert times == sorted(times)


def test_a_file_of_points(tmp_path: Path) -> None:
    path = tmp_path / "tau.json"
    path.write_text(
        '{"points": [{"rows": 1, "time_us": 5.5, "runs": 9, "more": 1}], "made": "today"}', encoding="utf-8"
    )
    assert read_batch_time(path).points == (Point(1, 5.5, None, 9),)


def test_every_fault_of_a_file_is_found() -> None:
    entries = [
        {"rows": 0, "time_us": -1},
        {"rows": 1.5, "time_us": "5"},
        {"time_us": True},
        7,
        {"rows": 2, "time_us": 5, "stderr_us": -1, "runs": 0},
        {"rows": 3, "time_us": 0},
        {"rows": 101, "time_us": 5},
        {"rows": 4, "time_us": 5},
        {"rows": 4, "time_us": 6},
        {"rows": 5, "time_us": float("nan")},
    ]
    _, findings = parse_batch_time(json.dumps({"points": entries}).encode(), "tau.json")
    said = [finding.message.partition(" ")[0] for finding in findings]
    assert said == [
        *("points[0].rows", "points[0].time_us", "points[1].rows", "points[1].time_us"),
        *("points[2].rows", "points[2].time_us", "points[3]", "points[4].stderr_us", "points[4].runs"),
        *("points[5].time_us", "points[6].rows", "points[8].rows", "points[9].time_us"),
    ]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"points": []}', b'{"points": 3}', b"\xff", b"[" * 100_000])
def test_files_that_hold_no_points(text: bytes) -> None:
    points, findings = parse_batch_time(text, "tau.json")
    assert points == [] and len(findings) == 1


def test_poisson_and_constant_rates() -> None:
    sent = poisson(1000, 100_000, np.random.default_rng(0))
    gaps = np.diff(sent)
    assert gaps.mean() == pytest.approx(1000, rel=0.02)
    assert gaps.std() == pytest.approx(1000, rel=0.02)
    assert constant(1000, 4).tolist() == [0, 1000, 2000, 3000]


def test_bursty_traffic_has_the_mean_rate_and_comes_in_crowds() -> None:
    count = 200_000
    sent = bursty(1000, count, np.random.default_rng(0), burst_us=20_000)
    assert count / sent[-1] * 1e6 == pytest.approx(1000, rel=0.05)
    assert (np.diff(sent) >= 0).all()
    per_10_ms = np.bincount(sent // 10_000)
    # Of a Poisson process the variance of counts is their mean.
    assert per_10_ms.var() > 5 * per_10_ms.mean()


@pytest.mark.parametrize(
    ("peak", "share", "burst_us"), [(0.5, 0.1, 1e6), (11, 0.1, 1e6), (1, 0, 1e6), (1, 1, 1e6), (4, 0.1, 0)]
)
def test_wrong_bursts(peak: float, share: float, burst_us: float) -> None:
    with pytest.raises(InputError):
        bursty(1000, 10, np.random.default_rng(0), peak=peak, share=share, burst_us=burst_us)


def test_bursts_are_bounded() -> None:
    with pytest.raises(InputError, match="bursts"):
        bursty(0.01, 5_000_000, np.random.default_rng(0), burst_us=1)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e12])
def test_wrong_rates(rate: float) -> None:
    for make in (lambda: poisson(rate, 5, np.random.default_rng(0)), lambda: constant(rate, 5)):
        with pytest.raises(InputError, match="rate"):
            make()


def test_traffic_that_contradicts_itself_is_explained_at_once() -> None:
    with pytest.raises(InputError) as raised:
        OpenLoop([5, 3], rows=[0, 1], shapes=["a"], timeouts_us=[-1, 0])
    for words in ("not ascending", "shapes has 1 entries for 2", "rows holds 0", "timeouts_us holds -1"):
        assert words in raised.value.message


def test_wrong_loops() -> None:
    for make in (
        lambda: OpenLoop([]),
        lambda: ClosedLoop(0, 1),
        lambda: ClosedLoop(1, 0),
        lambda: ClosedLoop(1, 1, -1),
        lambda: waiting(0),
        lambda: waiting(1, waited_us=-1),
        lambda: Machine(AffineBatchTime(1, 1), jitter=-1, lost_wakeup=2),
    ):
        with pytest.raises(InputError):
            make()
