from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.errors import GateRefused, InputError
from brim_export import gates, pipeline
from brim_export.gates import GateResult
from brim_export.session import RunFailed, Session
from brim_export.source import OnnxSource

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def constant(name: str, values, dtype=np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def model(
    nodes, *, x=(FLOAT, ["batch", 4]), y=("y", FLOAT, ["batch", 4]), more_inputs=(), more_outputs=(), constants=()
):
    inputs = [helper.make_tensor_value_info("x", *x), *(helper.make_tensor_value_info(*item) for item in more_inputs)]
    outputs = [helper.make_tensor_value_info(*item) for item in (y, *more_outputs)]
    made = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


DOUBLED = model([node("Add", ["x", "x"], ["y"])])


@pytest.fixture
def examine(tmp_path):
    def run(made: onnx.ModelProto, **settings) -> dict[str, GateResult]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        path = folder / "given.onnx"
        onnx.save(made, str(path))
        result = pipeline.export(OnnxSource(path), folder / "out", **settings)
        assert result.ok == all(item.ok for item in result.gates)
        assert sorted(entry.name for entry in folder.iterdir()) == ["given.onnx", *(["out"] if result.ok else [])]
        return {item.gate: item for item in result.gates}

    return run


def refusals(results: dict[str, GateResult]) -> set[str]:
    return {gate for gate, result in results.items() if not result.ok}


def test_a_row_wise_model_passes_every_gate(examine):
    results = examine(DOUBLED)
    assert list(results) == ["inference_mode", "batch_axis", "rows_preserved", "row_independence", "deterministic"]
    assert refusals(results) == set()
    assert "1, 2, 3, 99, 100 rows" in results["batch_axis"].message


def test_row_counts_follow_the_batch_limit(examine):
    assert "ran at 1, 2, 3, 6, 7 rows" in examine(DOUBLED, batch_limit=7)["batch_axis"].message


def test_a_limit_of_one_row_needs_no_independence(examine):
    mixing = model(
        [node("ReduceSum", ["x", "axes"], ["s"]), node("Sub", ["x", "s"], ["y"])],
        constants=[constant("axes", [0], np.int64)],
    )
    assert examine(mixing, batch_limit=1)["row_independence"].ok
    assert not examine(mixing, batch_limit=2)["row_independence"].ok


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            model([node("Add", ["x", "x"], ["y"])], x=(FLOAT, [1, 4]), y=("y", FLOAT, [1, 4])),
            "input x axis 0 is 1, wanted symbolic; output y axis 0 is 1, wanted symbolic",
        ),
        (
            model([node("Add", ["x", "x"], ["y"])], x=(FLOAT, [8, 4]), y=("y", FLOAT, [8, 4])),
            "input x axis 0 is 8, wanted symbolic",
        ),
        (
            model(
                [node("Reshape", ["x", "to"], ["y"])],
                y=("y", FLOAT, [1, 4]),
                constants=[constant("to", [1, 4], np.int64)],
            ),
            "output y axis 0 is 1, wanted symbolic",
        ),
        (
            model([node("Mul", ["x", "t"], ["y"])], more_inputs=[("t", FLOAT, [])]),
            "input t has no axes (a scalar), wanted axis 0 symbolic",
        ),
        (
            model([node("ReduceMax", ["x"], ["y"], keepdims=0)], y=("y", FLOAT, [])),
            "output y has no axes (a scalar), wanted axis 0 symbolic",
        ),
        (model([node("Add", ["x", "x"], ["y"])], x=(FLOAT, None)), "input x declares no shape, wanted axis 0 symbolic"),
        (
            model([node("Reshape", ["x", "to"], ["y"])], constants=[constant("to", [2, 4], np.int64)]),
            "input x axis 0 is declared symbolic, but 3 rows do not run",
        ),
    ],
    ids=[
        "fixed at one",
        "fixed at eight",
        "output fixed",
        "scalar input",
        "scalar output",
        "no shape",
        "symbolic in name only",
    ],
)
def test_a_batch_axis_that_is_not_one_is_refused(examine, made, message):
    result = examine(made)["batch_axis"]
    assert not result.ok
    assert message in result.message
    assert "Remedy: export again with axis 0 symbolic" in result.message


