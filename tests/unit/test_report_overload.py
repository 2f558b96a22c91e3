"""A benchmark of overload, and any other with targets, in a report: as the benchmark wrote it, and refused where it is broken."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.bench import overload as bench
from brim.bench import overload_check
from brim.bench.overload_case import BATCH, INTERACTIVE
from brim.bench.overload_check import Found
from brim.bench.overload_seen import Counted
from brim.bench.verdict import ExitCode
from brim.cli.commands import bench as bench_command
from brim.errors import InputError
from brim.measure.accounting import Objective, Outcome
from brim.report import bench_result, overload_result, overloaded
from brim.report.build import build_report
from brim.report.document import Section
from brim.report.overload_result import Overload
from brim.report.run_folder import Documents, read_run
from tests.conftest import Brim
from tests.unit.report_example import comparison, load_test, overload, write_run
from tests.unit.test_bench_overload import (
    CASE,
    COUNTS,
    GOOD,
    IDLE,
    LATE,
    SPEED,
    alone,
    check,
    leave,
    load,
    result,
    with_load,
)


def made(found: Found = GOOD) -> Overload:
    return Overload.model_validate(overload(found))


@functools.cache
def good() -> Section:
    return overloaded.section(made())


def rows(section: Section, title: str) -> list[dict[str, str]]:
    (table,) = (figure.table for figure in section.figures if figure.title == title)
    assert table is not None
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def test_names_and_limits_are_those_of_the_benchmark() -> None:
    assert bench_result.FILE_NAME == bench.ANSWER_FILE == bench_command.ANSWER_FILE
    assert overloaded.GOODPUT_RATIO == overload_check.GOODPUT_RATIO
    assert overloaded.REFUSAL_US == overload_check.REFUSAL_US
    assert overload_result.COUNTED == overload_check.COUNTED
    assert made().objective == Objective(99, CASE.slo_us)


def test_every_load_is_shown_with_its_goodput_and_what_became_of_it() -> None:
    section = good()
    goodput = {one["offered"]: one for one in rows(section, "Goodput and answers against offered load")}
    assert list(goodput) == ["1x", "2x", "10x"]
    assert goodput["10x"] == {
        "offered": "10x",
        "sent": "147",
        "goodput /s": "9.7",
        "of the best": "97.0 %",
        "answered /s": "9.7",
        "in SLO": "97",
        "answered": "97",
        "refused": "50",
        "expired": "0",
        "cancelled": "0",
        "most in flight": "290",
    }
    latency = {one["offered"]: one for one in rows(section, "Latency of answers and of refusals")}
    assert (latency["10x"]["p99 ms"], latency["10x"]["p99 ms until refused"]) == ("1,000.00", "2.00")
    assert latency["10x"]["p99 ms since due"] == "3.00", "they left a millisecond late"
    assert latency["1x"]["p99 ms until refused"] == "-"
    assert [figure.picture is not None for figure in section.figures[:2]] == [True, True]
    assert "10 times the capacity of 175.5/s, 9.7/s are answered in time (97.0 %" in section.sentences[1]


def test_classes_are_apart_and_so_are_callers_that_leave() -> None:
    section = good()
    classes = {(one["offered"], one["callers"]): one for one in rows(section, "Two classes of callers")}
    assert set(classes) == {(load, name) for load in ("0.8x", "2x") for name in (INTERACTIVE, BATCH)}
    assert (classes["2x", INTERACTIVE]["refused"], classes["2x", BATCH]["refused"]) == ("0", "50")
    gone = {one["callers"]: one for one in rows(section, "Callers that leave, or bring a deadline")}
    assert (gone["leaving"]["cancelled"], gone["deadline"]["expired"], gone["patient"]["answered"]) == ("5", "4", "9")
    left = {one["protocol"]: one for one in rows(section, "Callers that disconnect in the queue")}
    assert (left["grpc"]["executed for nobody"], left["http"]["executed for nobody"]) == ("0", "200")
    assert left["http"]["of them refused"] == "190"


def test_bursts_and_costs_are_shown_round_by_round() -> None:
    section = good()
    bursts = rows(section, "Bursts onto an idle server")
    assert [one["round"] for one in bursts] == ["1", "2", "3", "4", "5"]
    assert (bursts[0]["refusals / health"], bursts[0]["last refusal ms"]) == ("1.11", "200.00")
    costs = rows(section, "Cost of the gateway")
    assert [one["added, us"] for one in costs] == ["200", "201", "202", "203", "204"] * 2
    assert {one["with / without"] for one in costs} == {"0.500"}


def test_every_request_is_accounted_for_by_driver_gateway_and_model() -> None:
    accounts = rows(good(), "Every request accounted for")
    assert len(accounts) == len(GOOD.loads) + len(GOOD.mixes) + len(GOOD.leaving)
    for one in accounts:
        counts = [int(one[name]) for name in ("= answered", "+ refused", "+ expired", "+ cancelled")]
        assert (one["adds up"], sum(counts)) == ("yes", int(one["sent"]))
        assert one["the same ends by the gateway"] == " + ".join(map(str, counts))
    failed = replace(GOOD, loads=(load(1.0, {INTERACTIVE: result([1_000_000] * 5, failed=2)}),))
    lost = rows(overloaded.section(made(failed)), "Every request accounted for")[0]
    assert (lost["adds up"], lost["sent"]) == ("no: 2 with other ends", "7")
    unseen = replace(GOOD, loads=(replace(GOOD.loads[1], gateway=Counted()),))
    assert rows(overloaded.section(made(unseen)), "Every request accounted for")[0]["adds up"] == "no: 0 by the gateway"


def test_every_target_stands_with_its_verdict() -> None:
    answer = check(GOOD)
    section = good()
    told = [
        (one["figure"], one["verdict"], one["target"])
        for part in dict.fromkeys(one.part for one in answer.judged)
        for one in rows(section, f"{'Targets' if part != 'cost of the gateway' else 'Without a target'}: {part}")
    ]
    assert told == [(one.figure, one.verdict or "-", one.target or "none") for one in answer.judged]
    held = sum(one.verdict is not None for one in answer.judged)
    assert section.sentences[0] == f"Overload: {held} of {held} targets are met."


@pytest.mark.parametrize("figure", [*SPEED, *COUNTS])
def test_a_missed_target_is_a_no_and_named(figure: str) -> None:
    found = made({**SPEED, **COUNTS}[figure])
    said = overloaded.sentences(found)[0]
    assert found.ok is False and f": {figure}" in said[said.index(" Missed: ") :]


def test_the_verdict_is_the_benchmarks() -> None:
    for found, others, code, ok in (
        (GOOD, 0.0, ExitCode.YES, True),
        (SPEED["refused at 0.8x"], 1.0, ExitCode.COULD_NOT_TELL, None),
        (SPEED["refused at 0.8x"], 0.0, ExitCode.NO, False),
    ):
        answer = check(found, other_cores=others)
        read = Overload.model_validate(json.loads(json.dumps(answer.as_json())))
        assert answer.exit_code is code and read.ok is ok
        assert build_report(Documents("run", overload=read), None, source="x").good is ok


def test_a_driver_at_its_limit_is_told() -> None:
    said = overloaded.sentences(made(with_load(2, alone(10.0, answers=97, evidence=LATE))))
    assert "Unclear: one kind of callers: goodput at 10x" in said[0]
    assert said[2].startswith("The load generator was the limit at 10x: ")


def test_what_the_run_left_out_is_left_out() -> None:
    nothing = with_load(0, load(1.0, {INTERACTIVE: result(refused_us=[2_000], evidence=replace(IDLE, wall_us=None))}))
    alone_ = replace(nothing, loads=nothing.loads[:1], mixes=(), leaving=(), bursts=(), leaves=(), costs=())
    section = overloaded.section(made(alone_))
    (row,) = rows(section, "Goodput and answers against offered load")
    assert (row["goodput /s"], row["of the best"], row["refused"]) == ("0.0", "-", "1")
    titles = {figure.title for figure in section.figures}
    assert not titles & {"Two classes of callers", "Bursts onto an idle server", "Cost of the gateway"}
    late = overloaded.section(made(replace(GOOD, leaves=(leave(queued=False),))))
    assert rows(late, "Callers that disconnect in the queue")[0]["left while a batch ran"] == "no: tells nothing"


def test_an_older_file_lacks_figures_and_is_shown() -> None:
    document = overload()
    for name in ("command", "measured_at", "seed", "effort"):
        document.pop(name, None)
    for one in document["loads"]:
        del one["groups"][INTERACTIVE]["histograms"]["refused_since_sent"]
    section = overloaded.section(Overload.model_validate(document))
    assert section.figures[0].command == "brim bench overload"
    assert rows(section, "Latency of answers and of refusals")[2]["p99 ms until refused"] == "-"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("capacity_per_s",), 0, r"overload\.capacity_per_s: 0: .*greater than 0"),
        (("capacity_per_s",), float("nan"), "NaN is not a finite number"),
        (("loads",), [], r"overload\.loads: .*at least 1 item"),
        (("loads", 1, "sent"), 151, r"overload\.loads\.1: .*sent is 151, and 150 requests of its groups were"),
        (("loads", 1, "goodput_per_s"), 11.0, r"loads\.1: .*goodput_per_s 11 is more than answered, 10/s"),
        (("loads", 1, "gateway", "interactive/answered"), -1, r"gateway\.interactive/answered: -1"),
        (("loads", 1, "groups", INTERACTIVE, "answered"), 7, r"groups\.interactive: .*add up to 57, and 150 arrivals"),
        (("loads", 1, "groups", INTERACTIVE, "in_slo"), 101, "in_slo 101 is more than answered 100"),
        (
            ("loads", 1, "groups", INTERACTIVE, "histograms", "refused_since_sent", "hdr"),
            "HIST",
            r"refused_since_sent: .*not a latency histogram",
        ),
        (("mixes", 0, "groups"), {}, r"overload\.mixes\.0\.groups"),
        (("bursts", 2, "refused"), 701, r"bursts\.2: .*answered 300 and refused 701 are more than requests 1000"),
        (("bursts", 2, "in_slo"), 301, r"bursts\.2: .*in_slo 301 is more than answered 300"),
        (("costs", 3, "direct_per_s"), 0, r"costs\.3\.direct_per_s: 0: "),
        (("judged", 4, "verdict"), "perhaps", r"judged\.4\.verdict: .*perhaps.*'met', 'missed' or 'unclear'"),
        (("case", "bound"), "many", r"case\.bound: .*many.*valid integer"),
        (("leaves", 0, "queued"), "perhaps", r"leaves\.0\.queued: .*perhaps"),
    ],
)
def test_faults_are_named_with_place_value_and_what_is_expected(
    path: tuple[str | int, ...], value: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"bench\.json: .*{words}"):
        read_run(_with(tmp_path, overload(), path, value))


def _with(folder: Path, document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> Path:
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (folder / "bench.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    document = overload()
    document["capacity_per_s"] = -1
    document["bursts"][0]["health_us"] = 0
    with pytest.raises(InputError) as refused:
        read_run(_with(tmp_path, document, ("case", "slo_us"), None))
    lines = refused.value.message.splitlines()
    assert len(lines) == 3 and all("bench.json: overload." in line for line in lines)


def test_any_other_benchmark_is_its_ratios(tmp_path: Path) -> None:
    documents = read_run(write_run(tmp_path, "bench"))
    built = build_report(documents, None, source="the test")
    (section,) = built.sections
    assert built.good is True and section.id == "benchmark" and section.figures[0].command == "brim bench padding"
    (ratio,) = rows(section, "Ratios over all rounds")
    assert ratio == {
        "ratio": "padded / real tokens",
        "verdict": "met",
        "target": "<= 1.1",
        "median": "1.03",
        "from": "1.01",
        "to": "1.05",
        "confidence": "93.8 %",
        "rounds": "5",
    }
    (figure,) = rows(section, "What was measured")
    assert (figure["median"], figure["least"], figure["most"], figure["values"]) == ("110", "100", "120", "3")


@pytest.mark.parametrize(
    ("rounds", "ok"), [((1.2,) * 5, False), ((1.0, 1.2, 1.0, 1.2, 1.0), None), ((1.0,), None), ((1.0,) * 5, True)]
)
def test_the_verdict_on_a_ratio_is_the_reports(rounds: tuple[float, ...], ok: bool | None) -> None:
    found = bench_result.Comparison.model_validate(comparison(*rounds))
    assert build_report(Documents("run", comparison=found), None, source="x").good is ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one["ratios"][0].update(median=2.0), r"comparison\.ratios\.0: .*median 2 lies outside"),
        (lambda one: one["ratios"][0].update(rounds=0), r"comparison\.ratios\.0\.rounds: 0: "),
        (lambda one: one["figures"].update(rows_per_s=[]), r"comparison\.figures\.rows_per_s"),
        (lambda one: one.update(ratios={}), r"comparison\.ratios"),
    ],
)
def test_faults_of_other_benchmarks_are_named(
    change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path
) -> None:
    document = comparison()
    change(document)
    (tmp_path / "bench.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=rf"bench\.json: {words}"):
        read_run(tmp_path)


def test_a_benchmark_without_targets_is_passed_over_beside_others_and_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"fixed_us": 3}', encoding="utf-8")
    with pytest.raises(InputError, match="held against a target") as refused:
        read_run(tmp_path)
    assert refused.value.hint
    (tmp_path / "loadtest.json").write_text(json.dumps(load_test()), encoding="utf-8")
    found = read_run(tmp_path)
    assert found.load_test is not None and found.overload is None and found.comparison is None
    (tmp_path / "bench.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match=r"bench\.json: benchmark: .*valid dict"):
        read_run(tmp_path)


def test_its_objective_is_the_reports(brim: Brim, tmp_path: Path) -> None:
    write_run(tmp_path, "overload", "soak")
    code, out, _ = brim("report", tmp_path, "--json")
    assert code == 0 and json.loads(out)["data"]["sections"] == ["overload", "soak"]
    assert "p99 within 2000 ms (bench.json)" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_ends_of_a_request_are_known() -> None:
    """An end that the report does not know would be missing from its tables."""
    assert set(Outcome) - set(overload_result.COUNTED) == {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_SENT}
