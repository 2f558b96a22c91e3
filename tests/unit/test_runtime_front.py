"""The front of a native model against a stand-in for the server: who is asked, and what each caller learns of a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.runtime.adapter import OnnxModel
from tests.unit import test_runtime_adapter as triton

Rows = dict[str, np.ndarray[Any, Any]]
Inner = Callable[[Rows], "Rows | Fault"]
BEHIND = "m-native"


class Fault:
    def __init__(self, message: str, code: str = "internal") -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Error(triton.Error):
    UNAVAILABLE, NOT_FOUND = "unavailable", "not found"


class Answered:
    def __init__(self, result: Rows | Fault) -> None:
        self._result = result

    def has_error(self) -> bool:
        return isinstance(self._result, Fault)

    def error(self) -> Any:
        return self._result

    def output_tensors(self) -> list[triton.Tensor]:
        assert not isinstance(self._result, Fault)
        return [triton.Tensor(name, array) for name, array in self._result.items()]


class Server(triton.Backend):
    """``triton_python_backend_utils`` with one other model on the server; ``asked`` are the batches that it got."""

    TritonError = Error
    TRITONSERVER_MEMORY_CPU = "main memory"

    def __init__(self, inner: Inner) -> None:
        super().__init__()
        self.asked: list[Rows] = []
        self._inner = inner

    @staticmethod
    def PreferredMemory(kind: str, number: int) -> tuple[str, int]:  # noqa: N802 - Triton's name
        return kind, number

    def InferenceRequest(  # noqa: N802 - Triton's name
        self, model_name: str, requested_output_names: Sequence[str], inputs: Sequence[triton.Tensor], **more: Any
    ) -> Any:
        assert model_name == BEHIND
        assert more == {"preferred_memory": ("main memory", 0)}
        sent = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        server = self

        class Request:
            def exec(self) -> Answered:
                server.asked.append(sent)
                result = server._inner(sent)
                if isinstance(result, Fault):
                    return Answered(result)
                return Answered({name: result[name] for name in requested_output_names})

        return Request()

    def sizes(self) -> list[int]:
        return [len(batch["x"]) for batch in self.asked]


def record(folder: Path, valid: str | None = "valid") -> None:
    tensors = [{"name": name, "datatype": "FP32", "shape": [-1, 4], "axes": ["batch", None]} for name in ("x", "y")]
    text = {
        "inputs": tensors[:1],
        "outputs": tensors[1:],
        "index_ranges": {},
        "axis_limits": {},
        "guard": {"valid": valid} if valid else None,
    }
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "artifact.json").write_text(json.dumps(text), encoding="utf-8")


def front(folder: Path, server: Server, *, valid: str | None = "valid", **changes: Any) -> OnnxModel:
    native = {"model": BEHIND} | ({"valid": valid} if valid else {})
    return triton.load(folder, triton.config({"native": native, "guard": {"X": {"finite": False}}}, **changes), server)


def double(batch: Rows) -> Rows:
    """The guarded graph: twice the row, rows below zero are marked."""
    good = (batch["x"] >= 0).all(axis=1, keepdims=True)
    return {"y": batch["x"] * 2, "valid": good.astype(np.float32)}


def fails_for(text: str, code: str = "internal") -> Inner:
    """The graph without a guard: one row below zero fails the batch with ``text``."""
    return lambda batch: Fault(text, code) if (batch["x"] < 0).any() else {"y": batch["x"] * 2}


def ask(model: OnnxModel, *values: float) -> list[Any]:
    return model.execute([triton.CallerRequest(X=triton.rows(value)) for value in values])


def test_the_model_behind_is_not_asked_before_the_first_batch_and_gets_it_whole(tmp_path: Path) -> None:
    record(tmp_path)
    server = Server(double)
    model = front(tmp_path, server)
    assert server.asked == []
    answers = ask(model, *range(100))
    assert server.sizes() == [100]
    assert [answer.tensors["Y"][0, 0] for answer in answers] == [2 * value for value in range(100)]


def test_rows_that_the_graph_marks_are_refused_without_another_run(tmp_path: Path) -> None:
    record(tmp_path)
    server = Server(double)
    model = front(tmp_path, server)
    answers = ask(model, 1, -777, 2, -888, 3)
    assert server.sizes() == [5]
    assert [answer.tensors["Y"][0, 0] for answer in answers if not answer.error] == [2, 4, 6]
    for answer in (answers[1], answers[3]):
        assert answer.error.code == "invalid"
        assert answer.error.message.startswith("[out_of_range] row 0 ")
        assert "777" not in answer.error.message and "888" not in answer.error.message
    assert (model.stats.refused, model.stats.failed) == (2, 0)


def test_a_request_of_several_rows_reads_which_of_them_is_bad(tmp_path: Path) -> None:
    record(tmp_path)
    model = front(tmp_path, Server(double))
    several = [triton.rows(1, 2), triton.rows(3, 4, -5, -6), triton.rows(7)]
    first, second, third = model.execute([triton.CallerRequest(X=array) for array in several])
    assert first.tensors["Y"][:, 0].tolist() == [2, 4]
    assert third.tensors["Y"][:, 0].tolist() == [14]
    assert "row 2 " in second.error.message


LEAK = "onnx runtime error 2: Non-zero status code returned while running Gather node. idx=-4711 must be within [0,4]"


@pytest.mark.parametrize("poison", [[0], [99], [17, 18], [3, 50, 51, 98]])
def test_a_batch_that_fails_is_halved_until_only_the_poison_fails(tmp_path: Path, poison: list[int]) -> None:
    record(tmp_path, valid=None)
    server = Server(fails_for(LEAK))
    model = front(tmp_path, server, valid=None)
    answers = ask(model, *(-1 if place in poison else place for place in range(100)))
    for place, answer in enumerate(answers):
        if place in poison:
            assert answer.error.code == "internal"
            assert "4711" not in answer.error.message and "Gather" not in answer.error.message
        else:
            assert answer.tensors["Y"][0, 0] == 2 * place
    assert len(server.asked) <= 1 + 14 * len(poison)
    assert sum("4711" in line for line in server.Logger.lines) == len(poison)


NOT_READY = (
    f"Model {BEHIND} - Error when running inference: Failed for execute the inference request. "
    f"Model '{BEHIND}' is not ready."
)
OUTAGES = [
    (NOT_READY, "internal"),
    (f"Stub process '{BEHIND}_0_0' is not healthy.", "internal"),
    (f"{NOT_READY}\n", "internal"),
    ("whatever", "unavailable"),
    ("whatever", "not found"),
]


@pytest.mark.parametrize("text, code", OUTAGES)
def test_when_the_model_behind_answers_nobody_all_learn_it_from_one_run(tmp_path: Path, text: str, code: str) -> None:
    record(tmp_path)
    server = Server(lambda batch: Fault(text, code))
    model = front(tmp_path, server)
    answers = ask(model, *range(100))
    assert server.sizes() == [100]
    assert {answer.error.code for answer in answers} == {"unavailable"}
    assert all(BEHIND in answer.error.message and "not available" in answer.error.message for answer in answers)
    assert sum(text.strip() in line for line in server.Logger.lines) == 1


def test_an_outage_amid_a_batch_leaves_the_answers_that_are_there(tmp_path: Path) -> None:
    """The batch fails for one row, the first half runs, then the model goes away: nothing more is run."""
    record(tmp_path, valid=None)

    def inner(batch: Rows) -> Rows | Fault:
        if len(server.asked) > 2:
            return Fault(NOT_READY)
        return fails_for(LEAK)(batch)

    server = Server(inner)
    answers = ask(front(tmp_path, server, valid=None), 0, 1, 2, 3, 4, 5, 6, -1)
    assert server.sizes() == [8, 4, 4]
    assert [answer.tensors["Y"][0, 0] for answer in answers[:4]] == [0, 2, 4, 6]
    assert {answer.error.code for answer in answers[4:]} == {"unavailable"}


def test_an_outage_in_one_sub_batch_is_not_met_again_in_the_others(tmp_path: Path) -> None:
    record(tmp_path, valid=None)
    server = Server(lambda batch: Fault(NOT_READY))
    variable = {name: [{"name": name.upper(), "data_type": "TYPE_FP32", "dims": [-1]}] for name in ("x", "y")}
    model = front(tmp_path, server, valid=None, input=variable["x"], output=variable["y"])
    requests = [triton.CallerRequest(X=np.zeros((1, width), np.float32)) for width in (1, 2, 3, 4)]
    assert {response.error.code for response in model.execute(requests)} == {"unavailable"}
    assert server.sizes() == [1]


@pytest.mark.parametrize(
    "text",
    [
        f"onnx runtime error 2: bad value '{NOT_READY}'",
        f"{NOT_READY} and so on",
        "Stub process 'other-native_0_0' is not healthy.",
        f"Model {BEHIND} - Error when running inference: unexpected shape for input 'x'",
    ],
)
def test_words_of_a_caller_that_sound_like_an_outage_fail_that_caller_alone(tmp_path: Path, text: str) -> None:
    record(tmp_path, valid=None)
    server = Server(fails_for(text))
    answers = ask(front(tmp_path, server, valid=None), 1, 2, -1, 4)
    assert [answer.error is None for answer in answers] == [True, True, False, True]
    assert answers[2].error.code == "internal"


@pytest.mark.parametrize("mask", [{}, {"valid": np.ones(1, np.float32)}, {"valid": np.ones((8, 2), np.float32)}])
def test_a_mask_that_is_none_fails_all_at_once_and_says_so_in_the_log(tmp_path: Path, mask: Mapping[str, Any]) -> None:
    record(tmp_path)

    def inner(batch: Rows) -> Rows:
        return {"y": batch["x"], "valid": mask.get("valid", np.zeros(0, np.float32))}

    server = Server(inner)
    answers = ask(front(tmp_path, server), *range(8))
    assert {answer.error.code for answer in answers} == {"internal"}
    assert server.sizes() == [8]
    assert any('output "valid"' in line for line in server.Logger.lines)


def test_what_stands_in_the_way_is_said_at_load(tmp_path: Path) -> None:
    server = Server(double)
    with pytest.raises(RuntimeError, match=r"artifact\.json is missing.*brim export m"):
        front(tmp_path, server)
    record(tmp_path, valid=None)
    with pytest.raises(RuntimeError, match='row mask "valid" from m-native, the export made none'):
        front(tmp_path, server)
    record(tmp_path, valid="valid_2")
    with pytest.raises(RuntimeError, match='the export made "valid_2"'):
        front(tmp_path, server)
    record(tmp_path, valid="Y")
    with pytest.raises(RuntimeError, match=r"native\.valid is Y"):
        front(tmp_path, server, valid="Y")
    (tmp_path / "1" / "artifact.json").write_text('{"inputs": [{}]}', encoding="utf-8")
    with pytest.raises(RuntimeError, match="is not the record of an export"):
        front(tmp_path, server)
    assert server.asked == []
