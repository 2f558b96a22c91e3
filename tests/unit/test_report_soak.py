"""A soak in a report: its verdict and its figures as the soak wrote them, and what is wrong with its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InputError
from brim.report import soak_result, soaked
from brim.report.build import build_report
from brim.report.document import Report
from brim.report.run_folder import Documents, read_run
from brim.report.soak_result import Sample, Soak
from brim.soak import run as soak_run
from brim.soak import sample as soak_sample
from brim.soak.trend import MOST_POINTS
from tests.unit.report_example import SOAK_ABOUT, soak, soak_lines, write_run
from tests.unit.test_soak import RATE, held, run


def built(samples: list[soak_sample.Sample] | None = None) -> Report:
    documents = Documents("run", soak=Soak.model_validate(soak(samples)), samples=tuple(read(samples)))
    return build_report(documents, None, source="the test")


def read(samples: list[soak_sample.Sample] | None = None) -> list[Sample]:
    return [Sample.model_validate(line) for line in soak_lines(samples)]


def rows(report: Report, title: str) -> dict[str, dict[str, str]]:
    (table,) = (figure.table for figure in report.sections[0].figures if figure.title == title)
    assert table is not None
    return {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_a_run_that_stayed_as_it_was_is_a_yes() -> None:
    report = built()
    assert soak_result.FILE_NAME == soak_run.RESULT_FILE
    assert report.good is True and report.warnings == ()
    assert report.verdict.endswith("; no memory grew.")
    assert "Soak of m over http: it stayed as it was in 100 s." in report.verdict
    assert f"The last 10 s had {RATE:,}.0 answers/s, the first {RATE:,}.0: 1.0000 (0.98 is needed)" in report.verdict
    throughput = rows(report, "Throughput at the beginning and at the end")
    assert throughput["last / first"] == {"figure": "last / first", "needed": ">= 0.98", "measured": "1.0000"}
    memory = rows(report, "Growth of memory after the warm-up")
    assert list(memory) == ["memory of tritonserver", "memory of stubs", "memory of envoy", "shared memory"]
    assert memory["memory of stubs"] == {
        "what": "memory of stubs",
        "growth": "within",
        "held MiB": "200.00",
        "grew by MiB": "0.00",
        "may grow by MiB": "10.00",
    }
    (requests,) = rows(report, "What became of the requests").values()
    assert (requests["offered"], requests["answered"], requests["refused"], requests["p99 ms"]) == (
        *("11", "10", "1"),
        "20.00",
    )
    opened = rows(report, "Connections and files")
    assert (opened["open files of envoy"]["most"], opened["connections to the server"]["last sample"]) == ("60", "10")
    assert {figure.command for figure in report.sections[0].figures} == {SOAK_ABOUT["command"]}
    assert ("cores", "2") in report.conditions


def test_what_grew_is_beyond_and_the_run_a_no() -> None:
    report = built(run(resources=lambda second: held(stubs=200 + second)))
    assert report.good is False and "it did not stay as it was in 100 s: memory of stubs grew by" in report.verdict
    assert "; memory of stubs grew the most, by 80.00 of 12.95 MiB that it may." in report.verdict
    memory = rows(report, "Growth of memory after the warm-up")
    assert [one["growth"] for one in memory.values()] == ["within", "beyond", "within", "within"]


def test_throughput_that_fell_is_a_no_and_too_few_samples_are_no_verdict() -> None:
    fell = built(run(answered=lambda second: RATE if second < 30 else 900))
    assert fell.good is False and "throughput fell to 0.900" in fell.verdict
    short = built(run(9))
    assert short.good is None and "could not be judged" in short.verdict and "9 samples" in short.verdict


def test_a_run_without_an_answer_has_no_ratio() -> None:
    report = built(run(answered=lambda second: 0))
    assert report.good is False
    assert rows(report, "Throughput at the beginning and at the end")["last / first"]["measured"] == "-"


def test_a_long_run_is_drawn_by_stretches_whose_peaks_stay() -> None:
    def at(second: int) -> soak_sample.Resources:
        return held(stubs=1_700 if second == 700 else 200)

    samples = read(run(1_000, resources=at))
    parts = soaked.stretches(samples)
    assert soak_result.throughput_of(parts[0]) == RATE
    assert len(parts) == 250 <= MOST_POINTS and [one for part in parts for one in part] == samples
    long, short = built(run(1_000, resources=at)), built(run(1_000))
    assert long.sections[0].figures[0].notes == ("1000 samples, 4 a point: the most memory of each is drawn.",)
    assert "1500" in _ticks(long) and "1500" not in _ticks(short)
    assert [len(part) for part in soaked.stretches(samples[:299])] == [1] * 299


def _ticks(report: Report) -> list[str]:
    picture = report.sections[0].figures[0].picture
    assert picture is not None
    return [part.split("<", 1)[0] for part in picture.svg.split(">") if part.split("<", 1)[0].isdigit()]


def test_a_soak_that_was_ended_at_once_is_partial(tmp_path: Path) -> None:
    write_run(tmp_path, "soak")
    (tmp_path / "soak.json").unlink()
    with (tmp_path / "samples.jsonl").open("a", encoding="utf-8") as lines:
        lines.write('{"at_us": 1010')
    report = build_report(read_run(tmp_path), None, source="x")
    assert report.good is None
    assert any("soak is partial" in warning for warning in report.warnings)
    assert any("samples.jsonl:101 was cut short" in warning for warning in report.warnings)
    assert [figure.title for figure in report.sections[0].figures] == [
        "Throughput and memory over time",
        "Connections and files",
    ]


def test_samples_of_another_run_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, "soak")
    lines = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()[:50]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = build_report(read_run(tmp_path), None, source="x")
    assert report.warnings == ("soak.json is of 100 samples, and samples.jsonl has 50.",)
    (tmp_path / "samples.jsonl").unlink()
    figures = build_report(read_run(tmp_path), None, source="x").sections[0].figures
    assert figures and all(figure.picture is None for figure in figures)


def test_an_older_file_lacks_its_command_and_what_others_took() -> None:
    document = soak()
    for name in ("command", "conditions", "others_cores"):
        del document[name]
    samples = [{name: value for name, value in line.items() if not name.endswith("y_us")} for line in soak_lines()]
    section = soaked.section(Soak.model_validate(document), [Sample.model_validate(one) for one in samples])
    assert section.figures[0].command == "brim soak m --duration 100 --rate 1000 --protocol http"
    assert "others" not in section.figures[0].conditions


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(answer="splendid"), r"answer: .*splendid.*'flat', 'not flat' or 'could not tell'"),
        (lambda one: one.update(reasons=["it fell"]), "answer is 'flat' with 1 reasons"),
        (lambda one: one.update(refused=4), "the outcomes add up to 14, and 11 requests were offered"),
        (lambda one: one.update(first=-1), r"first: -1: .*greater than or equal to 0"),
        (lambda one: one["rss"]["envoy"].pop("growth_bytes"), r"rss\.envoy\.growth_bytes: Field required"),
        (lambda one: one["shm"].update(level_bytes="much"), r"shm\.level_bytes: .*much.*valid integer"),
        (lambda one: one.update(ratio=float("inf")), "Infinity is not a finite number"),
    ],
)
def test_faults_of_the_result_are_named(change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path) -> None:
    document = soak()
    change(document)
    (tmp_path / "soak.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=rf"soak\.json: .*{words}"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(span_us=0), r":3: not a sample of a soak: span_us: 0: .*greater than or equal to 1"),
        (lambda one: one["rss"].update(envoy=-5), r":3: not a sample of a soak: rss\.envoy: -5: "),
        (lambda one: one.pop("fds"), r":3: not a sample of a soak: fds: Field required"),
        (lambda one: one.update(at_us=2_000_000), r": at_us 2000000 comes after 2000000"),
    ],
)
def test_faults_of_samples_are_named(change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path) -> None:
    lines = soak_lines()
    change(lines[2])
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(InputError, match=rf"samples\.jsonl{words}"):
        read_run(tmp_path)
