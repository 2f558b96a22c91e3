"""The simulator held against a server: errors, noise, verdict, the grid, the calibration's arithmetic, and the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.bench.conditions import Conditions
from brim.bench.simulation import predict
from brim.bench.simulation_calibration import Calibration, Costs, Loaded, beside_the_device, curve_points
from brim.bench.simulation_check import TARGETS, Checked, Figures, SimulationCheck, judge, remarks, worst
from brim.bench.simulation_grid import (
    CURVES,
    LOADS,
    PLAIN,
    SETTINGS,
    Case,
    Effort,
    Setting,
    by_curve,
    capacity_per_s,
    grid,
)
from brim.bench.simulation_store import MEASUREMENTS_FILE, Store
from brim.bench.verdict import ExitCode, Verdict
from brim.cli.commands import bench_simulation
from brim.cli.commands.bench_simulation import shown
from brim.errors import InputError
from brim.measure.batch_time import Form, fit
from tests.conftest import Brim

CONDITIONS = Conditions("a processor", 2, 1.0, 2.0, 0.5, {"Triton": "24.10"})


def point(error: float, *, limits: tuple[str, ...] = (), scatter: float | None = None, key: str = "k") -> Checked:
    """Every figure predicted too high by ``error``; measured again with a difference of ``scatter``."""
    measured = Figures(1_000, 2_000, 10)
    predicted = Figures(*(value * (1 + error) for value in (1_000, 2_000, 10)))
    again = None if scatter is None else Figures(*(value * (1 + scatter) for value in (1_000, 2_000, 10)))
    return Checked(key, "a curve", "a setting", 100.0, 0.5, predicted, measured, 3_000, 7, limits, again)


def check(points: list[Checked]) -> SimulationCheck:
    return SimulationCheck(
        tuple(points), {"a curve": {"overhead_us": 5}}, CONDITIONS, {"seed": 0}, "brim bench simulation"
    )


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert Figures(50, 300, 5).errors(Figures(100, 200, 4)) == {"p50": 0.5, "p99": 0.5, "mean_batch": 0.25}


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([0.099, 0.099, 0.099], Verdict.MET),
        ([0.05, 0.101, 0.5], Verdict.MISSED),
        ([0.0, 0.099, 5.0], Verdict.MET),
        ([], Verdict.UNCLEAR),
    ],
)
def test_the_median_is_held_against_the_target(errors: list[float], verdict: Verdict) -> None:
    assert judge("p50", [point(error) for error in errors]).verdict is verdict


def test_a_point_whose_generator_was_the_limit_could_have_any_error() -> None:
    bound = point(0.0, limits=("late",))
    assert judge("p50", [point(0.05), point(0.05), bound]).verdict is Verdict.MET
    assert judge("p50", [point(0.5), point(0.5), bound]).verdict is Verdict.MISSED
    assert judge("p50", [point(0.05), point(0.5), bound]).verdict is Verdict.UNCLEAR
    assert judge("p50", [bound]).verdict is Verdict.UNCLEAR
    found = judge("p50", [point(0.05), point(0.06), bound])
    assert found.median == pytest.approx(0.055) and found.worst == pytest.approx(0.06)


def test_repeats_that_scatter_leave_open_whether_a_target_is_missed() -> None:
    noisy = [point(0.3, scatter=0.15), point(0.3), point(0.3)]
    assert judge("p50", noisy).verdict is Verdict.UNCLEAR
    assert judge("p99", noisy).verdict is Verdict.MISSED, "the scatter is within its target of 20 %"
    assert judge("p50", [point(0.3, scatter=0.01), point(0.3)]).verdict is Verdict.MISSED
    assert judge("p50", [point(0.05, scatter=0.15), point(0.05)]).verdict is Verdict.MET


def test_exit_codes() -> None:
    assert check([point(0.01)]).exit_code is ExitCode.YES
    assert check([point(0.15)]).exit_code is ExitCode.NO
    assert check([point(0.15, limits=("late",))]).exit_code is ExitCode.COULD_NOT_TELL


def test_the_file_has_what_a_report_reads() -> None:
    found = check([point(0.01), point(0.03, limits=("late",)), point(0.05, scatter=0.01)])
    read = json.loads(json.dumps(found.as_json()))
    assert read["command"] == "brim bench simulation"
    assert read["conditions"]["load_average_before"] == 1.0 and read["conditions"]["seed"] == 0
    for one in read["points"]:
        assert one["load"] > 0 and one["curve"] == "a curve" and one["setting"] == "a setting"
        measured = "measured_at_the_limit" if one["limits"] else "measured"
        for figures in (one["predicted"], one[measured]):
            assert set(figures) == {"p50_us", "p99_us", "mean_batch"} and min(figures.values()) > 0
    assert set(read["points"][1]["measured"].values()) == {None}, "what the generator set is no figure of the server"
    assert set(read["median_error"]) == set(TARGETS)
    assert read["median_error"]["p50"] == pytest.approx(0.03), "the one at its limit does not count"
    assert read["generator_bound"] == 1


def test_what_is_shown_holds_every_point_and_says_which_do_not_count() -> None:
    found = check([point(0.01), point(0.03, limits=("12 requests left late",)), point(0.5, scatter=0.02)])
    text = shown(found)
    assert text.count("a setting") == 3 + 2
    assert "12 requests left late" in text and "p50 50% off, 2% between two measurements" in text
    assert [line.count("generator") for line in remarks(found.points)] == [1, 0]


def test_the_worst_are_those_with_the_largest_errors() -> None:
    points = [point(0.05), point(0.4), point(0.12), point(0.9, limits=("late",)), point(0.2)]
    assert [one.errors["p50"] for one in worst(points, 2)] == [pytest.approx(0.4), pytest.approx(0.2)]
    assert worst(points[3:4], 2) == []


def test_the_grid() -> None:
    cases = grid()
    assert len(cases) == len(set(cases)) == len(CURVES) * len(SETTINGS) * len(LOADS) >= 24
    assert [curve for curve, _ in by_curve(cases)] == list(CURVES)
    assert sum(len(of_curve) for _, of_curve in by_curve(cases)) == len(cases)
    for count in range(1, len(cases) + 1):
        assert len(set(grid(count))) == count
        assert [case for case in cases if case in grid(count)] == grid(count), "curve by curve"
    few = grid(12)
    assert {case.curve for case in few} == set(CURVES)
    assert {case.setting for case in few} == set(SETTINGS)
    assert {case.load for case in few} == set(LOADS)
    assert len({setting.model_name for setting in SETTINGS}) == len(SETTINGS)


def test_a_point_lasts_for_its_requests() -> None:
    effort = Effort(requests=1_000, least_s=2.0)
    assert effort.duration_us(100) == 10_000_000
    assert effort.duration_us(5_000) == 2_000_000


def test_capacity_is_that_of_full_batches() -> None:
    machine = Machine(AffineBatchTime(10_000, 400), serialised=True)
    assert capacity_per_s(PLAIN, machine) == pytest.approx(2_000, rel=0.02)


def test_a_prediction_is_that_of_the_arrivals() -> None:
    machine = Machine(AffineBatchTime(1_000, 0), overhead_us=500)
    assert predict(PLAIN, machine, [0, 10_000, 20_000, 30_000]) == Figures(1_500, 1_500, 1.0)
    pairs = [0, 1, 50_000, 50_001]
    assert predict(Setting((2,), 20_000), machine, pairs).mean_batch == 2.0


def test_costs_of_batches_and_of_requests_are_told_apart() -> None:
    runs = [Loaded(batches, requests, 300 * batches + 40 * requests) for batches, requests in ((90, 500), (30, 1_000))]
    found = beside_the_device(runs)
    assert (found.batch_us, found.request_us) == (pytest.approx(300), pytest.approx(40))


def test_no_cost_is_negative() -> None:
    requests_only = beside_the_device([Loaded(90, 500, 19_000), Loaded(30, 1_000, 39_000)])
    assert requests_only.batch_us == 0 and requests_only.request_us == pytest.approx(38.8)
    batches_only = beside_the_device([Loaded(90, 500, 27_000), Loaded(30, 1_000, 8_000)])
    assert batches_only.request_us == 0 and batches_only.batch_us == pytest.approx(296.7, abs=0.1)
    assert beside_the_device([Loaded(90, 500, -10), Loaded(30, 1_000, -5)]) == Costs(0, 0)


def test_a_line_has_two_points() -> None:
    together = fit({size: [10_000.0 + 100 * size] * 5 for size in (1, 20, 50, 100)})
    assert together.form is Form.AFFINE
    assert curve_points(together) == ((1, pytest.approx(10_100)), (100, pytest.approx(20_000)))


def test_a_curve_keeps_all_of_its_points() -> None:
    stepped = fit({size: [1_000.0 * -(-size // 32)] * 5 for size in (1, 16, 32, 33, 64, 65, 96, 97, 100)})
    assert stepped.form is Form.PIECEWISE
    assert len(curve_points(stepped)) == 9
    time = Calibration(curve_points(stepped), 0, 0, 0).machine.batch_time
    assert [time.time_us(rows) for rows in (1, 32, 33, 64, 65, 100)] == [1_000, 1_000, 2_000, 2_000, 3_000, 4_000]


def test_the_store_gives_back_what_was_measured_and_passes_over_a_torn_line(tmp_path: Path) -> None:
    calibration = Calibration(((1, 1_000.5), (100, 9_000.0)), 250, 40, 300)
    store = Store(tmp_path)
    store.append("calibration", "a", calibration.as_json())
    store.append("point", "k", point(0.1, scatter=0.2).as_json())
    with (tmp_path / MEASUREMENTS_FILE).open("a") as file:
        file.write('{"kind": "point", "key": "torn", "fou')
    later = Store(tmp_path)
    assert Calibration.from_json(later.read("calibration", "a") or {}) == calibration
    assert Checked.from_json(later.read("point", "k") or {}) == point(0.1, scatter=0.2)
    assert later.read("point", "torn") is None
    later.append("point", "k", replace(point(0.1), load=7.0).as_json())
    assert (Store(tmp_path).read("point", "k") or {})["load"] == 7.0, "the last of a key counts"


@pytest.mark.parametrize("line", ["[1]", '{"kind": "point", "key": "k", "found": {"load": 1}}', "{}"])
def test_another_file_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / MEASUREMENTS_FILE).write_text(line + "\n")
    with pytest.raises(InputError, match=f"{MEASUREMENTS_FILE}:1"):
        Store(tmp_path)


@pytest.mark.parametrize(("error", "code"), [(0.01, 0), (0.5, 1)])
def test_the_command(brim: Brim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: float, code: int) -> None:
    asked: list[tuple[list[Case], dict[str, Any]]] = []

    def checked(cases: list[Case], **others: Any) -> SimulationCheck:
        asked.append((cases, others))
        return check([point(error)])

    monkeypatch.setattr(bench_simulation, "check_simulation", checked)
    arguments = ("simulation", "--points", "5", "--seconds", "1.5", "--seed", "3", "--out", str(tmp_path))
    ended, out, _ = brim("bench", *arguments, "--json")
    answer = json.loads(out)
    assert ended == code and answer["ok"] is (code == 0)
    assert answer["data"]["points"][0]["measured"]["p50_us"] == 1_000
    ended, out, _ = brim("bench", *arguments)
    assert ended == code and "a setting" in out
    cases, others = asked[0]
    assert cases == grid(5) and others["seed"] == 3 and others["folder"] == tmp_path
    assert others["effort"].duration_us(100) == 1_500_000
    assert others["command"] == "brim bench simulation --points 5 --seconds 1.5 --seed 3"


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        (("simulation", "image_classifier"), "a service"),
        (("simulation", "--rounds", "3"), "--rounds"),
        (("padding", "--points", "3"), "--points"),
    ],
)
def test_an_option_of_another_benchmark_is_refused(brim: Brim, arguments: tuple[str, ...], lost: str) -> None:
    code, _, err = brim("bench", *arguments)
    assert code == 2 and f"takes no {lost}" in err
