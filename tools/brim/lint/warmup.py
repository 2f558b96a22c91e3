"""WRM: warm-up samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelWarmup

from brim.findings import Severity
from brim.lint.fields import control_names, elements, type_name
from brim.lint.rule import HEAD, Fault, rule, warm_up
from brim.lint.subject import Model, has_file

GENERATOR = "core `backend_model_instance.cc`, GenerateWarmupData"
NATIVE_BACKENDS = {"onnxruntime", "tensorrt", "pytorch"}
"""Backends that allocate and compile on the first batch of a size."""

ELEMENT_BYTES = {
    DataType.TYPE_BOOL: 1,
    DataType.TYPE_UINT8: 1,
    DataType.TYPE_UINT16: 2,
    DataType.TYPE_UINT32: 4,
    DataType.TYPE_UINT64: 8,
    DataType.TYPE_INT8: 1,
    DataType.TYPE_INT16: 2,
    DataType.TYPE_INT32: 4,
    DataType.TYPE_INT64: 8,
    DataType.TYPE_FP16: 2,
    DataType.TYPE_BF16: 2,
    DataType.TYPE_FP32: 4,
    DataType.TYPE_FP64: 8,
}

_X = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
_ALL = warm_up(1) + warm_up(100)
_GOOD = HEAD + _X + _ALL


def _samples(model: Model) -> Iterator[tuple[str, ModelWarmup]]:
    return elements("model_warmup", model.config.model_warmup)


@rule(
    "WRM001",
    Severity.ERROR,
    "A warm-up sample feeds an input that does not exist.",
    why="Triton passes it on as an override; the model fails, or runs without its real input.",
    source=f"{GENERATOR}; server issue 1795",
    good=_GOOD,
    bad=HEAD + _X.replace("dims: 4", "dims: 4 optional: true") + warm_up(1, "z") + warm_up(100, "z"),
)
def unknown_input(model: Model) -> Iterator[Fault]:
    """A key of ``inputs`` that names no input and no sequence control."""
    known = [tensor.name for tensor in model.config.input]
    if not known:
        return
    allowed = {*known, *control_names(model)}
    for path, sample in _samples(model):
        for name in sorted(sample.inputs):
            if name not in allowed:
                said = f"warm-up {sample.name!r} feeds input {name!r}, which is unknown; known: {', '.join(known)}"
                yield Fault(said, f'{path}.inputs["{name}"]', "use the name of an input")


@rule(
    "WRM002",
    Severity.ERROR,
    "A warm-up sample leaves out an input.",
    why="The sample fails, and with it the model.",
    source=f"{GENERATOR}; server issue 4330",
    good=_GOOD,
    bad=HEAD + _X + _X.replace('"x"', '"z"') + _ALL,
)
def missing_input(model: Model) -> Iterator[Fault]:
    """An input that is not optional and that a sample does not feed, unless it feeds an unknown one in its place."""
    known = {tensor.name for tensor in model.config.input} | control_names(model)
    for path, sample in _samples(model):
        if any(name not in known for name in sample.inputs):
            continue
        for tensor in model.config.input:
            if tensor.name not in sample.inputs and not tensor.optional:
                said = f"warm-up {sample.name!r} does not feed input {tensor.name!r}"
                yield Fault(said, path, f'add inputs {{ key: "{tensor.name}" value {{ ... }} }}')


@rule(
    "WRM003",
    Severity.ERROR,
    "The type or dims of a warm-up input do not fit the model's input.",
    why="Every size must be given and must be one that the input takes; the batch is not part of dims.",
    source=GENERATOR,
    good=_GOOD,
    bad=HEAD + _X + warm_up(1, value="data_type: TYPE_FP32 dims: 5 zero_data: true") + warm_up(100),
)
def sample_shape(model: Model) -> Iterator[Fault]:
    """Variable or contradicting dims, another data type."""
    inputs = {tensor.name: tensor for tensor in model.config.input}
    for path, sample in _samples(model):
        for name in sorted(sample.inputs):
            given, tensor = sample.inputs[name], inputs.get(name)
            where = f'{path}.inputs["{name}"]'
            dims = list(given.dims)
            if any(size < 1 for size in dims):
                said = f"warm-up {sample.name!r}: dims {dims} of {name!r} hold a variable size"
                yield Fault(said, f"{where}.dims", "give a typical size")
            elif tensor is not None and not _takes(list(tensor.dims), dims):
                said = f"warm-up {sample.name!r}: dims {dims} of {name!r} do not fit {list(tensor.dims)}"
                yield Fault(said, f"{where}.dims", "leave out the batch: batch_size sets it")
            if tensor is not None and given.data_type != tensor.data_type:
                said = f"warm-up {sample.name!r}: {name!r} is {type_name(given.data_type)}, the input {type_name(tensor.data_type)}"
                yield Fault(said, f"{where}.data_type", f"write {type_name(tensor.data_type)}")


def _takes(wanted: list[int], given: list[int]) -> bool:
    return len(wanted) == len(given) and all(a in (-1, b) for a, b in zip(wanted, given, strict=True))


@rule(
    "WRM004",
    Severity.ERROR,
    "A warm-up batch is larger than max_batch_size.",
    why="Triton builds it all the same: the python backend refuses to load, another backend gets a batch that callers could "
    "never form.",
    source=f"{GENERATOR}; measured on 24.10",
    good=_GOOD,
    bad=HEAD + _X + warm_up(1) + warm_up(100) + warm_up(128),
)
def sample_too_large(model: Model) -> Iterator[Fault]:
    """``batch_size`` above ``max_batch_size``."""
    most = max(model.config.max_batch_size, 1)
    for path, sample in _samples(model):
        if sample.batch_size > most:
            said = f"warm-up {sample.name!r} has batch_size {sample.batch_size}, at most {most} rows share a batch"
            yield Fault(said, f"{path}.batch_size", f"use at most {most}")


@rule(
    "WRM005",
    Severity.ERROR,
    "A warm-up input has no data.",
    why="One of zero_data, random_data and input_data_file must be set.",
    source=GENERATOR,
    good=_GOOD,
    bad=HEAD + _X + warm_up(1, value="data_type: TYPE_FP32 dims: 4") + warm_up(100),
)
def sample_without_data(model: Model) -> Iterator[Fault]:
    """No member of the data oneof."""
    for path, sample in _samples(model):
        for name in sorted(sample.inputs):
            if sample.inputs[name].WhichOneof("input_data_type") is None:
                said = f"warm-up {sample.name!r}: input {name!r} has no data"
                yield Fault(said, f'{path}.inputs["{name}"]', "add zero_data: true or random_data: true")


_FILE = warm_up(1, value='data_type: TYPE_FP32 dims: 4 input_data_file: "row"')


@rule(
    "WRM006",
    Severity.ERROR,
    "A warm-up data file is missing or too short.",
    why="Triton reads it from the folder warmup/ beside the versions.",
    source=GENERATOR,
    good={"m/config.pbtxt": HEAD + _X + _FILE, "m/1/model.py": "pass\n", "m/warmup/row": "0123456789abcdef"},
    bad={"m/config.pbtxt": HEAD + _X + _FILE + warm_up(100), "m/1/model.py": "pass\n"},
)
def sample_file(model: Model) -> Iterator[Fault]:
    """An ``input_data_file`` that is not there, or holds fewer bytes than one row needs."""
    if model.folder is None:
        return
    for path, sample in _samples(model):
        for name in sorted(sample.inputs):
            given = sample.inputs[name]
            if not given.input_data_file:
                continue
            where = f'{path}.inputs["{name}"].input_data_file'
            file = model.folder / "warmup" / given.input_data_file
            if not has_file(file):
                yield Fault(
                    f"warm-up {sample.name!r}: no file {file}", where, "put it into warmup/ of the model folder"
                )
                continue
            needed = ELEMENT_BYTES.get(DataType.ValueType(given.data_type), 0) * math.prod(
                max(size, 1) for size in given.dims
            )
            have = file.stat().st_size
            if have < needed:
                said = f"warm-up {sample.name!r}: {file.name} has {have} bytes, one row of {name!r} needs {needed}"
                yield Fault(said, where, "write one row of raw little-endian values")


@rule(
    "WRM007",
    Severity.WARNING,
    "A batch size that callers will meet is not warmed up.",
    why="The first batch of each size pays for memory, kernels and plans; warm up 1, each preferred size and the maximum.",
    source="inferred; backends choose kernels and memory on the first run of a size",
    good=_GOOD,
    bad=HEAD + _X + warm_up(1),
)
def uncovered_sizes(model: Model) -> Iterator[Fault]:
    """1, the preferred sizes and ``max_batch_size``, when the model warms up at all or its backend needs it."""
    config = model.config
    if config.max_batch_size < 1 or not (config.model_warmup or model.backend in NATIVE_BACKENDS):
        return
    wanted = {1, config.max_batch_size}
    wanted |= {size for size in config.dynamic_batching.preferred_batch_size if 1 <= size <= config.max_batch_size}
    missing = sorted(wanted - {sample.batch_size for sample in config.model_warmup})
    if missing:
        said = f"no warm-up of batch size {', '.join(map(str, missing))}"
        yield Fault(said, "model_warmup" if config.model_warmup else "max_batch_size", "add a model_warmup for each")


@rule(
    "WRM008",
    Severity.WARNING,
    "A warm-up sample with batch_size 0 is skipped.",
    why="0 is also what a missing batch_size means.",
    source=GENERATOR,
    good=_GOOD,
    bad=HEAD + _X + _ALL + warm_up(0),
)
def skipped_sample(model: Model) -> Iterator[Fault]:
    """``batch_size`` 0 or missing."""
    for path, sample in _samples(model):
        if sample.batch_size == 0:
            yield Fault(f"warm-up {sample.name!r} has batch_size 0 and is skipped", path, "write batch_size: 1")
