"""Loads that were asked for and never reached, loads that failed, and loads that nobody asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InputError
from brim.measure.accounting import Objective
from brim.report.build import build_report
from brim.report.curves import of_points
from brim.report.gaps import NOT_REACHED, Gap, gaps, section, warning
from brim.report.markdown import markdown
from brim.report.page import page
from brim.report.run_folder import Documents, read_run
from tests.unit.report_example import SETTINGS, asked, sweep_lines, write_run

SLO = Objective(percentile=99, latency_us=50_000)
THIRD = {"instances": 1, "preferred": [100], "delay_us": 2000}
LABEL = "instances 1, preferred [100], delay_us 2000"


def found(documents: Documents) -> list[Gap]:
    curves = of_points(documents.points, documents.settings)
    return gaps(curves, documents.settings, documents.asked, documents.failures)


def missing(folder: Path) -> list[tuple[str, ...]]:
    """Rows of the section, without the drawings of the rest."""
    shown = section(found(read_run(folder)), "m")
    if shown is None:
        return []
    (figure,) = shown.figures
    assert figure.table is not None
    return list(figure.table.rows)


def keep(folder: Path, *, without: Any) -> None:
    lines = [one for one in sweep_lines() if not without(one)]
    (folder / "measurements.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")


def test_a_whole_sweep_lacks_nothing(tmp_path: Path) -> None:
    assert missing(write_run(tmp_path, "sweep", "asked")) == []


def test_a_setting_that_was_never_begun_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep", "asked")
    keep(tmp_path, without=lambda one: one["key"].endswith("c"))
    notes = json.loads((tmp_path / "configurations.json").read_text(encoding="utf-8"))
    (tmp_path / "configurations.json").write_text(json.dumps({k: v for k, v in notes.items() if k != "text2"}))
    built = build_report(read_run(tmp_path), SLO, source="the test")
    assert [one.id for one in built.sections][-2:] == ["missing", "commands"]
    rows = missing(tmp_path)
    assert [row[2] for row in rows] == ["1 caller", "10 callers", "50 callers", "100 callers", "50/s", "200/s"]
    assert {row[0] for row in rows} == {LABEL} and {row[3] for row in rows} == {NOT_REACHED}
    (said,) = [one for one in built.warnings if "partial" in one]
    assert "6 of 18 loads that were asked for" in said and LABEL in said
    for text in (page(built), markdown(built, page="p")):
        assert text.count(NOT_REACHED) == 6


def test_a_load_that_no_setting_has_is_missing_too(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep", "asked")
    keep(tmp_path, without=lambda one: one.get("concurrency") == 100)
    assert [row[2] for row in missing(tmp_path)] == ["100 callers"] * 3
    (tmp_path / "sweep.json").unlink()
    assert missing(tmp_path) == [], "without the record nobody can know"


def test_a_load_that_was_not_asked_for_is_not_missing(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep")
    (tmp_path / "sweep.json").write_text(json.dumps(asked(loads=(1, 10))), encoding="utf-8")
    keep(tmp_path, without=lambda one: one.get("concurrency") in (50, 100))
    assert missing(tmp_path) == []


def test_what_failed_says_why(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep", "asked")
    keep(tmp_path, without=lambda one: one["key"].endswith("c") or one.get("concurrency") == 50)
    first = next(iter(SETTINGS.values()))
    failures = [
        {"settings": first, "load": "closed 50", "code": "x", "message": "an older reason", "hint": ""},
        {"settings": first, "load": "closed 50", "code": "x", "message": "requests failed", "hint": ""},
        {"settings": THIRD, "load": "", "code": "x", "message": "the server did not start", "hint": ""},
    ]
    text = "".join(json.dumps(one) + "\n" for one in failures)
    (tmp_path / "failures.jsonl").write_text(text + text[:20], encoding="utf-8")
    why = {(row[0], row[2]): row[3] for row in missing(tmp_path)}
    assert why[str_of(first), "50 callers"] == "failed: requests failed"
    assert {reason for (label, _), reason in why.items() if label == LABEL} == {"failed: the server did not start"}
    assert why["instances 2, preferred [], delay_us 0", "50 callers"] == NOT_REACHED
    documents = read_run(tmp_path)
    assert "7 of them since they could not be measured, 1 since" in warning(found(documents), documents.asked)
    assert documents.torn == ("failures.jsonl:4",)


def str_of(one: dict[str, Any]) -> str:
    return f"instances {one['instances']}, preferred {one['preferred']}, delay_us {one['delay_us']}"


def test_a_sweep_that_was_stopped_before_its_first_point_has_a_report(tmp_path: Path) -> None:
    built = build_report(read_run(write_run(tmp_path, "asked")), SLO, source="the test")
    assert [one.id for one in built.sections] == ["missing"] and len(missing(tmp_path)) == 18
    assert built.verdict == "Nothing was measured."


def test_a_record_with_faults_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep")
    (tmp_path / "sweep.json").write_text(json.dumps({**asked(), "settings": [], "loads": 3}), encoding="utf-8")
    (tmp_path / "failures.jsonl").write_text('{"load": 3}\n', encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_run(tmp_path)
    for words in ("sweep.json: settings", "sweep.json: loads", "failures.jsonl:1: not what a sweep could not measure"):
        assert words in refused.value.message


def test_points_of_another_model_fill_no_gap(tmp_path: Path) -> None:
    documents = read_run(write_run(tmp_path, "sweep", "asked"))
    assert documents.asked is not None
    other = replace(documents, asked=documents.asked.model_copy(update={"model": "other"}))
    assert len(found(other)) == 18
