from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.errors import ModelFileError
from brim_export import graph
from brim_export.graph import IndexRange


def table(rows: int, width: int = 3, name: str = "table") -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros((rows, width), np.float32), name)


def numbers(name: str, values: list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(nodes, *, inputs, outputs=("y",), initializers=(), functions=(), opset=20, extra_domains=()):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    made = helper.make_graph(nodes, "g", values, results, list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in extra_domains)]
    return helper.make_model(made, opset_imports=imports, functions=list(functions), ir_version=10)


IDS = [("ids", TensorProto.INT64, ["batch", "length"])]


def test_an_index_input_has_the_range_of_its_table():
    made = model([helper.make_node("Gather", ["table", "ids"], ["y"])], inputs=IDS, initializers=[table(7)])
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 6)}


def test_the_axis_of_the_gather_decides_which_size_counts():
    made = model([helper.make_node("Gather", ["table", "ids"], ["y"], axis=-1)], inputs=IDS, initializers=[table(7, 3)])
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 2)}


@pytest.mark.parametrize(
    "steps",
    [
        [helper.make_node("Identity", ["ids"], ["i"])],
        [helper.make_node("Cast", ["ids"], ["i"], to=TensorProto.INT32)],
        [helper.make_node("Unsqueeze", ["ids", "one"], ["i"])],
        [helper.make_node("Reshape", ["ids", "flat"], ["i"])],
        [helper.make_node("Transpose", ["ids"], ["t"]), helper.make_node("Flatten", ["t"], ["i"])],
        [helper.make_node("Concat", ["ids", "one_row"], ["i"], axis=0)],
        [helper.make_node("Slice", ["ids", "zero", "one"], ["i"])],
    ],
    ids=lambda steps: "+".join(step.op_type for step in steps),
)
def test_a_range_is_followed_through_operators_that_keep_values(steps):
    made = model(
        [*steps, helper.make_node("Gather", ["table", "i"], ["y"])],
        inputs=IDS,
        initializers=[
            table(9),
            numbers("one", [1]),
            numbers("zero", [0]),
            numbers("flat", [-1]),
            numpy_helper.from_array(np.zeros((1, 2), np.int64), "one_row"),
        ],
    )
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 8)}


@pytest.mark.parametrize("operator", ["Add", "Mod", "Max"])
def test_no_range_is_claimed_through_operators_that_change_values(operator):
    made = model(
        [helper.make_node(operator, ["ids", "one"], ["i"]), helper.make_node("Gather", ["table", "i"], ["y"])],
        inputs=IDS,
        initializers=[table(9), numbers("one", [1])],
    )
    assert graph.index_ranges(made) == {}


def test_the_tightest_of_several_tables_counts():
    made = model(
        [
            helper.make_node("Gather", ["large", "ids"], ["a"]),
            helper.make_node("Gather", ["small", "ids"], ["b"]),
            helper.make_node("Gather", ["middle", "ids"], ["c"]),
        ],
        inputs=IDS,
        outputs=("a", "b", "c"),
        initializers=[table(50, name="large"), table(4, name="small"), table(20, name="middle")],
    )
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 3)}


def test_each_input_has_its_own_range():
    made = model(
        [
            helper.make_node("Gather", ["words", "ids"], ["a"]),
            helper.make_node("Gather", ["kinds", "types"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        inputs=[
            *IDS,
            ("types", TensorProto.INT64, ["batch", "length"]),
            ("mask", TensorProto.INT64, ["batch", "length"]),
        ],
        initializers=[table(30, name="words"), table(2, name="kinds")],
    )
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 29), "types": IndexRange(0, 1)}


def test_a_value_input_of_gather_is_no_index():
    made = model(
        [helper.make_node("Gather", ["x", "places"], ["y"], axis=1)],
        inputs=[("x", TensorProto.FLOAT, ["batch", 5])],
        initializers=[numbers("places", [0, 2])],
    )
    assert graph.index_ranges(made) == {}


def test_indices_of_gather_elements_and_gather_nd():
    pairs = [("ids", TensorProto.INT64, ["batch", 1])]
    elements = model(
        [helper.make_node("GatherElements", ["table", "ids"], ["y"])], inputs=pairs, initializers=[table(6)]
    )
    nd = model([helper.make_node("GatherND", ["table", "ids"], ["y"])], inputs=pairs, initializers=[table(6)])
    assert graph.index_ranges(elements) == graph.index_ranges(nd) == {"ids": IndexRange(0, 5)}


def test_components_of_gather_nd_have_the_sizes_of_their_axes():
    made = model(
        [
            helper.make_node("Concat", ["row", "column"], ["place"], axis=-1),
            helper.make_node("GatherND", ["table", "place"], ["y"]),
        ],
        inputs=[("row", TensorProto.INT64, ["batch", 1]), ("column", TensorProto.INT64, ["batch", 1])],
        initializers=[table(6, 3)],
    )
    assert graph.index_ranges(made) == {"column": IndexRange(0, 2), "row": IndexRange(0, 5)}


def test_a_quantised_table_is_a_table():
    made = model(
        [helper.make_node("DequantizeLinear", ["q", "scale"], ["t"]), helper.make_node("Gather", ["t", "ids"], ["y"])],
        inputs=IDS,
        initializers=[
            numpy_helper.from_array(np.zeros((11, 3), np.uint8), "q"),
            numpy_helper.from_array(np.float32(0.1), "scale"),
        ],
    )
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 10)}


