"""Sample rows of a service as arrays: what the canary, the warm-up, the load tests and the self-check send."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from brim.errors import ServiceFileError
from brim.service.schema import DataType, InputTensor, Service

NUMPY_TYPES: dict[DataType, type] = {
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.FP16: np.float16,
    DataType.FP32: np.float32,
    DataType.FP64: np.float64,
    DataType.BYTES: np.object_,
}
"""BF16 has no numpy type, so a sample cannot carry it."""

RANDOM_LONGEST = 16
"""Longest variable axis that is drawn."""

Row = dict[str, npt.NDArray[Any]]


def sample_rows(service: Service) -> list[Row]:
    """Every sample of the service as one row: input name -> array of shape ``[1, *shape]``.

    Raises:
        ServiceFileError: a sample does not fit its input's type or shape; all such faults at once.
    """
    rows, problems = [], []
    tensors = {tensor.name: tensor for tensor in service.inputs}
    for index, sample in enumerate(service.samples):
        row = {}
        for name, value in sample.inputs.items():
            try:
                row[name] = _row_of(tensors[name], value)
            except (ValueError, TypeError, OverflowError) as error:
                problems.append(f"services/{service.name}.yaml: samples[{index}].inputs.{name}: {error}")
        rows.append(row)
    if problems:
        raise ServiceFileError("\n".join(problems), hint="a sample is one row, without the batch dimension")
    return rows


def random_rows(service: Service, count: int, *, seed: int = 0) -> list[Row]:
    """Rows of random values inside the service's own limits, for a service that has no samples. BF16 is not drawn.

    Integers without limits are 0 or 1, which every index table holds.
    """
    draw = np.random.default_rng(seed)
    return [{tensor.name: _random(tensor, draw) for tensor in service.inputs} for _ in range(count)]


def _random(tensor: InputTensor, draw: np.random.Generator) -> npt.NDArray[Any]:
    longest = min(tensor.largest_size or RANDOM_LONGEST, RANDOM_LONGEST)
    shape = [1, *(int(draw.integers(1, longest + 1)) if size == -1 else size for size in tensor.shape)]
    if tensor.dtype is DataType.BYTES:
        words = draw.integers(0, 10_000, shape)
        return np.array([f"sample {word}".encode() for word in words.ravel()], dtype=np.object_).reshape(shape)
    kind: np.dtype[Any] = np.dtype(NUMPY_TYPES[tensor.dtype])
    if kind.kind == "f":
        low, high = (
            (-1.0 if tensor.minimum is None else tensor.minimum),
            (1.0 if tensor.maximum is None else tensor.maximum),
        )
        return draw.uniform(min(low, high), high, shape).astype(kind)
    low, high = int(tensor.minimum or 0), int(1 if tensor.maximum is None else tensor.maximum)
    return draw.integers(min(low, high), high, shape, endpoint=True).astype(kind)


def _row_of(tensor: InputTensor, value: object) -> npt.NDArray[Any]:
    if tensor.dtype not in NUMPY_TYPES:
        raise ValueError(f"{tensor.dtype.value} cannot be written in a service file")
    if tensor.dtype is DataType.BYTES:
        flat = np.array(value, dtype=np.object_)
        array = np.empty(flat.shape, dtype=np.object_)
        array.ravel()[:] = [str(item).encode("utf-8") for item in flat.ravel()]
        array = np.array(array, dtype=np.object_)
    else:
        array = _exactly(np.array(value, dtype=np.object_), np.dtype(NUMPY_TYPES[tensor.dtype]))
    if array.ndim == 0 and len(tensor.shape) >= 1:
        array = array.reshape([1] * len(tensor.shape))
    fits = array.ndim == len(tensor.shape) and all(
        want in (-1, have) for want, have in zip(tensor.shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"shape {list(array.shape)}, expected {list(tensor.shape)}")
    return array[np.newaxis]


def _exactly(values: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values in that type.

    Raises:
        ValueError: a value is no number, or an integer type cannot hold it as it is.
    """
    for value in values.ravel():
        if not isinstance(value, bool | int | float):
            raise ValueError(f"{value!r} is not a number")
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            if not limits.min <= value <= limits.max or value != int(value):
                raise ValueError(f"{value!r} is not a whole number in {limits.min}..{limits.max}")
        if kind.kind == "b" and value not in (0, 1):
            raise ValueError(f"{value!r} is neither true nor false")
    return values.astype(kind)
