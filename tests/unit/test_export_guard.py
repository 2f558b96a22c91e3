"""The guarded graph in the export: written, recorded, kept up to date, and put where the native profiles look for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.config.generate import Profile, model_configs
from brim.errors import ModelFileError
from brim.paths import Project
from brim.service.load import check_text
from brim.service.schema import Service
from brim_export import graph_guard, pipeline, service_export
from brim_export.artifact import Artifact, verify
from brim_export.bring import bring
from brim_export.graph_guard import Guarding, Limits
from brim_export.service_export import export_service, guarding, place_native
from brim_export.source import OnnxSource

ENTRIES = 5


def lookup(output: str = "y", *, opset: int = 17) -> onnx.ModelProto:
    """Rows of a table by index, plus a float: INT64 [rows, 2] and FP32 [rows, 1] to FP32 [rows, 2]."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["picked"]), helper.make_node("Add", ["picked", "x"], [output])],
        "g",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1]),
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.arange(ENTRIES, dtype=np.float32), "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def save(path: Path, model: onnx.ModelProto, **more: object) -> OnnxSource:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path), **more)
    return OnnxSource(path)


def run(path: Path, ids: list[list[int]], x: list[float]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {"ids": np.array(ids, np.int64), "x": np.array(x, np.float32)[:, None]}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feed), strict=True))


SERVICE = """
name: lookup
model: {onnx: given/lookup.onnx}
inputs:
  - {name: IDS, dtype: INT64, shape: [2], graph_name: ids}
  - {name: X, dtype: FP32, shape: [1], graph_name: x, maximum: 3}
outputs:
  - {name: Y, dtype: FP32, shape: [2], graph_name: y}
"""


def service(text: str = SERVICE) -> Service:
    made, findings = check_text(text, "services/lookup.yaml")
    assert made is not None, findings
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    save(tmp_path / "given" / "lookup.onnx", lookup())
    return Project(tmp_path)


def test_the_guarded_graph_stands_beside_the_plain_one_and_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    artifact = pipeline.require(pipeline.export(save(tmp_path / "lookup.onnx", lookup()), out))
    assert artifact.guard is not None
    assert artifact.guard.model_dump() == {"file": "model.guarded.onnx", "data": [], "valid": "valid"}
    assert artifact == verify(out)
    answer = run(out / artifact.guard.file, [[1, 4], [2, ENTRIES], [-1, 0], [0, 0]], [0.5, 1, 1, np.nan])
    assert answer["valid"].tolist() == [[1], [0], [0], [0]]
    assert answer["y"][0].tolist() == [1.5, 4.5]
    (out / artifact.guard.file).write_bytes(b"harmed")
    with pytest.raises(ModelFileError, match=r"model\.guarded\.onnx"):
        verify(out)


def test_the_services_limits_are_in_the_graph(project: Project) -> None:
    result = export_service(project, service())
    assert result is not None
    native = project.model_repository / "lookup-native" / "1" / "model.onnx"
    answer = run(native, [[1, 1]] * 4, [3.0, 3.5, np.inf, -3.5])
    assert answer["valid"].ravel().tolist() == [1, 0, 0, 1]


def test_the_model_behind_gets_its_file_without_a_second_copy(project: Project) -> None:
    export_service(project, service())
    folder = project.model_repository / "lookup" / "1"
    native = project.model_repository / "lookup-native" / "1" / "model.onnx"
    assert native.samefile(folder / "model.guarded.onnx")
    inner = model_configs(service(), Profile.ONNX_GPU)["lookup-native"]
    assert [tensor.name for tensor in inner.output] == list(run(native, [[0, 0]], [0.0]))


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"other")])
def test_an_export_that_is_up_to_date_mends_the_file_of_the_model_behind(project: Project, spoil) -> None:
    export_service(project, service())
    native = project.model_repository / "lookup-native" / "1" / "model.onnx"
    whole = native.read_bytes()
    apart = native.with_name("apart")
    apart.write_bytes(whole)
    apart.replace(native)
    spoil(native)
    assert export_service(project, service()) is None
    assert native.read_bytes() == whole
    assert sorted(path.name for path in native.parent.iterdir()) == ["model.onnx"]


