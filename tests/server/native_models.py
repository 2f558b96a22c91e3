"""Fronts as the native profiles have them, before a stand-in for the native backend that the server's wheel lacks.

The stand-in does what Triton's ONNX Runtime backend does with a batch: it runs the whole of it, and when that fails every
request of it gets ONNX Runtime's text, the offender's value included, as an internal error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2 as pb

from brim.config.generate import NATIVE_SUFFIX, VALID_OUTPUT, Profile, model_config, native_config, native_name
from brim.config.textformat import write
from brim.runtime.template import MODEL_PY
from brim.service.schema import Service
from brim_export import graph
from brim_export.graph_guard import Limits, guarded
from tests.server.adapter_models import Declared, add_model

STAND_IN = """
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        self.outputs = [output["name"] for output in json.loads(args["model_config"])["output"]]

    def execute(self, requests):
        names = [tensor.name() for tensor in requests[0].inputs()]
        parts = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in names}
        try:
            results = self.session.run(self.outputs, whole)
        except Exception as error:
            text = re.sub(r"^\\[ONNXRuntimeError\\] : (\\d+) : \\w+ : ", r"onnx runtime error \\1: ", str(error))
            fault = pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL)
            return [pb_utils.InferenceResponse(error=fault) for _ in requests]
        answers, first = [], 0
        for part in parts:
            last = first + len(part[names[0]])
            tensors = [pb_utils.Tensor(name, found[first:last]) for name, found in zip(self.outputs, results)]
            answers.append(pb_utils.InferenceResponse(tensors))
            first = last
        return answers
"""
_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 100
{tensors}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


def add_pair(
    repository: Path,
    name: str,
    made: onnx.GraphProto,
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    *,
    guard: bool,
    settings: Mapping[str, Any] | None = None,
    delay_us: int = 0,
) -> list[str]:
    """A front called ``name`` and the stand-in behind it, with the graph guarded or as it is; names in load order.

    The export's record tells the front no index range, so that bad values reach the stand-in.
    """
    behind = name + NATIVE_SUFFIX
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    record = {
        "inputs": [_recorded(spec) for spec in graph.inputs(model)],
        "outputs": [_recorded(spec) for spec in graph.outputs(model)],
        "index_ranges": {},
        "axis_limits": {},
        "guard": {"valid": VALID_OUTPUT} if guard else None,
    }
    native: dict[str, Any] = {"model": behind}
    if guard:
        native["valid"] = VALID_OUTPUT
        model = guarded(
            model, graph.index_ranges(model), {spec.name: Limits() for spec in graph.inputs(model)}, VALID_OUTPUT
        )
    folder = add_model(repository, name, None, inputs, outputs, {"native": native, **(settings or {})}, delay_us)
    (folder / "artifact.json").write_text(json.dumps(record), encoding="utf-8")
    inner = repository / behind / "1"
    inner.mkdir(parents=True)
    tensors = [("input", spec.name, spec.datatype, list(spec.shape or ())[1:]) for spec in graph.inputs(model)]
    tensors += [("output", spec.name, spec.datatype, list(spec.shape or ())[1:]) for spec in graph.outputs(model)]
    listed = "\n".join(
        f'{role} [ {{ name: "{tensor}" data_type: TYPE_{kind} dims: {[size if isinstance(size, int) else -1 for size in row]} }} ]'
        for role, tensor, kind, row in tensors
    )
    (repository / behind / "config.pbtxt").write_text(_CONFIG.format(name=behind, tensors=listed), encoding="utf-8")
    (inner / "model.py").write_text(STAND_IN, encoding="utf-8")
    onnx.save(model, inner / "model.onnx")
    return [behind, name]


def _recorded(spec: graph.TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "axes": [None] * len(shape)}


def lookup_graph() -> onnx.GraphProto:
    """Entry ``10 * id`` of a table of five, INT64 [1]."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [5], [0, 10, 20, 30, 40])
    return helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [table],
    )


def add_lookup_pair(repository: Path, name: str, *, guard: bool, delay_us: int = 0) -> list[str]:
    """A pair over ``lookup_graph``: input ``IDS`` INT64 [1], output ``Y`` FP32 [1]."""
    inputs, outputs = [("IDS", "INT64", [1])], [("Y", "FP32", [1])]
    settings = {"inputs": {"IDS": "ids"}, "outputs": {"Y": "y"}}
    return add_pair(
        repository, name, lookup_graph(), inputs, outputs, guard=guard, settings=settings, delay_us=delay_us
    )


REMEMBERED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if (given < 0).any():
                fault = pb_utils.TritonError("refused", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=fault))
                continue
            made = {"SUM": given.sum(axis=1, keepdims=True), "BY": np.full((len(given), 1), MAKER, np.float32)}
            wanted = request.requested_output_names()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, made[name]) for name in wanted]))
        return answers
"""


def add_remembered(repository: Path, name: str, maker: int) -> None:
    """A model with Triton's response cache: ``SUM`` of each row of ``X`` FP32 [-1], and ``BY``, the number of its maker."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    config = pb.ModelConfig(name=name, backend="python", max_batch_size=100)
    config.input.add(name="X", data_type=pb.TYPE_FP32, dims=[-1])
    for output in ("SUM", "BY"):
        config.output.add(name=output, data_type=pb.TYPE_FP32, dims=[1])
    config.dynamic_batching.SetInParent()
    config.response_cache.enable = True
    (repository / name / "config.pbtxt").write_text(write(config), encoding="utf-8")
    (folder / "model.py").write_text(REMEMBERED.replace("MAKER", str(maker)), encoding="utf-8")


def stand_in_for(service: Service, exported: Path, repository: Path, profile: Profile) -> list[str]:
    """A shipped service under a native profile, its front exactly as generated, only the native backend exchanged."""
    front, behind = repository / service.name, repository / native_name(service)
    for folder in (front, behind):
        (folder / "1").mkdir(parents=True)
    for file in (exported / service.name / "1").iterdir():
        if file.is_file() and file.suffix not in (".py", ".onnx"):
            (front / "1" / file.name).write_bytes(file.read_bytes())
    (front / "1" / "model.py").write_text(MODEL_PY, encoding="utf-8")
    (front / "config.pbtxt").write_text(write(model_config(service, profile)), encoding="utf-8")
    config = native_config(service, profile)
    config.backend, config.default_model_filename = "python", ""
    if profile is not Profile.ONNX_CPU:
        for group in config.instance_group:
            group.kind = group.Kind.KIND_CPU
    (behind / "config.pbtxt").write_text(write(config), encoding="utf-8")
    (behind / "1" / "model.py").write_text(STAND_IN, encoding="utf-8")
    (behind / "1" / "model.onnx").symlink_to(exported / native_name(service) / "1" / "model.onnx")
    return [native_name(service), service.name]
