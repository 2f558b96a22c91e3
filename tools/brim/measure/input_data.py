"""Writing perf_analyzer's input file, so that concurrent callers send different rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import serialize_byte_tensor

from brim.errors import InputError


def write_input_data(path: Path, rows: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Path:
    """Write one step a row; perf_analyzer hands the steps out in turn to its requests.

    Args:
        path: the JSON file to write.
        rows: input name -> tensor of one row **without** the batch dimension; text inputs as arrays of str or bytes.

    Raises:
        InputError: no row, or the rows do not all have the same inputs.
    """
    if not rows:
        raise InputError(f"{path}: no row to send", hint="give at least one row")
    names = set(rows[0])
    for index, row in enumerate(rows):
        if set(row) != names:
            raise InputError(
                f"{path}: row {index} has inputs {sorted(row)}, row 0 has {sorted(names)}",
                hint="give every row the same inputs",
            )
    steps = [{name: _tensor(value) for name, value in row.items()} for row in rows]
    path.write_text(json.dumps({"data": steps}), encoding="utf-8")
    return path


def _tensor(value: np.ndarray[Any, Any]) -> dict[str, object]:
    """One tensor in binary: perf_analyzer's JSON numbers know no integer literal for a float input, and no NaN."""
    if value.dtype.kind in "OSU":
        raw = serialize_byte_tensor(value.astype(np.object_)).item() if value.size else b""
    else:
        raw = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False)).tobytes()
    return {"content": {"b64": base64.b64encode(raw).decode()}, "shape": list(value.shape)}