def test_an_axis_that_fits_no_size_is_refused_and_nothing_else_is_guessed(examine):
    made = model(
        [node("Reshape", ["x", "to"], ["y"])],
        x=(FLOAT, ["batch", "width"]),
        constants=[constant("to", [-1, 1009], np.int64)],
    )
    results = examine(made)
    assert "no size tried for the symbolic axes ['width'] runs" in results["batch_axis"].message
    assert results["row_independence"] == gates.not_run("row_independence", "the model does not run (see batch_axis)")


@pytest.mark.parametrize(
    ("nodes", "constants", "found"),
    [
        ([node("Reshape", ["x", "to"], ["y"])], [constant("to", [-1, 8], np.int64)], None),
        (
            [node("Slice", ["x", "one", "many"], ["y"])],
            [constant("one", [1], np.int64), constant("many", [999], np.int64)],
            "0 for 1 rows in, 1 for 2 rows in",
        ),
        ([node("Squeeze", ["x"], ["y"])], [], "4 for 1 rows in."),
        ([node("Concat", ["x", "x"], ["y"], axis=0)], [], "2 for 1 rows in, 4 for 2 rows in"),
        ([node("ReduceSum", ["x"], ["y"], keepdims=0)], [], "no axis at all for 1 rows in"),
        ([node("Identity", ["one"], ["y"])], [constant("one", [[1, 2, 3, 4]])], "1 for 2 rows in, 1 for 3 rows in"),
    ],
    ids=[
        "merges rows",
        "drops the first row",
        "squeezes the batch away",
        "doubles rows",
        "one value for all",
        "fixed output",
    ],
)
def test_other_rows_out_than_in_are_refused(examine, nodes, constants, found):
    results = examine(
        model(nodes, constants=constants, y=("y", FLOAT, ["rows", 4] if nodes[0].op_type != "ReduceSum" else ["rows"]))
    )
    assert not results["rows_preserved"].ok
    if found is not None:
        assert f"output y axis 0: wanted as many rows as went in, found {found}" in results["rows_preserved"].message
    assert not results["row_independence"].ok


AXIS_0 = constant("axis", [0], np.int64)
MIXERS = {
    "mean over the batch": ([node("ReduceMean", ["x", "axis"], ["m"]), node("Sub", ["x", "m"], ["y"])], [AXIS_0]),
    "faint mean over the batch": (
        [node("ReduceMean", ["x", "axis"], ["m"]), node("Mul", ["m", "faint"], ["f"]), node("Add", ["x", "f"], ["y"])],
        [AXIS_0, constant("faint", 1e-7)],
    ),
    "norm over the batch": ([node("ReduceL2", ["x", "axis"], ["n"]), node("Div", ["x", "n"], ["y"])], [AXIS_0]),
    "softmax over the batch": ([node("Softmax", ["x"], ["y"], axis=0)], []),
    "order of the batch": (
        [node("Slice", ["x", "last", "before", "zero", "back"], ["y"])],
        [
            constant("last", [-1], np.int64),
            constant("before", [-1000], np.int64),
            constant("zero", [0], np.int64),
            constant("back", [-1], np.int64),
        ],
    ),
    "largest of the batch": ([node("ReduceMax", ["x", "axis"], ["m"]), node("Max", ["x", "m"], ["y"])], [AXIS_0]),
    "NaN through a cumulative sum": (
        [node("CumSum", ["x", "first"], ["c"]), node("Mul", ["c", "nothing"], ["z"]), node("Add", ["x", "z"], ["y"])],
        [constant("first", 0, np.int64), constant("nothing", 0.0)],
    ),
    "NaN through the last row": (
        [node("Gather", ["x", "end"], ["l"]), node("Mul", ["l", "nothing"], ["z"]), node("Add", ["x", "z"], ["y"])],
        [constant("end", [-1], np.int64), constant("nothing", 0.0)],
    ),
    "number of rows": (
        [node("Shape", ["x"], ["s"], end=1), node("Cast", ["s"], ["n"], to=FLOAT), node("Div", ["x", "n"], ["y"])],
        [],
    ),
}


