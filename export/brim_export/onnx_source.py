"""An ONNX file that is taken as it is: refuse what cannot be served, and know every file it consists of."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError

from brim.errors import ModelFileError
from brim_export import graph

_LFS_POINTER = b"version https://git-lfs"


def read(path: Path) -> onnx.ModelProto:
    """The parsed model, without the contents of its external data files.

    Raises:
        ModelFileError: the file is missing, empty, a Git LFS pointer, truncated, or no ONNX model.
    """
    if not path.exists():
        raise ModelFileError(f"{path}: no such file", hint="give the path of an .onnx file")
    if not path.is_file():
        raise ModelFileError(f"{path} is a folder, expected an .onnx file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
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
        file = path.parent / place
        if not file.is_file():
            faults.append(f"tensor {tensor.name} needs {place}, which is not beside the model")
            continue
        needed = _number(entries.get("offset")) + _number(entries.get("length"))
        if file.stat().st_size < needed:
            faults.append(
                f"tensor {tensor.name} ends at byte {needed} of {place}, which has {file.stat().st_size} bytes"
            )
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


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
