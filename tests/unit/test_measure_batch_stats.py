"""Differences of Triton's recorded statistics, over HTTP and gRPC, and counters that went backwards."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats
from brim.measure.batch_stats import (
    CountersWentBackwards,
    Snapshot,
    UnreadableStatistics,
    difference,
    instance_count,
    parse_failures,
    parse_statistics,
    settle,
)

DATA = Path(__file__).parent / "data" / "measure"


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / f"stats_{name}.json").read_text(encoding="utf-8"))
    return document


def snap(document: dict[str, Any], at_us: int = 0, failures: dict[str, int] | None = None) -> Snapshot:
    return Snapshot(at_us, parse_statistics(document, document["model_stats"][0]["name"]), failures)


def entry(size: int, executions: int, ns: int) -> dict[str, Any]:
    phases = ("compute_input", "compute_infer", "compute_output")
    return {"batch_size": size, **{phase: {"count": executions, "ns": ns} for phase in phases}}


def made(sizes: dict[int, int], *, ns: int = 1_000_000, version: str = "1", fail: int = 0) -> dict[str, Any]:
    """Statistics of a model that ran so many executions of each size, each phase taking ``ns`` an execution."""
    rows = sum(size * count for size, count in sizes.items())
    return {
        "name": "m",
        "version": version,
        "inference_count": rows,
        "execution_count": sum(sizes.values()),
        "inference_stats": {
            "success": {"count": rows, "ns": 0},
            "fail": {"count": fail, "ns": 0},
            "queue": {"count": rows, "ns": rows * 2_000},
        },
        "batch_stats": [entry(size, count, count * ns) for size, count in sizes.items()],
    }


def stats_of(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"model_stats": list(entries)}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_recorded_difference(protocol: str) -> None:
    before, after = recorded(f"{protocol}_before"), recorded(f"{protocol}_after")
    stats = difference(snap(before), snap(after, 1_000_000), instances=2)
    expected = {
        line["batch_size"]: line["compute_infer"]["count"]
        for line in recorded("http_after")["model_stats"][0]["batch_stats"]
    }
    for line in recorded("http_before")["model_stats"][0]["batch_stats"]:
        expected[line["batch_size"]] -= line["compute_infer"]["count"]
    assert stats.executions_by_size == {size: count for size, count in sorted(expected.items()) if count}
    assert sum(size * count for size, count in stats.executions_by_size.items()) == stats.inferences
    assert sum(stats.executions_by_size.values()) == stats.executions
    assert stats.inferences == stats.succeeded > 0
    assert stats.mean_batch == stats.inferences / stats.executions
    assert stats.fill == stats.mean_batch / BATCH_LIMIT
    assert set(stats.compute_us) == {"compute_input", "compute_infer", "compute_output"}


def test_both_protocols_say_the_same() -> None:
    over = {
        protocol: difference(
            snap(recorded(f"{protocol}_before")), snap(recorded(f"{protocol}_after"), 1_000_000), instances=2
        )
        for protocol in ("http", "grpc")
    }
    assert over["http"] == over["grpc"]


def test_figures_by_hand() -> None:
    before = snap(stats_of(made({1: 2, 100: 1})), 0)
    after = snap(stats_of(made({1: 4, 50: 1, 100: 3}, fail=5)), 1_000_000)
    stats = difference(before, after, instances=2)
    assert stats.executions_by_size == {1: 2, 50: 1, 100: 2}
    assert (stats.inferences, stats.executions, stats.failed) == (252, 5, 5)
    assert stats.mean_batch == pytest.approx(50.4)
    assert stats.fill == pytest.approx(0.504)
    assert stats.queue_us == 2
    # five executions of three phases of 1 ms, over one second and two instances
    assert stats.duty == pytest.approx(5 * 3_000 / 1_000_000 / 2)
    assert stats.compute_us == {"compute_input": 1000, "compute_infer": 1000, "compute_output": 1000}
    assert stats.execution_us_by_size == {1: 3000, 50: 3000, 100: 3000}
    assert batch_stats.rate_per_s(stats) == pytest.approx(252)


def test_duty_is_not_clamped_and_takes_the_time_under_load() -> None:
    before, after = snap(stats_of(made({})), 0), snap(stats_of(made({10: 1})), 1_000_000)
    assert difference(before, after, instances=1, wall_us=2_000).duty == pytest.approx(1.5)


def test_nothing_happened() -> None:
    one = snap(stats_of(made({5: 5})))
    stats = difference(one, one, instances=1)
    assert (stats.inferences, stats.executions, stats.executions_by_size) == (0, 0, {})
    assert (stats.mean_batch, stats.fill, stats.queue_us, stats.duty) == (None, None, None, None)
    assert batch_stats.rate_per_s(stats) is None


def test_versions_are_added_and_a_new_one_counts_from_zero() -> None:
    before = snap(stats_of(made({10: 1}, version="1")))
    after = snap(stats_of(made({10: 2}, version="1"), made({10: 3, 20: 1}, version="2")), 10)
    stats = difference(before, after, instances=1)
    assert stats.executions_by_size == {10: 4, 20: 1}
    assert stats.inferences == 60


def test_a_version_that_is_gone_is_an_error() -> None:
    before = snap(stats_of(made({10: 1}, version="1"), made({10: 3}, version="2")))
    with pytest.raises(CountersWentBackwards, match="version 2 is gone"):
        difference(before, snap(stats_of(made({10: 9}, version="1"))), instances=1)


@pytest.mark.parametrize(
    "path",
    [
        ("inference_count",),
        ("execution_count",),
        ("inference_stats", "success", "count"),
        ("inference_stats", "queue", "ns"),
        ("batch_stats", 0, "compute_infer", "count"),
        ("batch_stats", 0, "compute_output", "ns"),
    ],
)
def test_any_counter_that_fell_is_an_error(path: tuple[Any, ...]) -> None:
    before = stats_of(made({10: 4}))
    after = copy.deepcopy(before)
    place: Any = after["model_stats"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] -= 1
    with pytest.raises(CountersWentBackwards, match="fell from"):
        difference(snap(before), snap(after), instances=1)


def test_a_restarted_server_is_an_error_even_when_a_new_size_ran() -> None:
    with pytest.raises(CountersWentBackwards):
        difference(snap(stats_of(made({10: 4}))), snap(stats_of(made({90: 1}))), instances=1)


@given(
    st.dictionaries(st.integers(1, 100), st.integers(0, 50), max_size=6),
    st.dictionaries(st.integers(1, 100), st.integers(0, 50), max_size=6),
)
def test_identities(first: dict[int, int], more: dict[int, int]) -> None:
    total = {size: first.get(size, 0) + more.get(size, 0) for size in first.keys() | more.keys()}
    stats = difference(snap(stats_of(made(first))), snap(stats_of(made(total)), 5_000_000), instances=3)
    assert stats.executions_by_size == {size: count for size, count in sorted(more.items()) if count}
    assert sum(size * count for size, count in stats.executions_by_size.items()) == stats.inferences
    assert stats.mean_batch is None or 1 <= stats.mean_batch <= 100


@pytest.mark.parametrize("document", [{}, {"model_stats": None}, {"model_stats": [{}]}, {"model_stats": [{"name": 3}]}])
def test_another_form_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadableStatistics):
        parse_statistics(document, "m")


def test_failures_by_reason_of_one_model() -> None:
    text = (DATA / "metrics.txt").read_text(encoding="utf-8")
    assert parse_failures(text, "num") == {"CANCELED": 239, "BACKEND": 0, "OTHER": 0, "REJECTED": 0}
    two = 'nv_inference_request_failure{model="a",reason="OTHER",version="1"} 2\n'
    assert parse_failures(two + two.replace('version="1"', 'version="2"'), "a") == {"OTHER": 4}
    assert parse_failures(two, "b") == {}


def test_failures_between_snapshots() -> None:
    one = stats_of(made({1: 1}))
    both = difference(snap(one, 0, {"OTHER": 2}), snap(one, 1, {"OTHER": 5, "BACKEND": 1}), instances=1)
    assert both.failures == {"OTHER": 3, "BACKEND": 1}
    assert difference(snap(one), snap(one, 1, {"OTHER": 5}), instances=1).failures is None
    with pytest.raises(CountersWentBackwards):
        difference(snap(one, 0, {"OTHER": 2}), snap(one, 1, {"OTHER": 1}), instances=1)


def test_instances_of_a_configuration() -> None:
    assert instance_count(json.loads((DATA / "config_grpc.json").read_text(encoding="utf-8"))) == 2
    assert instance_count({}) == 1
    groups = [{"count": 2, "kind": "KIND_CPU"}, {"count": 3, "gpus": [0, 1]}, {"kind": "KIND_GPU", "gpus": [1]}]
    assert instance_count({"instance_group": groups}) == 2 + 6 + 1


def test_settling_waits_for_two_equal_readings() -> None:
    readings: Iterator[int] = iter([1, 2, 3, 3, 9])
    last, settled = settle(lambda: snap(stats_of(made({1: next(readings)}))), timeout_s=60)
    assert settled
    assert last.versions["1"].executions == 3


def test_settling_gives_up_on_a_model_that_others_use() -> None:
    readings = iter(range(1, 1_000))
    _, settled = settle(lambda: snap(stats_of(made({1: next(readings)}))), timeout_s=0)
    assert not settled
