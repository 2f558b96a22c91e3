"""The page and the summary of a run: whole, in agreement, safe to open, and with nothing from elsewhere."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from brim.measure.accounting import Objective
from brim.measure.asked import Asked
from brim.measure.open_point import OpenPoint
from brim.measure.point import Point
from brim.report.bench_result import Comparison
from brim.report.build import build_report
from brim.report.choice import Choice
from brim.report.document import Figure, Report
from brim.report.isolation_result import Isolation
from brim.report.load_test import LoadTest
from brim.report.markdown import markdown, text
from brim.report.overload_result import Overload
from brim.report.page import page
from brim.report.run_folder import Documents, FailedLoad, read_run
from brim.report.simulation_check import SimulationCheck, median_error
from brim.report.soak_result import Sample, Soak
from brim.report.tuned import launches
from tests.unit.report_example import (
    asked,
    choice,
    comparison,
    isolation,
    load_test,
    open_lines,
    overload,
    point_line,
    simulation_check,
    soak,
    soak_lines,
    sweep_lines,
    write_run,
)

HOSTILE = "<script>alert(1)</script><img src=//elsewhere.example/x onerror=y>\"'&{{ 7 * 191 }}|`#*$x_1$\u202e\x00\ud800"
SLO = Objective(percentile=99, latency_us=50_000)
EVERY = ("sweep", "asked", "open", "choice", "simulation", "loadtest", "isolation", "overload", "soak")
VOID = frozenset(["meta", "br"])
SECTIONS = {
    ("sweep",): ["latency", "goodput", "batches", "pareto", "loads", "commands"],
    ("tune",): ["choice", "latency", "goodput", "batches", "launches", "pareto", "loads", "predictions"],
    ("simulation",): ["simulation"],
    ("isolation",): ["isolation"],
    ("loadtest",): ["loadtest"],
    ("open",): ["latency", "goodput", "batches", "time", "loads", "commands"],
    ("asked",): ["missing"],
    ("overload",): ["overload"],
    ("bench",): ["benchmark"],
    ("soak",): ["soak"],
    EVERY: [
        *("choice", "latency", "goodput", "batches", "launches", "time", "pareto", "loads", "predictions"),
        *("simulation", "loadtest", "isolation", "overload", "soak", "commands"),
    ],
}


@functools.cache
def documents(*parts: str) -> Documents:
    with tempfile.TemporaryDirectory() as folder:
        return replace(read_run(write_run(Path(folder), *parts)), name="run")


@functools.cache
def built(*parts: str) -> Report:
    return build_report(documents(*parts), SLO, source="the test")


def figures(report: Report) -> list[Figure]:
    return [figure for section in report.sections for figure in section.figures]


class Reader(HTMLParser):
    """Tags with their attributes, whether they nest, and the text of everything, of figures and of table rows."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.figures: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "figure":
            self.figures.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "figure" in self.open:
            self.figures[-1] += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("parts", list(SECTIONS))
def test_sections_are_those_of_what_is_there(parts: tuple[str, ...]) -> None:
    report = built(*parts)
    assert [section.id for section in report.sections] == SECTIONS[parts]
    read = Reader(page(report))
    ids = [attributes["id"] for tag, attributes in read.tags if tag == "section"]
    assert ids == ["conditions", *SECTIONS[parts]]
    links = [str(attributes["href"]) for tag, attributes in read.tags if tag == "a"]
    assert [link for link in links if link.startswith("#")] == [f"#{name}" for name in SECTIONS[parts]]
    assert [link for link in links if not link.startswith("#")] == (["isolation.html"] if "isolation" in parts else [])


def test_without_an_slo_nothing_is_held_against_one() -> None:
    report = build_report(replace(documents("sweep"), points=documents("sweep").points[:2]), None, source="nobody says")
    assert "goodput" not in [section.id for section in report.sections]
    assert "No SLO is known" in report.verdict and ("SLO", "none is known (nobody says)") in report.conditions


def test_the_document_nests_and_needs_nothing_from_elsewhere() -> None:
    document = page(built(*EVERY))
    assert document.startswith("<!doctype html>")
    read = Reader(document)
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "img", "image", "iframe", "object", "embed", "base", "form", "foreignobject"}
    for _, attributes in read.tags:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "xmlns")
            if name.endswith("href"):
                assert str(value).startswith("#") or value == "isolation.html"
            assert str(value).count("url(") == len(re.findall(r"url\(#[\w-]+\)", str(value)))
    assert not re.search(r"https?://|@import|data:", document)
    for words in ("prefers-color-scheme: dark", "@media print", "@page"):
        assert words in document


