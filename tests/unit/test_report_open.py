"""Runs of the open-loop driver in a report: against load, over time, with what was counted and not guessed."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.measure.accounting import Objective, Outcome
from brim.measure.open_point import OpenPoint
from brim.measure.schedule import Arrivals
from brim.report import timelines
from brim.report.build import build_report
from brim.report.curves import of_open_points
from brim.report.document import Report
from brim.report.run_folder import Documents, read_run
from tests.unit.open_example import line, open_point
from tests.unit.report_example import open_lines, write_run

SLO = Objective(percentile=99, latency_us=50_000)


def points() -> list[OpenPoint]:
    return [OpenPoint.model_validate(one) for one in open_lines()]


def report(*found: OpenPoint, objective: Objective | None = SLO) -> Report:
    return build_report(Documents("run", open_points=found), objective, source="the test")


def rows(built: Report, section: str, title: str = "") -> list[tuple[str, ...]]:
    return [
        row
        for one in built.sections
        if one.id == section
        for figure in one.figures
        if figure.table is not None and title in figure.title
        for row in figure.table.rows
    ]


@functools.cache
def whole() -> Report:
    return report(*points())


def test_rates_are_one_curve_and_steps_another() -> None:
    constant, steps = of_open_points(points(), SLO)
    assert [load.value for load in constant.loads] == [50, 100, 200]
    assert [load.value for load in steps.loads] == [20, 60, 100]
    assert constant.loads[2].in_slo == 0.75 and constant.loads[2].counted_goodput == (150, 150)
    assert [load.in_slo for load in steps.loads] == [1, 1, 1] and len(steps.points) == 1
    best = constant.capacity(SLO)
    assert best is not None and best.value == 100, "a rate that is refused in part does not meet the SLO"


def test_the_worse_of_two_steps_at_one_rate_counts() -> None:
    def slow_at_first(number: int) -> tuple[Outcome, int]:
        return Outcome.ANSWERED, 40_000 if number < 20 else 1_000

    (curve,) = of_open_points([open_point((50, 80, 50), slow_at_first, arrivals=Arrivals.STEPS)], SLO)
    assert [(load.value, round(load.latency_us["99"], -3)) for load in curve.loads] == [(50, 40_000), (80, 1_000)]


def test_goodput_is_counted_for_the_runs_own_slo_only() -> None:
    built = whole()
    assert ("as it stands", "200/s", "50 refused", "150.0", "150.0", "75.0 %", "no") in rows(built, "goodput")
    assert "Counted request by request" in built.sections[1].figures[0].notes[0]
    other = report(*points(), objective=Objective(99, 20_000))
    (row,) = [row for row in rows(other, "goodput") if row[1] == "200/s"]
    assert row[4] == "0.0 to 75.0", "for another limit it lies between two percentiles"


def test_figures_carry_the_drivers_command_and_where_latency_counts_from() -> None:
    built = whole()
    (latency,) = [section for section in built.sections if section.id == "latency"]
    assert all("counted from when each request was due" in figure.notes[0] for figure in latency.figures)
    assert all(figure.command == "brim measure m --open-loop" for figure in latency.figures)
    assert "brim's open-loop driver, 1 process" in latency.figures[0].conditions


def test_runs_whose_load_changes_are_drawn_over_time() -> None:
    built = whole()
    steps = points()[-1].segments
    assert [step.offered for step in steps] == sorted(step.offered for step in steps)
    rate = [f"{step.offered:.1f}" for step in steps]
    assert [row[:5] for row in rows(built, "time")] == [
        (f"{second} s", rate[second], rate[second], rate[second], "0") for second in range(3)
    ]
    assert timelines.section([open_point((50,))]) is None


def test_a_driver_that_was_the_limit_is_no_verdict_on_the_server() -> None:
    def unsent(number: int) -> tuple[Outcome, int]:
        return Outcome.NOT_SENT if number % 2 else Outcome.ANSWERED, 1_000

    built = report(open_point((100,), unsent))
    assert any("At 1 of 1 points the load generator" in warning for warning in built.warnings)
    assert rows(built, "goodput")[0][-1] == "not known"
    late = open_point((100,), late_us=3_000, became=lambda _: (Outcome.ANSWERED, 5_000))
    (curve,) = of_open_points([late], SLO)
    assert late.generator_bound
    assert curve.loads[0].verdict(SLO, open_loop=True) == "yes", "lateness can only have made it look worse"


def test_a_run_of_which_nothing_was_answered() -> None:
    built = report(open_point((100,), lambda _: (Outcome.EXPIRED, 1_000)), objective=None)
    assert rows(built, "latency")[0][-2:] == ("-", "-")
    assert "100 expired" in rows(built, "latency")[0][2]


def test_a_later_run_of_the_same_plan_replaces_an_earlier_one() -> None:
    (curve,) = of_open_points([open_point((50,)), open_point((50,), lambda _: (Outcome.ANSWERED, 7_000))], SLO)
    assert [round(load.latency_us["50"], -3) for load in curve.loads] == [7_000]


def test_faults_of_the_file_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "open")
    good = line(open_point())
    lines = [good, {**good, "refused": 5}, {**good, "latency_us": {"fast": 3}}, {**good, "segments": [{}]}]
    (tmp_path / "openloop.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_run(tmp_path)
    said = refused.value.message.splitlines()
    assert len(said) == 3 and all(f"openloop.jsonl:{number}: not a point" in one for number, one in enumerate(said, 2))
    assert "add up to 105, and 100" in said[0]


def test_it_reads_what_was_written(tmp_path: Path) -> None:
    assert list(read_run(write_run(tmp_path, "open")).open_points) == points()
