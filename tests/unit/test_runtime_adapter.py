"""The adapter against a stand-in for Triton's python backend, with real ONNX files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brim.config.generate import adapter_settings
from brim.errors import InputError
from brim.runtime.adapter import OnnxModel
from brim.runtime.binding import read_contract
from brim.runtime.contract import Request
from brim.runtime.preparation import Surroundings
from brim.runtime.settings import read_settings
from brim.runtime.template import MODEL_PY
from brim.service.load import load_service


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class CallerRequest:
    def __init__(self, cancelled: bool = False, **arrays: Any) -> None:
        self._tensors = [Tensor(name, array) for name, array in arrays.items()]
        self._cancelled = cancelled

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def is_cancelled(self) -> bool:
        return self._cancelled


class Error:
    INTERNAL, INVALID_ARG, CANCELLED = "internal", "invalid", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


class Response:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Error | None = None) -> None:
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log_info(self, text: str) -> None:
        self.lines.append(f"info {text}")

    def log_warn(self, text: str) -> None:
        self.lines.append(f"warn {text}")

    def log_error(self, text: str) -> None:
        self.lines.append(f"error {text}")


class Counter:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels, self.value = labels, 0

    def increment(self, value: int) -> None:
        assert value > 0
        self.value += value


class MetricFamily:
    COUNTER = "counter"
    made: ClassVar[dict[str, list[Counter]]] = {}

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert kind == self.COUNTER and description
        self.made[name] = self.counters = []

    def Metric(self, labels: Mapping[str, str]) -> Counter:  # noqa: N802 - the backend's name for it
        self.counters.append(Counter(labels))
        return self.counters[-1]


class Backend:
    Tensor = Tensor
    InferenceResponse = Response
    TritonError = Error

    def __init__(self) -> None:
        self.Logger = Logger()
        self.MetricFamily: Any = type("Families", (MetricFamily,), {"made": {}})


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Sequence[Any] = ()) -> None:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def tensor(name: str, kind: int, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def doubler(path: Path, rows: int | str = "rows", width: int | str = 4) -> None:
    save(
        path,
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, rows, width)],
        [tensor("y", TensorProto.FLOAT, rows, width)],
    )


def lookup(path: Path) -> None:
    """Row ``ids`` of a table of five."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [5, 1], [0.0, 10.0, 20.0, 30.0, 40.0])
    save(
        path,
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [tensor("ids", TensorProto.INT64, "rows", 2)],
        [tensor("y", TensorProto.FLOAT, "rows", 2, 1)],
        [table],
    )


def config(settings: Mapping[str, Any] | str | None = None, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "m",
        "max_batch_size": 100,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"count": 1}],
    }
    if settings is not None:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        base["parameters"] = {"brim": {"string_value": text}}
    return base | changes


def arguments(folder: Path, model_config: Mapping[str, Any], kind: str = "CPU") -> dict[str, str]:
    return {
        "model_config": json.dumps(model_config),
        "model_repository": str(folder),
        "model_version": "1",
        "model_instance_kind": kind,
        "model_instance_device_id": "0",
    }


