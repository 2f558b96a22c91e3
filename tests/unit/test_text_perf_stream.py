"""perf_analyzer's streaming export, read as callers who heard it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from brim.engine.traffic import Call
from brim.measure.perf_analyzer import MeasurementFailed
from brim.measure.plan import Mode
from brim.measure.text.perf_stream import STEPS, check_of, parse_export, write_prompts
from brim.measure.text.prompts import Prompts, WordCount


def request(at_ns: int, gaps_ns: list[int], *, empty_final: bool = False) -> dict[str, Any]:
    """One of an export, as release 2.60.0 writes it."""
    times, outputs = [], []
    for index, gap_ns in enumerate(gaps_ns):
        at_ns += gap_ns
        times.append(at_ns)
        reason = "length" if index == len(gaps_ns) - 1 else "None"
        outputs.append({"text_output": "x", "num_output_tokens": 1, "num_input_tokens": 5, "finish_reason": reason})
    if empty_final:
        times, outputs = [*times, at_ns + 9_000], [*outputs, {}]
    return {
        "timestamp": times[0] - gaps_ns[0],
        "request_inputs": {},
        "response_timestamps": times,
        "response_outputs": outputs,
    }


def export(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"experiments": [{"experiment": {}, "requests": list(requests)}]}


def test_times_are_taken_by_our_definitions() -> None:
    ms = 1_000_000
    heard = parse_export(
        export(request(5 * ms, [100 * ms, 20 * ms, 40 * ms]), request(9 * ms, [50 * ms], empty_final=True))
    )
    assert [(one.input_tokens, one.output_tokens, one.complete) for one in heard] == [(5, 3, True), (5, 1, True)]
    check = check_of(heard, "key", Mode.CONCURRENCY, 2, 648_000, "2.60.0", ["perf_analyzer"])
    assert (check.requests, check.responses_per_request) == (2, 2.0)
    assert check.ttft_us["50"] == pytest.approx(50_000, rel=1e-3) and check.ttft_us["99"] == 100_000
    assert check.tpot_us["50"] == pytest.approx(30_000, rel=1e-3) and check.itl_us["50"] == pytest.approx(
        20_000, rel=1e-3
    )
    assert check.e2e_us["99"] == pytest.approx(160_000, rel=1e-3) and check.reported_p50_us == 648_000
    assert check.output_tokens_per_s == pytest.approx(4 / 0.16)


@pytest.mark.parametrize("document", [{}, {"experiments": []}, {"experiments": [{}]}, export({"timestamp": 1})])
def test_another_form_is_told(document: dict[str, Any]) -> None:
    with pytest.raises(MeasurementFailed, match="not as release"):
        parse_export(document)


def test_an_export_without_a_whole_text_gives_no_figure() -> None:
    cut = request(0, [1, 1])
    cut["response_outputs"][-1]["finish_reason"] = "None"
    with pytest.raises(MeasurementFailed, match="no whole text"):
        check_of(parse_export(export(cut)), "key", Mode.CONCURRENCY, 1, None, "", [])


def test_the_input_file_has_different_prompts_that_stream(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "in.json", Prompts(WordCount(), "seed"), [Call(6, 3, 3), Call(9, 4, 4)])
    steps = json.loads(path.read_text())["data"]
    texts = [base64.b64decode(step["text_input"]["content"]["b64"])[4:].decode() for step in steps]
    assert len(set(texts)) == STEPS and [len(text.split()) for text in texts[:2]] == [6, 9]
    options = json.loads(base64.b64decode(steps[1]["sampling_parameters"]["content"]["b64"])[4:])
    assert options["max_tokens"] == 4 and options["ignore_eos"] is True
    assert base64.b64decode(steps[0]["stream"]["content"]["b64"]) == b"\x01"
