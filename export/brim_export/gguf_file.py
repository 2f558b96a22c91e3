"""A quantised GGUF file as F16: every weight is the half-precision number nearest to what the file's own format says.

The engine reads F16 as it stands, and its own reading of the 4-bit formats is lossy: with the Q4_1 file of the shipped model
it agrees with torch on 16 of 393 greedy tokens, with the F16 file on all of them. Norms and other vectors stay F32, as GGUF
files have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from brim.errors import ModelFileError

KEPT_TYPES = ("F32", "F16")
"""Tensor types that the engine reads without loss."""
_FILE_TYPE = "general.file_type"
_OWN_FIELDS = "GGUF."
"""Begins the reader's names for the file's header, which is no metadata."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What rewriting did.

    Attributes:
        tensors: how many the file has.
        weights: how many values were in another format than F16 or F32.
        rounded: how many of them no half-precision number equals.
        worst: largest rounding, relative to the value; half precision rounds by at most 2**-11 unless a value is tiny.
    """

    tensors: int
    weights: int
    rounded: int
    worst: float


def read_gguf(path: Path) -> Any:
    """The file as ``gguf.GGUFReader``; tensors are mapped, not loaded.

    Raises:
        ModelFileError: it is missing, cut short, or no GGUF file.
    """
    try:
        return gguf.GGUFReader(path)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}", hint="name a GGUF file that exists") from error
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is no whole GGUF file: {error}", hint="download or convert it again") from error


def rewrite_f16(source: Path, target: Path) -> Rewritten:
    """Write ``target``: the metadata and tensors of ``source``, with every matrix in F16.

    Raises:
        ModelFileError: the source cannot be read, or has a tensor that half precision cannot hold.
    """
    reader = read_gguf(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if key.startswith(_OWN_FIELDS) or key == "general.architecture":
            continue
        value = int(gguf.LlamaFileType.MOSTLY_F16) if key == _FILE_TYPE else field.contents()
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], sub_type=inner)
    done = Rewritten(len(reader.tensors), 0, 0, 0.0)
    for tensor in reader.tensors:
        values, done = _converted(source, tensor, done)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return done


def _converted(source: Path, tensor: Any, so_far: Rewritten) -> tuple[npt.NDArray[Any], Rewritten]:
    exact = dequantised(tensor)
    if exact.ndim < 2:
        return np.ascontiguousarray(exact, np.float32), so_far
    if tensor.tensor_type.name == "F16":
        return np.ascontiguousarray(tensor.data), so_far
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(exact.astype(np.float16))
    if not np.isfinite(half).all():
        raise ModelFileError(
            f"{source}: {tensor.name} holds values beyond {np.finfo(np.float16).max:g} or none at all",
            hint="half precision cannot hold this model; serve it with the profile vllm",
        )
    back = half.astype(np.float32)
    off = np.abs(back - exact)[exact != back] / np.maximum(np.abs(exact[exact != back]), np.finfo(np.float16).tiny)
    worst = max(so_far.worst, float(off.max(initial=0.0)))
    return half, Rewritten(so_far.tensors, so_far.weights + exact.size, so_far.rounded + off.size, worst)


def dequantised(tensor: Any) -> npt.NDArray[np.float32]:
    """The values of one tensor of a reader as its format defines them.

    Raises:
        ModelFileError: gguf knows no way to dequantise its type.
    """
    try:
        return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
    except (NotImplementedError, ValueError) as error:
        raise ModelFileError(
            f"{tensor.name} is of type {tensor.tensor_type.name}, which cannot be rewritten: {error}",
            hint="give the model as F16, or in a k-quant or legacy quant format",
        ) from error
