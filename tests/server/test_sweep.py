"""``brim sweep`` with the real server and the real perf_analyzer: points of every configuration, each measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.cli.commands.sweep import sweep
from brim.errors import CouldNotTell
from brim.measure.launcher import find_launcher
from brim.measure.point import FILE_NAME, read_points
from brim.paths import Project
from tests.server.doubler import make_project


@pytest.fixture
def project(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path / "project")
    # The tools of the checkout are used, so that none is fetched again.
    made.cache.symlink_to(Project(checkout).cache_folder(), target_is_directory=True)
    try:
        find_launcher(made.cache)
    except CouldNotTell as error:
        pytest.skip(str(error))
    monkeypatch.setenv("BRIM_ROOT", str(made.root))
    return made


def test_a_sweep_measures_each_point_once(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def go(concurrency: str) -> dict[str, object]:
        code = sweep(
            "doubler",
            concurrency=concurrency,
            instances="1,2",
            window_ms=200,
            stability_percent=1_000,
            max_trials=3,
            out=tmp_path / "run",
            as_json=True,
        )
        assert code == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["ok"] is True
        data: dict[str, object] = answer["data"]
        return data

    first = go("2")
    points = first["points"]
    assert isinstance(points, list)
    assert [(point["settings"]["instances"], point["instances"], point["concurrency"]) for point in points] == [
        (1, 1, 2),
        (2, 2, 2),
    ]
    assert all(point["arrivals"] == "closed" and point["inferences"] > 0 for point in points)
    assert first["failed"] == []
    kept = (tmp_path / "run" / FILE_NAME).read_bytes()
    assert go("2") == first
    assert (tmp_path / "run" / FILE_NAME).read_bytes() == kept
    assert len(read_points(tmp_path / "run")) == 2