@pytest.mark.parametrize("kind", MIXERS)
def test_rows_that_depend_on_each_other_are_refused(examine, kind):
    nodes, constants = MIXERS[kind]
    results = examine(model(nodes, constants=constants))
    assert refusals(results) == {"row_independence"}
    assert "output y axis 0: output of a row depends on other rows:" in results["row_independence"].message
    assert any(words in results["row_independence"].message for words in ("it differs by", "NaN or Inf"))


def test_integer_outputs_are_compared_exactly(examine):
    counts = model(
        [
            node("ReduceMax", ["x", "axis"], ["m"]),
            node("Less", ["m", "x"], ["l"]),
            node("Add", ["x", "one"], ["b"]),
            node("Min", ["b", "m"], ["y"]),
        ],
        x=(INT64, ["batch", 4]),
        y=("y", INT64, ["batch", 4]),
        constants=[AXIS_0, constant("one", 1, np.int64)],
    )
    assert not examine(counts)["row_independence"].ok


def test_a_difference_within_the_row_tolerance_passes_and_is_reported(examine):
    nodes = [
        node("Shape", ["x"], ["s"], end=1),
        node("Cast", ["s"], ["n"], to=FLOAT),
        node("Mul", ["n", "faint"], ["f"]),
        node("Add", ["x", "f"], ["y"]),
    ]
    made = model(nodes, constants=[constant("faint", 1e-5)])
    assert refusals(examine(made)) == {"row_independence"}
    passed = examine(made, row_tolerance=1e-2)["row_independence"]
    assert passed.ok
    assert 9e-4 < passed.seen["y"] < 2e-3


def embedding(rows: int, extra: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    table = constant("table", np.arange(rows * 4).reshape(rows, 4) / 7)
    return model(
        [node("Gather", ["table", "x"], ["e"]), *extra],
        x=(INT64, ["batch", "length"]),
        y=("y", FLOAT, ["batch", "length", 4]),
        constants=[table, *constants],
    )


def test_neighbours_with_index_inputs_stay_in_range_and_reach_both_ends(examine):
    passed = examine(embedding(11, [node("Identity", ["e"], ["y"])], []))
    assert refusals(passed) == set()
    mixing = embedding(11, [node("ReduceMax", ["e", "axis"], ["m"]), node("Max", ["e", "m"], ["y"])], [AXIS_0])
    assert refusals(examine(mixing)) == {"row_independence"}


def test_integers_of_unknown_range_are_left_tame_when_the_model_refuses_extremes(examine):
    shifted = model(
        [node("Add", ["x", "one"], ["i"]), node("Gather", ["table", "i"], ["y"])],
        x=(INT64, ["batch"]),
        constants=[constant("one", 1, np.int64), constant("table", np.ones((5, 4)))],
    )
    result = examine(shifted)["row_independence"]
    assert result.ok
    assert "extreme values were not tried for x" in result.message.replace("['x']", "x")


def test_a_neighbour_that_fails_the_whole_batch_is_refused(examine):
    made = model(
        [node("IsNaN", ["x"], ["n"]), node("Cast", ["n"], ["i"], to=INT64), node("Gather", ["one", "i"], ["y"])],
        x=(FLOAT, ["batch"]),
        y=("y", FLOAT, ["batch"]),
        constants=[constant("one", [1.0])],
    )
    result = examine(made)["row_independence"]
    assert not result.ok
    assert "a row that runs alone fails" in result.message
    assert "holding NaN" in result.message


def test_samples_are_used_and_only_they(examine):
    picky = model(
        [node("Cast", ["x"], ["i"], to=INT64), node("Gather", ["table", "i"], ["y"])],
        x=(FLOAT, ["batch"]),
        constants=[constant("table", np.ones((3, 4)))],
    )
    rows = [np.array(value, np.float32) for value in (0, 1, 2)]
    assert "do not run" not in examine(picky, samples={"x": rows})["batch_axis"].message
    assert examine(picky, samples={"x": rows})["batch_axis"].ok


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"z": [np.zeros(4, np.float32)]}, r"samples are for \['z'\], the model's inputs are \['x'\]"),
        ({"x": []}, "at least one"),
        ({"x": [np.zeros(4, np.float64)]}, r"sample 0 gave x as float64 \[1, 4\], expected float32 \[1, 4\]"),
        ({"x": [np.zeros(4, np.float32), np.zeros(5, np.float32)]}, r"sample 1 gave x as float32 \[1, 5\]"),
    ],
)
def test_samples_that_do_not_fit_are_refused(examine, samples, message):
    with pytest.raises(InputError, match=message):
        examine(DOUBLED, samples=samples)


