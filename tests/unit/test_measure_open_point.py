"""Points of the open-loop driver: every outcome is in them, they are kept line by line, and taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.errors import InputError, ServerFailed
from brim.measure import open_measure
from brim.measure.accounting import Account, Objective, Outcome
from brim.measure.batch_stats import Snapshot
from brim.measure.histogram import Latencies
from brim.measure.open_measure import OpenPlan, is_stable, measure_open
from brim.measure.open_point import FILE_NAME, OpenPoint, append_open_point, read_open_points
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_limits import Evidence
from brim.measure.openloop_run import ANSWERED
from brim.measure.plan import Protocol
from brim.measure.schedule import Arrivals, schedules
from tests.unit.open_example import SLO, TARGET, S, line, open_point, result_of

MIXED = (
    *[Outcome.ANSWERED] * 4,
    Outcome.REFUSED,
    Outcome.EXPIRED,
    Outcome.TIMED_OUT,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.NOT_SENT,
)
CONTRACT = {"mode", "rate", "throughput", "p50_us", "p99_us", "mean_batch", "fill", "duty", "stable", "generator_bound"}


def mixed(number: int) -> tuple[Outcome, int]:
    return MIXED[number % 10], 60_000 if number % 10 == 3 else 5_000


def test_every_outcome_is_counted_and_goodput_is_over_everything() -> None:
    point = open_point((100,), mixed)
    kinds = ("answered", "refused", "expired", "timed_out", "cancelled", "failed", "not_sent")
    assert [getattr(point, kind) for kind in kinds] == [40, 10, 10, 10, 10, 10, 10]
    assert (point.offered, point.in_slo, point.goodput, point.goodput_ratio) == (100, 30, 30.0, 0.3)
    assert point.throughput == 40
    assert point.reject_p99_us is not None and point.messages["told: refused"] == 10
    assert point.generator_bound and point.slo_met is None, "what was not sent is the driver's doing"
    assert sum(segment.offered for segment in point.segments) == point.offered
    assert line(point)["latency_from"] == "schedule" and line(point).keys() >= CONTRACT


def test_the_slo_is_judged_and_its_own_percentile_is_there() -> None:
    point = open_point((100,), lambda number: (Outcome.ANSWERED, 50_000 if number else 50_001))
    assert point.slo_met is True and point.in_slo == 99
    missed = open_point((100,), lambda number: (Outcome.ANSWERED, 50_000 if number > 1 else 50_001))
    assert missed.slo_met is False
    assert "97.5" in open_point(objective=Objective(97.5, 1_000)).latency_us
    free = open_point(objective=None)
    assert (free.slo, free.slo_met, free.goodput, free.goodput_ratio) == (None, None, None, None)


def test_latency_is_charged_from_the_schedule() -> None:
    point = open_point((100,), lambda _: (Outcome.ANSWERED, 9_000), late_us=8_000)
    assert point.p99_us == pytest.approx(9_000, rel=0.002) and point.since_sent_us["99"] == pytest.approx(
        1_000, rel=0.002
    )
    assert point.late == 100 and point.generator_bound and "left more than 2.5 ms late" in point.limits[0]


def test_nothing_answered_has_no_latency() -> None:
    point = open_point((20,), lambda _: (Outcome.FAILED, 1_000))
    assert (point.p50_us, point.p99_us, point.latency_us, point.throughput) == (None, None, {}, 0)
    assert point.slo_met is False and not point.stable


def test_stable_is_a_queue_that_does_not_grow() -> None:
    def growing(number: int) -> tuple[Outcome, int]:
        return Outcome.ANSWERED, 10_000 + 200 * number

    assert open_point((300,), lambda _: (Outcome.ANSWERED, 5_000)).stable
    assert not open_point((300,), growing).stable
    assert not open_point((300, 300), arrivals=Arrivals.STEPS).stable
    (schedule,) = schedules(Arrivals.CONSTANT, [300], S, seed=0)
    result = result_of(schedule, OpenLoopPlan(S, segment_us=schedule.segment_us), growing)
    assert is_stable(schedule, result, 200) and not is_stable(schedule, result, 10)
    assert not is_stable(schedule, OpenLoopResult(OpenLoopPlan(S), (Account(),), Evidence(None, None, 0)), 10)


def test_a_point_survives_its_file_and_a_cut_line(tmp_path: Path) -> None:
    points = [open_point((rate,), mixed) for rate in (10, 20)]
    for point in points:
        append_open_point(tmp_path, point)
    assert read_open_points(tmp_path) == points
    histogram = Latencies.from_json(points[0].histograms["since_due"])
    assert histogram.count == points[0].answered
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    append_open_point(tmp_path, points[1])
    assert read_open_points(tmp_path) == points
    assert read_open_points(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offered": 101}, "add up to 100, and 101"),
        ({"in_slo": 41}, "in_slo 41 is more than answered 40"),
        ({"rate": 0}, "greater than 0"),
        ({"mode": "concurrency"}, "mode"),
        ({"segments": []}, "segments"),
        ({"throughput": None}, "throughput"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({**line(open_point((100,), mixed)), **changes}) + "\n")
    with pytest.raises(InputError, match=rf"{FILE_NAME}:1: not a point of the open-loop driver: .*{words}"):
        read_open_points(tmp_path)


class World:
    """A server and a driver that are only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[int] = []
        self.alive = True
        monkeypatch.setattr(open_measure, "ask_target", lambda endpoint, model: TARGET)
        monkeypatch.setattr(open_measure, "read_snapshot", lambda target: Snapshot(0, {}))
        monkeypatch.setattr(open_measure, "run_open_loop", self.run)

    def run(
        self, endpoint: object, protocol: object, model: str, rows: object, due: Any, plan: OpenLoopPlan
    ) -> OpenLoopResult:
        self.runs.append(len(due))
        account = Account(plan.objective, late_us=plan.late_after_us)
        accounts = (account, *(Account(plan.objective, late_us=plan.late_after_us) for _ in range(plan.segments - 1)))
        for _ in due:
            account.add(0, 0, 1_000, ANSWERED)
        return OpenLoopResult(plan, accounts, Evidence(0.1, 10, 1), self.alive)


