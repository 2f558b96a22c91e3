from __future__ import annotations

import threading
from pathlib import Path

import pytest

from brim.engine.end_file import VARIABLE, when_told_to_end


def test_texts_are_ended_when_the_file_appears_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ended = tmp_path / "end", threading.Event()
    monkeypatch.setenv(VARIABLE, str(file))
    when_told_to_end(ended.set)
    assert not ended.wait(0.3)
    file.touch()
    assert ended.wait(30)


def test_nobody_looks_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = threading.active_count()
    when_told_to_end(lambda: None)
    assert threading.active_count() == before
