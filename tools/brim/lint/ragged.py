"""RAG: ragged batches, batch_input and batch_output."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import BatchInput, DataType

from brim.findings import Severity
from brim.lint.fields import elements, type_name
from brim.lint.rule import HEAD, Fault, rule
from brim.lint.subject import Model

VALIDATOR = "core `model_config_utils.cc`, ValidateBatchIO"

_IDS = 'input { name: "ids" data_type: TYPE_INT64 dims: -1 }\n'
_GOOD = HEAD + _IDS + 'batch_input {\n  target_name: "n" data_type: TYPE_INT32 source_input: "ids"\n}\n'


@rule(
    "RAG001",
    Severity.ERROR,
    "batch_input does not name exactly one source_input.",
    why="Every kind is computed from one input.",
    source=VALIDATOR,
    good=_GOOD,
    bad=_GOOD.replace(' source_input: "ids"', ""),
)
def one_source(model: Model) -> Iterator[Fault]:
    """No ``source_input``, or several."""
    for path, batch in elements("batch_input", model.config.batch_input):
        if len(batch.source_input) != 1:
            kind = BatchInput.Kind.Name(batch.kind) if batch.kind in BatchInput.Kind.values() else str(batch.kind)
            said = f"batch_input of kind {kind} needs one source_input, got {len(batch.source_input)}"
            yield Fault(said, f"{path}.source_input", "name the ragged input")


@rule(
    "RAG002",
    Severity.ERROR,
    "batch_input names an input that does not exist.",
    why="Triton refuses the model.",
    source=VALIDATOR,
    good=_GOOD,
    bad=_GOOD.replace('source_input: "ids"', 'source_input: "idz"'),
)
def unknown_source(model: Model) -> Iterator[Fault]:
    """A ``source_input`` that is no input."""
    known = [tensor.name for tensor in model.config.input]
    for path, batch in elements("batch_input", model.config.batch_input):
        for where, name in elements(f"{path}.source_input", batch.source_input):
            if name not in known:
                said = f"batch_input reads from {name!r}, which is no input; known: {', '.join(known) or 'none'}"
                yield Fault(said, where, "use the name of an input")


@rule(
    "RAG003",
    Severity.ERROR,
    "batch_input is neither TYPE_INT32 nor TYPE_FP32.",
    why="Triton computes it in one of the two, whatever its kind.",
    source=VALIDATOR,
    good=_GOOD,
    bad=_GOOD.replace("TYPE_INT32", "TYPE_INT64"),
)
def batch_input_type(model: Model) -> Iterator[Fault]:
    """A ``batch_input`` of another type."""
    for path, batch in elements("batch_input", model.config.batch_input):
        if batch.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            said = f"batch_input has data_type {type_name(batch.data_type)}; Triton takes TYPE_INT32 or TYPE_FP32"
            yield Fault(said, f"{path}.data_type", "use TYPE_INT32")


@rule(
    "RAG004",
    Severity.WARNING,
    "allow_ragged_batch without a batch_input that says where rows end.",
    why="Rows of different length are joined end to end; without lengths or offsets the model cannot split them again.",
    source="server docs, ragged_batching",
    good=HEAD + _IDS,
    bad=HEAD + _IDS.replace("dims: -1", "dims: -1 allow_ragged_batch: true"),
)
def ragged_without_lengths(model: Model) -> Iterator[Fault]:
    """A ragged input that no ``batch_input`` describes."""
    described = {name for batch in model.config.batch_input for name in batch.source_input}
    for path, tensor in elements("input", model.config.input):
        if tensor.allow_ragged_batch and tensor.name not in described:
            said = f"input {tensor.name!r} allows ragged batches, and no batch_input tells the model where its rows end"
            hint = "add batch_input with kind BATCH_ACCUMULATED_ELEMENT_COUNT and this source_input"
            yield Fault(said, f"{path}.allow_ragged_batch", hint)


@rule(
    "RAG005",
    Severity.WARNING,
    "batch_input has no target_name, or one that is also an input.",
    why="The computed values reach the model under that name.",
    source="common `model_config.proto`; Triton does not refuse it",
    good=_GOOD,
    bad=_GOOD.replace('target_name: "n"', 'target_name: "ids"'),
)
def batch_input_target(model: Model) -> Iterator[Fault]:
    """A missing or colliding ``target_name``."""
    inputs = {tensor.name for tensor in model.config.input}
    for path, batch in elements("batch_input", model.config.batch_input):
        if not batch.target_name:
            yield Fault("batch_input has no target_name", path, "name the model's tensor")
        for where, name in elements(f"{path}.target_name", batch.target_name):
            if name in inputs:
                yield Fault(f"target_name {name!r} is also an input of the requests", where, "use another name")


@rule(
    "RAG006",
    Severity.ERROR,
    "batch_output names a tensor that does not exist, or one twice.",
    why="Triton scatters known outputs by the shape of one known input.",
    source=VALIDATOR,
    good=HEAD + _IDS + 'output { name: "y" data_type: TYPE_FP32 dims: -1 }\n'
    'batch_output { target_name: "y" source_input: "ids" }\n',
    bad=HEAD + _IDS + 'batch_output { target_name: "y" source_input: "ids" }\n',
)
def batch_output_names(model: Model) -> Iterator[Fault]:
    """Sources and targets of ``batch_output``."""
    inputs = {tensor.name for tensor in model.config.input}
    outputs = {tensor.name for tensor in model.config.output}
    for path, batch in elements("batch_output", model.config.batch_output):
        if len(batch.source_input) != 1:
            said = f"batch_output needs one source_input, got {len(batch.source_input)}"
            yield Fault(said, f"{path}.source_input", "name one input")
        for where, name in elements(f"{path}.source_input", batch.source_input):
            if name not in inputs:
                yield Fault(f"batch_output reads from {name!r}, which is no input", where)
        for position, name in enumerate(batch.target_name):
            where = f"{path}.target_name[{position}]"
            if name not in outputs:
                yield Fault(f"batch_output writes {name!r}, which is no output", where, "use the name of an output")
            elif name in batch.target_name[:position]:
                yield Fault(f"batch_output writes {name!r} twice", where, "list it once")
