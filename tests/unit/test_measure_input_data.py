"""Rows as perf_analyzer's input file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from brim.errors import InputError
from brim.measure.input_data import write_input_data


def test_every_row_keeps_its_bytes(tmp_path: Path) -> None:
    rows = [
        {
            "X": np.array([[1.5, np.nan]], dtype=">f4"),
            "I": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
            "T": np.array(["é", b"\xff\x00"], dtype=object),
        },
        {"X": np.zeros((1, 2), np.float32), "I": np.zeros((2, 2), np.int64), "T": np.array([], dtype=object)},
    ]
    steps = json.loads(write_input_data(tmp_path / "rows.json", rows).read_text())["data"]
    raw = [{name: base64.b64decode(tensor["content"]["b64"]) for name, tensor in step.items()} for step in steps]
    assert raw[0]["X"] == np.array([1.5, np.nan], dtype="<f4").tobytes()
    assert raw[0]["I"] == np.array([0, 2, 3, 5], dtype="<i8").tobytes()
    assert raw[0]["T"] == b"\x02\x00\x00\x00" + "é".encode() + b"\x02\x00\x00\x00\xff\x00"
    assert raw[1]["T"] == b""
    assert [step["I"]["shape"] for step in steps] == [[2, 2], [2, 2]]


def test_rows_that_differ_in_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1 has inputs"):
        write_input_data(tmp_path / "rows.json", [{"X": np.zeros(1)}, {"Y": np.zeros(1)}])
    with pytest.raises(InputError, match="no row"):
        write_input_data(tmp_path / "rows.json", [])
    assert not (tmp_path / "rows.json").exists()
