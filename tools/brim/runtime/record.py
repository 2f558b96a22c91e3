"""What the export's record, ``artifact.json``, says about values that the graph can stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.errors import ModelFileError
from brim.runtime.contract import dtype_of
from brim.runtime.session import GraphTensor

RECORD_FILE = "artifact.json"


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """Limits by graph input. Empty for a model that was put there by hand.

    Attributes:
        index_ranges: smallest and largest value of inputs that select from a table.
        largest_size: most elements along any variable axis but the batch.
    """

    index_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    largest_size: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """The exported graph's inputs and outputs by name. ``valid`` is the guarded graph's row mask, where there is one."""

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]
    valid: str | None


def read_record(folder: Path, remedy: str) -> ExportRecord:
    """The record in a version folder; an empty one when there is none.

    Raises:
        ModelFileError: the file is there and is not a record.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return ExportRecord()
    try:
        data = _load(path)
        ranges = {
            name: (int(limits["minimum"]), int(limits["maximum"])) for name, limits in data["index_ranges"].items()
        }
        known = {axis: int(size) for axis, size in data["axis_limits"].items()}
        sizes = {entry["name"]: [known[a] for a in entry["axes"][1:] if a in known] for entry in data["inputs"]}
    except _NO_RECORD as error:
        raise _no_record(path, error, remedy) from error
    return ExportRecord(ranges, {name: min(limits) for name, limits in sizes.items() if limits})


def read_graph(folder: Path, remedy: str) -> GraphRecord:
    """The graph as its export recorded it, for a model that is not loaded here.

    Raises:
        ModelFileError: the record is missing, or is not one.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        raise ModelFileError(f"{path} is missing", hint=remedy)
    try:
        data = _load(path)
        inputs, outputs = ({entry["name"]: _tensor(entry) for entry in data[role]} for role in ("inputs", "outputs"))
        valid = data["guard"]["valid"] if data.get("guard") else None
    except _NO_RECORD as error:
        raise _no_record(path, error, remedy) from error
    return GraphRecord(inputs, outputs, valid)


_NO_RECORD = (ValueError, TypeError, KeyError, AttributeError)


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _tensor(entry: Mapping[str, Any]) -> GraphTensor:
    shape = tuple(None if int(size) < 0 else int(size) for size in entry["shape"])
    return GraphTensor(entry["name"], dtype_of(entry["datatype"]), shape)


def _no_record(path: Path, error: Exception, remedy: str) -> ModelFileError:
    return ModelFileError(f"{path} is not the record of an export: {type(error).__name__}: {error}", hint=remedy)
