"""The torch route. The functions below are factories, named to the exporter as this module's own."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from brim.errors import InputError, ModelFileError
from brim_export import pipeline
from brim_export.session import Session
from brim_export.source import TorchSource

CASES = Path(__file__).resolve().parent.parent / "cases"


def case(name: str):
    spec = importlib.util.spec_from_file_location(name, CASES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def calls(function, example=None):
    return Calls(function).eval(), {"x": torch.randn(2, 4) if example is None else example}


def case_01():
    module = case("01_batch_one_branch")
    return module.MODEL, {"x": module.EXAMPLE[0]}


def case_03():
    module = case("03_batchnorm_no_running_stats")
    return module.MODEL, {"x": module.EXAMPLE[0]}


def linear_with_one_row():
    return nn.Linear(4, 3).eval(), {"input": torch.zeros(1, 4)}


def literal_two():
    return calls(lambda x: x.view(2, 4) * 2)


def literal_one():
    return calls(lambda x: x.view(1, 4) * 2, torch.zeros(1, 4))


def merged_rows():
    return calls(lambda x: x.view(-1, 8) * 2)


def loop_over_rows():
    return calls(lambda x: torch.stack([x[row] * 2 for row in range(x.shape[0])]))


def first_row_dropped():
    return calls(lambda x: x[1:] * 2, torch.randn(4, 4))


def other_arithmetic_from_fifty_rows():
    return calls(lambda x: x * 2 if x.shape[0] < 50 else x * 3)


def branch_on_values():
    return calls(lambda x: x + 1 if x.sum() > 0 else x - 1)


def scalar_input():
    class Scaled(nn.Module):
        def forward(self, x, t):
            return x * t

    return Scaled().eval(), {"x": torch.ones(2, 3), "t": torch.tensor(2.0)}


def squeezed():
    return calls(lambda x: x.squeeze() * 2)


def norm_over_the_batch():
    return calls(lambda x: x / x.norm(dim=0, keepdim=True))


def leaking_cumsum():
    return calls(lambda x: x + 0 * torch.cumsum(x, 0))


def fixed_output():
    return calls(lambda x: (x * 2, torch.ones(1, 3) * 2))


def rows_that_filter():
    return calls(lambda x: x[x[:, 0] > 0])


def dropout_in_train_mode():
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), {"x": torch.zeros(2, 4)}


def batch_norm_in_train_mode():
    return nn.Sequential(nn.BatchNorm1d(4)), {"x": torch.randn(2, 4)}


def noise():
    return calls(lambda x: x + torch.randn_like(x))


def exported_otherwise():
    return calls(lambda x: x * 2.01 if torch.compiler.is_exporting() else x * 2)


REFUSED = {
    "case_01": ("batch_axis", "input x axis 0 is 1, wanted symbolic: forward() decides by the number of rows (Eq(rows, 1) at 01_batch"),
    "case_03": ("row_independence", "output of a row depends on other rows"),
    "literal_two": ("batch_axis", "input x axis 0 is 2, wanted symbolic"),
    "literal_one": ("batch_axis", "fails at 2 rows: RuntimeError: shape '[1, 4]' is invalid"),
    "merged_rows": ("batch_axis", "input x axis 0 is 2, wanted symbolic"),
    "loop_over_rows": ("batch_axis", "input x axis 0 is 2, wanted symbolic"),
    "first_row_dropped": ("batch_axis", "input x axis 0 is tied to certain sizes, wanted symbolic"),
    "other_arithmetic_from_fifty_rows": ("batch_axis", "input x axis 0 is tied to certain sizes, wanted symbolic"),
    "branch_on_values": ("row_independence", "forward() branches on values of the whole batch at test_export_torch.py:"),
    "scalar_input": ("batch_axis", "input t has no axes (a scalar), wanted axis 0 symbolic"),
    "squeezed": ("rows_preserved", "output output axis 0: wanted as many rows as went in, found 4 for 1 rows in"),
    "norm_over_the_batch": ("row_independence", "output output axis 0: output of a row depends on other rows"),
    "leaking_cumsum": ("row_independence", "the others holding NaN"),
    "fixed_output": ("batch_axis", "output output_1 axis 0 is 1, wanted symbolic"),
    "rows_that_filter": ("rows_preserved", "wanted as many rows as went in"),
    "dropout_in_train_mode": ("inference_mode", "layers in train mode, wanted eval mode: the module itself, 0, 1"),
    "batch_norm_in_train_mode": ("inference_mode", "layers in train mode, wanted eval mode: the module itself, 0"),
    "noise": ("deterministic", "operator RandomNormalLike"),
    "exported_otherwise": ("parity", "output output differs from torch by"),
}  # fmt: skip


def source(name: str) -> TorchSource:
    return TorchSource(f"{__name__}:{name}")


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_share_batches_is_refused_and_nothing_is_written(name, tmp_path, capfd):
    gate, message = REFUSED[name]
    result = pipeline.export(source(name), tmp_path / "out", on_progress=None)
    answers = {item.gate: item for item in result.gates}
    assert list(answers) == [
        "inference_mode",
        "batch_axis",
        "rows_preserved",
        "parity",
        "row_independence",
        "deterministic",
    ]
    assert not answers[gate].ok
    assert message in answers[gate].message
    assert "Remedy: " in answers[gate].message
    assert (result.ok, result.artifact, result.model_path) == (False, None, None)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_layer_without_statistics_is_named(tmp_path):
    answers = {item.gate: item for item in pipeline.export(source("case_03"), tmp_path / "out").gates}
    assert "layer bn (BatchNorm1d) has no running statistics" in answers["inference_mode"].message


def test_a_plain_linear_layer_with_a_one_row_example_passes(tmp_path):
    result = pipeline.export(source("linear_with_one_row"), tmp_path / "out")
    assert pipeline.require(result).inputs[0].shape == [-1, 4]
    assert result.artifact.inputs[0].axes == ["batch", None]
    session = Session(result.model_path)
    assert [session.run({"input": np.zeros((rows, 4), np.float32)})["output"].shape for rows in (1, 57, 100)] == [
        (1, 3),
        (57, 3),
        (100, 3),
    ]


class Tokens(nn.Module):
    """Mean of embeddings over a mask, with a table of 40 positions; ``leak`` lets masked positions count."""

    def __init__(self, leak: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 6), nn.Embedding(40, 6)
        self.leak = leak

    def forward(self, ids, mask):
        places = self.places.weight[: ids.shape[1]]
        weight = mask.float().unsqueeze(-1) + self.leak
        mean = ((self.words(ids) + places) * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return {"mean": mean, "longest": mask.sum(1)}


TOKENS = {"ids": torch.arange(8).view(2, 4), "mask": torch.ones(2, 4, dtype=torch.int64)}
LENGTH = {"ids": {1: "length"}, "mask": {1: "length"}}


def tokens():
    return Tokens().eval(), TOKENS, None, LENGTH


def tokens_leaking():
    return Tokens(leak=0.01).eval(), TOKENS, None, LENGTH


def with_one_token():
    return Tokens().eval(), {name: values[:, :1] for name, values in TOKENS.items()}, None, LENGTH


def test_symbolic_axes_ranges_and_limits_come_from_the_graph(tmp_path):
    artifact = pipeline.require(pipeline.export(source("tokens"), tmp_path / "out"))
    assert [(item.name, item.datatype, item.shape, item.axes) for item in artifact.inputs] == [
        ("ids", "INT64", [-1, -1], ["batch", "length"]),
        ("mask", "INT64", [-1, -1], ["batch", "length"]),
    ]
    assert [(item.name, item.datatype, item.shape) for item in artifact.outputs] == [
        ("mean", "FP32", [-1, 6]),
        ("longest", "INT64", [-1]),
    ]
    assert artifact.index_ranges["ids"].model_dump() == {"minimum": 0, "maximum": 49}
    assert artifact.axis_limits == {"length": 40}


def test_an_axis_that_torch_fixed_is_refused(tmp_path):
    answers = {item.gate: item for item in pipeline.export(source("with_one_token"), tmp_path / "out").gates}
    assert "input ids axis 1 is 1, wanted symbolic (length)" in answers["batch_axis"].message


HOOKED = """
from {module} import {factory} as factory
import numpy as np

