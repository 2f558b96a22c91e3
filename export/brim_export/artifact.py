"""``artifact.json``: what an export made, from what, with which versions, and what its gates saw.

No host names, no absolute paths and no time of day: exporting the same thing twice gives the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brim.errors import ModelFileError
from brim.service.schema import Precision

ARTIFACT_NAME = "artifact.json"
MODEL_NAME = "model.onnx"
GUARDED_NAME = "model.guarded.onnx"
"""The same model with the guard in its graph: what native backends serve."""
OWN_NAMES = (MODEL_NAME, GUARDED_NAME, ARTIFACT_NAME, "model.py")
"""Files of a version folder that no model brings with it: the export's own, and the adapter."""
SCHEMA_VERSION = 1
"""Raised whenever a field changes its meaning or goes away."""

_CHUNK = 1 << 20


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRecord(_Part):
    """Where the model came from: ``package.module:function``, or the name of an ONNX file."""

    kind: Literal["torch", "onnx"]
    name: str


class FileRecord(_Part):
    """A file of the export."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0, description="bytes")


class Tensor(_Part):
    """An input or output: KServe v2 datatype, shape with -1 for every symbolic axis, and the names of those axes."""

    name: str
    datatype: str
    shape: list[int]
    axes: list[str | None]


class ValidRange(_Part):
    """Values that an index input may take, both bounds included. Negative ones count from the end, silently."""

    minimum: int
    maximum: int


class Tolerance(_Part):
    """What was allowed, and the largest deviation seen by output."""

    asked: float
    seen: dict[str, float]


class GuardRecord(_Part):
    """The guarded graph: its file, the files beside it that hold its weights, if any, and the name of its row mask."""

    file: str
    data: list[str]
    valid: str


class GateRecord(_Part):
    """The answer of one gate; ``skipped`` when it passed for want of anything to try."""

    gate: str
    ok: bool
    message: str
    skipped: bool = False


class Artifact(_Part):
    """The whole file. ``fingerprint`` covers everything that would make another export come out differently;
    ``axis_limits`` holds the largest size of symbolic axes that have one, by axis name; ``guard`` is None where the graph
    cannot be guarded, so that the native profiles cannot serve it; ``accuracy`` holds the accuracy gate's figures of a
    precision below FP32."""

    schema_version: Literal[1] = 1
    source: SourceRecord
    fingerprint: str
    files: dict[str, FileRecord]
    versions: dict[str, str]
    opset: int
    precision: Precision = Precision.FP32
    accuracy: dict[str, float] = {}
    inputs: list[Tensor]
    outputs: list[Tensor]
    batch_limit: int
    index_ranges: dict[str, ValidRange]
    axis_limits: dict[str, int]
    guard: GuardRecord | None
    parity: Tolerance | None
    row_independence: Tolerance
    gates: list[GateRecord]
    seed: int

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """Read ``artifact.json``.

        Raises:
            ModelFileError: the file is missing, not JSON, of another schema version, or breaks the schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}", hint="export the model first") from error
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} is corrupt: {error}", hint="export the model again") from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise ModelFileError(
                f"{path} has schema version {version!r}, this Brim reads {SCHEMA_VERSION}",
                hint="export the model again",
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise ModelFileError(f"{path} breaks its schema: {faults}", hint="export the model again") from error

    def save(self, path: Path) -> None:
        """Write the file, keys in the order of the schema."""
        path.write_text(json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def hash_file(path: Path) -> FileRecord:
    """Hash and size of a file, read in pieces."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            size += len(piece)
    return FileRecord(sha256=digest.hexdigest(), size=size)


def hash_files(folder: Path) -> dict[str, FileRecord]:
    """Every file below ``folder`` by its path from there, sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in files}


def verify(folder: Path) -> Artifact:
    """The artifact in ``folder``, after hashing every file that it lists.

    Raises:
        ModelFileError: the artifact cannot be read, or files are missing or changed; names all of them.
    """
    artifact = Artifact.load(folder / ARTIFACT_NAME)
    faults = file_faults(folder, artifact.files)
    if faults:
        raise ModelFileError(f"{folder} is not what was exported: {'; '.join(faults)}", hint="export the model again")
    return artifact


def file_faults(folder: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """What is missing or changed of ``files`` in ``folder``."""
    faults = []
    for name, record in files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif path.stat().st_size != record.size:
            faults.append(f"{name} has {path.stat().st_size} bytes, exported were {record.size}")
        elif hash_file(path) != record:
            faults.append(f"{name} has another content than was exported")
    return faults