def test_a_gather_inside_a_branch_and_a_function_is_found():
    then = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Gather", ["small", "ids"], ["o"])], "else", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    branch = model(
        [helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        inputs=[*IDS, ("flag", TensorProto.BOOL, [])],
        initializers=[table(9), table(5, name="small")],
    )
    look_up = helper.make_function(
        "own",
        "LookUp",
        ["t", "i"],
        ["o"],
        [helper.make_node("Gather", ["t", "i"], ["o"])],
        [helper.make_opsetid("", 20)],
    )
    function = model(
        [helper.make_node("LookUp", ["table", "ids"], ["y"], domain="own")],
        inputs=IDS,
        initializers=[table(9)],
        functions=[look_up],
        extra_domains=["own"],
    )
    assert graph.index_ranges(branch) == {"ids": IndexRange(0, 4)}
    assert graph.index_ranges(function) == {"ids": IndexRange(0, 8)}


def test_the_fused_embedding_of_onnx_runtime():
    made = model(
        [
            helper.make_node(
                "EmbedLayerNormalization",
                ["ids", "types", "words", "places", "kinds", "g", "b"],
                ["y", "m"],
                domain="com.microsoft",
            )
        ],
        inputs=[("ids", TensorProto.INT32, ["batch", "length"]), ("types", TensorProto.INT32, ["batch", "length"])],
        initializers=[table(30, name="words"), table(12, name="places"), table(2, name="kinds")],
        extra_domains=["com.microsoft"],
    )
    assert graph.index_ranges(made) == {"ids": IndexRange(0, 29), "types": IndexRange(0, 1)}


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "RandomNormalLike"])
def test_random_operators_are_named(operator):
    attributes = {"shape": [2, 2]} if operator in ("RandomNormal", "RandomUniform") else {}
    given = [] if attributes else ["x"]
    made = model([helper.make_node(operator, given, ["y"], name="dice", **attributes)], inputs=[("x", 1, ["batch", 2])])
    assert graph.random_operators(made) == [f"{operator} (dice)"]


def test_a_random_operator_in_a_loop_body_is_found():
    body = helper.make_graph(
        [
            helper.make_node("RandomNormal", [], ["r"], shape=[1], name="dice"),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("r", 1, [1])],
    )
    made = model([helper.make_node("Loop", ["n", ""], ["y"], body=body)], inputs=[("n", TensorProto.INT64, [])])
    assert graph.random_operators(made) == ["RandomNormal (dice)"]


def dropout(flag: bool | None, opset: int = 20):
    given = ["x"] if flag is None else ["x", "ratio", "flag"]
    constants = (
        []
        if flag is None
        else [numpy_helper.from_array(np.float32(0.5), "ratio"), numpy_helper.from_array(np.bool_(flag), "flag")]
    )
    return model(
        [helper.make_node("Dropout", given, ["y"], name="drop")],
        inputs=[("x", 1, ["batch", 2])],
        initializers=constants,
        opset=opset,
    )


def normalisation(opset: int, outputs: int = 1, **attributes):
    return model(
        [
            helper.make_node(
                "BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "om", "ov"][:outputs], name="norm", **attributes
            )
        ],
        inputs=[("x", 1, ["batch", 2])],
        opset=opset,
    )


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (dropout(True), ["Dropout (drop)"]),
        (dropout(False), []),
        (dropout(None), []),
        (dropout(None, opset=6), ["Dropout (drop)"]),
        (normalisation(20, training_mode=1), ["BatchNormalization (norm)"]),
        (normalisation(20), []),
        (normalisation(9, outputs=3), ["BatchNormalization (norm)"]),
        (normalisation(9), []),
        (normalisation(6), ["BatchNormalization (norm)"]),
        (normalisation(6, is_test=1), []),
    ],
)
def test_training_mode_is_found_by_the_rules_of_each_opset(made, found):
    assert graph.training_operators(made) == found


def test_initializers_that_are_also_inputs_are_not_asked_from_callers():
    made = model(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        inputs=[*IDS, ("table", 1, [7, 3])],
        initializers=[table(7)],
    )
    assert [spec.name for spec in graph.inputs(made)] == ["ids"]
    assert graph.inputs(made)[0].shape == ("batch", "length")


def test_a_sequence_of_maps_is_no_tensor():
    made = model([helper.make_node("Identity", ["x"], ["y"])], inputs=[("x", 1, ["batch"])])
    made.graph.output[0].CopyFrom(
        helper.make_value_info("scores", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)))
    )
    with pytest.raises(ModelFileError, match="output scores is a sequence, not a tensor"):
        graph.outputs(made)


def test_an_element_type_that_cannot_be_served_is_named():
    made = model([helper.make_node("Identity", ["x"], ["y"])], inputs=[("x", TensorProto.COMPLEX64, ["batch"])])
    with pytest.raises(ModelFileError, match="input x has element type COMPLEX64"):
        graph.inputs(made)
