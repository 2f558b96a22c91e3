"""Commands against input that is wrong, hostile or clumsy: one clear error with a hint, and everything left as it was."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brim.errors import BrimError, InputError
from brim.paths import Project
from brim.server.embedded import check_path
from brim_export import bring, placement
from tests.conftest import Brim
from tests.server.doubler import SERVICE, doubling_graph, make_project

PATIENCE_S = 120


Tree = dict[str, bytes | str | None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path / "checkout")
    monkeypatch.setenv("BRIM_ROOT", str(made.root))
    monkeypatch.chdir(made.root)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


@pytest.fixture
def brim(project: Project, brim: Brim) -> Brim:
    """The command in this process, in the project of the test."""
    return brim


def in_a_process(project: Project, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "brim", *arguments],
        **{
            "cwd": project.root,
            "env": {**os.environ, "BRIM_ROOT": str(project.root)},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "timeout": PATIENCE_S,
            "check": False,
            **options,
        },
    )


def tree(project: Project) -> Tree:
    """Every file, folder and link of a checkout but logs and compiled Python."""
    found: Tree = {}
    for path in project.root.rglob("*"):
        if path.is_relative_to(project.cache / "logs") or path == project.cache or "__pycache__" in path.parts:
            continue
        where = str(path.relative_to(project.root))
        found[where] = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def assert_clear(err: str) -> None:
    assert err.count("error: ") == 1, err
    assert err.count("\nhint: ") == 1, err
    assert "Traceback" not in err and "a bug in brim" not in err


def test_no_error_is_without_a_hint() -> None:
    kinds = [BrimError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds:
        with pytest.raises(TypeError):
            kind()
        try:
            error = kind("what is wrong")
        except TypeError:
            continue
        assert error.hint, kind


def changed(old: str, new: str) -> str:
    assert old in SERVICE
    return SERVICE.replace(old, new)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)
SAMPLE, SHAPE = "[1, 2, 3, 4]", "shape: [4]}\noutputs"
SERVICE_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "found nothing"),
    "null": ("null\n", "found nothing"),
    "list": ("- a\n", "found a list"),
    "text": ("hello\n", "found a single value"),
    "binary": (bytes(range(256)), "not UTF-8 (byte 128)"),
    "NUL": ("name: a\0b\n", "special characters are not allowed"),
    "UTF-16": (SERVICE.encode("utf-16"), "not UTF-8 (byte 0)"),
    "Latin-1": ("description: é\n".encode("latin-1"), "not UTF-8 (byte 13)"),
    "tabs": ("name: doubler\nmodel:\n\tonnx: x\n", "not valid YAML"),
    "deep": ("name: " + "{a: " * 900 + "1" + "}" * 900, "recursion depth"),
    "nested": (f"{SERVICE}x: {'[' * 60}{']' * 60}\n", "nested more than 40 deep"),
    "aliases that multiply": (SERVICE + BOMB, "more than 500000 values"),
    "alias in its own anchor": ("&a\nname: doubler\nmodel: *a\n", "an alias inside its own anchor"),
    "merge key": (f"{SERVICE}<<: 3\n", "for merging"),
    "key twice": (f"{SERVICE}name: doubler\n", 'duplicate key "name"'),
    "unknown alias": ("name: *nope\n", "undefined alias"),
    "two documents": (f"{SERVICE}---\n{SERVICE}", "another document"),
    "number as a name": (changed("name: doubler", "name: 123"), "got 123"),
    "YAML 1.1 yes": ("%YAML 1.1\n---\n" + changed("name: doubler", "name: yes"), "got True"),
    "another file's name": (changed("name: doubler", "name: Doubler"), "name is 'Doubler'"),
    "long name": (changed("name: doubler", f"name: {'d' * 5000}"), "(5002 characters)"),
    "name in other letters": (changed("name: doubler", "name: döbler"), "'döbler'"),
    "nothing for a block": (changed("{onnx: doubler.onnx}", "~"), "got None"),
    "nothing in a list": (changed("- {name: X, dtype: FP32, shape: [4]}", "- ~"), "got None"),
    "keys that are no text": (f"{SERVICE}? [a, b]\n: 1\n", "Keys should be strings"),
    "lines in a tensor's name": (changed("name: X", 'name: "a\\nb"'), "inputs.0.name"),
    "half a character": (changed("name: X", 'name: "\\ud800"'), "inputs.0.name"),
    "not a number": (f"{SERVICE}slo: {{latency_ms: .nan}}\n", "finite number; got nan"),
    "infinite": (f"{SERVICE}slo: {{latency_ms: 1e400}}\n", "got inf"),
    "minus zero": (f"{SERVICE}slo: {{latency_ms: -0.0}}\n", "greater than 0"),
    "text for a number": (f"{SERVICE}max_batch_size: '10'\n", "valid integer; got '10'"),
    "truth for a number": (f"{SERVICE}max_batch_size: true\n", "valid integer; got True"),
    "thousands of digits": (f"{SERVICE}max_batch_size: 0x{'f' * 5000}\n", "too long to write"),
    "size beyond every limit": (changed(SHAPE, f"shape: [{10**20}]}}\noutputs"), f"got {10**20}"),
    "rank beyond every limit": (changed(SHAPE, f"shape: {[1] * 50}}}\noutputs"), "at most 31 items"),
    "GPU beyond every limit": (changed("kind: CPU", "kind: GPU, gpus: [99999999999]"), "instances.0.gpus.0"),
    "limits crossed": (changed(SHAPE, "shape: [4], minimum: 5, maximum: 1}\noutputs"), "above maximum (1)"),
    "infinite cost": (f"{SERVICE}runtime: {{padding: {{fixed_us: .inf, per_token_us: 1}}}}\n", "finite number"),
    "sample of another shape": (changed(SAMPLE, "[1, 2]"), "samples[0].inputs.X: shape [2], expected [4]"),
    "sample of text": (changed(SAMPLE, "[a, 2, 3, 4]"), "'a' is not a number"),
    "sample with nothing": (changed(SAMPLE, "[null, 2, 3, 4]"), "None is not a number"),
    "sample not finite": (changed(SAMPLE, "[.nan, 2, 3, 4]"), "not finite"),
    "sample beyond its type": (changed(SAMPLE, "[1e39, 2, 3, 4]"), "beyond the largest float32"),
    "sample beyond its limits": (
        changed(SHAPE, "shape: [4], maximum: 3}\noutputs"),
        "a value is outside None..3.0",
    ),
    "thousands of faults": ("".join(f"k{key}: 1\n" for key in range(500)), "and 474 more"),
}


@pytest.mark.parametrize("name", SERVICE_FILES)
def test_wrong_service_file(project: Project, brim: Brim, name: str) -> None:
    text, says = SERVICE_FILES[name]
    (project.services / "doubler.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = tree(project)
    for command in (["config", "doubler"], ["config", "--write"], ["export", "doubler"]):
        done = brim(*command)
        assert done.code == 2
        assert_clear(done.err)
        assert says in done.err
        assert len(done.err) < 10_000
    assert tree(project) == before


@pytest.mark.parametrize("kind", ["folder", "loop", "dangling", "elsewhere", "pipe"])
def test_service_file_that_is_no_file(project: Project, brim: Brim, kind: str) -> None:
    path = project.services / "doubler.yaml"
    moved = path.rename(project.root / "elsewhere.yaml")
    {
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path.name),
        "dangling": lambda: path.symlink_to("nowhere"),
        "elsewhere": lambda: path.symlink_to(moved),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    done = brim("config", "doubler")
    assert done.code == 2
    assert_clear(done.err)
    assert "services/doubler.yaml is no file of that folder" in done.err


@pytest.mark.parametrize("name", ["", "../services/doubler", "a" * 5000, "a\nb", "\udcff", "döbler", "."])
def test_name_of_no_service(brim: Brim, name: str) -> None:
    done = brim("config", name)
    assert done.code == 2
    assert_clear(done.err)
    assert "no service" in done.err and len(done.err) < 500


@pytest.mark.parametrize("place", ["services", "model_repository", ".cache"])
def test_file_where_a_folder_belongs(project: Project, brim: Brim, place: str) -> None:
    shutil.copy(project.model_repository / "doubler" / "1" / "model.onnx", project.root / "mine.onnx")
    shutil.rmtree(project.root / place, ignore_errors=True)
    (project.root / place).write_text("", encoding="utf-8")
    before = tree(project)
    done = brim("add", "mine", "--onnx", "mine.onnx")
    assert done.code == 2
    assert_clear(done.err)
    assert place in done.err
    assert tree(project) == before


def test_configuration_of_other_bytes_is_compared_linted_and_replaced(project: Project, brim: Brim) -> None:
    path = project.model_repository / "doubler" / "config.pbtxt"
    good = path.read_bytes()
    path.write_bytes(b"\xff\xfe\0" * 50)
    assert brim("config", "--check").code == 1
    assert brim("lint", "model_repository").code == 1
    assert brim("config", "--write").code == 0
    assert path.read_bytes() == good


def test_pipe_for_a_configuration_is_refused_unread(project: Project, brim: Brim) -> None:
    path = project.model_repository / "doubler" / "config.pbtxt"
    path.unlink()
    os.mkfifo(path)
    for named in ("model_repository", "model_repository/doubler/config.pbtxt"):
        done = brim("lint", named)
        assert done.code == 2
        assert_clear(done.err)


Dims = list[int | str]


def graph(
    kind: int = TensorProto.FLOAT,
    inside: Dims | None = None,
    outside: Dims | None = None,
    *,
    name: str = "X",
    operator: str = "Identity",
    opset: int = 18,
    ir: int = 9,
    weights: list[onnx.TensorProto] | None = None,
) -> bytes:
    """One operator from ``name`` to Y."""
    dims = ["batch", 4] if inside is None else inside
    feeds = [name, *(tensor.name for tensor in weights or [])]
    made = helper.make_graph(
        [helper.make_node(operator, feeds, ["Y"])],
        "g",
        [helper.make_tensor_value_info(name, kind, dims)],
        [helper.make_tensor_value_info("Y", kind, dims if outside is None else outside)],
        weights,
    )
    return bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir).SerializeToString()
    )


def of_type(kind: onnx.TypeProto) -> bytes:
    """A graph whose input is no tensor."""
    model = onnx.ModelProto.FromString(graph())
    model.graph.input[0].type.CopyFrom(kind)
    return bytes(model.SerializeToString())


def with_weights_in(place: str, **entries: str) -> bytes:
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": place, **entries}.items():
        weights.external_data.add(key=key, value=value)
    return graph(operator="Add", weights=[weights])


GOOD = doubling_graph().SerializeToString()
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", 4])
MODELS: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 2, "is empty (0 bytes)"),
    "truncated": (GOOD[:-7], 2, "truncated, corrupt, or not an ONNX model"),
    "text": (b"hello world\n", 2, "not an ONNX model"),
    "web page": (b"<!DOCTYPE html><html><title>Not found</title></html>", 2, "not an ONNX model"),
    "archive": (b"PK\x03\x04" + bytes(100), 2, "not an ONNX model"),
    "pointer to a large file": (b"version https://git-lfs.github.com/spec/v1\n", 2, "Git LFS pointer"),
    "operators of the future": (graph(opset=99), 2, "opset 99"),
    "format of the future": (graph(ir=99), 2, "IR version 99"),
    "fixed batch": (graph(inside=[7, 4]), 1, "X axis 0 is 7, wanted symbolic"),
    "no axes": (graph(inside=[]), 1, "wanted"),
    "no entries": (graph(inside=["batch", 0]), 2, "got 0"),
    "more entries than memory": (graph(inside=["batch", 2**40]), 3, "1099511627776 values"),
    "batch of none": (graph(inside=[0, 4]), 1, "wanted symbolic"),
    "declares another shape": (graph(outside=["batch", 7]), 2, "declared as ['batch', 7], and one row gives [1, 4]"),
    "scalar output": (graph(operator="ReduceSum", outside=[]), 1, "Y"),
    "unserved type": (graph(TensorProto.BFLOAT16), 2, "element type BFLOAT16"),
    "unheard-of type": (graph(999), 2, "element type 999"),
    "sequence": (of_type(helper.make_sequence_type_proto(FLOATS)), 2, "is a sequence, not a tensor"),
    "optional": (of_type(helper.make_optional_type_proto(FLOATS)), 2, "not a tensor"),
    "map": (of_type(helper.make_map_type_proto(TensorProto.INT64, FLOATS)), 2, "is a map, not a tensor"),
    "no type": (of_type(onnx.TypeProto()), 2, "without a type"),
    "unknown operator": (graph(operator="Frobnicate"), 2, "does not load"),
    "lines in a name": (graph(name="a\nb\0"), 2, "inputs.0.name"),
    "name beyond every limit": (graph(name="n" * 3000), 2, "inputs.0.name"),
    "weights not there": (with_weights_in("weights.bin"), 2, "needs weights.bin, which is not beside the model"),
    "weights elsewhere": (with_weights_in("/etc/passwd"), 2, "outside the model's folder"),
    "weights above": (with_weights_in("../secret"), 2, "outside the model's folder"),
    "weights nowhere": (with_weights_in("w" * 5000), 2, "not beside the model"),
    "weights cut short": (with_weights_in("mine.onnx", offset="9" * 20), 2, "ends at byte"),
    "weights of our own name": (with_weights_in("model.py"), 2, "a name that the export uses itself"),
}


@pytest.mark.parametrize("name", MODELS)
def test_wrong_model_file(project: Project, brim: Brim, name: str) -> None:
    content, code, says = MODELS[name]
    (project.root / "mine.onnx").write_bytes(content)
    (project.root / "model.py").write_bytes(bytes(16))
    before = tree(project)
    done = brim("add", "mine", "--onnx", "mine.onnx")
    assert done.code == code, done.err
    assert says in done.out + done.err
    assert "Traceback" not in done.err
    if code != 1:
        assert_clear(done.err)
    assert tree(project) == before


@pytest.mark.parametrize(
    "path",
    [
        "nowhere.onnx",
        "loop.onnx",
        "services",
        "pipe.onnx",
        "/dev/zero",
        "huge.onnx",
        "services/doubler.yaml/x",
        "a" * 5000,
        "\udcff.onnx",
    ],
    ids=lambda path: path[:20].encode(errors="replace").decode(),
)
def test_path_of_no_model_file(project: Project, brim: Brim, path: str) -> None:
    (project.root / "loop.onnx").symlink_to("loop.onnx")
    os.mkfifo(project.root / "pipe.onnx")
    with (project.root / "huge.onnx").open("wb") as file:
        file.truncate(5 * 2**30)
    (project.root / "\udcff.onnx").write_bytes(GOOD)
    before = {path for path in project.root.iterdir() if path != project.cache}
    for command in (["add", "mine"], ["export"]):
        done = brim(*command, "--onnx", path)
        assert done.code == 2
        assert_clear(done.err)
    assert {path for path in project.root.iterdir() if path != project.cache} == before


HEAD = """
import os, signal, sys
import torch
from torch import nn