def load(folder: Path, model_config: Mapping[str, Any], backend: Backend | None = None) -> OnnxModel:
    return OnnxModel(arguments(folder, model_config), backend or Backend())


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def test_requests_become_responses_in_order(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    model = load(tmp_path, config())
    first, second, third = model.execute(
        [CallerRequest(X=rows(1)), CallerRequest(X=rows(np.nan)), CallerRequest(X=rows(2, 3))]
    )
    assert first.tensors["Y"].tolist() == rows(2).tolist()
    assert (second.error.code, second.tensors) == ("invalid", {})
    assert second.error.message.startswith("[non_finite]")
    assert third.tensors["Y"].tolist() == rows(4, 6).tolist()
    assert all(response.error is None for response in (first, third))


def test_index_ranges_of_the_export_guard_the_input(tmp_path: Path) -> None:
    lookup(tmp_path / "1" / "model.onnx")
    record = {
        "inputs": [{"name": "ids", "axes": ["batch", None]}],
        "index_ranges": {"ids": {"minimum": 0, "maximum": 4}},
        "axis_limits": {},
    }
    (tmp_path / "1" / "artifact.json").write_text(json.dumps(record), encoding="utf-8")
    described = config(
        input=[{"name": "IDS", "data_type": "TYPE_INT64", "dims": [2]}],
        output=[{"name": "Y", "data_type": "TYPE_FP32", "dims": [2, 1]}],
    )
    good, high, low = load(tmp_path, described).execute(
        [CallerRequest(IDS=np.array([pair], np.int64)) for pair in ([0, 4], [0, 5], [-1, 0])]
    )
    assert good.tensors["Y"].ravel().tolist() == [0, 40]
    assert (high.error.code, low.error.code) == ("invalid", "invalid")
    assert "5" in high.error.message and "0..4" in high.error.message


def test_without_a_range_the_bad_index_fails_its_own_request_only(tmp_path: Path) -> None:
    lookup(tmp_path / "1" / "model.onnx")
    backend = Backend()
    described = config(
        input=[{"name": "IDS", "data_type": "TYPE_INT64", "dims": [2]}],
        output=[{"name": "Y", "data_type": "TYPE_FP32", "dims": [2, 1]}],
    )
    responses = load(tmp_path, described, backend).execute(
        [CallerRequest(IDS=np.array([pair], np.int64)) for pair in ([0, 4], [0, 777], [1, 2])]
    )
    assert [response.error and response.error.code for response in responses] == [None, "internal", None]
    assert "777" not in responses[1].error.message
    assert any("777" in line for line in backend.Logger.lines)


def test_a_cancelled_request_is_answered_without_a_run(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    model = load(tmp_path, config({"check_cancelled": True}))
    gone, there = model.execute([CallerRequest(cancelled=True, X=rows(1)), CallerRequest(X=rows(2))])
    assert gone.error.code == "cancelled"
    assert there.tensors["Y"].tolist() == rows(4).tolist()
    assert model.stats.rows == 1


@pytest.mark.parametrize(("model_us_per_row", "asked"), [(10, False), (5_000, True)])
def test_callers_are_asked_for_when_a_row_is_worth_it(tmp_path: Path, model_us_per_row: int, asked: bool) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    model = load(tmp_path, config())
    model.stats.rows, model.stats.model_us = 1000, 1000 * model_us_per_row
    (response,) = model.execute([CallerRequest(cancelled=True, X=rows(1))])
    assert (response.error is not None) is asked


def test_a_fault_of_the_adapter_itself_keeps_its_traceback_out_of_the_answers(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    backend = Backend()
    model = load(tmp_path, config(), backend)
    responses = model.execute([CallerRequest(X=rows(1)), object()])
    assert [response.error.code for response in responses] == ["internal", "internal"]
    assert not any("Traceback" in response.error.message for response in responses)
    assert any("AttributeError" in line for line in backend.Logger.lines)


def test_names_of_the_graph_can_be_given(tmp_path: Path) -> None:
    save(
        tmp_path / "1" / "net.onnx",
        [helper.make_node("Sub", ["a", "b"], ["y"]), helper.make_node("Add", ["a", "b"], ["z"])],
        [tensor(name, TensorProto.FLOAT, "rows", 4) for name in "ab"],
        [tensor(name, TensorProto.FLOAT, "rows", 4) for name in "yz"],
    )
    two = [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in ("P", "Q")]
    settings = {"inputs": {"P": "b", "Q": "a"}, "outputs": {"Y": "y"}, "model_file": "net.onnx"}
    (response,) = load(tmp_path, config(settings, input=two)).execute([CallerRequest(P=rows(1), Q=rows(5))])
    assert list(response.tensors) == ["Y"]
    assert response.tensors["Y"].tolist() == rows(4).tolist()


def test_strings_go_through_the_graph_unchanged(tmp_path: Path) -> None:
    save(
        tmp_path / "1" / "model.onnx",
        [helper.make_node("Identity", ["s"], ["t"])],
        [tensor("s", TensorProto.STRING, "rows", 1)],
        [tensor("t", TensorProto.STRING, "rows", 1)],
    )
    described = config(
        input=[{"name": "S", "data_type": "TYPE_STRING", "dims": [1]}],
        output=[{"name": "T", "data_type": "TYPE_STRING", "dims": [1]}],
    )
    sent = ["", "ä€😀", "plain"]
    responses = load(tmp_path, described).execute(
        [CallerRequest(S=np.array([[text.encode()]], dtype=np.object_)) for text in sent]
    )
    assert [response.tensors["T"].item() for response in responses] == sent


def test_token_inputs_are_padded_where_the_settings_say_so(tmp_path: Path) -> None:
    save(
        tmp_path / "1" / "model.onnx",
        [helper.make_node("Mul", ["ids", "mask"], ["each"])],
        [tensor(name, TensorProto.INT64, "rows", "tokens") for name in ("ids", "mask")],
        [tensor("each", TensorProto.INT64, "rows", "tokens")],
    )
    described = config(
        {"pads": {"ids": 1, "mask": 0}, "padding": {"fixed_us": 1e9, "per_token_us": 1}},
        input=[{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in ("ids", "mask")],
        output=[{"name": "each", "data_type": "TYPE_INT64", "dims": [-1]}],
    )
    model = load(tmp_path, described)
    sent = [[5, 6, 7], [8], [9, 10]]
    responses = model.execute(
        [CallerRequest(ids=np.array([ids], np.int64), mask=np.ones((1, len(ids)), np.int64)) for ids in sent]
    )
    assert [response.tensors["each"].tolist() for response in responses] == [[ids] for ids in sent]
    assert model.stats.runs == 1


def padded_tokens(folder: Path, backend: Backend) -> OnnxModel:
    save(
        folder / "1" / "model.onnx",
        [helper.make_node("Identity", ["ids"], ["each"])],
        [tensor("ids", TensorProto.INT64, "rows", "tokens")],
        [tensor("each", TensorProto.INT64, "rows", "tokens")],
    )
    described = config(
        {"pads": {"ids": 0}, "padding": {"fixed_us": 1e9, "per_token_us": 1}},
        input=[{"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]}],
        output=[{"name": "each", "data_type": "TYPE_INT64", "dims": [-1]}],
    )
    return load(folder, described, backend)


def ids(length: int) -> CallerRequest:
    return CallerRequest(ids=np.ones((1, length), np.int64))


def test_tokens_are_counted_on_the_metrics_page_with_and_without_padding(tmp_path: Path) -> None:
    backend = Backend()
    model = padded_tokens(tmp_path, backend)
    counters = {name: family for name, (family,) in backend.MetricFamily.made.items()}
    assert sorted(counters) == ["brim_padded_tokens_total", "brim_real_tokens_total"]
    assert all(counter.labels["model"] == "m" for counter in counters.values())
    model.execute([ids(3), ids(1)])
    assert {name: counter.value for name, counter in counters.items()} == {
        "brim_real_tokens_total": 4,
        "brim_padded_tokens_total": 6,
    }
    model.execute([ids(2)])
    assert [counters[name].value for name in sorted(counters)] == [8, 6]


def test_a_model_without_padding_has_no_token_counters(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    backend = Backend()
    load(tmp_path, config(), backend)
    assert backend.MetricFamily.made == {}


@pytest.mark.parametrize("broken_from", ["the start", "the first batch"])
def test_a_server_that_counts_nothing_answers_all_the_same(
    tmp_path: Path, broken_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no metrics here")

    backend = Backend()
    if broken_from == "the start":
        backend.MetricFamily = refuse
    model = padded_tokens(tmp_path, backend)
    monkeypatch.setattr(Counter, "increment", refuse)
    for _ in range(2):
        (response,) = model.execute([ids(2)])
        assert response.error is None
    (warning,) = [line for line in backend.Logger.lines if line.startswith("warn")]
    assert "tokens" in warning


def test_an_answer_that_cannot_be_packed_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    backend = Backend()
    model = load(tmp_path, config(), backend)

    def pack(name: str, array: np.ndarray[Any, Any]) -> Tensor:
        if array[0, 0] == 4:
            raise MemoryError("shared memory is full")
        return Tensor(name, array)

    monkeypatch.setattr(backend, "Tensor", pack, raising=False)
    first, second, third = model.execute([CallerRequest(X=rows(value)) for value in (1, 2, 3)])
    assert [first.tensors["Y"][0, 0], third.tensors["Y"][0, 0]] == [2, 6]
    assert second.error.code == "internal" and "shared memory" not in second.error.message


class Lengths:
    """A preparation of the kind that a user may name in ``adapter``: four times the length of a text."""

    def __init__(self, around: Surroundings) -> None:
        self.pads: dict[str, float] = {}
        self._graph_input = around.graph_inputs[0]

    def __call__(self, requests: Sequence[Request]) -> list[list[dict[str, Any]]]:
        return [
            [{self._graph_input: np.full(4, len(text), np.float32)} for text in request["S"].ravel()]
            for request in requests
        ]


def test_a_preparation_of_the_users_own(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    described = config(
        {"adapter": f"{__name__}:Lengths"}, input=[{"name": "S", "data_type": "TYPE_STRING", "dims": [1]}]
    )
    (response,) = load(tmp_path, described).execute([CallerRequest(S=np.array([[b"abc"], [b""]], dtype=np.object_))])
    assert response.tensors["Y"].tolist() == rows(6, 0).tolist()


def test_a_gpu_that_onnx_runtime_cannot_use_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    doubler(tmp_path / "1" / "model.onnx")
    backend = Backend()
    model = OnnxModel(arguments(tmp_path, config(), kind="GPU"), backend)
    assert [line for line in backend.Logger.lines if line.startswith("warn") and "onnxruntime-gpu" in line]
    (response,) = model.execute([CallerRequest(X=rows(1))])
    assert response.error is None


def refused_load(folder: Path, model_config: Mapping[str, Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        load(folder, model_config)
    return str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_missing_or_broken_model_file_is_named_with_its_remedy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    if content is not None:
        path.write_bytes(content)
    text = refused_load(tmp_path, config())
    assert str(path) in text and "brim export m" in text


@pytest.mark.parametrize("text", ["[1", "[1]", "{}", '{"inputs": [], "index_ranges": {"x": 1}, "axis_limits": {}}'])
def test_a_broken_export_record_is_named_with_its_remedy(tmp_path: Path, text: str) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    (tmp_path / "1" / "artifact.json").write_text(text, encoding="utf-8")
    refused = refused_load(tmp_path, config())
    assert "artifact.json" in refused and "brim export m" in refused


def test_sizes_that_the_graph_cannot_stand_are_refused(tmp_path: Path) -> None:
    doubler(tmp_path / "1" / "model.onnx", width="wide")
    record = {"inputs": [{"name": "x", "axes": ["batch", "wide"]}], "index_ranges": {}, "axis_limits": {"wide": 3}}
    (tmp_path / "1" / "artifact.json").write_text(json.dumps(record), encoding="utf-8")
    described = config(
        input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        output=[{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    )
    good, bad = load(tmp_path, described).execute(
        [CallerRequest(X=np.ones((1, width), np.float32)) for width in (3, 4)]
    )
    assert good.error is None
    assert "[too_large]" in bad.error.message


def test_every_disagreement_with_the_graph_is_told_at_once(tmp_path: Path) -> None:
    save(
        tmp_path / "1" / "model.onnx",
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [tensor("a", TensorProto.FLOAT, 1, 4), tensor("b", TensorProto.FLOAT, "rows", 4)],
        [tensor("y", TensorProto.FLOAT, "rows", 4)],
    )
    inputs = [
        {"name": "a", "data_type": "TYPE_FP64", "dims": [3]},
        {"name": "other", "data_type": "TYPE_FP32", "dims": [4]},
    ]
    text = refused_load(tmp_path, config(input=inputs))
    for words in ("FP64", "FP32", "fixed batch axis of 1", "[3]", "[4]", "other", "['b']"):
        assert words in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{", ["JSON"]),
        ({"treads": 1}, ["treads"]),
        ({"threads": -1, "guard": {"X": {"minimun": 0}}}, ["threads", "guard.X.minimun"]),
        ({"guard": {"X": {"minimum": 2, "maximum": 1}}}, ["minimum (2)", "maximum (1)"]),
        ({"guard": {"Z": {}}}, ["'Z'", "'X'"]),
        ({"inputs": {"Z": "x"}}, ["Z"]),
        ({"pads": {"z": 0}}, ["'z'", "'x'"]),
        ({"adapter": "no.such:Thing"}, ["no.such:Thing"]),
        ({"adapter": "brim.runtime.text:Nothing"}, ["Nothing"]),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: Any, words: list[str]) -> None:
    doubler(tmp_path / "1" / "model.onnx")
    text = refused_load(tmp_path, config(settings))
    assert all(word in text for word in words), text


@pytest.mark.parametrize("rows_", [0, 101])
def test_a_model_that_does_not_batch_within_the_limit_is_refused(rows_: int) -> None:
    with pytest.raises(InputError, match=f"max_batch_size is {rows_}"):
        read_contract(config(max_batch_size=rows_))


def test_a_type_that_numpy_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="TYPE_BF16"):
        read_contract(config(input=[{"name": "X", "data_type": "TYPE_BF16", "dims": [1]}]))


def test_reshape_is_what_the_model_sees() -> None:
    described = config(input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}])
    assert read_contract(described).inputs[0].shape == ()


def test_a_configuration_without_the_parameter_has_defaults() -> None:
    settings = read_settings(config())
    assert (settings.threads, settings.longest_tokens, settings.padding) == (0, 512, None)


@pytest.mark.parametrize(
    "file", ["services/text_embedding.yaml", "services/image_classifier.yaml", "tests/golden/everything.yaml"]
)
def test_generated_settings_are_all_understood(checkout: Path, file: str) -> None:
    generated = adapter_settings(load_service(checkout / file))
    read = read_settings(config(generated)).model_dump(exclude_unset=True)
    assert read.keys() == generated.keys()
    assert read["guard"] == generated.get("guard", {})


@pytest.mark.parametrize("name", ["text_embedding", "image_classifier"])
def test_every_model_py_is_the_template(checkout: Path, name: str) -> None:
    assert (checkout / "model_repository" / name / "1" / "model.py").read_text(encoding="utf-8") == MODEL_PY
