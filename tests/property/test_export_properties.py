from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

from brim.errors import ModelFileError
from brim_export import graph, onnx_source
from brim_export.compare import deviation
from brim_export.graph import IndexRange, TensorSpec
from brim_export.rows import HOSTILITIES, NUMPY_TYPES, RowSource, stack, take
from brim_export.session import RunFailed, Session

FLOATS = arrays.arrays(np.float32, st.integers(0, 6), elements=st.floats(width=32))


@given(FLOATS)
def test_nothing_deviates_from_itself(values):
    assert (deviation(values, values.copy()) == 0).all()


@given(FLOATS, st.data())
def test_deviation_is_symmetric_and_zero_only_for_equal_values(values, data):
    other = data.draw(arrays.arrays(np.float32, values.shape, elements=st.floats(width=32)))
    apart = deviation(values, other)
    np.testing.assert_array_equal(apart, deviation(other, values))
    assert not np.isnan(apart).any()
    np.testing.assert_array_equal(apart == 0, (values == other) | (np.isnan(values) & np.isnan(other)))


@given(arrays.arrays(np.int64, 5), arrays.arrays(np.int64, 5))
def test_unequal_integers_are_never_closer_than_one(left, right):
    apart = deviation(left, right)
    np.testing.assert_array_equal(apart == 0, left == right)
    assert (apart[left != right] >= 1).all()


def lookup(rows: int, depth: int) -> onnx.ModelProto:
    steps = [
        helper.make_node("Identity", ["ids" if level == 0 else f"i{level - 1}"], [f"i{level}"])
        for level in range(depth)
    ]
    found = helper.make_graph(
        [*steps, helper.make_node("Gather", ["table", f"i{depth - 1}" if depth else "ids"], ["y"])],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "table")],
    )
    return helper.make_model(found, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 50), depth=st.integers(0, 3))
def test_the_range_found_is_what_the_runtime_accepts(tmp_path_factory, rows, depth):
    made = lookup(rows, depth)
    valid = graph.index_ranges(made)["ids"]
    path = tmp_path_factory.mktemp("lookup") / "m.onnx"
    onnx.save(made, str(path))
    session = Session(path)
    ends = session.run({"ids": np.array([valid.minimum, valid.maximum])})["y"]
    wrapped = session.run({"ids": np.array([-(valid.maximum + 1), -1])})["y"]
    np.testing.assert_array_equal(ends, wrapped)
    for outside in (valid.maximum + 1, -(valid.maximum + 2)):
        with pytest.raises(RunFailed, match=r"out of data bounds|out of bounds"):
            session.run({"ids": np.array([outside])})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_is_refused_or_reads_as_a_whole_model(tmp_path_factory, data):
    whole = lookup(40, 2).SerializeToString()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / "m.onnx"
    path.write_bytes(whole[:cut])
    try:
        model = onnx_source.read(path)
    except ModelFileError as error:
        assert str(path) in error.message
    else:
        assert model.graph.node
        assert model.opset_import


@settings(max_examples=60, deadline=None)
@given(
    datatype=st.sampled_from(sorted(NUMPY_TYPES)),
    fixed=st.integers(1, 3),
    size=st.integers(1, 5),
    rows=st.integers(1, 7),
    kind=st.sampled_from(HOSTILITIES),
    top=st.integers(0, 100),
    seed=st.integers(0, 2**32),
)
def test_rows_drawn_have_the_type_the_shape_and_the_range(datatype, fixed, size, rows, kind, top, seed):
    spec = TensorSpec("x", datatype, ("batch", fixed, "length"))
    ranged = "INT" in datatype
    source = RowSource([spec], {"x": IndexRange(0, top)} if ranged else {})
    rng = np.random.default_rng(seed)
    assert source.symbols() == ["length"]
    for feed in (
        source.rows(rng, rows, {"length": size}),
        source.hostile(rng, kind, rows, {"length": size}, unranged=True),
    ):
        assert feed["x"].dtype == NUMPY_TYPES[datatype]
        assert feed["x"].shape == (rows, fixed, size)
        if ranged:
            assert feed["x"].min() >= 0
            assert feed["x"].max() <= top


@given(arrays.arrays(np.int64, st.tuples(st.integers(1, 8), st.just(2))), st.randoms())
def test_taking_all_rows_apart_and_stacking_them_is_the_identity(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    shuffled = stack([take({"x": values}, [row]) for row in order])
    back = take(shuffled, [order.index(row) for row in range(len(values))])
    np.testing.assert_array_equal(back["x"], values)
