from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.errors import InputError, ModelFileError, NoSpace
from brim_export import artifact as artifact_module
from brim_export import pipeline, placement
from brim_export.artifact import Artifact
from brim_export.source import OnnxSource, TorchSource

FLOAT = TensorProto.FLOAT


def linear(scale: float = 2.0, *, opset: int = 20, ir_version: int = 10) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.full((4, 64), scale, np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", FLOAT, ["batch", 64])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def save(path: Path, made: onnx.ModelProto) -> OnnxSource:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, str(path))
    return OnnxSource(path)


@pytest.fixture
def given(tmp_path) -> OnnxSource:
    return save(tmp_path / "given" / "linear.onnx", linear())


@pytest.fixture
def external(tmp_path) -> OnnxSource:
    path = tmp_path / "given" / "large.onnx"
    path.parent.mkdir()
    onnx.save(linear(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return OnnxSource(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_onnx_file_is_copied_byte_for_byte(given, tmp_path):
    result = pipeline.export(given, tmp_path / "out")
    assert result.model_path == tmp_path / "out" / "model.onnx"
    assert result.model_path.read_bytes() == given.path.read_bytes()
    assert "parity" not in [item.gate for item in result.gates]
    assert result.artifact.parity is None
    assert result.artifact == artifact_module.verify(tmp_path / "out")


def test_external_data_is_copied_and_needed(external, tmp_path):
    result = pipeline.export(external, tmp_path / "out")
    assert sorted(result.artifact.files) == ["model.guarded.onnx", "model.onnx", "weights.bin"]
    assert contents(tmp_path / "out")["weights.bin"] == (external.path.parent / "weights.bin").read_bytes()


def test_the_artifact_tells_no_place_and_no_time(given, tmp_path):
    pipeline.export(given, tmp_path / "a" / "out")
    moved = save(tmp_path / "elsewhere" / "linear.onnx", linear())
    pipeline.export(moved, tmp_path / "b" / "out")
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "out")
    text = (tmp_path / "a" / "out" / "artifact.json").read_text()
    assert str(tmp_path) not in text
    assert os.uname().nodename not in json.loads(text)["source"].values()
    assert json.loads(text)["source"] == {"kind": "onnx", "name": "linear.onnx"}


def test_other_files_in_the_folder_stay(given, tmp_path):
    out = tmp_path / "model_repository" / "linear" / "1"
    out.mkdir(parents=True)
    (out / "model.py").write_text("adapter")
    pipeline.export(given, out)
    assert sorted(contents(out.parent)) == ["1/artifact.json", "1/model.guarded.onnx", "1/model.onnx", "1/model.py"]


def test_files_that_an_earlier_export_needed_and_this_does_not_go_away(external, tmp_path):
    pipeline.export(external, tmp_path / "out")
    pipeline.export(save(tmp_path / "given" / "small.onnx", linear()), tmp_path / "out")
    assert sorted(contents(tmp_path / "out")) == ["artifact.json", "model.guarded.onnx", "model.onnx"]


def refused_model() -> onnx.ModelProto:
    made = linear()
    made.graph.node.append(helper.make_node("ReduceMean", ["y", "axis"], ["m"]))
    made.graph.node.append(helper.make_node("Sub", ["y", "m"], ["z"]))
    made.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    made.graph.output[0].name = "z"
    return made


def test_a_refusal_leaves_an_earlier_export_as_it_was(given, tmp_path):
    pipeline.export(given, tmp_path / "out")
    before = contents(tmp_path)
    refused = save(tmp_path / "given" / "linear.onnx", refused_model())
    assert not pipeline.export(refused, tmp_path / "out").ok
    assert contents(tmp_path / "out") == {name[4:]: data for name, data in before.items() if name.startswith("out/")}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["given", "out"]


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken disk"), KeyboardInterrupt()])
def test_a_failure_while_placing_puts_everything_back(external, tmp_path, monkeypatch, earlier, failing, error):
    out = tmp_path / "out"
    if earlier:
        pipeline.export(save(tmp_path / "other" / "m.onnx", linear(7.0)), out)
        (out / "kept.txt").write_text("mine")
    before = contents(tmp_path)
    original, moves = Path.replace, iter(range(100))

    def replace(self, target):
        if ".export-" in str(self) and "new" in self.parts and next(moves) == failing:
            raise error
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(type(error)):
        pipeline.export(external, out)
    assert next(moves) > failing
    assert contents(tmp_path) == before
    assert out.exists() is earlier
    assert not list(tmp_path.glob(".*"))


def test_putting_back_works_without_hard_links(tmp_path, monkeypatch):
    def no_links(self, target):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    for folder, text in (("out", "old"), ("new", "new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text(text)
    (tmp_path / "old").mkdir()
    with pytest.raises(FileNotFoundError):
        placement.place(tmp_path / "new", ["a", "absent"], tmp_path / "out", tmp_path / "old")
    assert (tmp_path / "out" / "a").read_text() == "old"


@pytest.mark.parametrize("step", ["gate", "artifact", "place"])
def test_an_exception_in_the_middle_leaves_nothing(given, tmp_path, monkeypatch, step):
    def explode(*args, **kwargs):
        raise ZeroDivisionError("in the middle")

    place = {"gate": "gates.deterministic", "artifact": "hash_files", "place": "place"}[step]
    monkeypatch.setattr(f"brim_export.pipeline.{place}", explode)
    with pytest.raises(ZeroDivisionError):
        pipeline.export(given, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["given"]


def test_a_full_disk_is_said_to_be_one(given, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(NoSpace, match="no room left"):
        pipeline.export(given, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["given"]


GOOD = linear().SerializeToString()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer"),
        (b"PK\x03\x04 a zip archive", "truncated, corrupt, or not an ONNX model"),
        (b"\x00" * 64, "truncated, corrupt, or not an ONNX model"),
        (b'{"model": "json"}', "not an ONNX model"),
        (b"just some text\n", "not an ONNX model"),
        (GOOD[: len(GOOD) // 2], "truncated, corrupt, or not an ONNX model"),
        (GOOD[:-1], "truncated, corrupt, or not an ONNX model"),
        (
            onnx.ModelProto(ir_version=10).SerializeToString(),
            "is no complete ONNX model: it has not an operator set, nodes",
        ),
        (linear(opset=999).SerializeToString(), "opset 999"),
        (linear(ir_version=999).SerializeToString(), "IR version 999"),
    ],
    ids=["empty", "lfs", "zip", "zeros", "json", "text", "half", "one byte short", "no graph", "opset", "ir"],
)
def test_a_file_that_is_no_usable_model_is_explained(tmp_path, data, message):
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        pipeline.export(OnnxSource(path), tmp_path / "out")
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.onnx"]


def test_a_path_without_a_file(tmp_path, cases):
    with pytest.raises(ModelFileError, match="no such file"):
        pipeline.export(OnnxSource(tmp_path / "none.onnx"), tmp_path / "out")
    with pytest.raises(ModelFileError, match="is a folder"):
        pipeline.export(OnnxSource(tmp_path), tmp_path / "out")
    with pytest.raises(ModelFileError, match=r"is empty \(0 bytes\)"):
        pipeline.export(OnnxSource(cases / "13_repo_refs" / "clf" / "1" / "model.onnx"), tmp_path / "out")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda made: made.graph.node.append(helper.make_node("Relu", ["nowhere"], ["z"])), "does not load the model"),
        (lambda made: setattr(made.graph.node[0], "op_type", "NoSuchOperator"), "NoSuchOperator"),
        (lambda made: made.graph.node[0].output.__setitem__(0, "elsewhere"), "does not load the model"),
    ],
    ids=["unknown tensor", "unknown operator", "output never made"],
)
def test_a_graph_that_does_not_hold_together_is_explained(tmp_path, break_it, message):
    made = linear()
    break_it(made)
    with pytest.raises(ModelFileError, match=message):
        pipeline.export(save(tmp_path / "bad.onnx", made), tmp_path / "out")


@pytest.mark.parametrize(
    ("location", "prepare", "message"),
    [
        ("weights.bin", lambda file: file.unlink(), "tensor weight needs weights.bin, which is not beside the model"),
        (
            "weights.bin",
            lambda file: file.write_bytes(b"short"),
            "tensor weight ends at byte 1024 of weights.bin, which has 5 bytes",
        ),
        ("../weights.bin", lambda file: None, "outside the model's folder"),
        ("/etc/hostname", lambda file: None, "outside the model's folder"),
        ("", lambda file: None, "outside the model's folder"),
    ],
    ids=["missing", "short", "above", "absolute", "nameless"],
)
def test_external_data_that_is_missing_short_or_elsewhere(external, tmp_path, location, prepare, message):
    made = onnx.load(str(external.path), load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    external.path.write_bytes(made.SerializeToString())
    prepare(external.path.parent / "weights.bin")
    with pytest.raises(ModelFileError) as caught:
        pipeline.export(external, tmp_path / "out")
    assert message in caught.value.message
    assert not (tmp_path / "out").exists()


def test_external_data_may_not_take_the_artifacts_name(tmp_path):
    path = tmp_path / "given" / "m.onnx"
    path.parent.mkdir()
    onnx.save(linear(), str(path), save_as_external_data=True, location="artifact.json", size_threshold=0)
    with pytest.raises(ModelFileError, match=r"artifact\.json has a name that the export uses itself"):
        pipeline.export(OnnxSource(path), tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_limit": 0}, "batch limit 0"),
        ({"batch_limit": 101}, "batch limit 101, expected 1..100"),
        ({"tolerance": 0.0}, "tolerances"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_settings_out_of_range_are_refused(given, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        pipeline.export(given, tmp_path / "out", **settings)


class TestUpToDate:
    @pytest.fixture
    def out(self, given, tmp_path) -> Path:
        assert pipeline.export(given, tmp_path / "out").ok
        assert pipeline.up_to_date(given, tmp_path / "out")
        return tmp_path / "out"

    @pytest.mark.parametrize(
        "harm",
        [
            lambda out: (out / "model.onnx").unlink(),
            lambda out: (out / "model.onnx").write_bytes(b""),
            lambda out: (out / "model.onnx").write_bytes((out / "model.onnx").read_bytes()[:-1] + b"!"),
            lambda out: (out / "artifact.json").unlink(),
            lambda out: (out / "artifact.json").write_text("{"),
            lambda out: (out / "artifact.json").write_text("[]"),
            lambda out: shutil.rmtree(out),
        ],
        ids=["no model", "empty model", "other bytes", "no artifact", "torn artifact", "other json", "no folder"],
    )
    def test_a_harmed_export_is_not(self, given, out, harm):
        harm(out)
        assert not pipeline.up_to_date(given, out)

    def test_another_source_or_setting_is_not(self, given, out):
        assert not pipeline.up_to_date(given, out, tolerance=1e-3)
        assert not pipeline.up_to_date(given, out, batch_limit=8)
        assert not pipeline.up_to_date(given, out, samples={"x": [np.zeros(4, np.float32)]})
        save(given.path, linear(3.0))
        assert not pipeline.up_to_date(given, out)

    def test_changed_external_data_is_not(self, external, tmp_path):
        pipeline.export(external, tmp_path / "out")
        assert pipeline.up_to_date(external, tmp_path / "out")
        data = external.path.parent / "weights.bin"
        data.write_bytes(bytes(reversed(data.read_bytes())))
        assert not pipeline.up_to_date(external, tmp_path / "out")

    def test_a_factory_is_known_by_its_source_and_the_files_that_it_lists(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        name = "brim_export_test_fingerprint"
        module, weights = tmp_path / f"{name}.py", tmp_path / "weights.pt"
        weights.write_bytes(b"first")
        text = (
            "import torch\nfrom pathlib import Path\n"
            "def factory(): return torch.nn.Linear(4, 3).eval(), {'x': torch.zeros(2, 4)}\n"
            f"def source_files(): return [Path({str(weights)!r})]\n"
        )
        module.write_text(text)
        source, out = TorchSource(f"{name}:factory"), tmp_path / "out"
        assert not pipeline.up_to_date(source, out)
        assert pipeline.export(source, out).ok
        assert pipeline.up_to_date(source, out)
        weights.write_bytes(b"second")
        assert not pipeline.up_to_date(source, out)
        weights.write_bytes(b"first")
        module.write_text(text + "# changed\n")
        assert not pipeline.up_to_date(source, out)

    def test_a_listed_file_that_is_gone_is_an_error(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "brim_export_test_gone.py").write_text("def source_files(): return ['no/such/weights.pt']\n")
        with pytest.raises(InputError, match=r"source_files lists no/such/weights\.pt, which is no file"):
            pipeline.up_to_date(TorchSource("brim_export_test_gone:factory"), tmp_path)

    def test_a_factory_that_is_gone_is_an_error(self, tmp_path):
        with pytest.raises(InputError, match="there is no module"):
            pipeline.up_to_date(TorchSource("no_such_package.no_module:factory"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("files"), "files: Field required"),
        (lambda data: data.update(schema_version=2), "has schema version 2, this Brim reads 1"),
        (lambda data: data.update(extra=1), "extra: Extra inputs are not permitted"),
        (lambda data: data["files"]["model.onnx"].update(sha256="xyz"), r"files\.model\.onnx\.sha256"),
    ],
)
def test_an_artifact_that_breaks_its_schema_is_refused(given, tmp_path, change, message):
    pipeline.export(given, tmp_path / "out")
    path = tmp_path / "out" / "artifact.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match=message):
        Artifact.load(path)


@pytest.mark.parametrize("text", ["", "{", "null", "\ufeff{}", "{}"])
def test_an_artifact_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "artifact.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"artifact\.json"):
        Artifact.load(tmp_path / "artifact.json")
    (tmp_path / "artifact.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModelFileError, match="is corrupt"):
        Artifact.load(tmp_path / "artifact.json")


def test_verify_names_every_fault(external, tmp_path):
    pipeline.export(external, tmp_path / "out")
    (tmp_path / "out" / "model.onnx").unlink()
    data = tmp_path / "out" / "weights.bin"
    data.write_bytes(bytes(reversed(data.read_bytes()[1:])) + b"!")
    with pytest.raises(ModelFileError, match=r"model\.onnx is missing; weights\.bin has another content"):
        artifact_module.verify(tmp_path / "out")


def test_what_torch_printed_is_kept_for_a_refusal(tmp_path):
    log = tmp_path / "logs" / "export.log"
    source = TorchSource("tests.unit.test_export_torch:branch_on_values")
    assert not pipeline.export(source, tmp_path / "out", log_path=log).ok
    assert "sum" in log.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["logs"]


def test_a_folder_that_cannot_be_made_is_the_users_error(given, tmp_path):
    (tmp_path / "file").write_text("here already")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="file"):
            pipeline.export(given, out)
    assert (tmp_path / "file").read_text() == "here already"


def test_progress_is_told(given, tmp_path):
    told = []
    pipeline.export(given, tmp_path / "out", on_progress=told.append)
    assert told[0] == "taking linear.onnx as it is"
    assert "gate row_independence" in told
