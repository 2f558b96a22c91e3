"""``brim report`` as it is typed: files, the JSON envelope, where the SLO comes from, and what is wrong with its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Brim
from tests.unit.report_example import point_line, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", "isolation")


def test_both_files_lie_in_the_run_folder(brim: Brim, run: Path) -> None:
    code, out, err = brim("report", run)
    assert code == 0
    assert out.split() == [str(run / "report.html"), str(run / "report.md")]
    assert "nobody was hurt" in err
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (run / "report.md").read_text(encoding="utf-8").startswith("# Report of run")
    assert sorted(path.name for path in run.iterdir()) == [
        "isolation.html",
        "isolation.json",
        "report.html",
        "report.md",
    ]
    assert brim("report", run)[0] == 0, "a report is no obstacle to the next one"


def test_json_tells_files_and_sections(brim: Brim, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    code, written, _ = brim("report", run, "--out", out, "--json")
    answer = json.loads(written)
    assert code == 0 and answer["ok"] is True and answer["command"] == "report"
    assert answer["data"] == {"files": [str(out / "report.html"), str(out / "report.md")], "sections": ["isolation"]}
    assert not (run / "report.html").exists()


def test_the_slo_is_the_options_then_the_choices_then_the_services(
    brim: Brim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    line = json.dumps(point_line(1, model="image_classifier"))
    (folder / "measurements.jsonl").write_text(line + "\n", encoding="utf-8")
    page = folder / "report.html"
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    assert brim("report", folder)[0] == 0 and "(services/image_classifier.yaml)" in page.read_text(encoding="utf-8")
    assert brim("report", folder, "--slo-ms", "7", "--percentile", "90")[0] == 0
    assert "p90 within 7 ms (--slo-ms)" in page.read_text(encoding="utf-8")
    monkeypatch.setenv("BRIM_ROOT", str(tmp_path))
    assert brim("report", folder)[0] == 0 and "none is known (give --slo-ms" in page.read_text(encoding="utf-8")


def test_what_is_wrong_is_said(brim: Brim, run: Path, tmp_path: Path) -> None:
    code, _, err = brim("report", tmp_path / "none")
    assert code == 2 and "there is no such folder" in err and "hint:" in err
    code, _, err = brim("report", run, "--percentile", "99")
    assert code == 2 and "--slo-ms" in err
    code, _, err = brim("report", run, "--slo-ms", "0")
    assert code == 2 and "latency_us" in err
    code, _, err = brim("report", run, "--slo-ms", "5", "--percentile", "0")
    assert code == 2 and "percentile" in err.lower()
    code, _, err = brim("report", run, "--out", run / "isolation.json")
    assert code == 2 and "is a file" in err
    (run / "isolation.json").write_text("{", encoding="utf-8")
    code, out, _ = brim("report", run, "--json")
    answer = json.loads(out)
    assert code == 2 and answer["ok"] is False and "isolation.json:1:2: not JSON" in answer["error"]["message"]
    assert not (run / "report.html").exists()
