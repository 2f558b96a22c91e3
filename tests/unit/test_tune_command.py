"""``brim tune`` refuses what it cannot work with, in one clear error, before it measures anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.batcher.settings import Settings
from brim.cli.commands import tune as command
from brim.config.files import write_configs
from brim.errors import CouldNotTell, InputError
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.service.load import load_service
from brim.tune.server_bench import MOST_PROCESSES, ceiling_per_s, generators
from brim.tune.tuning import tune as tune_service
from brim.tune.verify import Effort, usual_run_us
from tests.conftest import Brim
from tests.unit.tuning_bench import SMALL, FakeBench, served

SERVICE = """
name: known
model: {onnx: known.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    made.services.mkdir()
    (made.services / "known.yaml").write_text(SERVICE, encoding="utf-8")
    made.model_repository.mkdir()
    monkeypatch.setenv("BRIM_ROOT", str(made.root))
    return made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "no service 'nope'"),
        (["known"], "config.pbtxt is missing"),
        (["known", "--settings", "6"], "--settings"),
        (["known", "--repeats", "0"], "--repeats"),
        (["known", "--run-ms", "1"], "--run-ms"),
        (["known", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_input_is_one_clear_error(project: Project, brim: Brim, arguments: list[str], words: str) -> None:
    done = brim("tune", *arguments, "--out", project.root / "run")
    assert done.code == 2, done.err
    assert words in done.err
    assert "hint:" in done.err and "Traceback" not in done.err
    assert done.out == ""
    assert not (project.root / "run").exists()


def test_apply_does_not_write_over_what_was_written_by_hand(project: Project, brim: Brim) -> None:
    write_configs(project.model_repository, load_service(project.services / "known.yaml"))
    version = project.model_repository / "known" / "1"
    version.mkdir(exist_ok=True)
    (version / "model.onnx").write_bytes(b"x")
    config = project.model_repository / "known" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    done = brim("tune", "known", "--apply", "--json", "--out", project.root / "run")
    assert done.code == 2
    error = json.loads(done.out)["error"]
    assert "model_repository/known/config.pbtxt" in error["message"]
    assert config.read_text(encoding="utf-8").endswith("# mine\n")


def test_repeats_that_differ_are_no_verdict_and_nothing_is_applied(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project.services / "known.yaml"
    path.write_text(SERVICE + "slo: {latency_ms: 100}\ntraffic: {rate_per_s: 300, peak_per_s: 600}\n", encoding="utf-8")
    of = load_service(path)
    write_configs(project.model_repository, of)
    machine = served(6_000, 100)
    bench = FakeBench(of, machine, slower=(1.0, 3.0, 6.0))
    effort = Effort(500_000, ceiling_per_s=20_000, settings=1)
    found = tune_service(of, Settings(of.max_batch_size), machine, bench, effort, grid=SMALL)
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    folder = tmp_path / "run"
    folder.mkdir()
    conditions = {"batch_time": {}, "weighed": {}}
    with pytest.raises(CouldNotTell, match="differs by") as caught:
        command._answer(project, of, found, conditions, folder, apply=True, as_json=False)
    assert "quiet machine" in caught.value.hint
    assert caught.value.exit_code == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "settings generated" in shown.err and "duty" in shown.err, "what was seen is shown all the same"
    kept = json.loads((folder / "choice.json").read_text(encoding="utf-8"))
    assert kept["applied"] is False
    assert kept["notes"] and kept["measurements"]
    assert {path: path.read_bytes() for path in before} == before


def test_generators_leave_most_of_the_machine_to_the_server() -> None:
    for cores in (1, 2, 3, 4, 16, 256):
        assert 1 <= generators(cores) <= max(1, min(MOST_PROCESSES, cores // 2))
    assert ceiling_per_s(Protocol.HTTP, 2) > ceiling_per_s(Protocol.GRPC, 2)


def test_a_run_is_long_against_the_objective_and_bounded() -> None:
    assert [usual_run_us(slo_us) for slo_us in (1_000, 500_000, 60_000_000)] == [2_000_000, 3_000_000, 5_000_000]


def test_an_effort_that_cannot_be_carried_out_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        Effort(run_us=1, repeats=0, settings=6, ceiling_per_s=0)
    for words in ("run_us 1", "repeats 0", "settings 6", "ceiling_per_s 0"):
        assert words in caught.value.message
