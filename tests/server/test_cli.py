"""The commands as a person or a script runs them: streams, JSON shapes, exit codes, all faults at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from brim.paths import Project
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
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def brim(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brim", *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str], code: int) -> dict[str, object]:
    """The one JSON object on stdout."""
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)  # type: ignore[no-any-return]


def test_success_shape(project: Project) -> None:
    shape = answer(brim(project, "config", "doubler", "--json"), 0)
    assert set(shape) == {"command", "version", "ok", "data", "provenance"}
    assert (shape["command"], shape["ok"]) == ("config", True)


def test_error_shape(project: Project) -> None:
    shape = answer(brim(project, "config", "nobody", "--json"), 2)
    assert set(shape) == {"command", "version", "ok", "error"}
    assert set(shape["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["config", "--profile", "nonsense"], ["serve", "--http-port", "zero"], ["lint"], ["export"]],
)
def test_wrong_usage_is_exit_2_with_a_hint(project: Project, arguments: list[str]) -> None:
    done = brim(project, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error:" in done.stderr and "hint:" in done.stderr


def test_outside_a_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brim", "config"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "BRIM_ROOT"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert "not inside a Brim checkout" in done.stderr


def test_config_prints_checks_and_writes(project: Project) -> None:
    printed = brim(project, "config", "doubler")
    assert printed.returncode == 0
    path = project.model_repository / "doubler" / "config.pbtxt"
    assert printed.stdout == path.read_text(encoding="utf-8")
    assert brim(project, "config", "--check").returncode == 0
    path.write_text(printed.stdout.replace("max_batch_size: 100", "max_batch_size: 10"), encoding="utf-8")
    differs = brim(project, "config", "--check")
    assert differs.returncode == 1
    assert "-max_batch_size: 10\n+max_batch_size: 100" in differs.stdout
    assert brim(project, "config", "--write").returncode == 0
    assert brim(project, "config", "--check").returncode == 0


def test_config_of_a_native_profile_prints_the_front_and_names_the_model_behind(project: Project) -> None:
    front, behind = (
        project.model_repository / name / "configs" / "onnx-gpu.pbtxt" for name in ("doubler", "doubler-native")
    )
    printed = brim(project, "config", "doubler", "--profile", "onnx-gpu")
    assert printed.returncode == 0
    assert printed.stdout == front.read_text(encoding="utf-8")
    assert str(behind.relative_to(project.root)) in printed.stderr
    data = answer(brim(project, "config", "doubler", "--profile", "onnx-gpu", "--json"), 0)["data"]
    assert data == {
        "file": str(front.relative_to(project.root)),
        "text": printed.stdout,
        "behind": [{"file": str(behind.relative_to(project.root)), "text": behind.read_text(encoding="utf-8")}],
    }
    behind.unlink()
    assert brim(project, "config", "--check").returncode == 1


def test_a_native_profile_says_which_files_of_both_models_are_missing(project: Project) -> None:
    (project.model_repository / "doubler" / "configs" / "tensorrt.pbtxt").unlink()
    refused = brim(project, "serve", "--profile", "tensorrt")
    assert refused.returncode == 2
    for missing in (
        "doubler/configs/tensorrt.pbtxt is missing: `brim config doubler --write`",
        "doubler-native/1/model.onnx is missing: `brim export doubler`",
        "doubler-native/1/model.plan is missing: `brim export doubler --tensorrt`",
    ):
        assert missing in refused.stderr


def test_lint_reports_every_fault_with_its_place(project: Project, cases: Path) -> None:
    shape = answer(brim(project, "lint", str(cases / "13_repo_refs"), "--json"), 1)
    findings = shape["data"]["findings"]
    assert shape["ok"] is False
    errors = [finding for finding in findings if finding["severity"] == "error"]
    assert len(errors) >= 4
    assert all(
        {"code", "severity", "file", "line", "column", "message", "hint"} == set(finding) for finding in findings
    )
    assert brim(project, "lint", str(project.model_repository)).returncode == 0


def test_lint_flags_a_bounded_queue_on_one_instance_and_not_on_two(project: Project, cases: Path) -> None:
    def codes(path: Path, *more: str) -> set[str]:
        return {
            finding["code"]
            for finding in answer(brim(project, "lint", str(path), *more, "--json"), 0)["data"]["findings"]
        }

    one, two = cases / "09_bounded_queue.pbtxt", project.root / "two.pbtxt"
    two.write_text(one.read_text(encoding="utf-8").replace("count: 1", "count: 2"), encoding="utf-8")
    assert "TRI001" in codes(one) and "TRI001" in codes(one, "--triton", "24.10")
    assert "TRI001" not in codes(two, "--triton", "24.10")
    assert brim(project, "lint", str(one), "--triton", "1.0").returncode == 2


def test_own_onnx_model_in_one_command(project: Project) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    shape = answer(brim(project, "add", "mine", "--onnx", "mine.onnx", "--json"), 0)
    assert all(gate["ok"] for gate in shape["data"]["gates"])
    assert "services/mine.yaml" in shape["data"]["files"]
    assert brim(project, "config", "--check").returncode == 0
    assert brim(project, "lint", str(project.model_repository / "mine")).returncode == 0
    checked = answer(brim(project, "up", "mine", "--once", "--json"), 0)["data"]["self_check"]
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
    harmed = brim(project, "serve", "mine")
    assert harmed.returncode == 2
    assert "model.onnx has another content than was exported" in harmed.stderr
    again = brim(project, "add", "mine", "--onnx", "mine.onnx")
    assert again.returncode == 2
    assert "services/mine.yaml exists already" in again.stderr


def test_own_torch_model_in_one_command(project: Project) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    answer(brim(project, "add", "scale", "--torch", "own:factory", "--json"), 0)
    checked = answer(brim(project, "up", "scale", "--once", "--json"), 0)["data"]["self_check"]
    assert all(one["right"] == one["asked"] for one in checked)


@pytest.mark.parametrize(
    ("source", "gate"),
    [("own:leaking", "row_independence"), ("own:training", "inference_mode")],
    ids=["leaks", "trains"],
)
def test_model_that_must_not_share_batches_is_refused_and_nothing_is_left(
    project: Project, source: str, gate: str
) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    before = sorted(project.model_repository.rglob("*"))
    shape = answer(brim(project, "add", "bad", "--torch", source, "--json"), 1)
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
def test_source_that_is_wrong_is_exit_2(project: Project, command: list[str], arguments: list[str]) -> None:
    (project.root / "own.py").write_text(FACTORY, encoding="utf-8")
    done = brim(project, *command, *arguments)
    assert done.returncode == 2, done.stderr
    assert "error:" in done.stderr and "hint:" in done.stderr and "Traceback" not in done.stderr
    assert not (project.services / "new.yaml").exists()


@pytest.mark.parametrize("name", ["1st", "a-b", "../x", "doubler"])
def test_name_that_cannot_be_used(project: Project, name: str) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    assert brim(project, "add", name, "--onnx", "mine.onnx").returncode == 2


def test_export_keeps_files_only_where_asked(project: Project) -> None:
    onnx.save(doubling_graph(), str(project.root / "mine.onnx"))
    kept = project.root / "out"
    shape = answer(brim(project, "export", "--onnx", "mine.onnx", "--out", str(kept), "--json"), 0)
    assert {gate["gate"] for gate in shape["data"]["gates"]} >= {"batch_axis", "rows_preserved", "row_independence"}
    assert {path.name for path in kept.iterdir()} == {"model.onnx", "model.guarded.onnx", "artifact.json"}
    onnx.save(doubling_graph(1), str(project.root / "one.onnx"))
    refused = answer(brim(project, "export", "--onnx", "one.onnx", "--out", str(project.root / "no"), "--json"), 1)
    assert "X axis 0 is 1, wanted symbolic" in " ".join(gate["message"] for gate in refused["data"]["gates"])
    assert not (project.root / "no").exists()


def test_doctor(project: Project) -> None:
    shape = answer(brim(project, "doctor", "--json"), 0)
    names = {check["name"] for check in shape["data"]["checks"]}
    assert {"tritonserver", "perf_analyzer", "service doubler"} <= names
