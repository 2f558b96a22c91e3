"""Sample rows of a service as arrays: what the canary, the warm-up, the load tests and the self-check send."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SampleFault:
    """What is wrong with the value for input ``name`` in the sample at ``index``."""

    index: int
    name: str
    what: str

    def __str__(self) -> str:
        """``samples[0].inputs.X: what``."""
        return f"samples[{self.index}].inputs.{self.name}: {self.what}"


def sample_rows(service: Service) -> list[Row]:
    """Every sample of the service as one row: input name -> array of shape ``[1, *shape]``.

    Raises:
        ServiceFileError: a sample does not fit its input's type or shape; all such faults at once.
    """
    rows, faults = _rows_and_faults(service)
    if faults:
        raise ServiceFileError(
            "\n".join(f"services/{service.name}.yaml: {fault}" for fault in faults),
            hint="a sample is one row, without the batch dimension",
        )
    return rows


def sample_faults(service: Service) -> list[SampleFault]:
    """Every sample that does not fit its input's type or shape, or that the service would refuse."""
    return _rows_and_faults(service)[1]


def _rows_and_faults(service: Service) -> tuple[list[Row], list[SampleFault]]:
    rows, faults = [], []
    tensors = {tensor.name: tensor for tensor in service.inputs}
    for index, sample in enumerate(service.samples):
        row = {}
        for name, value in sample.inputs.items():
            try:
                row[name] = _row_of(tensors[name], value)
            except (ValueError, TypeError, OverflowError) as error:
                faults.append(SampleFault(index, name, str(error)))
        rows.append(row)
    return rows, faults


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
        return draw.uniform(*_limits(tensor, -1.0, 1.0), shape).astype(kind)
    low, high = _limits(tensor, 0.0, 1.0)
    return draw.integers(math.ceil(low), math.floor(high), shape, endpoint=True).astype(kind)


def _limits(tensor: InputTensor, low: float, high: float) -> tuple[float, float]:
    """The service's own limits, and where one is open the given one, moved to fit the other."""
    if tensor.minimum is not None:
        low = tensor.minimum
    if tensor.maximum is not None:
        high = tensor.maximum
    return (min(low, high), high) if tensor.minimum is None else (low, max(low, high))


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
        _check_guard(tensor, array)
    if array.ndim == 0 and len(tensor.shape) >= 1:
        array = array.reshape([1] * len(tensor.shape))
    fits = array.ndim == len(tensor.shape) and all(
        want in (-1, have) for want, have in zip(tensor.shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"shape {list(array.shape)}, expected {list(tensor.shape)}")
    return array[np.newaxis]


def _check_guard(tensor: InputTensor, array: npt.NDArray[Any]) -> None:
    """Refuse a sample that the service itself would refuse.

    Raises:
        ValueError: a value is not finite, or outside the service's limits.
    """
    if tensor.finite and not np.isfinite(array).all():
        raise ValueError("a value is not finite, and the service refuses such rows (`finite: false` lets them pass)")
    for limit, outside in ((tensor.minimum, array.__lt__), (tensor.maximum, array.__gt__)):
        if limit is not None and np.any(outside(limit)):
            raise ValueError(
                f"a value is outside {tensor.minimum}..{tensor.maximum}, and the service refuses such rows"
            )


def _exactly(values: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values in that type.

    Raises:
        ValueError: a value is no number, or the type cannot hold it: an integer as it is, a float without becoming infinite.
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
        if kind.kind == "f" and math.isfinite(value) and abs(value) > np.finfo(kind).max:
            raise ValueError(f"{value!r} is beyond the largest {kind.name}, {np.finfo(kind).max:g}")
    return values.astype(kind)