def test_samples_of_several_lengths_set_the_sizes_tried(examine):
    made = model(
        [node("Reshape", ["x", "to"], ["r"]), node("Identity", ["x"], ["y"])],
        x=(FLOAT, ["batch", "width"]),
        y=("y", FLOAT, ["batch", "width"]),
        more_outputs=[("r", FLOAT, ["batch", "half", 1009])],
        constants=[constant("to", [0, -1, 1009], np.int64)],
    )
    rows = [np.ones(1009 * size, np.float32) for size in (1, 2)]
    assert refusals(examine(made, samples={"x": rows}, batch_limit=4)) == set()


def test_training_mode_is_refused(examine):
    made = model(
        [node("Dropout", ["x", "ratio", "on"], ["y"], name="drop")],
        constants=[constant("ratio", 0.5), constant("on", True, np.bool_)],
    )
    results = examine(made)
    assert not results["inference_mode"].ok
    assert "operator Dropout (drop) is in training mode, wanted inference" in results["inference_mode"].message
    assert not results["deterministic"].ok


def test_random_operators_are_refused_by_name(examine):
    made = model([node("RandomNormalLike", ["x"], ["n"], name="dice"), node("Add", ["x", "n"], ["y"])])
    message = examine(made)["deterministic"].message
    assert "operator RandomNormalLike (dice) draws random numbers" in message
    assert "output y changes between two executions" in message


def test_a_random_operator_is_refused_even_where_its_value_does_not_show(examine):
    made = model(
        [
            node("RandomNormalLike", ["x"], ["n"], name="dice"),
            node("Mul", ["n", "nothing"], ["z"]),
            node("Add", ["x", "z"], ["y"]),
        ],
        constants=[constant("nothing", 0.0)],
    )
    assert refusals(examine(made)) == {"deterministic"}


def test_every_refusal_is_listed_at_once(examine):
    made = model(
        [
            node("RandomNormalLike", ["x"], ["n"]),
            node("ReduceSum", ["n", "axis"], ["s"]),
            node("Add", ["x", "s"], ["y"]),
            node("Squeeze", ["x"], ["z"]),
        ],
        more_outputs=[("z", FLOAT, ["batch", 4])],
        constants=[AXIS_0],
    )
    assert refusals(examine(made)) == {"rows_preserved", "row_independence", "deterministic"}


def test_require_joins_all_messages(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model([node("Squeeze", ["x"], ["y"])]), str(path))
    result = pipeline.export(OnnxSource(path), tmp_path / "out")
    with pytest.raises(GateRefused) as caught:
        pipeline.require(result)
    assert caught.value.exit_code == 1
    assert all(item.message in caught.value.message for item in result.gates if not item.ok)


def test_case_20_a_large_batch_after_a_small_one(tmp_path, cases):
    case = json.loads((cases / "20_batch_sizes.json").read_text())
    made = model(
        [node("Mul", ["x", "two"], ["d"]), node("Add", ["d", "one"], ["y"])],
        constants=[constant("two", 2.0), constant("one", 1.0)],
    )
    onnx.save(made, str(tmp_path / "m.onnx"))
    result = pipeline.export(OnnxSource(tmp_path / "m.onnx"), tmp_path / "out")
    session = Session(result.model_path)
    for index, rows in enumerate(case["send_in_order_one_instance"]):
        row, column = np.meshgrid(np.arange(rows), np.arange(4), indexing="ij")
        x = (1000 * index + row + column / 8).astype(np.float32)
        answer = session.run({"x": x})["y"]
        assert answer.shape == (rows, 4)
        np.testing.assert_array_equal(answer, 2 * x + 1)


