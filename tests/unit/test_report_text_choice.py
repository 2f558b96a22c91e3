"""A report of what ``brim tune`` chose for a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.report.build import build_report
from brim.report.run_folder import read_run

SETTING = {"chunk_tokens": 256, "max_sequences": 32, "kv_blocks": 512, "batch_kept_share": 0.25}
FIGURES = {"goodput_per_s": 1.9, "in_slo": 0.995, "ttft_p99_us": 812_000.0, "tpot_p99_us": None, "tokens_per_s": 300.0}


def choice(**changes: Any) -> dict[str, Any]:
    measured = {"setting": SETTING, "predicted": {**FIGURES, "goodput_per_s": 2.0}, "measured": FIGURES, "spread": 0.01}
    return {
        "service": "story",
        "interrupted": False,
        "conditions": {"seed": 3},
        "slo": {"ttft_us": 2_000_000, "tpot_us": 200_000, "batch_deadline_us": None, "percentile": 99.0},
        "traffic": {"rate_per_s": 2.0},
        "measurements": [
            {**measured, "is_default": True, "is_choice": False},
            {**measured, "setting": {**SETTING, "chunk_tokens": 512}, "is_choice": True},
        ],
        "choice": {**SETTING, "chunk_tokens": 512},
        "slo_met": True,
        "why": "More of the texts are in time.",
        **changes,
    }


def written(folder: Path, document: dict[str, Any]) -> Path:
    (folder / "choice.json").write_text(json.dumps(document), encoding="utf-8")
    run = {"setting": SETTING, "repeat": 0, "measured": FIGURES, "predicted": FIGURES}
    (folder / "measurements.jsonl").write_text(json.dumps(run) + "\n", encoding="utf-8")
    return folder


def test_the_choice_is_said_and_marked(tmp_path: Path) -> None:
    report = build_report(read_run(written(tmp_path, choice())), None, source="nothing")
    assert report.good is True
    assert report.verdict.startswith("Chosen for story: 512 tokens a step, 32 texts, 512 blocks, batch keeps 25%.")
    (section,) = [one for one in report.sections if one.id == "text-choice"]
    (figure,) = section.figures
    assert figure.table is not None
    assert (len(figure.table.rows), set(figure.table.marked)) == (2, {1})
    assert [row[1:4] for row in figure.table.rows] == [("as it is now", "1.9", "2.0"), ("the choice", "1.9", "2.0")]
    assert figure.table.rows[0][8] == "-"
    assert figure.command == "brim tune story --seed 3"


@pytest.mark.parametrize("document", [choice(choice=None, slo_met=False, measurements=[])])
def test_without_a_choice_the_answer_is_no(tmp_path: Path, document: dict[str, Any]) -> None:
    report = build_report(read_run(written(tmp_path, document)), None, source="nothing")
    assert report.good is False and "No setting was chosen for story. The SLO is not met." in report.verdict


def test_one_that_was_interrupted_is_partial(tmp_path: Path) -> None:
    stopped = {"service": "story", "interrupted": True, "conditions": {}, "choice": None}
    report = build_report(read_run(written(tmp_path, stopped)), None, source="nothing")
    assert any("partial" in warning for warning in report.warnings)
