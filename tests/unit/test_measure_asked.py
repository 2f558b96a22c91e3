"""``sweep.json``: what a sweep was asked for is there before anything is measured, and a resumed sweep is held against it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InputError
from brim.measure.asked import FILE_NAME, Asked, read_asked, record_asked
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.sweep import Settings, grid

CLOSED = Plan(Mode.CONCURRENCY, (1, 8))
POISSON = Plan(Mode.RATE, (100,))
CONSTANT = replace(POISSON, distribution=Distribution.CONSTANT)
SETTINGS = grid([1, 2], [(), (32, 64)])


def record(folder: Path, **changes: Any) -> Asked:
    given: dict[str, Any] = {
        "model": "known",
        "configuration": "abc",
        "settings": SETTINGS,
        "plans": [CLOSED, POISSON],
        **changes,
    }
    return record_asked(folder, **given)


def test_it_is_recorded_and_read_back(tmp_path: Path) -> None:
    assert read_asked(tmp_path) is None
    asked = record(tmp_path / "run")
    assert read_asked(tmp_path / "run") == asked
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FILE_NAME], "no part of it is left beside"
    assert asked.points == [
        (one, arrivals, load) for one in SETTINGS for arrivals, load in (("closed", 1), ("closed", 8), ("poisson", 100))
    ]
    assert asked.settings[1] == Settings(1, (32, 64))


def test_the_same_and_more_may_be_asked_of_a_folder(tmp_path: Path) -> None:
    first = record(tmp_path)
    written = (tmp_path / FILE_NAME).stat().st_mtime_ns
    assert record(tmp_path) == first
    assert (tmp_path / FILE_NAME).stat().st_mtime_ns == written
    more = record(
        tmp_path, settings=[*SETTINGS, Settings(3)], plans=[replace(CLOSED, values=(8, 1, 20)), POISSON, CONSTANT]
    )
    assert read_asked(tmp_path) == more and len(more.points) == 5 * 5


def test_another_sweep_is_refused_with_every_difference(tmp_path: Path) -> None:
    record(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    rows = tmp_path / "rows.json"
    rows.write_text("{}", encoding="utf-8")
    other = [replace(plan, protocol=Protocol.HTTP, window_ms=300, input_data=rows) for plan in (CLOSED,)]
    with pytest.raises(InputError) as refused:
        record(tmp_path, model="m", configuration="x", settings=SETTINGS[1:], plans=other)
    for words in (
        "model was known, is m",
        "protocol was grpc, is http",
        "the model's configuration has changed",
        "the rows that are sent are others",
        "window_ms was 2000, is 300",
        "it asked for the configuration instances 1, preferred []",
        "it asked for poisson 100",
    ):
        assert words in refused.value.message, words
    with pytest.raises(InputError, match=r"it asked for closed 1$"):
        record(tmp_path, plans=[replace(CLOSED, values=(8, 9)), POISSON])
    assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 3}', "nonsense", '{"settings": [{"instances": "x"}]}'])
def test_a_file_with_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="not what a sweep records"):
        record(tmp_path)


def test_every_fault_of_the_file_is_named(tmp_path: Path) -> None:
    document = json.loads(record(tmp_path).model_dump_json())
    document["settings"] = []
    del document["protocol"]
    document["loads"][0]["values"] = ["x"]
    (tmp_path / FILE_NAME).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_asked(tmp_path)
    for words in ("settings", "protocol", "loads.0.values.0"):
        assert words in refused.value.message