def row_samples(rng, rows, axis_sizes):
    width = axis_sizes["length"]
    mask = np.arange(width) < rng.integers(1, width, size=(rows, 1), endpoint=True)
    return {{"ids": np.where(mask, rng.integers(0, 50, size=(rows, width)), 0), "mask": mask.astype(np.int64)}}

def pad_rows(inputs, axis_sizes):
    return {{name: np.pad(values, ((0, 0), (0, axis_sizes["length"] - values.shape[1]))) for name, values in inputs.items()}}
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module, importable by the name that is given back."""
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "modules").mkdir()
    count = iter(range(100))

    def write(text: str) -> str:
        name = f"brim_export_written_{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / "modules" / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


@pytest.mark.parametrize(("factory", "ok"), [("tokens", True), ("tokens_leaking", False)])
def test_hooks_let_the_gate_see_what_padding_does(written, tmp_path, factory, ok):
    name = written(HOOKED.format(module=__name__, factory=factory))
    answers = {item.gate: item for item in pipeline.export(TorchSource(f"{name}:factory"), tmp_path / "out").gates}
    assert answers["row_independence"].ok is ok
    if not ok:
        assert (
            "output mean axis 0: output of a row depends on other rows: padded from length 1"
            in answers["row_independence"].message
        )


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("def row_samples(rng, rows, axis_sizes): return {'ids': 1}", "row_samples gave ids as int64"),
        ("def row_samples(rng, rows, axis_sizes): return {}", "row_samples gave no ids"),
        ("def row_samples(rng, rows, axis_sizes): return 1", "row_samples gave a int, expected a mapping"),
        ("def row_samples(rng, rows, axis_sizes): return 1 / 0", "row_samples raised ZeroDivisionError"),
        ("def pad_rows(inputs, axis_sizes): return inputs", "pad_rows gave ids as int64"),
    ],
)
def test_a_hook_that_gives_something_else_is_named(written, tmp_path, hook, message):
    name = written(f"from {__name__} import tokens as factory\n{hook}\n")
    with pytest.raises(InputError, match=message):
        pipeline.export(TorchSource(f"{name}:factory"), tmp_path / "out")


ANSWERS = {
    "return 1": "returned a int, expected",
    "return (1, 2, 3, 4, 5)": "returned a tuple of 5, expected",
    "return 'm', {}": "first item is a str, expected a torch.nn.Module",
    "return nn.Linear(2, 2).eval(), [1]": "second item is no mapping",
    "return nn.Linear(2, 2).eval(), {}": "second item is no mapping",
    "return nn.Linear(2, 2).eval(), {'x': [1]}": "input 'x' has a list, expected a tensor",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(0, 2)}": "same number of rows, at least one",
    "return nn.Bilinear(2, 2, 2).eval(), {'x': torch.zeros(2, 2), 'y': torch.zeros(3, 2)}": "same number of rows, at least one",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, 'y'": "must list output names",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, ['y', 'z']": "2 output names for 1 outputs",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, ['x']": "the name x stands for more than one tensor",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, None, {'input': {1: 'w'}}": "dynamic axes name 'input', which is no input",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, None, {'x': {0: 'w'}}": "axis 0 is the batch already",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, None, {'x': {1: 'batch'}}": "needs a name other than 'batch'",
    "return nn.Linear(2, 2).eval(), {'x': torch.zeros(2, 2)}, None, {'x': 'w'}": "dynamic axes must look like",
    "return nn.LSTM(2, 2, batch_first=True).eval(), {'x': torch.zeros(2, 1, 2)}": "is a tuple, not a tensor",
}  # fmt: skip


@pytest.mark.parametrize("body", ANSWERS)
def test_an_answer_of_another_form_is_refused(written, tmp_path, body):
    name = written(f"import torch\nfrom torch import nn\ndef factory():\n    {body}\n")
    with pytest.raises(InputError) as caught:
        pipeline.export(TorchSource(f"{name}:factory"), tmp_path / "out")
    assert ANSWERS[body] in caught.value.message
    assert f"{name}:factory" in caught.value.message


@pytest.mark.parametrize(
    ("text", "factory", "kind", "message"),
    [
        ("", "factory", InputError, "has no function factory"),
        ("import not_to_be_found_anywhere", "factory", InputError, "needs the module not_to_be_found_anywhere"),
        ("raise RuntimeError('half way')", "factory", InputError, "raised RuntimeError: half way"),
        ("def factory(): raise ValueError('no weights')", "factory", ModelFileError, "raised ValueError: no weights"),
        ("def factory(needed): pass", "factory", ModelFileError, "raised TypeError"),
        (
            "import torch\ndef factory(): return torch.nn.Linear(4, 3).eval(), {'x': torch.zeros(2, 5)}",
            "factory",
            ModelFileError,
            "does not run its own example",
        ),
    ],
)
def test_a_factory_that_fails_is_explained(written, tmp_path, text, factory, kind, message):
    name = written(text)
    with pytest.raises(kind) as caught:
        pipeline.export(TorchSource(f"{name}:{factory}"), tmp_path / "out")
    assert message in caught.value.message
    assert caught.value.hint


def test_a_module_that_is_not_there(tmp_path):
    for name in ("no_such_module_at_all", "brim_export.no_such_module"):
        with pytest.raises(InputError, match=f"there is no module {name}"):
            pipeline.export(TorchSource(f"{name}:factory"), tmp_path / "out")


@pytest.mark.parametrize("name", ["", "module", "module:", ":function", "a.b:c d", "a..b:c", "a/b.py:c", "a:b:c"])
def test_a_factory_name_of_another_form(name):
    with pytest.raises(InputError, match=r"package\.module:function"):
        TorchSource(name)


def test_what_torch_writes_holds_no_local_paths_and_is_the_same_twice(tmp_path):
    first = pipeline.export(source("tokens"), tmp_path / "first").model_path
    second = pipeline.export(source("tokens"), tmp_path / "second").model_path
    assert first.read_bytes() == second.read_bytes()
    assert b"site-packages" not in first.read_bytes()
    assert str(Path(__file__).parent).encode() not in first.read_bytes()
    assert {item.name: item.read_bytes() for item in first.parent.iterdir()} == {
        item.name: item.read_bytes() for item in second.parent.iterdir()
    }
    onnx.checker.check_model(str(first), full_check=True)


def test_weights_beyond_what_protobuf_holds_go_to_a_file_of_their_own(tmp_path, monkeypatch):
    from brim_export import torch_source

    monkeypatch.setattr(torch_source, "EXTERNAL_DATA_FROM", 16)
    result = pipeline.export(source("linear_with_one_row"), tmp_path / "out")
    assert sorted(pipeline.require(result).files) == ["model.guarded.onnx", "model.onnx", "model.onnx.data"]
    shutil.move(tmp_path / "out", tmp_path / "moved")
    assert Session(tmp_path / "moved" / "model.onnx").run({"input": np.zeros((3, 4), np.float32)})["output"].shape == (
        3,
        3,
    )
