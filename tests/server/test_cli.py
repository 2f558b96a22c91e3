"""The commands as a person or a script runs them: streams, JSON shapes, exit codes, all faults at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from brim.paths import Project
from tests.conftest import Brim, Done
from tests.server.doubler import doubling_graph, make_project

PATIENCE_S = 240

FACTORY = """
import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, values):
        return {"scaled": values * 3}


def factory():
    return Scale().eval(), {"values": torch.zeros(1, 4)}


class CentreOverTheBatch(nn.Module):
    def forward(self, values):
        return values - values.mean(dim=0, keepdim=True)


def leaking():
    return CentreOverTheBatch().eval(), {"values": torch.zeros(2, 4)}


def training():
    return nn.Sequential(nn.Linear(4, 2), nn.Dropout()), {"values": torch.zeros(2, 4)}


def wrong():
    return 3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    made = make_project(tmp_path)
    monkeypatch.setenv("BRIM_ROOT", str(made.root))
    monkeypatch.chdir(made.root)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield made
    sys.modules.pop("own", None)


@pytest.fixture
def brim(project: Project, brim: Brim) -> Brim:
    """The command in this process, in the project of the test."""
    return brim


def in_a_process(project: Project, *arguments: str) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "brim", *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def answer(done: Done, code: int) -> dict[str, object]:
    """The one JSON object on stdout."""
    assert done.code == code, done.err
    (line,) = done.out.splitlines()
    return json.loads(line)  # type: ignore[no-any-return]


def test_success_shape(project: Project) -> None:
    shape = answer(in_a_process(project, "config", "doubler", "--json"), 0)
    assert set(shape) == {"command", "version", "ok", "data", "provenance"}
    assert (shape["command"], shape["ok"]) == ("config", True)


