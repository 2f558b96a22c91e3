"""A project with one small real model: Y = 2 * X, as ONNX, served by the python backend without any adapter."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from brim.config.files import write_configs
from brim.paths import Project
from brim.service.load import load_service

SERVICE = """
name: doubler
model: {onnx: doubler.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
instances:
  - {count: 1, kind: CPU}
samples:
  - inputs: {X: [1, 2, 3, 4]}
"""
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]))
        return answers
"""


def doubling_graph(rows: int | str = "batch") -> onnx.ModelProto:
    """Y = X + X over [rows, 4]."""
    shape = [rows, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "X"], ["Y"])],
        "doubler",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def make_project(root: Path, *, model: str = MODEL, service: str = SERVICE) -> Project:
    """A whole project in a folder, ready to serve."""
    project = Project(root)
    version = project.model_repository / "doubler" / "1"
    version.mkdir(parents=True)
    project.services.mkdir()
    (project.services / "doubler.yaml").write_text(service, encoding="utf-8")
    (version / "model.py").write_text(model, encoding="utf-8")
    onnx.save(doubling_graph(), str(version / "model.onnx"))
    write_configs(project.model_repository, load_service(project.services / "doubler.yaml"))
    return project
