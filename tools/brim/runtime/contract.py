"""What goes into a model and what comes out: names, types and row shapes, as the model's configuration declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from brim.limits import BATCH_LIMIT

Array: TypeAlias = npt.NDArray[Any]
Request: TypeAlias = Mapping[str, Array]
"""One caller's tensors by name, each shaped ``[rows, ...]``."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_TYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def type_name(dtype: np.dtype[Any]) -> str:
    """The KServe v2 name of a numpy type (``FP32``, ``BYTES``), or numpy's own name where v2 has none."""
    return _TYPE_NAMES.get(dtype, str(dtype))


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of ``FP32``, ``TYPE_FP32``, ``BYTES`` or ``TYPE_STRING``.

    Raises:
        KeyError: the type has no numpy counterpart (``TYPE_BF16``) or does not exist.
    """
    plain = name.removeprefix("TYPE_")
    return _DTYPES["BYTES" if plain == "STRING" else plain]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: ``shape`` is that of a single row, without the batch axis; -1 is a variable length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether every row has the same shape."""
        return -1 not in self.shape

    def fits(self, row_shape: Sequence[int]) -> bool:
        """Whether a row of this shape is one that the tensor may have."""
        return len(row_shape) == len(self.shape) and all(
            want in (-1, have) for want, have in zip(self.shape, row_shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Contract:
    """The inputs and outputs of a model and the most rows that one run may carry."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int = BATCH_LIMIT

    def __post_init__(self) -> None:
        """Refuse a row limit that no run may have."""
        if not 1 <= self.max_rows <= BATCH_LIMIT:
            raise ValueError(f"max_rows is {self.max_rows}, expected 1..{BATCH_LIMIT}")