def test_error_shape(project: Project) -> None:
    shape = answer(in_a_process(project, "config", "nobody", "--json"), 2)
    assert set(shape) == {"command", "version", "ok", "error"}
    assert set(shape["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["config", "--profile", "nonsense"], ["serve", "--http-port", "zero"], ["lint"], ["export"]],
)
def test_wrong_usage_is_exit_2_with_a_hint(project: Project, brim: Brim, arguments: list[str]) -> None:
    done = brim(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "error:" in done.err and "hint:" in done.err


def test_outside_a_checkout(
    brim: Brim, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIM_ROOT")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    done = brim("config")
    assert done.code == 2
    assert "not inside a Brim checkout" in done.err


def test_config_prints_checks_and_writes(project: Project, brim: Brim) -> None:
    printed = brim("config", "doubler")
    assert printed.code == 0
    path = project.model_repository / "doubler" / "config.pbtxt"
    assert printed.out == path.read_text(encoding="utf-8")
    assert brim("config", "--check").code == 0
    path.write_text(printed.out.replace("max_batch_size: 100", "max_batch_size: 10"), encoding="utf-8")
    differs = brim("config", "--check")
    assert differs.code == 1
    assert "-max_batch_size: 10\n+max_batch_size: 100" in differs.out
    assert brim("config", "--write").code == 0
    assert brim("config", "--check").code == 0


def test_config_of_a_native_profile_prints_the_front_and_names_the_model_behind(project: Project, brim: Brim) -> None:
    front, behind = (
        project.model_repository / name / "configs" / "onnx-gpu.pbtxt" for name in ("doubler", "doubler-native")
    )
    printed = brim("config", "doubler", "--profile", "onnx-gpu")
    assert printed.code == 0
    assert printed.out == front.read_text(encoding="utf-8")
    assert str(behind.relative_to(project.root)) in printed.err
    data = answer(brim("config", "doubler", "--profile", "onnx-gpu", "--json"), 0)["data"]
    assert data == {
        "file": str(front.relative_to(project.root)),
        "text": printed.out,
        "behind": [{"file": str(behind.relative_to(project.root)), "text": behind.read_text(encoding="utf-8")}],
    }
    behind.unlink()
    assert brim("config", "--check").code == 1


def test_a_native_profile_says_which_files_of_both_models_are_missing(project: Project, brim: Brim) -> None:
    (project.model_repository / "doubler" / "configs" / "tensorrt.pbtxt").unlink()
    refused = brim("serve", "--profile", "tensorrt")
    assert refused.code == 2
    for missing in (
        "doubler/configs/tensorrt.pbtxt is missing: `brim config doubler --write`",
        "doubler-native/1/model.onnx is missing: `brim export doubler`",
        "doubler-native/1/model.plan is missing: `brim export doubler --tensorrt`",
    ):
        assert missing in refused.err


def test_lint_reports_every_fault_with_its_place(project: Project, brim: Brim, cases: Path) -> None:
    shape = answer(brim("lint", str(cases / "13_repo_refs"), "--json"), 1)
    findings = shape["data"]["findings"]
    assert shape["ok"] is False
    errors = [finding for finding in findings if finding["severity"] == "error"]
    assert len(errors) >= 4
    assert all(
        {"code", "severity", "file", "line", "column", "message", "hint"} == set(finding) for finding in findings
    )
    assert brim("lint", str(project.model_repository)).code == 0


def test_lint_flags_a_bounded_queue_on_one_instance_and_not_on_two(project: Project, brim: Brim, cases: Path) -> None:
    def codes(path: Path, *more: str) -> set[str]:
        return {finding["code"] for finding in answer(brim("lint", str(path), *more, "--json"), 0)["data"]["findings"]}

    one, two = cases / "09_bounded_queue.pbtxt", project.root / "two.pbtxt"
    two.write_text(one.read_text(encoding="utf-8").replace("count: 1", "count: 2"), encoding="utf-8")
    assert "TRI001" in codes(one) and "TRI001" in codes(one, "--triton", "24.10")
    assert "TRI001" not in codes(two, "--triton", "24.10")
    assert brim("lint", str(one), "--triton", "1.0").code == 2


def test_own_onnx_model_in_one_command(project: Project, brim: Brim) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    shape = answer(in_a_process(project, "add", "mine", "--onnx", "mine.onnx", "--json"), 0)
    assert all(gate["ok"] for gate in shape["data"]["gates"])
    assert "services/mine.yaml" in shape["data"]["files"]
    assert brim("config", "--check").code == 0
    assert brim("lint", str(project.model_repository / "mine")).code == 0
    checked = answer(in_a_process(project, "up", "mine", "--once", "--json"), 0)["data"]["self_check"]
    assert [(one["protocol"], one["asked"], one["right"]) for one in checked] == [
        ("http", 5, 5),
        ("http", 200, 200),
        ("grpc", 5, 5),
        ("grpc", 200, 200),
    ]
    for one in checked:
        assert sum(int(size) * count for size, count in one["executions_by_size"].items()) == one["asked"]
    model = project.model_repository / "mine" / "1" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    harmed = brim("serve", "mine")
    assert harmed.code == 2
    assert "model.onnx has another content than was exported" in harmed.err
    again = brim("add", "mine", "--onnx", "mine.onnx")
    assert again.code == 2
    assert "services/mine.yaml exists already" in again.err


def test_own_torch_model_in_one_command(project: Project, brim: Brim) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    answer(brim("add", "scale", "--torch", "own:factory", "--json"), 0)
    checked = answer(brim("up", "scale", "--once", "--json"), 0)["data"]["self_check"]
    assert all(one["right"] == one["asked"] for one in checked)


@pytest.mark.parametrize(
    ("source", "gate"),
    [("own:leaking", "row_independence"), ("own:training", "inference_mode")],
    ids=["leaks", "trains"],
)
def test_model_that_must_not_share_batches_is_refused_and_nothing_is_left(
    project: Project, brim: Brim, source: str, gate: str
) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    before = sorted(project.model_repository.rglob("*"))
    shape = answer(brim("add", "bad", "--torch", source, "--json"), 1)
    assert gate in {one["gate"] for one in shape["data"]["gates"] if not one["ok"]}
    assert shape["data"]["files"] == []
    assert sorted(project.model_repository.rglob("*")) == before
    assert not (project.services / "bad.yaml").exists()
    assert list(project.cache.glob(".adding-*")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--torch", "own:wrong"],
        ["--torch", "own:missing"],
        ["--torch", "no_such_package.models:factory"],
        ["--onnx", "missing.onnx"],
        ["--onnx", "own.py"],
        [],
        ["--onnx", "a.onnx", "--torch", "own:factory"],
    ],
)
@pytest.mark.parametrize("command", [["export"], ["add", "new"]])
def test_source_that_is_wrong_is_exit_2(project: Project, brim: Brim, command: list[str], arguments: list[str]) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    done = brim(*command, *arguments)
    assert done.code == 2, done.err
    assert "error:" in done.err and "hint:" in done.err and "Traceback" not in done.err
    assert not (project.services / "new.yaml").exists()


@pytest.mark.parametrize("name", ["1st", "a-b", "../x", "doubler"])
def test_name_that_cannot_be_used(project: Project, brim: Brim, name: str) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    assert brim("add", name, "--onnx", "mine.onnx").code == 2


def test_export_keeps_files_only_where_asked(project: Project, brim: Brim) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    kept = project.root / "out"
    shape = answer(brim("export", "--onnx", "mine.onnx", "--out", str(kept), "--json"), 0)
    assert {gate["gate"] for gate in shape["data"]["gates"]} >= {"batch_axis", "rows_preserved", "row_independence"}
    assert {path.name for path in kept.iterdir()} == {"model.onnx", "model.guarded.onnx", "artifact.json"}
    onnx.save(doubling_graph(1), str(project.root / "one.onnx"))
    refused = answer(brim("export", "--onnx", "one.onnx", "--out", str(project.root / "no"), "--json"), 1)
    assert "X axis 0 is 1, wanted symbolic" in " ".join(gate["message"] for gate in refused["data"]["gates"])
    assert not (project.root / "no").exists()


def test_doctor(project: Project, brim: Brim) -> None:
    shape = answer(brim("doctor", "--json"), 0)
    names = {check["name"] for check in shape["data"]["checks"]}
    assert {"tritonserver", "perf_analyzer", "service doubler"} <= names
