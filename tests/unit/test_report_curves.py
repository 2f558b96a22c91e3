"""What measured points say about an SLO, and what a sweep that was stopped lacks."""

from __future__ import annotations

from typing import Any

import pytest

from brim.measure.accounting import Objective
from brim.measure.point import Point
from brim.measure.sweep import Settings
from brim.report.choice import TuneRun
from brim.report.curves import Curve, of_points, of_runs
from brim.report.gaps import gaps
from brim.report.groups import Origin, groups
from brim.report.pareto import compared
from tests.unit.report_example import SETTINGS, point_line, run_line, setting, sweep_lines

SLO = Objective(percentile=99, latency_us=50_000)
KNOWN = {
    digest: Settings(one["instances"], tuple(one["preferred"]), one["delay_us"]) for digest, one in SETTINGS.items()
}


def curve(*lines: dict[str, Any]) -> Curve:
    (found,) = of_points([Point.from_json(line) for line in lines], {})
    return found


def load_of(latency_us: dict[str, int], **changes: Any) -> Any:
    return curve(point_line(10, latency_us=latency_us, **changes)).loads[0]


@pytest.mark.parametrize(
    ("latency_us", "least", "most"),
    [
        ({"50": 10, "90": 20, "99": 30}, 0.99, 1.0),
        ({"50": 10, "90": 50_000, "99": 50_001}, 0.9, 0.99),
        ({"50": 60_000, "99": 70_000}, 0.0, 0.5),
        ({}, 0.0, 1.0),
        ({"50": 10, "99.9": 50_000}, 0.999, 1.0),
    ],
)
def test_percentiles_bound_what_is_inside_the_slo(latency_us: dict[str, int], least: float, most: float) -> None:
    load = load_of(latency_us, throughput=200.0)
    assert load.in_time(SLO.latency_us) == pytest.approx((least, most))
    assert load.goodput(SLO) == pytest.approx((200 * least, 200 * most))


def test_an_unmeasured_percentile_is_not_judged() -> None:
    rare = Objective(percentile=99.9, latency_us=50_000)
    assert load_of({"50": 10, "99": 20}).verdict(rare, open_loop=False) == "not known"
    assert load_of({"50": 10, "99": 60_000}).verdict(rare, open_loop=False) == "no"
    assert load_of({"50": 10, "99.9": 20}).verdict(rare, open_loop=False) == "yes"
    assert load_of({"50": 10, "99": 60_000, "100": 20}).meets(SLO, open_loop=False) is True


def test_an_open_loop_must_answer_its_rate() -> None:
    fine = {"50": 10, "99": 20}
    kept = curve(point_line(100, mode="rate", latency_us=fine, throughput=96.0))
    lost = curve(point_line(100, mode="rate", latency_us=fine, throughput=90.0))
    assert kept.capacity(SLO) is not None and lost.capacity(SLO) is None
    assert lost.capacity(None) is not None
    assert lost.loads[0].verdict(SLO, open_loop=True) == "no"
    # 100 random arrivals a second for a second are 90 often enough, for twenty seconds they are not.
    short = curve(point_line(100, mode="rate", latency_us=fine, throughput=90.0, inferences=90))
    assert short.capacity(SLO) is not None
    silent = curve(point_line(100, mode="rate", latency_us=fine, throughput=0.0, inferences=0))
    assert silent.capacity(SLO) is None


def test_capacity_is_the_most_that_meets_the_slo() -> None:
    found = curve(*(point_line(load) for load in (1, 10, 50, 100)))
    best = found.capacity(SLO)
    assert best is not None and best.value == 50
    beyond = found.capacity(None)
    assert beyond is not None and beyond.value == 100


def test_a_later_point_replaces_an_earlier_one_and_loads_ascend() -> None:
    found = curve(point_line(50), point_line(1), point_line(50, throughput=7.0))
    assert [load.value for load in found.loads] == [1, 50]
    assert found.loads[1].throughput == 7.0


def test_curves_differ_by_setting_and_kind_of_load() -> None:
    found = of_points([Point.from_json(line) for line in sweep_lines()], KNOWN)
    assert len(found) == 2 * len(SETTINGS)
    assert {one.label for one in found} == {str(one) for one in KNOWN.values()}
    assert {one.kind.arrivals for one in found} == {"closed", "poisson"}
    unknown = of_points([Point.from_json(line) for line in sweep_lines()], {})
    assert len({one.label for one in unknown}) == len(SETTINGS)


def test_what_is_missing_of_a_sweep_is_named() -> None:
    lines = sweep_lines()
    assert gaps(of_points(map(Point.from_json, lines), KNOWN), KNOWN) == []
    kept = [line for line in lines if not (line.get("concurrency") in (50, 100) and line["key"].endswith("b"))]
    found = gaps(of_points(map(Point.from_json, kept), KNOWN), KNOWN)
    assert [(gap.load, gap.label) for gap in found] == [(load, str(KNOWN["bbbbbbbbbbbb"])) for load in (50, 100)]
    without = [line for line in lines if not line["key"].endswith("c")]
    assert {gap.label for gap in gaps(of_points(map(Point.from_json, without), KNOWN), KNOWN)} == {
        str(KNOWN["cccccccccccc"])
    }


def test_rounds_at_one_rate_are_one_load() -> None:
    one = setting([], 0, 2)
    lines = [run_line(one, "peak", 400.0, number=number) for number in (1, 2, 3)]
    lines[1]["p99_us"] = 1
    (found,) = of_runs(map(TuneRun.model_validate, lines), model="m", protocol="grpc", arrival="steady", percentile=99)
    (load,) = found.loads
    assert load.latency_us["99"] == lines[0]["p99_us"]
    assert load.counted_goodput == (399.25, 399.75)
    assert load.in_slo == pytest.approx(1598 / 1600)
    assert load.sizes == {1: 30, 13: 180}
    assert load.meets(SLO, open_loop=True)


def test_settings_are_compared_at_a_load_that_all_have() -> None:
    found = of_points([Point.from_json(line) for line in sweep_lines() if "concurrency" in line], KNOWN)
    (group,) = groups(found, objective=None, chosen=[str(KNOWN["cccccccccccc"]), "elsewhere"])
    settings = compared(group)
    assert settings is not None and settings.load == 10
    by_label = {place.label: place for place in settings.places}
    assert by_label[str(KNOWN["bbbbbbbbbbbb"])].in_front
    assert [place.label for place in settings.places if place.chosen] == [str(KNOWN["cccccccccccc"])]
    assert group.main.label == str(KNOWN["cccccccccccc"]), "the choice comes first"
    (best_first,) = groups(found, objective=None, chosen=())
    assert best_first.main.label == str(KNOWN["bbbbbbbbbbbb"])


def test_runs_without_a_choice_have_an_origin() -> None:
    runs = [TuneRun.model_validate(run_line(setting([], 0, 1), "peak", 400.0))]
    found = of_runs(runs, model="", protocol="", arrival="open", percentile=99)
    (group,) = groups(found, objective=SLO, chosen=(), tuned=Origin("brim tune", "unknown"))
    assert group.origin.command == "brim tune"