ROWS = [{"X": np.zeros((1, 4), np.float32)}]


def test_points_of_the_same_plan_are_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(monkeypatch)
    monkeypatch.setattr(open_measure.batch_stats, "settle", lambda read, timeout_s: (read(), True))

    def go(rates: list[float], **changes: Any) -> list[OpenPoint]:
        plan = OpenPlan(schedules(Arrivals.CONSTANT, rates, S, seed=0), SLO, **changes)
        return measure_open(TARGET.endpoint, "m", plan, ROWS, folder=tmp_path)

    first = go([10, 20])
    assert world.runs == [15, 10, 20], "a warm-up, then each rate"
    assert go([10, 20]) == first and len(world.runs) == 3
    assert [point.rate for point in go([10, 30])] == [10, 30] and world.runs[3:] == [15, 30]
    for changes in ({"protocol": Protocol.HTTP}, {"give_up_us": 5}, {"seed": 1}, {"processes": 1, "timeout_us": 7}):
        before = len(world.runs)
        go([10], **changes)
        assert len(world.runs) == before + 2, changes
    keys = [point.key for point in read_open_points(tmp_path)]
    assert len(keys) == len(set(keys)) == 7
    world.alive = False
    with pytest.raises(ServerFailed, match="the server ended during constant 40/s"):
        go([40])


def test_a_plan_that_cannot_be_carried_out() -> None:
    (schedule,) = schedules(Arrivals.CONSTANT, [10], S, seed=0)
    for changes, words in (
        ({"give_up_us": 0}, "give_up_us 0"),
        ({"stability_percent": float("nan")}, "stability_percent nan"),
    ):
        with pytest.raises(InputError, match=words):
            OpenPlan([schedule], SLO, **changes)
    with pytest.raises(InputError, match="no run"):
        OpenPlan([], SLO)
