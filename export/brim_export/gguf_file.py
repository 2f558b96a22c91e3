"""GGUF files: read, and rewritten as F16, where every weight is the half-precision number nearest to what the file's own
format says.

The engine reads matrices in F16 as they stand. Its own reading of the 4-bit formats is lossy: with the Q4_1 file of the
shipped model it agrees with torch on 16 of 393 greedy tokens, with the F16 file on all of them. It reads no matrix in F32 or
BF16 at all (openvino-genai 2026.4). Norms and other vectors stay F32, as GGUF files have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from brim.errors import ModelFileError

MATRIX_TYPE = "F16"
"""Type of a matrix that the engine reads without loss."""
VECTOR_TYPES = ("F32", "F16")
"""Types of a norm or a bias that it reads without loss."""
_FILE_TYPE = "general.file_type"
_ARCHITECTURE = "general.architecture"
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
        reader = gguf.GGUFReader(path)
        for field in reader.fields.values():
            # Texts are decoded only now, and those of a corrupt file may be none.
            field.contents()
        return reader
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}", hint="name a GGUF file that exists") from error
    except (ValueError, KeyError, IndexError, OverflowError, TypeError, MemoryError) as error:
        raise ModelFileError(f"{path} is no whole GGUF file: {error}", hint="download or convert it again") from error


def value_of(reader: Any, key: str, default: Any = None) -> Any:
    """A value of the file's metadata; a key that does not begin with general., tokenizer. or split. is the architecture's own.

    Raises:
        KeyError: it is not there, and there is no default.
    """
    if not key.startswith(("general.", "tokenizer.", "split.")):
        key = f"{reader.fields[_ARCHITECTURE].contents()}.{key}"
    field = reader.fields.get(key)
    if field is None and default is None:
        raise KeyError(key)
    return default if field is None else field.contents()


def is_exact(reader: Any) -> bool:
    """Whether the engine reads the file without loss as it stands."""
    return _FILE_TYPE in reader.fields and all(
        tensor.tensor_type.name in (VECTOR_TYPES if len(tensor.shape) < 2 else (MATRIX_TYPE,))
        for tensor in reader.tensors
    )


def rewrite_f16(source: Path, target: Path) -> Rewritten:
    """Write ``target``: the metadata and tensors of ``source``, with every matrix in F16.

    Raises:
        ModelFileError: the source cannot be read, or has a tensor that half precision cannot hold.
    """
    reader = read_gguf(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if key.startswith(_OWN_FIELDS) or key in (_ARCHITECTURE, _FILE_TYPE):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    tensors = (
        (tensor.name, tensor.data if tensor.tensor_type.name == MATRIX_TYPE else dequantised(tensor))
        for tensor in reader.tensors
    )
    return write_f16(writer, tensors, source)


def write_f16(writer: Any, tensors: Iterable[tuple[str, npt.NDArray[Any]]], source: Path) -> Rewritten:
    """Write a file whose other metadata the writer has: matrices in F16, vectors in F32.

    Args:
        writer: a ``gguf.GGUFWriter``; it is closed.
        tensors: names and values, in float32, or in float16 where they are known to be exact.
        source: named in errors.

    Raises:
        ModelFileError: a matrix has values that half precision cannot hold.
    """
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))
    done = Rewritten(0, 0, 0, 0.0)
    try:
        for name, exact in tensors:
            values, done = _converted(source, name, exact, done)
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return done


def _converted(
    source: Path, name: str, exact: npt.NDArray[Any], so_far: Rewritten
) -> tuple[npt.NDArray[Any], Rewritten]:
    tensors = so_far.tensors + 1
    if exact.ndim < 2:
        return np.ascontiguousarray(exact, np.float32), replace(so_far, tensors=tensors)
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(exact, np.float16)
    if not np.isfinite(half).all():
        raise ModelFileError(
            f"{source}: {name} holds values beyond {np.finfo(np.float16).max:g} or none at all",
            hint="half precision cannot hold this model; serve it with the profile vllm",
        )
    if exact.dtype == np.float16:
        return half, replace(so_far, tensors=tensors)
    back = half.astype(np.float32)
    off = np.abs(back - exact)[exact != back] / np.maximum(np.abs(exact[exact != back]), np.finfo(np.float16).tiny)
    worst = max(so_far.worst, float(off.max(initial=0.0)))
    return half, Rewritten(tensors, so_far.weights + exact.size, so_far.rounded + off.size, worst)


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
