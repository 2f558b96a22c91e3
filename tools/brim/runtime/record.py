"""What the export's record, ``artifact.json``, says about values that the graph can stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brim.errors import ModelFileError

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


def read_record(folder: Path, remedy: str) -> ExportRecord:
    """The record in a version folder; an empty one when there is none.

    Raises:
        ModelFileError: the file is there and is not a record.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return ExportRecord()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        ranges = {
            name: (int(limits["minimum"]), int(limits["maximum"])) for name, limits in data["index_ranges"].items()
        }
        known = {axis: int(size) for axis, size in data["axis_limits"].items()}
        sizes = {entry["name"]: [known[a] for a in entry["axes"][1:] if a in known] for entry in data["inputs"]}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelFileError(
            f"{path} is not the record of an export: {type(error).__name__}: {error}", hint=remedy
        ) from error
    return ExportRecord(ranges, {name: min(limits) for name, limits in sizes.items() if limits})