def test_ids_are_unique_and_references_lead_to_them() -> None:
    read = Reader(page(built(*EVERY)))
    ids = [value for _, attributes in read.tags for name, value in attributes.items() if name == "id"]
    assert len(ids) == len(set(ids))
    used = [
        str(value)[1:]
        for _, attributes in read.tags
        for name, value in attributes.items()
        if name.endswith("href") and str(value).startswith("#")
    ]
    clipped = [
        found
        for _, attributes in read.tags
        for value in attributes.values()
        for found in re.findall(r"url\(#([\w-]+)\)", str(value))
    ]
    assert used and clipped and set(used) | set(clipped) <= set(ids)


def test_drawings_take_the_pages_colours() -> None:
    document = page(built(*EVERY))
    drawings = re.findall(r"<svg.*?</svg>", document, re.DOTALL)
    assert len(drawings) == sum(figure.picture is not None for figure in figures(built(*EVERY)))
    style = document[: document.index("</style>")]
    for drawing in drawings:
        assert re.findall("#[0-9a-fA-F]{6}", drawing) == []
        assert all(f"--{name}:" in style for name in re.findall(r"var\(--(\w+)\)", drawing))
        assert "var(--ink)" in drawing and "viewBox" in drawing


@pytest.mark.parametrize("parts", list(SECTIONS))
def test_every_figure_has_its_command_and_its_conditions(parts: tuple[str, ...]) -> None:
    report = built(*parts)
    shown = Reader(page(report)).figures
    assert len(shown) == len(figures(report)) > 0
    for words, figure in zip(shown, figures(report), strict=True):
        assert figure.picture is not None or figure.table is not None
        assert f"Command: {figure.command}" in words and f"Conditions: {figure.conditions}" in words
        assert len(figure.command) > 5 and len(figure.conditions) > 5
    with pytest.raises(AssertionError):
        Figure("t", "", "c")


def test_the_summary_has_the_pages_numbers() -> None:
    report = built(*EVERY)
    summary = markdown(report, page="report.html")
    on_page = {tuple(cell.strip() for cell in row) for row in Reader(page(report)).rows}
    lines = [line for line in summary.splitlines() if line.startswith("| ")]
    rows = [tuple(re.sub(r"\\(.)", r"\1", cell).strip() for cell in line[2:-2].split(" | ")) for line in lines]
    assert len(rows) > 60 and set(rows) <= on_page
    brief = [figure.table for figure in figures(report) if figure.table is not None and figure.table.brief]
    assert len(rows) == sum(1 + len(table.rows) for table in brief)
    for words in (report.verdict, *report.warnings, *(one for section in report.sections for one in section.sentences)):
        assert text(words) in summary
    for figure in figures(report):
        if figure.table is not None and figure.table.brief:
            assert figure.command in summary


def test_figures_of_a_point_are_in_its_row() -> None:
    rows = [[cell.strip() for cell in row] for row in Reader(page(built("sweep"))).rows]
    label = "instances 2, preferred [], delay_us 0"
    assert [label, "50 callers", "731.2", "13.54", "35.77"] in rows
    assert [label, "100 callers", "900.0", "810.0 to 891.0", "90.0 % to 99.0 %", "no"] in rows
    assert [label, "50 callers", "25.0", "0.25", "25", "0.70", "43"] in rows


def test_the_choice_is_marked_and_said() -> None:
    report = built("tune")
    assert (
        report.good is True
        and "no preferred size, no delay, 2 instances" in report.verdict
        and "is met" in report.verdict
    )
    assert "It carries the most inside the SLO" in report.verdict
    pareto = next(section for section in report.sections if section.id == "pareto")
    for figure in pareto.figures:
        assert figure.table is not None
        (row,) = figure.table.marked
        assert figure.table.rows[row][0] == "no preferred size, no delay, 2 instances"
    fronts = {row[0]: row[1] for row in pareto.figures[0].table.rows} if pareto.figures[0].table else {}
    assert fronts == {
        "preferred [100], delay 5 ms, 1 instance": "yes",
        "no preferred size, no delay, 2 instances": "yes",
        "no preferred size, no delay, 1 instance": "",
    }