def test_without_hard_links_the_file_is_copied_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(os.strerror(1))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    export_service(project, service())
    native = project.model_repository / "lookup-native" / "1" / "model.onnx"
    assert native.read_bytes() == (project.model_repository / "lookup" / "1" / "model.guarded.onnx").read_bytes()
    before = native.stat()
    place_native(project.model_repository, service())
    assert (native.stat().st_ino, native.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_external_weights_are_shared_and_found_from_both_places(project: Project) -> None:
    save(
        project.root / "given" / "lookup.onnx",
        lookup(),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    export_service(project, service())
    folder, native = (project.model_repository / name / "1" for name in ("lookup", "lookup-native"))
    assert (native / "weights.bin").samefile(folder / "weights.bin")
    for path in (folder / "model.guarded.onnx", native / "model.onnx"):
        assert run(path, [[1, 4]], [0.0])["y"].tolist() == [[1, 4]]


def test_a_change_of_the_guard_is_a_change_of_the_export(project: Project) -> None:
    export_service(project, service())
    assert export_service(project, service()) is None
    for text in (SERVICE.replace("maximum: 3", "maximum: 4"), SERVICE.replace("name: Y", "name: valid")):
        assert export_service(project, service(text)) is not None
        assert export_service(project, service(text)) is None
    artifact = Artifact.load(project.model_repository / "lookup" / "1" / "artifact.json")
    assert artifact.guard is not None and artifact.guard.valid == "valid_2"


def test_what_an_adapter_makes_is_guarded_for_indices_only() -> None:
    text = SERVICE.replace(
        "model: {onnx: given/lookup.onnx}",
        "model:\n  onnx: given/lookup.onnx\n  graph_inputs:\n    - {name: mask, dtype: FP32, shape: [2]}",
    )
    assert guarding(service(text)).limits == {"mask": Limits(finite=False)}


def test_a_graph_that_is_too_old_is_exported_without_a_guard_and_told_so(tmp_path: Path) -> None:
    told: list[str] = []
    old = save(tmp_path / "lookup.onnx", lookup(opset=graph_guard.LEAST_OPSET - 1))
    artifact = pipeline.require(pipeline.export(old, tmp_path / "out", on_progress=told.append))
    assert artifact.guard is None
    assert "model.guarded.onnx" not in artifact.files
    assert [line for line in told if "opset is 8" in line]


def test_a_guard_that_changes_answers_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model, ranges, limits, valid):
        made = graph_guard.guarded(model, ranges, limits, valid)
        made.graph.node[-1].op_type = "Sub"
        return made

    told: list[str] = []
    monkeypatch.setattr(pipeline, "guarded", wrong)
    given = save(tmp_path / "lookup.onnx", lookup())
    artifact = pipeline.require(pipeline.export(given, tmp_path / "out", on_progress=told.append))
    assert artifact.guard is None
    assert not (tmp_path / "out" / "model.guarded.onnx").exists()
    assert "no guarded graph: it answers otherwise in y" in told


def test_without_a_guard_an_older_file_of_the_model_behind_goes_away(project: Project) -> None:
    export_service(project, service())
    native = project.model_repository / "lookup-native" / "1" / "model.onnx"
    assert native.exists()
    save(project.root / "given" / "lookup.onnx", lookup(opset=graph_guard.LEAST_OPSET - 1))
    assert export_service(project, service()) is not None
    assert not native.exists()


def test_a_model_of_ones_own_brings_its_native_profiles(tmp_path: Path) -> None:
    project = Project(tmp_path)
    given = save(tmp_path / "given" / "lookup.onnx", lookup(output="valid"))
    result, written = bring(project, "own", given)
    assert result.artifact is not None and result.artifact.guard is not None
    assert result.artifact.guard.valid == "valid_2"
    native = project.model_repository / "own-native" / "1" / "model.onnx"
    assert native in written
    assert native.samefile(project.model_repository / "own" / "1" / "model.guarded.onnx")
    made, _ = check_text((project.services / "own.yaml").read_text(encoding="utf-8"), "services/own.yaml")
    assert made is not None
    inner = model_configs(made, Profile.ONNX_GPU)["own-native"]
    assert (
        sorted(tensor.name for tensor in inner.output) == sorted(run(native, [[0, 0]], [0.0])) == ["valid", "valid_2"]
    )
    assert pipeline.up_to_date(
        service_export.source_of(project, made), native.parents[2] / "own" / "1", guard=Guarding(valid="valid_2")
    )
    assert export_service(project, made) is None
