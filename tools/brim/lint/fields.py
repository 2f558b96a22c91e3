"""Where the parts of a configuration stand: repeated fields and tensors with their field paths, and what tensors declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tritonclient.grpc.model_config_pb2 import DataType, ModelInput, ModelOutput

from brim.lint.subject import Model

Element = TypeVar("Element")


def elements(path: str, repeated: Iterable[Element]) -> Iterator[tuple[str, Element]]:
    """Each element of the repeated field at ``path``, with its own path: ``input[0]``, ``input[1]``."""
    for index, element in enumerate(repeated):
        yield f"{path}[{index}]", element


def tensors(model: Model) -> Iterator[tuple[str, ModelInput | ModelOutput]]:
    """Every input and output with its field path."""
    yield from elements("input", model.config.input)
    yield from elements("output", model.config.output)


def control_names(model: Model) -> set[str]:
    """Inputs that the sequence batcher feeds by itself: controls and states."""
    batching = model.config.sequence_batching
    return {control.name for control in batching.control_input} | {state.input_name for state in batching.state}


def model_dims(tensor: ModelInput | ModelOutput) -> list[int]:
    """The dims that the model sees, without the batch: ``reshape`` goes before ``dims``."""
    return list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)


def full_shape(dims: Sequence[int], max_batch_size: int) -> list[int]:
    """The shape of a batch of rows of ``dims``: a variable size in front when the model batches."""
    return [-1, *dims] if max_batch_size > 0 else list(dims)


def type_name(number: int) -> str:
    """The name of a data type, such as TYPE_FP32; the number itself when the schema has no such type."""
    return DataType.Name(DataType.ValueType(number)) if number in DataType.values() else str(number)