class Twice(nn.Module):
    def forward(self, x):
        return x * 2


def good(module=None, inputs=None):
    return (module or Twice()).eval(), inputs or {"x": torch.zeros(2, 4)}


class Odd(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


def module(forward):
    return good(type("Made", (nn.Module,), {"forward": forward})())


"""
X = "return good(None, {'x': %s})"
FACTORIES: dict[str, tuple[str, int, str]] = {
    "raises": ("raise ValueError('first\\nsecond')", 2, "raised ValueError: first\n"),
    "raises what cannot be shown": ("raise Odd", 2, "raised Odd"),
    "exits": ("sys.exit(3)", 2, "it called sys.exit(3)"),
    "calls itself for ever": ("return factory()", 2, "RecursionError"),
    "returns nothing": ("pass", 2, "returned a NoneType"),
    "returns a coroutine": ("", 2, "returned a coroutine"),
    "yields": ("yield good()", 2, "returned a generator"),
    "returns the module only": ("return Twice()", 2, "returned a Twice"),
    "turned round": ("return tuple(reversed(good()))", 2, "the first item is a dict"),
    "in training": ("return Twice().train(), {'x': torch.zeros(2, 4)}", 1, "layers in train mode"),
    "no inputs": ("return Twice().eval(), {}", 2, "no mapping of input names"),
    "number for a name": ("return Twice().eval(), {1: torch.zeros(2, 4)}", 2, "input 1 has a Tensor"),
    "lines in a name": ("return Twice().eval(), {'a\\nb': torch.zeros(2, 4)}", 2, "input 'a\\nb'"),
    "half a character": ("return Twice().eval(), {'\\ud800': torch.zeros(2, 4)}", 2, "has a Tensor"),
    "bytes for an example": (X % "b'hello'", 2, "input 'x' has a bytes"),
    "complex example": (X % "torch.zeros(2, 4, dtype=torch.complex64)", 2, "torch.complex64, which cannot be served"),
    "bfloat16 example": (X % "torch.zeros(2, 4, dtype=torch.bfloat16)", 2, "torch.bfloat16, which cannot be served"),
    "example without values": (X % "torch.zeros(2, 4, device='meta')", 2, "is on meta, expected on the CPU"),
    "sparse example": (X % "torch.zeros(2, 4).to_sparse()", 2, "nested, quantized or sparse"),
    "nested example": (
        X % "torch.nested.nested_tensor([torch.zeros(4), torch.zeros(3)])",
        2,
        "nested, quantized or sparse",
    ),
    "example of many axes": (X % "torch.zeros([1] * 40)", 2, "has 40 axes"),
    "example without rows": (X % "torch.zeros(0, 4)", 2, "at least one"),
    "scalar example": (X % "torch.tensor(1.0)", 1, "has no axes"),
    "weights without values": (
        "return good(nn.Linear(4, 2, device='meta'), {'input': torch.zeros(2, 4)})",
        2,
        "weight is on meta",
    ),
    "module not made": (
        "return type('M', (Twice,), {'__init__': lambda self: None})(), {'x': torch.zeros(2, 4)}",
        2,
        "super().__init__()",
    ),
    "forward exits": ("return module(lambda self, x: sys.exit())", 2, "it called sys.exit()"),
    "forward calls itself for ever": ("return module(lambda self, x: self(x))", 2, "RecursionError"),
    "forward takes nothing": ("return module(lambda self: torch.zeros(1))", 2, "does not run its own example"),
    "gives no tensor": ("return module(lambda self, x: 'text')", 2, "is a str, not a tensor"),
    "gives nothing": ("return module(lambda self, x: ())", 2, "returns no tensor"),
    "names that are no list": ("return (*good(), (name for name in 'Y'))", 2, "third item must list output names"),
    "a number for names": ("return (*good(), 3)", 2, "third item must list output names"),
    "name of an input for an output": ("return (*good(), ['x'])", 2, "more than one tensor"),
    "axes of another form": ("return (*good(), None, {'x': [1]})", 2, "dynamic axes must look like"),
}
HOOKS: dict[str, tuple[str, str]] = {
    "samples exit": ("def row_samples(rng, rows, sizes): sys.exit(2)", "row_samples raised SystemExit"),
    "samples are ragged": ("def row_samples(rng, rows, sizes): return {'x': [[1], [2, 3]]}", "x as no array"),
    "samples are no function": ("row_samples = 3", "row_samples in hooked is a int, not a function"),
    "assets raise": ("def write_assets(folder): 1 / 0", "write_assets raised ZeroDivisionError"),
    "assets exit": ("def write_assets(folder): sys.exit(5)", "write_assets raised SystemExit"),
    "assets link": ("def write_assets(folder): (folder / 'l').symlink_to('/etc/passwd')", "a link or a device"),
    "assets pipe": ("def write_assets(folder): os.mkfifo(folder / 'p')", "a link or a device"),
    "assets take the adapter's name": ("def write_assets(folder): (folder / 'model.py').write_text('')", "model.py"),
    "files raise": ("def source_files(): 1 / 0", "source_files raised ZeroDivisionError"),
    "files are no list": ("def source_files(): return None", "source_files raised TypeError"),
    "files never end": ("def source_files(): return ['/dev/zero']", "/dev/zero, which is no file"),
}


def assert_refused(project: Project, brim: Brim, module: str, code: int, says: str) -> None:
    before = tree(project)
    done = brim("add", "mine", "--torch", f"{module}:factory")
    sys.modules.pop(module, None)
    assert done.code == code, done.err
    assert says in done.out + done.err
    assert "Traceback" not in done.err
    if code == 2:
        assert_clear(done.err)
    assert tree(project) == before


@pytest.mark.parametrize("name", FACTORIES)
def test_wrong_factory(project: Project, brim: Brim, name: str) -> None:
    body, code, says = FACTORIES[name]
    start = "async def" if "coroutine" in name else "def"
    text = f"{HEAD}{start} factory():\n    {body or 'return good()'}\n"
    (project.root / "made.py").write_text(text, encoding="utf-8")
    assert_refused(project, brim, "made", code, says)


@pytest.mark.parametrize("name", HOOKS)
def test_wrong_hook(project: Project, brim: Brim, name: str) -> None:
    hook, says = HOOKS[name]
    (project.root / "hooked.py").write_text(f"{HEAD}{hook}\n\n\nfactory = good\n", encoding="utf-8")
    assert_refused(project, brim, "hooked", 2, says)


@pytest.mark.parametrize("text", ["sys.exit(4)", "1 / 0", "def factory(:"], ids=["exits", "raises", "no Python"])
def test_module_that_cannot_be_imported(project: Project, brim: Brim, text: str) -> None:
    (project.root / "broken.py").write_text(f"import sys\n{text}\n", encoding="utf-8")
    assert_refused(project, brim, "broken", 2, "importing broken raised")


def test_noise_of_a_factory_stays_out_of_the_answer(project: Project) -> None:
    noise = "    print('noise')\n    os.write(1, b'noise')\n    print('noise', file=sys.stderr)\n    return good()\n"
    hook = (
        "def row_samples(rng, rows, sizes):\n    print('noise')\n    return {'x': rng.random((rows, 4), 'float32')}\n"
    )
    (project.root / "loud.py").write_text(f"{HEAD}def factory():\n{noise}\n\n{hook}", encoding="utf-8")
    done = in_a_process(project, "add", "mine", "--torch", "loud:factory", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_names_are_shown_as_they_are(project: Project, brim: Brim) -> None:
    (project.root / "made.py").write_text(
        f"{HEAD}def factory():\n    raise ValueError('[red]:smile:')\n", encoding="utf-8"
    )
    assert_refused(project, brim, "made", 2, "torch factory made:factory raised ValueError: [red]:smile:")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("hook", ["write_assets(folder)", "row_samples(rng, rows, sizes)", "source_files()"])
def test_interrupted_in_the_middle(project: Project, brim: Brim, number: signal.Signals, hook: str) -> None:
    body = f"    os.kill(os.getpid(), {int(number)})\n    import time; time.sleep(30)\n"
    (project.root / "stopped.py").write_text(f"{HEAD}factory = good\n\n\ndef {hook}:\n{body}", encoding="utf-8")
    before = tree(project)
    done = brim("add", "mine", "--torch", "stopped:factory")
    sys.modules.pop("stopped", None)
    assert done.code == 130
    assert "interrupted" in done.err
    assert tree(project) == before


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_nothing_stays_when_the_last_step_fails(
    project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    (project.root / "mine.onnx").write_bytes(GOOD)
    before = tree(project)

    def fail(path: Path, text: str) -> None:
        raise failure

    monkeypatch.setattr(bring, "write_whole", fail)
    assert brim("add", "mine", "--onnx", "mine.onnx").code == (2 if isinstance(failure, OSError) else 130)
    assert tree(project) == before


def test_earlier_export_survives_a_failing_one(project: Project, brim: Brim) -> None:
    (project.root / "mine.onnx").write_bytes(GOOD)
    assert brim("add", "mine", "--onnx", "mine.onnx").code == 0
    (project.root / "mine.onnx").write_bytes(GOOD[:-7])
    before = tree(project)
    done = brim("export", "mine")
    assert done.code == 2
    assert_clear(done.err)
    assert tree(project) == before


def test_disk_that_takes_nothing_more(project: Project) -> None:
    (project.model_repository / "doubler" / "config.pbtxt").unlink()
    before = tree(project)
    done = in_a_process(
        project,
        "config",
        "--write",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 2
    assert_clear(done.stderr)
    assert "File too large" in done.stderr
    assert tree(project) == before


def test_stdout_that_takes_nothing_or_is_closed(project: Project) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        for arguments in (["config", "doubler"], ["config", "doubler", "--json"]):
            done = in_a_process(project, *arguments, stdout=full)
            assert done.returncode == 2
            assert_clear(done.stderr)
    done = in_a_process(project, "config", "doubler", preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert "stdout is closed" in done.stderr
    assert_clear(done.stderr)


def test_reader_that_leaves(project: Project) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = in_a_process(project, "config", "doubler", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_bare_surroundings(project: Project) -> None:
    """No HOME, no locale, an ASCII terminal, no stdin."""
    bare = {"BRIM_ROOT": str(project.root), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    done = in_a_process(project, "config", "nöbody", "--json", env=bare, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unknown_service"


def test_working_directory_that_is_gone(project: Project, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def leave() -> None:
        gone.rmdir()

    done = in_a_process(project, "add", "mine", "--torch", "made:factory", cwd=gone, preexec_fn=leave)
    assert done.returncode == 2
    assert_clear(done.stderr)
    assert "the working directory is gone" in done.stderr


@pytest.mark.parametrize("url", ["http://[::1", "ftp://x:1", "x", "http://x:y", "127.0.0.1:1"])
def test_wrong_url(brim: Brim, url: str) -> None:
    done = brim("serve", "--url", url)
    assert done.code == 2
    assert_clear(done.err)


@pytest.mark.parametrize("letter", [" ", "'", '"', "$", ";", "&", "(", "`", "\\", "*", "ä", "\udcff", "\n"])
def test_path_that_the_server_cannot_work_in(tmp_path: Path, letter: str) -> None:
    with pytest.raises(InputError, match="cannot run from"):
        check_path(tmp_path / f"a{letter}b")
    check_path(Path("/srv/Brim-2_a.b/c,d:e=f@g%h+~i"))


@pytest.mark.parametrize("place", ["/", "services/doubler.yaml", "/dev/null", "o" * 300, "\udcff"])
def test_place_that_no_export_can_fill(project: Project, brim: Brim, place: str) -> None:
    before = tree(project)
    done = brim("export", "--onnx", "model_repository/doubler/1/model.onnx", "--out", place)
    assert done.code == 2
    assert_clear(done.err)
    assert tree(project) == before


def test_the_same_name_added_several_times_at_once(project: Project) -> None:
    (project.root / "own.py").write_text(
        HEAD
        + textwrap.dedent(
            """
            def factory():
                factor = float(os.environ["FACTOR"])
                return module(lambda self, x: x * factor)


            def write_assets(folder):
                (folder / f"factor_{os.environ['FACTOR']}").write_text("")
            """
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "brim", "add", "mine", "--torch", "own:factory"]
    running = [
        subprocess.Popen(
            command,
            cwd=project.root,
            env={**os.environ, "BRIM_ROOT": str(project.root), "FACTOR": factor},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for factor in ("2", "3")
    ]
    errors = [child.communicate(timeout=PATIENCE_S)[1] for child in running]
    codes = [child.returncode for child in running]
    assert sorted(codes) == [0, 2], errors
    assert_clear(errors[codes.index(2)])
    folder = project.model_repository / "mine" / "1"
    assert {path.name for path in folder.iterdir()} == {
        "artifact.json",
        "model.guarded.onnx",
        "model.onnx",
        "model.py",
        f"factor_{(2, 3)[codes.index(0)]}",
    }
    constants = [numpy_helper.to_array(item) for item in onnx.load(folder / "model.onnx").graph.initializer]
    assert np.float32((2, 3)[codes.index(0)]) in np.concatenate([item.ravel() for item in constants])
    assert list(project.cache.glob(".adding-*")) == []


def test_wait_for_another_process_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "LOCK_LIMIT_S", 0.1)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another brim has been putting files into"), placement.locked(tmp_path):
        pass
    os.close(handle)
    with placement.locked(tmp_path):
        pass


def test_folders_of_killed_processes_go_and_those_of_others_stay(tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    left = tmp_path / ".work-left"
    left.mkdir()
    (left / "model.onnx").write_bytes(GOOD)
    os.utime(left, (long_ago, long_ago))
    with placement.work_folder(tmp_path, ".work-") as living:
        assert not left.exists()
        os.utime(living, (long_ago, long_ago))
        with placement.work_folder(tmp_path, ".work-"):
            assert living.exists()
    assert list(tmp_path.iterdir()) == []