def test_a_run_that_does_not_end_is_ended(tmp_path):
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Sin", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("c", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, None),
        ],
        [helper.make_tensor_value_info("d", BOOL, []), helper.make_tensor_value_info("w", FLOAT, None)],
    )
    endless = model([node("Loop", ["", "go", "x"], ["y"], body=body)], constants=[constant("go", True, np.bool_)])
    onnx.save(endless, str(tmp_path / "m.onnx"))
    with pytest.raises(RunFailed, match=r"no answer within 0\.2 s"):
        Session(tmp_path / "m.onnx", limit_s=0.2).run({"x": np.zeros((1, 4), np.float32)})


class TestParity:
    @pytest.fixture
    def subject(self, tmp_path):
        from brim_export.rows import RowSource
        from brim_export.subject import Subject

        def build(made: onnx.ModelProto) -> Subject:
            onnx.save(made, str(tmp_path / "m.onnx"))
            inputs, outputs = pipeline.graph.inputs(made), pipeline.graph.outputs(made)
            return Subject(Session(tmp_path / "m.onnx"), made, inputs, outputs, RowSource(inputs, {}), 100, 0, [{}])

        return build

    def test_equal_answers_pass_and_the_deviation_is_kept(self, subject):
        result = gates.parity(subject(DOUBLED), lambda feed: {"y": feed["x"] * np.float32(2 + 1e-6)})
        assert result.ok
        assert 0 < result.seen["y"] < 1e-4
        assert "at 1, 2, 3, 50, 99, 100 rows" in result.message

    @pytest.mark.parametrize("rows", [1, 2, 3, 50, 99, 100])
    def test_a_fault_planted_at_one_number_of_rows_is_found(self, subject, rows):
        def faulty(feed):
            answer = feed["x"] * 2
            if len(answer) == rows:
                answer[-1, 2] += 1e-2
            return {"y": answer}

        result = gates.parity(subject(DOUBLED), faulty)
        assert not result.ok
        assert f"output y differs from torch by 0.01 at {rows} rows" in result.message
        assert f"[{rows - 1}, 2]" in result.message

    @pytest.mark.parametrize(
        ("change", "ok"),
        [
            (lambda y: np.where(y > 0, np.nan, y), False),
            (lambda y: np.where(y > 0, np.inf, y), False),
            (lambda y: y[:-1], False),
            (lambda y: y.astype(np.int64), False),
            (lambda y: y, True),
        ],
    )
    def test_not_finite_and_wrong_shapes_are_no_parity(self, subject, change, ok):
        assert gates.parity(subject(DOUBLED), lambda feed: {"y": change(feed["x"] * 2)}).ok is ok

    def test_the_same_nan_in_both_is_parity(self, subject):
        root = model([node("Sqrt", ["x"], ["y"])])

        def reference(feed):
            with np.errstate(invalid="ignore"):
                return {"y": np.sqrt(feed["x"])}

        assert gates.parity(subject(root), reference).ok

    def test_integers_must_be_equal(self, subject):
        made = model([node("Cast", ["x"], ["y"], to=INT64)], y=("y", INT64, ["batch", 4]))
        assert gates.parity(subject(made), lambda feed: {"y": feed["x"].astype(np.int64)}).ok
        result = gates.parity(subject(made), lambda feed: {"y": feed["x"].astype(np.int64) + (feed["x"] > 2)}, 0.9)
        assert not result.ok

    def test_torch_that_does_not_run_is_a_refusal(self, subject):
        def broken(feed):
            raise gates.ReferenceFailed("boom")

        assert "1 rows do not run in torch itself: boom" in gates.parity(subject(DOUBLED), broken).message


def test_the_gates_draw_the_same_rows_for_the_same_seed(examine):
    made = model(
        [node("MatMul", ["x", "w"], ["y"])], constants=[constant("w", np.random.default_rng(1).normal(size=(4, 4)))]
    )
    first, second, other = examine(made), examine(made), examine(made, seed=1)
    assert first == second
    assert refusals(other) == set()
    assert math.isfinite(first["row_independence"].seen["y"])
