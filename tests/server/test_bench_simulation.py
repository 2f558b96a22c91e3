"""The check of the simulator in its smallest form against the real server: structure, counts, and going on."""

from __future__ import annotations

import json
from pathlib import Path

from brim.bench.simulation import CHECK_FILE, check_simulation
from brim.bench.simulation_check import SimulationCheck
from brim.bench.simulation_grid import PLAIN, Case, Curve, Effort, Setting
from brim.bench.simulation_store import MEASUREMENTS_FILE
from brim.measure.known_time import KnownTime
from brim.paths import Project

CURVE = Curve("short", KnownTime(tau0_us=12_000, alpha_us=400))
CASES = [Case(CURVE, PLAIN, 0.2), Case(CURVE, Setting((20,), 5_000, instances=2), 0.2)]
TINY = Effort(requests=1, least_s=1.0, repeats=3, executions=2, lone_requests=5, tries=1, again=1)


def check(checkout: Path, folder: Path, progress: list[str]) -> SimulationCheck:
    return check_simulation(
        CASES,
        cache=Project(checkout).cache,
        log_file=folder / "triton.log",
        folder=folder,
        effort=TINY,
        command="a command",
        on_progress=progress.append,
    )


def test_two_points_are_predicted_and_measured_and_not_measured_again(checkout: Path, tmp_path: Path) -> None:
    progress: list[str] = []
    found = check(checkout, tmp_path, progress)
    assert [point.setting for point in found.points] == [str(case.setting) for case in CASES]
    calibrated = found.calibrations["short"]
    assert calibrated["points"][0][0] == 1 and calibrated["points"][-1][0] == 100
    for rows, time_us in calibrated["points"]:
        assert time_us >= CURVE.time.time_us(rows) / 2
    for point in found.points:
        assert point.requests > 20
        assert point.measured.p50_us >= CURVE.time.time_us(1)
        for figures in (point.predicted, point.measured):
            assert 0 < figures.p50_us <= figures.p99_us
            assert 1 <= figures.mean_batch <= 100
    read = json.loads((tmp_path / CHECK_FILE).read_text())
    assert read["command"] == "a command" and len(read["points"]) == 2
    assert read["conditions"]["cores"] >= 1
    lines = (tmp_path / MEASUREMENTS_FILE).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines][:3] == ["calibration", "point", "point"]
    assert any(words.startswith("designed run") for words in progress)

    # The same folder again: what counts is not measured a second time.
    again: list[str] = []
    later = check(checkout, tmp_path, again)
    assert later.calibrations == found.calibrations
    for before, after in zip(found.points, later.points, strict=True):
        assert before.limits or after.measured == before.measured
    assert not any(words.startswith("designed run") for words in again)
