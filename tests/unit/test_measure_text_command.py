"""``brim measure`` of a language model as it is typed, and how its points are kept, drawn and told."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from brim.cli.commands.measure_text import TextOptions, text_plan_of
from brim.cli.commands.measure_text_table import remarks
from brim.engine.lifecycle import RequestClass
from brim.errors import InputError
from brim.measure.text.plan import TextPlan
from brim.measure.text.plot import draw
from brim.measure.text.point import FILE_NAME, append_text_point, read_text_points
from brim.measure.text.stream import Heard
from brim.measure.text.token_times import TokenObjective
from brim.service.load import find_service
from brim.service.schema import Service
from tests.conftest import Brim
from tests.unit.text_example import failed, line, spoken, text_point

CONTRACT = {
    *("mode", "concurrency", "throughput", "p50_us", "p99_us", "mean_batch", "fill", "duty", "stable"),
    *("generator_bound",),
}
OPTIONS = TextOptions(
    concurrency=None,
    rates=None,
    arrival=None,
    trace=None,
    duration_s=None,
    give_up_ms=None,
    prompts=None,
    texts=None,
    pairs=None,
    batch_share=0.0,
    shared_prefix=0,
    perf_analyzer=False,
    window_ms=None,
    max_trials=None,
    stability_percent=10.0,
    seed=0,
)


@pytest.fixture
def service(checkout: Path) -> Service:
    return find_service(checkout / "services", "text_generation")


def test_the_service_file_says_what_is_usual(service: Service) -> None:
    plan = text_plan_of(OPTIONS, service)
    assert (plan.concurrencies, plan.schedules, plan.duration_us) == ([1, 8, 32], [], 20_000_000)
    assert plan.objective == TokenObjective(99, 2_000_000, 200_000)
    assert (plan.context_tokens, plan.max_sequences, plan.give_up_us) == (4096, 32, None)
    assert plan.classes == {RequestClass.INTERACTIVE: "interactive", RequestClass.BATCH: "batch"}
    calls = plan.calls(8)
    assert {(call.prompt_tokens, call.max_tokens) for call in calls} == {(128, 64)}
    opened = text_plan_of(replace(OPTIONS, rates=(2.0, 4.0), duration_s=3.0), service)
    assert [schedule.rate_per_s for schedule in opened.schedules] == [2, 4] and not opened.concurrencies
    assert opened.give_up_us == 60_000_000 and len(opened.calls(opened.schedules[1])) == len(opened.schedules[1].due_us)


def test_a_fingerprint_changes_with_everything_but_the_callers(service: Service) -> None:
    plan = text_plan_of(OPTIONS, service)
    assert plan.fingerprint(1) == plan.fingerprint(32)
    changed = {
        "duration_us": 1,
        "mix": text_plan_of(replace(OPTIONS, texts="9"), service).mix,
        "context_tokens": 99,
        "max_sequences": 9,
        "objective": None,
        "batch_share": 0.5,
        "shared_prefix_tokens": 4,
        "give_up_us": 5,
        "timeout_us": 7,
        "seed": 3,
        "stability_percent": 5.0,
        "classes": {},
    }
    unseen = {"concurrencies", "schedules", "mix_words", "command"}
    assert {field.name for field in dataclasses.fields(TextPlan)} == changed.keys() | unseen
    prints = {replace(plan, **{name: value}).fingerprint(1) for name, value in changed.items()}
    assert len(prints | {plan.fingerprint(1)}) == len(changed) + 1


def test_the_words_of_all_faults_of_a_plan(service: Service) -> None:
    plan = text_plan_of(OPTIONS, service)
    with pytest.raises(InputError) as refused:
        replace(plan, concurrencies=[0, 99_999], batch_share=1.5, shared_prefix_tokens=5_000, classes={})
    for words in ("0 callers", "99999 callers", "share of 1.5", "names none", "prefix of 5000"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--open-loop",), "--open-loop for text_generation, a language model"),
        (("--constant", "--processes", "2"), "--constant, --processes for text_generation"),
        (("--protocol", "http"), "--protocol http for text_generation"),
        (("--window-ms", "200", "--max-trials", "5"), "--window-ms, --max-trials for text_generation"),
        (("--concurrency", "0"), "--concurrency 0"),
        (("--concurrency", "1.5"), "--concurrency 1.5"),
        (("--concurrency", "5000"), "5000 callers"),
        (("--concurrency", "5", "--rate", "2"), "exclude each other"),
        (("--concurrency", "5", "--arrival", "poisson"), "--concurrency beside --arrival"),
        (("--rate", "2", "--perf-analyzer"), "--perf-analyzer with an open loop"),
        (("--give-up-ms", "5"), "--give-up-ms with a closed loop"),
        (("--rate", "5", "--arrival", "ramp"), "a ramp with 1 rates"),
        (("--duration", "nan"), "--duration nan"),
        (("--batch-share", "2"), "a batch share of 2"),
        (("--prompts", "5000"), "--prompts 5000"),
        (("--texts", "long"), "--texts long"),
        (("--pairs", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--pairs", "nowhere.jsonl", "--prompts", "4"), "--pairs beside --prompts"),
        (("--shared-prefix", "4096"), "a shared prefix of 4096"),
        (("--metrics-port", "80"), "--metrics-port without --url"),
    ],
)
def test_wrong_arguments(
    brim: Brim, arguments: tuple[str, ...], words: str, tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    code, out, err = brim("measure", "text_generation", *arguments, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert words in err and err.count("error: ") == 1 and "\nhint: " in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--prompts", "9", "--texts", "9"),
        ("--pairs", "x"),
        ("--batch-share", "0"),
        ("--shared-prefix", "3"),
        ("--perf-analyzer",),
        ("--metrics-port", "9", "--url", "127.0.0.1:1"),
    ],
)
def test_other_models_take_none_of_it(
    brim: Brim, arguments: tuple[str, ...], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    code, _, err = brim("measure", "image_classifier", *arguments)
    assert code == 2 and f"{arguments[0]}" in err and "which is no language model" in err


def test_a_point_is_read_back_as_it_was_kept(tmp_path: Path) -> None:
    points = [text_point(callers) for callers in (1, 4)]
    for point in points:
        append_text_point(tmp_path, point)
    assert read_text_points(tmp_path) == points
    found = [json.loads(text) for text in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert found == [line(point) for point in points] and all("rate" not in one for one in found)
    assert found[0].keys() >= CONTRACT
    (tmp_path / FILE_NAME).write_text(json.dumps({**found[0], "refused": 3}) + "\n")
    with pytest.raises(InputError, match="add up to 13"):
        read_text_points(tmp_path)


def test_remarks_say_what_a_row_cannot() -> None:
    said = "\n".join(remarks(text_point()))
    assert "SLO p99 within TTFT 200 ms and TPOT 50 ms: missed, 10 of 11 requests, goodput 10.00/s" in said
    assert "not answered: 1 refused (refused: room_full 1)" in said
    late = text_point(heard=[spoken(0)], limits=["its event loop came late"])
    assert "could not tell" in remarks(late)[0] and "the driver is the limit: its event loop" in "\n".join(
        remarks(late)
    )
    bare = late.model_copy(update={"slo": None, "server": None, "asked_tokens": 20, "late": 2})
    said = "\n".join(remarks(bare))
    for words in ("no goodput", "no metrics page", "20 were wanted", "2 requests left late"):
        assert words in said, words


def test_the_same_points_give_the_same_picture(tmp_path: Path) -> None:
    points = [text_point(callers, limits=["slow"] if callers == 4 else []) for callers in (1, 4)]
    first = draw(points, tmp_path / "a.svg", title="a_$b$").read_bytes()
    assert first == draw(points[::-1], tmp_path / "b.svg", title="a_$b$").read_bytes() and b"ttft.p99" in first
    with pytest.raises(InputError, match="no point"):
        draw([], tmp_path / "c.svg", title="")


@pytest.mark.parametrize("heard", [[failed(0, "broken")], [spoken(0, gaps_us=())]])
def test_a_picture_is_drawn_of_whatever_was_heard(heard: list[Heard], tmp_path: Path) -> None:
    assert draw([text_point(1, heard)], tmp_path / "a.png", title="").stat().st_size > 0


def test_the_report_shows_it(brim: Brim, tmp_path: Path) -> None:
    for callers in (1, 4):
        append_text_point(tmp_path, text_point(callers))
    code, out, err = brim("report", tmp_path, "--json")
    assert code == 0, err
    assert json.loads(out)["data"]["sections"] == ["text"]
    text = (tmp_path / "report.md").read_text()
    assert "p99 within TTFT 200 ms and TPOT 50 ms" in text and "| 4 callers |" in text
    assert "Where the time to the first token goes" in text
    assert "room\\_full 1" in text
