"""Reading a run folder: what is there, what was cut short, and every fault at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.report import run_folder
from brim.report.run_folder import read_run
from tests.unit.report_example import choice, point_line, simulation_check, sweep_lines, write_run


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        read_run(folder)
    assert refused.value.hint
    return refused.value.message


def test_everything_is_read(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path / "run", "sweep", "choice", "simulation", "isolation"))
    assert found.name == "run"
    assert len(found.points) == len(sweep_lines()) and len(found.settings) == 3
    assert found.choice is not None and found.simulation is not None and found.isolation is not None
    assert found.isolation_page and found.torn == () and found.runs == ()


def test_a_tuning_has_runs_instead_of_points(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path, "tune"))
    assert found.points == () and len(found.runs) == 18 and found.choice is not None


def test_a_tuning_that_was_stopped_has_no_choice(tmp_path: Path) -> None:
    write_run(tmp_path, "stopped")
    found = read_run(tmp_path)
    assert found.choice is None and found.interrupted is not None
    assert found.interrupted.service == "m" and len(found.interrupted.runs) == 1
    (tmp_path / "choice.json").write_text('{"interrupted": true, "conditions": 3}')
    said = refusal(tmp_path)
    assert "interrupted tuning.service" in said and "interrupted tuning.conditions" in said


def test_a_folder_without_anything_to_report(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "none")
    assert "is empty" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    said = refusal(tmp_path)
    assert "holds only notes.txt" in said and "measurements.jsonl" in said
    assert "a file, not a folder" in refusal(tmp_path / "notes.txt")
    # Configurations alone are no measurements.
    (tmp_path / "configurations.json").write_text("{}")
    assert "none of" in refusal(tmp_path)


def test_every_fault_of_every_file_at_once(tmp_path: Path) -> None:
    write_run(tmp_path, "sweep", "choice", "simulation", "isolation")
    good = json.dumps(point_line(1))
    lines = [
        good,
        "nonsense",
        json.dumps({"key": 3}),
        good[:-1] + "]",
        json.dumps(point_line(0)),
        good.replace('"90": ', '"high": '),
        good.replace('"duty": 0.21', '"duty": NaN'),
        good.replace('"duty": 0.21', '"duty": 1e999'),
        "[1]",
        good,
    ]
    (tmp_path / "measurements.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "configurations.json").write_text('{"a": {"settings": {}}}')
    document = choice()
    document["slo"]["latency_us"] = -1
    del document["why"]
    (tmp_path / "choice.json").write_text(json.dumps(document))
    (tmp_path / "simulation-check.json").write_text("{")
    (tmp_path / "isolation.json").write_bytes(b"\xff")
    said = refusal(tmp_path).splitlines()
    for number in range(2, 10):
        assert sum(f"measurements.jsonl:{number}:" in line for line in said) == 1, number
    for words in (
        "configurations.json: a.config_digest",
        "choice.json: tuning.slo.latency_us",
        "choice.json: tuning.why",
        "simulation-check.json:1:2: not JSON",
        "isolation.json: byte 0 is not UTF-8",
    ):
        assert any(words in line for line in said), words
    assert len(said) == 13


@pytest.mark.parametrize("length", range(1, len(json.dumps(point_line(50))), 7))
def test_a_line_that_was_cut_short_is_not_a_fault(length: int, tmp_path: Path) -> None:
    whole = json.dumps(point_line(1))
    cut = json.dumps(point_line(50))[:length]
    (tmp_path / "measurements.jsonl").write_text(f"{whole}\n{cut}\n{whole}\n{cut}")
    found = read_run(tmp_path)
    assert found.torn == ("measurements.jsonl:2", "measurements.jsonl:4") and len(found.points) == 2


def test_faults_beyond_a_number_are_counted(tmp_path: Path) -> None:
    (tmp_path / "measurements.jsonl").write_text("nonsense\n" * 50)
    said = refusal(tmp_path).splitlines()
    assert len(said) == run_folder.MOST_FAULTS + 1 and "30 more" in said[-1]


def test_a_file_of_any_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MOST_BYTES", 100)
    (tmp_path / "measurements.jsonl").write_text("x" * 101)
    assert "101 bytes, at most 100" in refusal(tmp_path)


def test_deep_nesting_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "simulation-check.json").write_text("[" * 200_000)
    assert "simulation-check.json" in refusal(tmp_path)


def test_a_figure_may_be_absent_in_a_check(tmp_path: Path) -> None:
    document = simulation_check()
    document["points"][0]["measured"] = {"p50_us": None, "throughput": 3}
    (tmp_path / "simulation-check.json").write_text(json.dumps(document))
    found = read_run(tmp_path).simulation
    assert found is not None and found.points[0].measured.p99_us is None