def test_a_choice_is_marked_among_the_curves_of_a_sweep_too() -> None:
    sections = {section.id: section for section in built(*EVERY).sections}
    marked = {
        figure.table.rows[row][0]
        for figure in (*sections["latency"].figures, *sections["pareto"].figures)
        if figure.table is not None
        for row in figure.table.marked
    }
    assert marked == {"instances 2, preferred [], delay_us 0", "no preferred size, no delay, 2 instances"}


def test_launch_reasons_are_those_of_the_simulator() -> None:
    document = choice()
    document["choice"] = {**document["choice"], "preferred": [4], "max_queue_delay_us": 20_000}
    section, faults = launches(Choice.model_validate(document))
    assert section is not None and faults == []
    table = section.figures[0].table
    assert table is not None and {"preferred", "delay"} <= set(table.head)
    shares = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [one["load"] for one in shares] == ["low: 70/s", "moderate: 350/s", "high: 630/s"]
    delayed = [int(one["delay"].split()[0]) for one in shares]
    assert delayed == sorted(delayed, reverse=True) and delayed[0] > delayed[-1], "busier, fewer wait in vain"
    document["machine"]["points"] = [{"rows": 1, "time_us": 5}] * 2
    section, faults = launches(Choice.model_validate(document))
    assert section is None and "launch reasons are missing" in faults[0]


def test_a_partial_run_is_said_to_be_partial() -> None:
    whole = documents("sweep")
    assert not any("artial" in warning for warning in built("sweep").warnings)
    closed = [point for point in whole.points if point.concurrency in (10, 100)]
    points = tuple(point for point in closed if not (point.key.endswith("c") and point.value == 100))
    cut = build_report(replace(whole, points=points, torn=("measurements.jsonl:17",)), None, source="x")
    said = " ".join(cut.warnings)
    assert "sweep is partial" in said and "100 callers" in said and "measurements.jsonl:17 was cut short" in said
    assert "sweep is partial" in page(cut) and "sweep is partial" in markdown(cut, page="p")


@pytest.mark.parametrize("parts", [("stopped",), ("tune",)])
def test_a_tuning_without_a_choice_is_partial(parts: tuple[str, ...]) -> None:
    found = replace(documents(*parts), choice=None)
    report = build_report(replace(found, runs=found.runs[:2]), None, source="x")
    assert any("tuning is partial" in warning for warning in report.warnings)
    assert [section.id for section in report.sections] == ["latency", "batches", "loads"]
    if parts == ("stopped",):
        assert figures(report)[0].command == "brim tune m --protocol grpc --seed 7"


def test_what_may_mislead_is_said() -> None:
    lines = [point_line(1, stable=False), point_line(10, generator_bound=True), point_line(50, failed=3, note="ended")]
    report = build_report(Documents("run", tuple(map(Point.from_json, lines))), SLO, source="x")
    assert any("1 of 3 points come from windows" in warning for warning in report.warnings)
    assert any("At 1 of 3 points the load generator" in warning for warning in report.warnings)
    rows = {row[1].strip(): row[-1].strip() for row in Reader(page(report)).rows if row[0].strip() == "as it stands"}
    words = Reader(page(report)).text
    assert "3 failed; ended" in words and "the load generator set the figure" in words and rows


def test_points_without_figures_are_shown_as_such() -> None:
    nothing = {
        "throughput": None,
        "p50_us": None,
        "p99_us": None,
        "latency_us": {},
        "mean_batch": None,
        "fill": None,
        "duty": None,
        "executions_by_size": {},
    }
    report = build_report(Documents("run", (Point.from_json(point_line(1, **nothing)),)), SLO, source="x")
    assert "no measured load" in report.verdict
    assert ["as it stands", "1 caller", "-", "-", "-"] in [
        [cell.strip() for cell in row] for row in Reader(page(report)).rows
    ]


def test_the_median_error_is_that_of_the_points() -> None:
    document = simulation_check()
    document["median_error"] = {"p50": 0.5, "p99": None}
    check = SimulationCheck.model_validate(document)
    assert median_error(check, "p50") == pytest.approx((0.04 / 1.04 + 0.15 / 1.15) / 2)
    report = build_report(Documents("run", simulation=check), None, source="x")
    assert any("median error of 50.0%" in warning for warning in report.warnings)
    assert "8.4 % for p50" in report.verdict
    empty = SimulationCheck.model_validate({**document, "points": []})
    assert "No point has both sides" in build_report(Documents("run", simulation=empty), None, source="x").verdict


