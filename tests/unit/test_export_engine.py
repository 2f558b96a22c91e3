"""TensorRT engines up to the GPU, which cannot be had: builder and runner are stand-ins, the graph and the gates are real."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.config.generate import Profile, model_configs
from brim.config.tensorrt_plan import EnginePrecision
from brim.errors import InputError, MissingTool, ModelFileError
from brim.lint.tensorrt import check_profiles
from brim.paths import Project
from brim.service.load import load_service
from brim.service.schema import Precision, Service
from brim_export.engine import export_engine
from brim_export.engine_record import RECORD_NAME, EngineRecord
from brim_export.quantised import require_precision
from brim_export.service_export import export_service
from brim_export.session import Array, Feed, RunFailed, Session
from brim_export.tensorrt_session import TensorRtSession
from brim_export.tensorrt_tools import BuildFailed, Toolchain, run_builder
from tests.conftest import Brim

SERVICE = """
name: scaler
model: {onnx: scaler.onnx}
inputs: [{name: x, dtype: FP32, shape: [4], minimum: -10, maximum: 10}]
outputs: [{name: y, dtype: FP32, shape: [4]}]
max_batch_size: 16
batching: {preferred: [4, 8]}
samples: [{inputs: {x: [1, 2, 3, 4]}}, {inputs: {x: [-1, 0.5, 7, 2]}}]
"""


@dataclass
class FakeRunner:
    """Polygraphy's runner as far as the session knows it: one buffer an output, which every call writes over."""

    session: Session
    largest: int = 16
    mix: float = 0.0
    buffers: dict[str, Array] = field(default_factory=dict)

    def infer(self, feed_dict: Mapping[str, Array]) -> Feed:
        if any(len(values) > self.largest for values in feed_dict.values()):
            raise ValueError("the shape is outside of the profile\nmore of it")
        for name, values in self.session.run(feed_dict).items():
            whole = self.buffers.setdefault(name, np.zeros((self.largest, *values.shape[1:]), values.dtype))
            whole[: len(values)] = values + np.float32(self.mix) * (values.max() if name == "y" else 0)
            self.buffers[name] = whole
        rows = len(next(iter(feed_dict.values())))
        return {name: whole[:rows] for name, whole in self.buffers.items()}


@dataclass
class FakeMachine:
    """A GPU and a builder that copies the graph."""

    mix: float = 0.0
    largest: int = 16
    built: list[list[str]] = field(default_factory=list)

    def build(self, command: Sequence[str], log: Path) -> None:
        words = dict(word.split("=", 1) for word in command if "=" in word)
        self.built.append(list(command))
        Path(words["--saveEngine"]).write_bytes(Path(words["--onnx"]).read_bytes())

    @contextlib.contextmanager
    def opened(self, plan: Path) -> Iterator[TensorRtSession]:
        yield TensorRtSession(FakeRunner(Session(plan), self.largest, self.mix))

    def toolchain(self) -> Toolchain:
        return Toolchain("NVIDIA H200", "10.5.0", Path("/opt/trtexec"), self.build, self.opened)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.services.mkdir()
    project.model_repository.mkdir()
    (project.services / "scaler.yaml").write_text(SERVICE, encoding="utf-8")
    weight = numpy_helper.from_array((np.eye(4) * 2).astype(np.float32), "w")
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [weight],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "scaler.onnx"))
    result = export_service(project, load_service(project.services / "scaler.yaml"))
    assert result is not None and result.ok
    return project


@pytest.fixture
def service(project: Project) -> Service:
    return load_service(project.services / "scaler.yaml")


def test_an_engine_is_built_checked_and_put_in_place_once(project: Project, service: Service) -> None:
    machine = FakeMachine()
    result = export_engine(project, service, EnginePrecision.FP16, toolchain=machine.toolchain())
    assert result is not None and result.ok, result
    assert [gate.gate for gate in result.gates] == [
        "batch_axis",
        "rows_preserved",
        "parity",
        "row_independence",
        "deterministic",
        "accuracy",
    ]
    folder = project.model_repository / "scaler-native" / "1"
    record = EngineRecord.model_validate_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
    assert (record.gpu, record.tensorrt, record.precision) == ("NVIDIA H200", "10.5.0", EnginePrecision.FP16)
    assert "--fp16" in record.command and "--optShapes=x:8x4" in record.command
    (kept,) = (project.cache / "engines").glob("*.plan")
    assert kept.name.startswith("scaler-NVIDIA_H200-trt10.5.0-") and kept.name.endswith("-fp16.plan")
    assert (folder / "model.plan").read_bytes() == kept.read_bytes()
    profiles = json.loads((folder / "profiles.json").read_text(encoding="utf-8"))
    assert check_profiles(model_configs(service, Profile.TENSORRT)["scaler-native"], profiles) == []
    assert export_engine(project, service, EnginePrecision.FP16, toolchain=machine.toolchain()) is None
    assert len(machine.built) == 1


def test_another_gpu_version_precision_profile_or_graph_is_another_engine(project: Project, service: Service) -> None:
    machine = FakeMachine()
    tools = machine.toolchain()
    other = service.model_copy(update={"batching": service.batching.model_copy(update={"preferred": (2,)})})
    asked = [
        (service, EnginePrecision.FP16, tools),
        (service, EnginePrecision.FP32, tools),
        (service, EnginePrecision.FP16, replace(tools, gpu="NVIDIA L4")),
        (service, EnginePrecision.FP16, replace(tools, version="10.6.0")),
        (other, EnginePrecision.FP16, tools),
    ]
    for one, precision, toolchain in asked:
        result = export_engine(project, one, precision, toolchain=toolchain)
        assert result is not None and result.ok
    assert len(machine.built) == len(asked) == len(list((project.cache / "engines").glob("*.plan")))
    again = export_engine(project, service, EnginePrecision.FP16, toolchain=tools)
    assert again is not None and again.ok and len(machine.built) == len(asked), "the cache has it"


