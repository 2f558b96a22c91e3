"""A load test's file: its faults by name, and a section in which successes and refusals are kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from brim.errors import InputError
from brim.report.build import build_report
from brim.report.document import Section
from brim.report.load_test import LoadTest
from brim.report.loaded import section
from brim.report.run_folder import Documents, read_run
from tests.unit.report_example import load_test, write_run


def made(**changes: Any) -> LoadTest:
    return LoadTest.model_validate({**load_test(), **changes})


def rows(found: Section, figure: int) -> list[dict[str, str]]:
    table = found.figures[figure].table
    assert table is not None
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def test_outcomes_and_latencies_are_by_class_and_apart() -> None:
    found = section(made())
    outcomes = {one["class"]: one for one in rows(found, 0)}
    assert outcomes["batch"] == {
        "class": "batch",
        "SLO": "p99 within 50 ms",
        "its verdict": "-",
        "offered": "400",
        "in SLO": "149",
        "answered": "150",
        "refused": "250",
        "expired": "0",
        "cancelled": "0",
        "failed": "0",
        "no end yet": "0",
        "in SLO of offered": "37.2 %",
    }
    latencies = {one["class"]: one for one in rows(found, 1)}
    assert latencies["interactive"]["p99 ms"] == "41.00"
    assert latencies["interactive"]["p99 ms until refused"] == "0.90"
    assert "p99 ms" not in outcomes["batch"], "no table mixes how often and how long"
    assert "988 of 1,000 offered requests (98.8 %)" in found.sentences[1] and "250 were refused" in found.sentences[2]


@pytest.mark.parametrize(
    ("verdict", "ok", "words"),
    [
        ("met", True, "was passed"),
        ("Missed", False, "was not passed"),
        ("could not tell", None, "could not be judged"),
        (True, True, "was passed"),
        (False, False, "was not passed"),
        ({"ok": None, "message": "the generator was the limit"}, None, "could not be judged"),
        ({"ok": False, "message": "batch was shed"}, False, "was not passed"),
    ],
)
def test_the_verdict_is_the_reports(verdict: Any, ok: bool | None, words: str) -> None:
    test = made(verdict=verdict)
    report = build_report(Documents("run", load_test=test), test.objective, source="loadtest.json")
    assert report.good is ok and words in report.verdict
    if isinstance(verdict, dict):
        assert verdict["message"] in report.verdict
    assert ("machine", "2 cores") in report.conditions


def test_a_class_may_have_its_own_slo_and_the_test_its_reasons() -> None:
    document = load_test()
    document["classes"]["batch"] |= {"latency_us": 500_000, "percentile": 95, "met": False}
    found = section(LoadTest.model_validate({**document, "message": "batch missed", "limits": ["one core"]}))
    assert rows(found, 0)[1]["SLO"] == "p95 within 500 ms" and rows(found, 0)[1]["its verdict"] == "missed"
    assert found.sentences[1:3] == ("batch missed", "The load generator was the limit: one core.")
    once = section(LoadTest.model_validate({**document, "message": "the limit was one core", "limits": ["one core"]}))
    assert sum("one core" in sentence for sentence in once.sentences) == 1


def test_the_timeline_is_optional_and_its_entries_may_be_longer_than_a_second() -> None:
    assert len(section(made(timeline=[])).figures) == 2
    (first, *_) = rows(section(made()), 2)
    assert (first["from"], first["offered /s"], first["refused"]) == ("0 s", "280.0", "50")
    tens = [{**one, "second": 10 * one["second"]} for one in load_test()["timeline"]]
    (first, *_) = rows(section(made(timeline=tens)), 2)
    assert first["offered /s"] == "28.0"
    (only,) = rows(section(made(timeline=tens[:1])), 2)
    assert only["offered /s"] == "280.0"
    silent = [{"second": 0, "offered": 0, "answered": 0, "in_slo": 0, "refused": 0, "p50_us": None, "p99_us": None}]
    (nothing,) = rows(section(made(timeline=silent)), 2)
    assert nothing["p99 ms"] == "-"


def test_a_class_without_requests_is_said_to_have_none() -> None:
    nothing = dict.fromkeys(("offered", "answered", "in_slo", "refused", "expired", "cancelled", "failed"), 0)
    found = section(made(classes={"idle": {**nothing, "p50_us": None, "p99_us": None, "reject_p99_us": None}}))
    assert found.sentences[1] == "idle: nothing was offered."
    assert rows(found, 0)[0]["in SLO of offered"] == "-"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("classes", "batch", "offered"), 399, "classes.batch: .*is 400, more than offered 399"),
        (("classes", "batch", "in_slo"), 151, "classes.batch: .*in_slo 151 is more than answered 150"),
        (("classes", "batch", "refused"), -1, "classes.batch.refused"),
        (("classes", "batch", "p50_us"), 50_000, "classes.batch: .*p50_us 50000 is above p99_us 47000"),
        (("classes", "batch", "p99_us"), float("nan"), "NaN is not a finite number"),
        (("classes",), {}, "classes"),
        (("verdict",), 3.5, "verdict"),
        (("slo", "percentile"), 100, "slo.percentile"),
        (("slo",), None, "slo"),
        (("conditions",), [], "conditions"),
        (("timeline", 1, "second"), 0, "second 0 comes after 0"),
        (("timeline", 2, "in_slo"), 229, "timeline.2: .*in_slo 229 is more than answered 228"),
        (("timeline", 2, "offered"), "many", "timeline.2.offered"),
    ],
)
def test_faults_are_named(path: tuple[str | int, ...], value: Any, words: str, tmp_path: Path) -> None:
    write_run(tmp_path, "loadtest")
    document = load_test()
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (tmp_path / "loadtest.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=rf"loadtest\.json: .*{words}"):
        read_run(tmp_path)


def test_every_missing_field_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        LoadTest.model_validate({"classes": {"a": {"offered": 1}}})
    named = {".".join(map(str, one["loc"])) for one in refused.value.errors()}
    ends = ("answered", "in_slo", "refused", "expired", "cancelled", "failed")
    assert named >= {"verdict", "slo", "conditions", *(f"classes.a.{end}" for end in ends)}