def test_launch_reasons_of_a_check_are_shown() -> None:
    section = built("simulation").sections[0]
    table = section.figures[1].table
    assert table is not None and table.head == ("load", "full", "drained", "delay")
    assert table.rows[0][0] == "known, steady, instances 1, delay_us 0, 50"
    assert table.rows[0][1:] == ("50 (11.1 %)", "400 (88.9 %)", "0 (0.0 %)")


def test_broken_isolation_is_a_no() -> None:
    document = isolation()
    document["ok"] = False
    document["checks"][1] |= {"ok": False, "wrong": 2, "sent": 2_002}
    report = build_report(Documents("run", isolation=Isolation.model_validate(document)), None, source="x")
    assert report.good is False and "2 of 4,002 requests were hurt; failed: fuzz" in report.verdict
    assert report.sections[0].links == ()


def replaced(document: Any, words: str) -> Any:
    """Every text of a document with other words behind it, but for names that the reading side knows."""
    if isinstance(document, dict):
        kept = {"key", "mode", "started_at", "arrival", "verdict", "answer", "hdr"}
        kept |= {"protocol"} if "mode" in document else set()
        return {name: value if name in kept else replaced(value, words) for name, value in document.items()}
    if isinstance(document, list):
        return [replaced(value, words) for value in document]
    return document + words if isinstance(document, str) else document


def everywhere(words: str) -> Report:
    """A report in which every text that comes from a file or a server has these words."""
    lines = [replaced(line, words) for line in sweep_lines()[:2]]
    run = open_lines()[-1]
    # Kinds of words that a file must have as they are; every other text of the run is anything.
    fixed = {name: run[name] for name in ("mode", "arrivals", "histograms")}
    sweep = Asked.model_validate(replaced(asked(), words))
    failures = [FailedLoad(settings=sweep.settings[0], load="", message=words)]
    shed = replaced(load_test(), words)
    shed["classes"] = {words: shed["classes"]["batch"]}
    load = replaced(overload(), words)
    load["loads"][0]["groups"] = {words: load["loads"][0]["groups"]["interactive"]}
    held = replaced(soak(), words)
    held |= {"rss": {words: held["rss"]["envoy"]}, "messages": {words: 1}, "conditions": {words: words}}
    sample = soak_lines()[0] | {"rss": {words: 5}, "fds": {words: 6}}
    return build_report(
        Documents(
            words,
            points=tuple(map(Point.from_json, lines)),
            open_points=(OpenPoint.model_validate(replaced(run, words) | fixed),),
            asked=sweep,
            failures=tuple(failures),
            load_test=LoadTest.model_validate(
                shed | {"verdict": f"met{words}", "limits": [words], "message": words, "conditions": {words: words}}
            ),
            choice=Choice.model_validate(replaced(choice(), words)),
            simulation=SimulationCheck.model_validate(
                replaced({**simulation_check(), "conditions": {words: words}}, words)
            ),
            isolation=Isolation.model_validate(replaced(isolation(), words)),
            overload=Overload.model_validate(load | {"closed_per_s": {words: 3.0}}),
            comparison=Comparison.model_validate(replaced(comparison(), words) | {"figures": {words: [1.0]}}),
            soak=Soak.model_validate(held),
            samples=(Sample.model_validate(sample),),
        ),
        SLO,
        source=words,
    )


def test_whatever_a_file_says_stays_text() -> None:
    hostile = everywhere(HOSTILE)
    read = Reader(page(hostile))
    allowed = {tag for tag, _ in Reader(page(built(*EVERY))).tags}
    assert {tag for tag, _ in read.tags} <= allowed
    assert read.text.count("{{ 7 * 191 }}") > 20 and "1337" not in read.text
    page(hostile).encode("utf-8")
    assert "\u202e" not in page(hostile)
    summary = markdown(hostile, page="report.html")
    outside_fences = re.sub(r"^(`{3,})\n.*?^\1$", "", summary, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?<!\\)<|(?<!\\)`", outside_fences)
    assert "\u202e" not in summary


def test_a_legend_has_every_curve_as_it_is_named() -> None:
    document = simulation_check()
    names = ["_hidden", "$\\frac$", "a" * 500]
    for point, name in zip(document["points"], names, strict=False):
        point["curve"] = name
    report = build_report(Documents("run", simulation=SimulationCheck.model_validate(document)), None, source="x")
    drawn = Reader(page(report)).figures[0]
    assert " _hidden" in drawn and "$\\frac$" in drawn and "a" * 44 in drawn


def test_the_same_documents_give_the_same_page() -> None:
    first, second = (page(build_report(documents("simulation"), None, source="x")) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first)) == first
