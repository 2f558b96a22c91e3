"""An ONNX file that is taken as it is: refuse what cannot be served, and know every file it consists of."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError

from brim.errors import ModelFileError
from brim_export import graph

LARGEST_BYTES = 2**31 - 1
_LFS_POINTER = b"version https://git-lfs"


def read(path: Path) -> onnx.ModelProto:
    """The parsed model, without the contents of its external data files.

    Raises:
        ModelFileError: the file is missing, empty, a Git LFS pointer, truncated, or no ONNX model.
    """
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise ModelFileError(f"{path} is a folder, expected an .onnx file", hint="give the path of the file in it")
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{path} is no regular file", hint="save the model to a file and give its path")
        if found.st_size > LARGEST_BYTES:
            raise ModelFileError(
                f"{path} has {found.st_size} bytes; protobuf, and so ONNX, holds at most {LARGEST_BYTES} in one file",
                hint="save it again with its weights as external data (onnx.save with save_as_external_data=True)",
            )
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file", hint="give the path of an .onnx file") from error
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{path} cannot be read: {told}", hint="give a file that this user may read") from error
    if not data:
        raise ModelFileError(f"{path} is empty (0 bytes)", hint="export or copy the model again")
    if data.startswith(_LFS_POINTER):
        raise ModelFileError(f"{path} is a Git LFS pointer, not the model itself", hint="run git lfs pull")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelFileError(
            f"{path} ({len(data)} bytes) is truncated, corrupt, or not an ONNX model",
            hint="compare its size or hash with the original, or export it again",
        ) from error
    lacking = [
        what
        for what, there in (
            ("an IR version", model.ir_version > 0),
            ("an operator set", len(model.opset_import) > 0),
            ("nodes", len(model.graph.node) > 0),
            ("inputs", len(model.graph.input) > 0),
            ("outputs", len(model.graph.output) > 0),
        )
        if not there
    ]
    if lacking:
        raise ModelFileError(
            f"{path} ({len(data)} bytes) is no complete ONNX model: it has not {', '.join(lacking)}",
            hint="compare its size or hash with the original, or export it again",
        )
    return model


def external_files(path: Path, model: onnx.ModelProto) -> list[PurePosixPath]:
    """External data files of the model, relative to its folder, each once, sorted; all there and long enough.

    Raises:
        ModelFileError: one is missing, too short, or lies outside the model's folder.
    """
    faults, found = [], set()
    for tensor in graph.tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        place = PurePosixPath(entries.get("location", ""))
        if place.is_absolute() or ".." in place.parts or place == PurePosixPath():
            faults.append(f"tensor {tensor.name} points at {str(place)!r}, outside the model's folder")
            continue
        size = _size(path.parent / place)
        if size is None:
            faults.append(f"tensor {tensor.name} needs {place}, which is not beside the model")
            continue
        needed = _number(entries.get("offset")) + _number(entries.get("length"))
        if size < needed:
            faults.append(f"tensor {tensor.name} ends at byte {needed} of {place}, which has {size} bytes")
            continue
        found.add(place)
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise ModelFileError(
            f"{path}: external data is missing or wrong: {'; '.join(faults[:3])}{more}",
            hint="copy the .onnx file together with its data files, keeping their names",
        )
    return sorted(found)


def opset(model: onnx.ModelProto) -> int:
    """Version of the ONNX operator set that the model imports; 0 when it imports none."""
    return max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)


def _size(file: Path) -> int | None:
    """Bytes of a file; None when there is no such file, whatever the reason."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