def test_an_engine_that_mixes_rows_is_refused_and_not_served(project: Project, service: Service) -> None:
    result = export_engine(project, service, EnginePrecision.FP16, toolchain=FakeMachine(mix=0.05).toolchain())
    assert result is not None and not result.ok
    assert "row_independence" in {gate.gate for gate in result.gates if not gate.ok}
    assert not (project.model_repository / "scaler-native" / "1" / "model.plan").exists()


def test_an_engine_that_does_not_take_the_largest_batch_is_refused(project: Project, service: Service) -> None:
    result = export_engine(project, service, EnginePrecision.FP16, toolchain=FakeMachine(largest=15).toolchain())
    assert result is not None
    (refused,) = (gate for gate in result.gates if gate.gate == "batch_axis")
    assert "16 rows do not run: ValueError: the shape is outside of the profile" in refused.message


def test_answers_are_copied_out_of_the_runners_buffers(project: Project) -> None:
    runner = FakeRunner(Session(project.model_repository / "scaler" / "1" / "model.onnx"))
    session = TensorRtSession(runner)
    first = session.run({"x": np.ones((2, 4), np.float32)})
    session.run({"x": np.zeros((2, 4), np.float32)})
    assert (first["y"] == 2).all()
    with pytest.raises(RunFailed, match="outside of the profile"):
        session.run({"x": np.ones((17, 4), np.float32)})


def test_without_a_gpu_the_error_holds_the_whole_command(
    project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    done = brim("export", "scaler", "--tensorrt")
    assert done.code == MissingTool.exit_code == 3
    assert "here is no GPU 0 (nvidia-smi does not name it)" in done.err
    assert (
        "trtexec --onnx=model_repository/scaler-native/1/model.onnx "
        "--saveEngine=model_repository/scaler-native/1/model.plan "
        "--minShapes=x:1x4 --optShapes=x:8x4 --maxShapes=x:16x4 --fp16 --noTF32"
    ) in " ".join(done.err.split())
    assert brim("export", "scaler", "--tensorrt", "--precision", "int7").code == 2
    assert brim("export", "--tensorrt").code == 2


def test_int8_and_fp8_need_a_graph_that_is_quantised_to_it(project: Project, service: Service) -> None:
    tools = FakeMachine().toolchain()
    with pytest.raises(InputError, match="no int8 Q/DQ nodes") as refused:
        export_engine(project, service, EnginePrecision.INT8, toolchain=tools)
    assert refused.value.hint == "`brim export scaler --precision int8` makes a graph with them"
    with pytest.raises(InputError, match="no fp8 Q/DQ nodes"):
        export_engine(project, service, EnginePrecision.FP8, toolchain=tools)
    result = export_service(project, service, precision=Precision.INT8)
    assert result is not None and result.ok, result
    built = export_engine(project, service, EnginePrecision.INT8, toolchain=tools)
    assert built is not None and built.ok, built
    with pytest.raises(InputError, match="is quantised to int8, not fp16"):
        export_engine(project, service, EnginePrecision.FP16, toolchain=tools)


def test_an_engine_of_another_graph_goes_when_the_service_is_exported_again(project: Project, service: Service) -> None:
    machine = FakeMachine()
    built = export_engine(project, service, EnginePrecision.FP16, toolchain=machine.toolchain())
    assert built is not None and built.ok
    plan = project.model_repository / "scaler-native" / "1" / "model.plan"
    export_service(project, service, force=True)
    assert plan.is_file(), "the same graph"
    export_service(project, service, precision=Precision.FP16)
    assert not plan.exists() and not (plan.parent / RECORD_NAME).exists()
    plan.write_bytes(b"built by hand")
    export_service(project, service)
    assert plan.is_file(), "no record says what it was built of"


def test_what_tensorrt_does_not_take_is_named_at_once() -> None:
    zero = numpy_helper.from_array(np.array(3, np.int8), "zero")
    odd = numpy_helper.from_array(np.array(0, np.uint8), "odd")
    scale = numpy_helper.from_array(np.array(1, np.float32), "scale")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["a"]),
        helper.make_node("QuantizeLinear", ["x", "scale", "odd"], ["b"]),
        helper.make_node("MatMulNBits", ["x"], ["c"], domain="com.microsoft"),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], [zero, odd, scale]))
    with pytest.raises(InputError) as refused:
        require_precision(model, EnginePrecision.INT8, "m")
    for words in ("only ONNX Runtime knows (MatMulNBits)", "quantised to UINT8", "zero points other than 0"):
        assert words in refused.value.message


def test_a_service_that_is_not_exported_is_told_so(project: Project, service: Service) -> None:
    (project.model_repository / "scaler" / "1" / "artifact.json").unlink()
    with pytest.raises(ModelFileError, match=r"artifact\.json"):
        export_engine(project, service, EnginePrecision.FP16, toolchain=FakeMachine().toolchain())


def test_a_builder_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="sh ended with 3 and built no engine: no kernel for node Foo"):
        run_builder(["sh", "-c", "echo no kernel for node Foo; exit 3"], tmp_path / "logs" / "build.log")
    with pytest.raises(MissingTool, match="does not start"):
        run_builder([str(tmp_path / "absent")], tmp_path / "build.log")
