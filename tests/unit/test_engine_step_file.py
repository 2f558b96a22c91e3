"""Steps in a file: whole lines at once, the newest ones within the bound, and no harm where it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.engine.step_file import StepFile, earlier, step_file
from brim.engine.step_log import LoggedStep, StepLog
from brim.engine.step_time import StepShape


def step(number: int) -> LoggedStep:
    return LoggedStep(number, 5, 6, {"a": 3}, ("b",), (), ("b",), StepShape(1, 3, 9, 4), 2, 3)


def read(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_step_is_a_line_at_once(tmp_path: Path) -> None:
    path = step_file(tmp_path, "story")
    complaints: list[str] = []
    log = StepLog(2, also=StepFile(path, complaints.append).add)
    for number in range(3):
        log.add(step(number))
        assert read(path) == list(range(number + 1))
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0]) == step(0).as_json()
    assert (len(log), complaints) == (2, [])


def test_the_newest_are_kept_within_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    earlier(path).write_text("of an earlier server", encoding="utf-8")
    line = len(json.dumps(step(0).as_json(), separators=(",", ":"))) + 1
    file = StepFile(path, pytest.fail, most_bytes=3 * line)
    assert not earlier(path).exists()
    for number in range(8):
        file.add(step(number))
        assert path.stat().st_size <= 3 * line
    assert read(earlier(path)) + read(path) == [3, 4, 5, 6, 7]


def test_what_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    complaints: list[str] = []
    file = StepFile(tmp_path / "nowhere" / "steps", complaints.append)
    file.add(step(0))
    file.add(step(1))
    assert len(complaints) == 1 and "nowhere/steps: No such file" in complaints[0]
