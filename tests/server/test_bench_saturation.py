"""Served over offline in its smallest form on the real server: both did full batches, and every figure is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.bench.comparison import Comparison
from brim.bench.saturation import BEST_SETTING, Effort, saturation
from brim.bench.verdict import ExitCode, Verdict
from brim.errors import MissingTool
from brim.limits import BATCH_LIMIT
from brim.measure.launcher import Launcher, find_launcher
from brim.paths import Project
from brim.service.load import find_service
from brim.units import US_PER_S

TINY = Effort(rounds=1, callers=300, window_ms=200, offline_us=400_000, sentences=30, encoder_callers=12)


@pytest.fixture(scope="module")
def launcher(checkout: Path) -> Launcher:
    try:
        return find_launcher(Project(checkout).cache)
    except MissingTool as error:
        pytest.skip(str(error))


def look(project: Project, launcher: Launcher, folder: Path, *names: str) -> Comparison:
    services = [find_service(project.services, name) for name in names]
    found = saturation(
        project,
        services,
        known_time=not names,
        launcher=launcher,
        folder=folder,
        log_file=folder / "triton.log",
        effort=TINY,
    )
    assert all(len(values) == TINY.rounds and min(values) >= 0 for values in found.figures.values())
    read = json.loads(json.dumps(found.as_json()))
    assert read["findings"] == found.details["findings"] and read["conditions"]["cores"] >= 1
    return found


def test_the_model_of_known_time(checkout: Path, launcher: Launcher, tmp_path: Path) -> None:
    found = look(Project(checkout), launcher, tmp_path)
    (ratio,) = found.ratios
    assert ratio.verdict is Verdict.UNCLEAR and found.exit_code is ExitCode.COULD_NOT_TELL, "one round is too few"
    most_per_s = BATCH_LIMIT * US_PER_S / BEST_SETTING.time_us(BATCH_LIMIT)
    for name in ("known_time_best", "known_time_default"):
        figures = {key.removeprefix(f"{name}_"): values[0] for key, values in found.figures.items() if name in key}
        assert 0 < figures["offline_per_s"] <= most_per_s, "each batch holds the device for its time"
        assert 0 < figures["device_held"] <= 1 and 0 < figures["offline_device_held"] <= 1
        assert 1 <= figures["mean_batch"] <= figures["shared_batch"] <= BATCH_LIMIT
        assert figures["server_us"] > 0 and figures["served_per_s"] > 0 and figures["duty"] > 0
    best, default = found.details["findings"]  # type: ignore[misc]
    assert "preferred [100], delay 20 ms, 2 instances" in best and "no preferred size, no delay, 1 instance" in default
    assert len(list((tmp_path / "raw").iterdir())) == 2


def test_both_shipped_models(exported: Project, launcher: Launcher, tmp_path: Path) -> None:
    found = look(exported, launcher, tmp_path, "text_embedding", "image_classifier")
    assert not found.ratios and found.exit_code is ExitCode.YES, "no target, no verdict"
    for name in ("text_embedding", "image_classifier"):
        assert found.figures[f"{name}_served_per_s"][0] > 0 and found.figures[f"{name}_offline_per_s"][0] > 0
    answered = found.details["answered"]
    assert isinstance(answered, int) and answered > TINY.sentences
    findings = found.details["findings"]
    assert isinstance(findings, list)
    assert [line.partition(":")[0] for line in findings] == ["text_embedding", "image_classifier"]
    assert all("Limit: " in line for line in findings)
