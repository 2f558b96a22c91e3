"""The guard in the graph, against the same graph without it: for any values, rows keep their answers or are marked."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from brim_export import graph
from brim_export.graph_guard import LEAST_OPSET, Limits, can_guard, guarded

ENTRIES = 7
OPSETS = [LEAST_OPSET, 11, 12, 13, 17, 18, 20]
INTEGERS = {
    TensorProto.INT8: np.int8,
    TensorProto.UINT8: np.uint8,
    TensorProto.INT16: np.int16,
    TensorProto.INT32: np.int32,
    TensorProto.UINT32: np.uint32,
    TensorProto.INT64: np.int64,
    TensorProto.UINT64: np.uint64,
}
FLOATS = {TensorProto.FLOAT16: np.float16, TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}
IDS = st.one_of(
    st.integers(0, ENTRIES - 1), st.sampled_from([-1, -ENTRIES, -ENTRIES - 1, ENTRIES, 2**40, 2**63 - 1, -(2**63)])
)
REALS = st.one_of(st.floats(-2, 2, width=16), st.sampled_from([np.nan, np.inf, -np.inf, 2.0, -2.0, -0.0, 2.5, -7.0]))


def run(model: onnx.ModelProto, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def mixed(opset: int, output: str = "y") -> onnx.ModelProto:
    """y = table[ids] * x + offsets[kind]: INT64 [rows, 3], FP32 [rows, 3, 2] and INT32 [rows]."""
    made = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["entries"]),
            helper.make_node("Mul", ["entries", "x"], ["scaled"]),
            helper.make_node("Gather", ["offsets", "kind"], ["offset"]),
            helper.make_node("Add", ["scaled", "offset"], [output]),
        ],
        "mixed",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 2]),
            helper.make_tensor_value_info("kind", TensorProto.INT32, ["batch"]),
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 3, 2])],
        [
            numpy_helper.from_array(np.linspace(-1, 1, ENTRIES * 2, dtype=np.float32).reshape(ENTRIES, 2), "table"),
            numpy_helper.from_array(np.arange(4, dtype=np.float32).reshape(4, 1, 1), "offsets"),
        ],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@cache
def pair(opset: int, lowest: float | None, highest: float | None) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    plain = mixed(opset)
    made = guarded(plain, graph.index_ranges(plain), {"x": Limits(minimum=lowest, maximum=highest)}, "valid")
    onnx.checker.check_model(made, full_check=True)
    return plain, made


@settings(max_examples=60, deadline=None)
@given(
    opset=st.sampled_from(OPSETS),
    bounds=st.sampled_from([(None, None), (-2.0, 2.0), (None, 1.5), (0.5, None)]),
    rows=st.lists(
        st.tuples(st.lists(IDS, min_size=3, max_size=3), st.lists(REALS, min_size=6, max_size=6), IDS),
        min_size=1,
        max_size=6,
    ),
)
def test_good_rows_keep_their_bits_and_bad_rows_are_marked(opset, bounds, rows):
    plain, made = pair(opset, *bounds)
    feed = {
        "ids": np.array([row[0] for row in rows], np.int64),
        "x": np.array([row[1] for row in rows], np.float32).reshape(-1, 3, 2),
        "kind": np.array([row[2] for row in rows], np.int64).clip(-(2**31), 2**31 - 1).astype(np.int32),
    }
    low, high = (-np.inf if bounds[0] is None else bounds[0], np.inf if bounds[1] is None else bounds[1])
    with np.errstate(invalid="ignore"):
        fine = (
            ((feed["ids"] >= 0) & (feed["ids"] < ENTRIES)).all(1)
            & ((feed["kind"] >= 0) & (feed["kind"] < 4))
            & (np.isfinite(feed["x"]) & (feed["x"] >= low) & (feed["x"] <= high)).all((1, 2))
        )
    answer = run(made, feed)
    np.testing.assert_array_equal(answer["valid"], fine.astype(np.float32)[:, None])
    assert np.isfinite(answer["y"]).all()
    # A row in which every value is allowed by index ranges takes the place of each bad one: the plain graph then runs.
    for name in feed:
        feed[name][~fine] = 0
    assert run(plain, feed)["y"][fine].tobytes() == answer["y"][fine].tobytes()


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("opset", [LEAST_OPSET, 20])
def test_every_integer_type_is_kept_inside_and_marked_outside(kind, opset):
    dtype = INTEGERS[kind]
    edges = np.array([*range(ENTRIES), np.iinfo(dtype).min, np.iinfo(dtype).max, ENTRIES], dtype)
    made = helper.make_graph(
        [
            helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "wide"], ["y"]),
        ],
        "typed",
        [helper.make_tensor_value_info("ids", kind, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.arange(ENTRIES, dtype=np.float32), "table")],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    answer = run(guarded(plain, graph.index_ranges(plain), {}, "valid"), {"ids": edges})
    inside = np.isin(edges, range(ENTRIES))
    np.testing.assert_array_equal(answer["valid"].ravel() == 1, inside)
    np.testing.assert_array_equal(answer["y"][inside], edges[inside])


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("opset", [LEAST_OPSET, 20])
def test_every_float_type_is_kept_bit_by_bit_and_non_finite_ones_are_marked(kind, opset):
    dtype = FLOATS[kind]
    limits = np.finfo(dtype)
    finite = np.array([0.0, -0.0, limits.tiny, limits.smallest_subnormal, limits.max, limits.min, 1.5], dtype)
    values = np.concatenate([finite, np.array([np.nan, np.inf, -np.inf], dtype)])[:, None]
    made = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "typed",
        [helper.make_tensor_value_info("x", kind, ["batch", 1])],
        [helper.make_tensor_value_info("y", kind, ["batch", 1])],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    answer = run(guarded(plain, {}, {}, "valid"), {"x": values})
    assert answer["y"][: len(finite)].tobytes() == finite[:, None].tobytes()
    np.testing.assert_array_equal(answer["y"][len(finite) :], 0)
    np.testing.assert_array_equal(answer["valid"].ravel(), [1] * len(finite) + [0] * 3)
    untouched = run(guarded(plain, {}, {"x": Limits(finite=False)}, "valid"), {"x": values})
    assert untouched["y"].tobytes() == values.tobytes()
    np.testing.assert_array_equal(untouched["valid"], np.ones((len(values), 1)))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_number_of_rows_and_inputs_without_values_to_guard(rows):
    made = helper.make_graph(
        [helper.make_node("Identity", ["text"], ["y"])],
        "texts",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["batch", 1])],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    answer = run(guarded(plain, {}, {}, "valid"), {"text": np.full((rows, 1), "a", dtype=object)})
    assert answer["valid"].shape == (rows, 1) and (answer["valid"] == 1).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_elements_are_not_marked(rows):
    made = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "ragged",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length"])],
        [numpy_helper.from_array(np.arange(ENTRIES, dtype=np.float32), "table")],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = guarded(plain, graph.index_ranges(plain), {}, "valid")
    answer = run(made, {"ids": np.zeros((rows, 0), np.int64)})
    assert answer["valid"].tolist() == [[1.0]] * rows
    assert [axis.dim_param or axis.dim_value for axis in made.graph.output[-1].type.tensor_type.shape.dim] == [
        "batch",
        1,
    ]


def test_a_tensor_of_the_models_own_that_has_the_name_of_the_mask_is_renamed():
    plain = mixed(17, output="valid")
    made = guarded(plain, graph.index_ranges(plain), {}, "valid")
    onnx.checker.check_model(made, full_check=True)
    feed = {"ids": np.zeros((2, 3), np.int64), "x": np.ones((2, 3, 2), np.float32), "kind": np.array([0, 9], np.int32)}
    answer = run(made, feed)
    assert answer.pop("valid").tolist() == [[1.0], [0.0]]
    (renamed,) = answer.values()
    assert renamed[:1].tobytes() == run(plain, {name: array[:1] for name, array in feed.items()})["valid"].tobytes()


def test_a_name_that_an_input_has_and_an_opset_that_is_too_old_are_refused():
    with pytest.raises(ValueError, match="ids is an input"):
        guarded(mixed(17), {}, {}, "ids")
    old = mixed(17)
    old.opset_import[0].version = LEAST_OPSET - 1
    assert not can_guard(old)
    with pytest.raises(ValueError, match="opset 8"):
        guarded(old, {}, {}, "valid")


def test_inner_bodies_read_the_guarded_input_and_their_own_tensors_stay_theirs():
    then = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["picked"])],
        "then",
        [],
        [helper.make_tensor_value_info("picked", TensorProto.FLOAT, ["batch"])],
    )
    other = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["chosen"]), helper.make_node("Neg", ["chosen"], ["negative"])],
        "else",
        [],
        [helper.make_tensor_value_info("negative", TensorProto.FLOAT, ["batch"])],
    )
    made = helper.make_graph(
        [
            helper.make_node("Shape", ["ids"], ["shape"]),
            helper.make_node("Less", ["shape", "three"], ["few"]),
            helper.make_node("Squeeze", ["few"], ["is_few"]),
            helper.make_node("If", ["is_few"], ["y"], then_branch=then, else_branch=other),
        ],
        "branches",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [
            numpy_helper.from_array(np.arange(1, ENTRIES + 1, dtype=np.float32), "table"),
            numpy_helper.from_array(np.array([3], np.int64), "three"),
        ],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    safe = guarded(plain, graph.index_ranges(plain), {}, "valid")
    few = run(safe, {"ids": np.array([2, ENTRIES], np.int64)})
    assert (few["y"].tolist(), few["valid"].tolist()) == ([3.0, 1.0], [[1.0], [0.0]])
    many = run(safe, {"ids": np.array([2, -1, 6], np.int64)})
    assert (many["y"].tolist(), many["valid"].tolist()) == ([-3.0, -1.0, -7.0], [[1.0], [0.0], [1.0]])


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("lowest", [None, -5, 0.5, 3, 200, 2.0**40])
@pytest.mark.parametrize("highest", [None, -1, 4.5, 7, 250, 2.0**40])
def test_limits_on_integers_mean_what_they_say(kind, lowest, highest):
    limits = np.iinfo(INTEGERS[kind])
    edges = [-6, -5, -1, 0, 1, 3, 4, 5, 7, 8, 199, 200, 250, 251, 2**40, 2**40 + 1, 2**63, limits.min, limits.max]
    values = np.array([value for value in edges if limits.min <= value <= limits.max], INTEGERS[kind])
    made = helper.make_graph(
        [helper.make_node("Identity", ["n"], ["y"])],
        "integers",
        [helper.make_tensor_value_info("n", kind, ["batch"])],
        [helper.make_tensor_value_info("y", kind, ["batch"])],
    )
    plain = helper.make_model(made, opset_imports=[helper.make_opsetid("", LEAST_OPSET)], ir_version=8)
    answer = run(guarded(plain, {}, {"n": Limits(minimum=lowest, maximum=highest)}, "valid"), {"n": values})
    # An unsigned number of 64 bits cannot be compared in a wider type: without an upper limit it is not guarded here.
    free = kind == TensorProto.UINT64 and highest is None
    inside = [
        free or ((lowest is None or number >= lowest) and (highest is None or number <= highest))
        for number in values.tolist()
    ]
    assert answer["valid"].ravel().tolist() == [float(good) for good in inside]
    np.testing.assert_array_equal(answer["y"][inside], values[inside])
