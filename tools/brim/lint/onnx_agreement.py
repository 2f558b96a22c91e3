"""ONX: the configuration of the native ONNX Runtime backend against the ONNX file beside it."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

from brim.findings import Severity
from brim.lint.fields import control_names, full_shape, model_dims, tensors, type_name
from brim.lint.onnx_file import Dim, OnnxFile, Signature, Tensor
from brim.lint.rule import Example, Fault, rule, warm_up
from brim.lint.subject import Model

SOURCE = "onnxruntime_backend checks it at load; server issues 2192, 6196 and 7462"

_BATCHED = OnnxFile(x=("batch", 16), y=("batch", 4))


def _tree(dims: str = "16", model: OnnxFile | str = _BATCHED, name: str = "x", data_type: str = "TYPE_FP32") -> Example:
    config = (
        'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 100\n'
        f'input {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }}\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    )
    value = f"data_type: {data_type} dims: [ {dims.replace('-1', '1')} ] zero_data: true"
    config += warm_up(1, name, value) + warm_up(100, name, value)
    return {"m/config.pbtxt": config, "m/1/model.onnx": model}


def _pairs(model: Model) -> Iterator[tuple[str, ModelInput | ModelOutput, Tensor]]:
    """Tensors that the configuration and the file both have."""
    signature = model.signature
    if not isinstance(signature, Signature):
        return
    for path, tensor in tensors(model):
        declared = signature.inputs if isinstance(tensor, ModelInput) else signature.outputs
        if tensor.name in declared:
            yield path, tensor, declared[tensor.name]


def _implied(model: Model, tensor: ModelInput | ModelOutput) -> list[int]:
    """The shape that the configuration promises to the model."""
    return full_shape(model_dims(tensor), model.config.max_batch_size)


def _shown(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


@rule(
    "ONX001",
    Severity.ERROR,
    "The dims have another rank than the ONNX model: the batch is written twice, or a dimension is missing.",
    why="With max_batch_size above 0 the batch comes in front of dims by itself.",
    source=SOURCE,
    good=_tree(),
    bad=_tree("-1, 16"),
)
def rank(model: Model) -> Iterator[Fault]:
    """Rank of the file against the rank that the configuration implies."""
    for path, tensor, declared in _pairs(model):
        implied = _implied(model, tensor)
        if declared.dims is None or len(declared.dims) == len(implied):
            continue
        said = (
            f"{path} {tensor.name!r}: the model has rank {len(declared.dims)} ({_shown(declared.dims)}),"
            f" the configuration implies rank {len(implied)} ({implied})"
        )
        rest = declared.dims[1:] if model.config.max_batch_size > 0 else declared.dims
        wanted = [dim if isinstance(dim, int) else -1 for dim in rest]
        yield Fault(said, f"{path}.dims", f"write dims: {wanted}; the batch is not part of dims")


@rule(
    "ONX002",
    Severity.ERROR,
    "The batch dimension of the ONNX model is fixed.",
    why="Such a model cannot batch: ONNX Runtime refuses every other number of rows, and Triton refuses the model at load.",
    source=SOURCE,
    good=_tree(),
    bad=_tree(model=OnnxFile(x=(1, 16), y=(1, 4))),
)
def fixed_batch(model: Model) -> Iterator[Fault]:
    """A number where the batch symbol should be, with ``max_batch_size`` above 0."""
    if model.config.max_batch_size < 1:
        return
    for path, tensor, declared in _pairs(model):
        dims = declared.dims
        if dims and isinstance(dims[0], int) and len(dims) == len(_implied(model, tensor)):
            said = f"{path} {tensor.name!r}: batch dim is {dims[0]} in the model ({_shown(dims)}), so the model cannot batch"
            hint = (
                "export the model again with a symbolic first dimension, or write max_batch_size: 0 and the full shape"
            )
            yield Fault(said, "max_batch_size", hint)


@rule(
    "ONX003",
    Severity.ERROR,
    "A tensor has another type than in the ONNX model.",
    why="The model does not load.",
    source=SOURCE,
    good=_tree(),
    bad=_tree(data_type="TYPE_FP16"),
)
def data_type(model: Model) -> Iterator[Fault]:
    """``data_type`` against the element type of the file."""
    for path, tensor, declared in _pairs(model):
        given = type_name(tensor.data_type)
        if tensor.data_type and given != declared.data_type:
            said = f"{path} {tensor.name!r} is {given}, the model says {declared.data_type}"
            yield Fault(said, f"{path}.data_type", f"write {declared.data_type}")


@rule(
    "ONX004",
    Severity.ERROR,
    "The configuration and the ONNX model name different tensors.",
    why="Every input of the model must be configured, and no tensor that it does not have. Outputs may be left out.",
    source=SOURCE,
    good=_tree(),
    bad=_tree(name="X"),
)
def names(model: Model) -> Iterator[Fault]:
    """Names on either side only."""
    signature = model.signature
    if not isinstance(signature, Signature):
        return
    computed = {name for batch in model.config.batch_input for name in batch.target_name} | control_names(model)
    for path, tensor in tensors(model):
        kind, known = ("input", signature.inputs) if isinstance(tensor, ModelInput) else ("output", signature.outputs)
        if tensor.name and tensor.name not in known:
            said = f"{kind} {tensor.name!r} is not in the model; it has {', '.join(known) or 'none'}"
            yield Fault(said, f"{path}.name", "use the model's own name")
    given = {tensor.name for tensor in model.config.input}
    if model.config.input and given <= set(signature.inputs):
        for name in signature.inputs:
            if name not in given | computed:
                yield Fault(
                    f"the model's input {name!r} is not configured", "input", f'add input {{ name: "{name}" ... }}'
                )


@rule(
    "ONX005",
    Severity.ERROR,
    "A fixed dimension differs from the ONNX model.",
    why="Requests of the configured shape fail in the model.",
    source=SOURCE,
    good=_tree(),
    bad=_tree("8"),
)
def sizes(model: Model) -> Iterator[Fault]:
    """Fixed sizes after the batch, and a variable size over a fixed one (a warning)."""
    for path, tensor, declared in _pairs(model):
        implied = _implied(model, tensor)
        if declared.dims is None or len(declared.dims) != len(implied):
            continue
        skipped = 1 if model.config.max_batch_size > 0 else 0
        where = "reshape.shape" if tensor.HasField("reshape") else "dims"
        for position, (mine, theirs) in enumerate(zip(implied, declared.dims, strict=True)):
            at = f"{path}.{where}[{position - skipped}]"
            if position < skipped or not isinstance(theirs, int) or mine == theirs:
                continue
            said = f"{path} {tensor.name!r}: {where}[{position - skipped}] is {mine}, the model has {theirs} ({_shown(declared.dims)})"
            severity = Severity.WARNING if mine == -1 else None
            yield Fault(said, at, f"write {theirs}", severity)


@rule(
    "ONX006",
    Severity.ERROR,
    "The ONNX file cannot be read.",
    why="It is damaged, a pointer to a large file that was never fetched, or no ONNX model.",
    source="onnx.load",
    good=_tree(),
    bad=_tree(model="version https://git-lfs.github.com/spec/v1\n"),
)
def unreadable(model: Model) -> Iterator[Fault]:
    """A file that is there, not empty, and no model."""
    if isinstance(model.signature, str):
        severity = Severity.WARNING if model.is_profile else None
        yield Fault(model.signature, model.model_filename_path, "build or copy the model file again", severity)
