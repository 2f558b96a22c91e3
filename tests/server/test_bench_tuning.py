"""The tuner's benchmark in its smallest form on the real server: structure, counts, settings that are loaded, going on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from brim.bench.tuning import ANSWER_FILE, check_tuning
from brim.bench.tuning_case import Case, Effort
from brim.bench.tuning_check import TuningCheck
from brim.bench.tuning_store import MEASUREMENTS_FILE
from brim.bench.verdict import ExitCode, Verdict
from brim.measure.known_time import KnownTime
from brim.paths import Project
from brim.server import leftovers
from brim.tune import tuning
from brim.tune.grid import Grid
from brim.tune.setting import DEFAULT, Setting

DELAYED = Setting((), 40_000, 1)
SETTINGS = (DEFAULT, DELAYED)
CANDIDATES = (*SETTINGS, Setting((20,), 5_000, 2))
CASE = Case(KnownTime(10_000, 100), slo_us=200_000, rate_per_s=150.0, peak_per_s=150.0, settings=SETTINGS)
TINY = Effort(
    tune_repeats=1,
    tune_settings=2,
    tau_budget_us=500_000,
    run_us=200_000,
    final_run_us=200_000,
    finalists=1,
    rounds=1,
    ceiling_per_s=200.0,
)


def check(checkout: Path, folder: Path, said: list[str]) -> TuningCheck:
    return check_tuning(
        CASE,
        TINY,
        cache=Project(checkout).cache,
        log_file=folder / "triton.log",
        folder=folder,
        command="a command",
        on_progress=said.append,
    )


def test_settings_are_tuned_swept_and_compared_and_not_measured_again(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A search among thousands of candidates is what the tuner's own tests are for.
    monkeypatch.setattr(tuning, "make_grid", lambda *_, **__: Grid(CANDIDATES, len(CANDIDATES), {}))
    said: list[str] = []
    before = leftovers.regions_of(f"brim_{os.getpid()}_")
    found = check(checkout, tmp_path, said)
    assert leftovers.regions_of(f"brim_{os.getpid()}_") == before
    assert [one.setting for one in found.sweep] == list(SETTINGS)
    assert len(found.tuned.measured) == 2
    choice = found.tuned.choice
    assert choice in [setting for setting, *_ in found.tuned.measured]
    assert [one.setting for one in found.rounds[0].climbed] == [choice, found.best_again]
    log = (tmp_path / "triton.log").read_text(errors="replace")
    assert log.count("Started HTTPService") == 1, "one server for all of it"
    for one in (*found.sweep, found.choice_in_sweep, *found.rounds[0].climbed):
        assert one.runs >= 1 and one.took_us > 0
        assert one.mean_batch is None or 1 <= one.mean_batch <= 100
    # A delay of 40 ms fills batches that leave at once without it: the settings were loaded.
    default, delayed = found.sweep
    if delayed.goodput_per_s and default.goodput_per_s:
        assert delayed.mean_batch is not None and default.mean_batch is not None
        assert delayed.mean_batch > 1.5 * default.mean_batch
    assert found.ratios[0].verdict is Verdict.UNCLEAR and found.comparison.exit_code is not ExitCode.YES
    document = json.loads((tmp_path / ANSWER_FILE).read_text())
    assert document["command"] == "a command" and len(document["sweep"]) == 2
    lines = [json.loads(line) for line in (tmp_path / MEASUREMENTS_FILE).read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[:2] == ["parameters", "tuning"] and kinds[-2:] == ["round", "round"]
    assert set(kinds[2:-2]) == {"setting"} and len(kinds[2:-2]) == len({*SETTINGS, choice})

    again: list[str] = []
    later = check(checkout, tmp_path, again)
    assert (later.tuned, later.sweep, later.rounds) == (found.tuned, found.sweep, found.rounds)
    assert later.details["lines_of_earlier_runs"] == len(lines)
    assert again == [], "nothing was measured"
    assert (tmp_path / MEASUREMENTS_FILE).read_text().count("\n") == len(lines)
