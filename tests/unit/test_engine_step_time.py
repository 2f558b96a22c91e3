"""The step time model: fitted, bounded, read from files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.step_time import (
    MOST_FINDINGS,
    StepShape,
    StepTime,
    fit,
    parse_step_time,
    prefill_pairs,
    read_step_time,
    relative_errors,
)
from brim.errors import InputError

TRUE = StepTime(9_000, 310.5, 0.9, 305, 0.021, 450)


def shapes(chance: Random, count: int) -> list[StepShape]:
    found = []
    for _ in range(count):
        decoding, prefill, after = chance.randint(0, 32), chance.choice([0, 0, 17, 256]), chance.randint(0, 3000)
        context = decoding * chance.randint(1, 2000)
        found.append(StepShape(decoding, prefill, context, prefill_pairs(prefill, after)))
    return found


def test_pairs_are_what_each_prompt_token_attends_to() -> None:
    for tokens, after in ((1, 0), (5, 0), (7, 30), (256, 3000)):
        assert abs(prefill_pairs(tokens, after) - sum(after + place + 0.5 for place in range(tokens))) <= 0.5


def test_the_time_is_the_sum_of_its_parts() -> None:
    assert StepTime(1000, 10, 2, 3, 0.5).time_us(StepShape(4, 8, 100, 64)) == 1000 + 40 + 200 + 24 + 32
    assert StepTime(1000, 10, 2, 3, 0.5, 7).time_us(StepShape(11)) == 1000 + 110 + 3 * 7
    assert StepTime(0.1, 0, 0, 0, 0).time_us(StepShape()) == 1


def test_a_fit_finds_what_made_the_steps() -> None:
    steps = [(shape, float(TRUE.time_us(shape))) for shape in shapes(Random(1), 200)]
    found = fit(steps)
    assert np.allclose(found.coefficients, TRUE.coefficients, rtol=2e-3)
    assert np.abs(relative_errors(found, steps)).max() < 1e-3


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**48).map(Random))
def test_a_fit_is_never_negative_and_no_other_one_is_better(chance: Random) -> None:
    steps = [
        (shape, TRUE.time_us(shape) * chance.lognormvariate(0, 0.8)) for shape in shapes(chance, chance.randint(1, 30))
    ]
    found = fit(steps)
    assert min(found.coefficients) >= 0

    def error(model: StepTime) -> float:
        features = np.array([shape.features for shape, _ in steps], float)
        return float(np.square(features @ model.coefficients / [took for _, took in steps] - 1).sum())

    for _ in range(30):
        other = StepTime(*(value * chance.choice([0, 0.5, 0.9, 1, 1.1, 3]) + 1e-9 for value in found.coefficients))
        assert error(found) <= error(other) + 1e-6


@pytest.mark.parametrize("steps", [[], [(StepShape(1), 0.0)], [(StepShape(1), math.nan)], [(StepShape(1), -5.0)]])
def test_what_cannot_be_fitted_is_refused(steps: list[tuple[StepShape, float]]) -> None:
    with pytest.raises(InputError, match="steps to fit from"):
        fit(steps)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_a_coefficient_that_is_no_time_is_refused_by_name(value: float) -> None:
    with pytest.raises(InputError, match="pair_us is"):
        StepTime(1, 1, 1, 1, value)
    with pytest.raises(InputError, match="every coefficient is 0"):
        StepTime(0, 0, 0, 0, 0)


def test_files_hold_coefficients_or_steps(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(json.dumps(TRUE.as_json()))
    assert read_step_time(file) == TRUE
    file.write_text('{"base_us": 9, "sequence_us": 1, "context_us": 0, "prefill_us": 1, "pair_us": 0}')
    assert read_step_time(file) == StepTime(9, 1, 0, 1, 0, 0)
    steps = [(shape, float(TRUE.time_us(shape))) for shape in shapes(Random(2), 100)]
    entries = [
        {
            "decoding": shape.decoding,
            "prefill_tokens": shape.prefill_tokens,
            "context_tokens": shape.context_tokens,
            "prefill_pairs": shape.prefill_pairs,
            "took_us": took_us,
            "number": 7,
        }
        for shape, took_us in steps
    ]
    file.write_text(json.dumps({"steps": entries}))
    assert read_step_time(file) == fit(steps)


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (b"{", ["no JSON"]),
        (b"[" * 100_000, ["no JSON"]),
        (b"[1]", ["no JSON object"]),
        (b"{}", [f"{name} is missing" for name in TRUE.as_json() if name != "crowd_us"]),
        (json.dumps({**TRUE.as_json(), "base_us": True, "pair_us": "1"}).encode(), ["base_us is true", 'pair_us is "1"']),
        (json.dumps({**TRUE.as_json(), "base_us": math.nan}).encode(), ["base_us is NaN"]),
        (json.dumps(dict.fromkeys(TRUE.as_json(), 0)).encode(), ["every coefficient is 0"]),
        (b'{"steps": []}', ["an empty one"]),
        (b'{"steps": [7, {"decoding": -1, "prefill_tokens": 0, "context_tokens": 0, "prefill_pairs": 0, "took_us": 0}]}',
         ["steps[0] is no object", "steps[1].decoding is -1", "steps[1].took_us is 0"]),
        (json.dumps({"steps": [7] * 1000}).encode(), [f"steps[{place}] is" for place in range(MOST_FINDINGS)]),
    ],
)  # fmt: skip
def test_all_faults_of_a_file_are_found_at_once(content: bytes, faults: list[str]) -> None:
    found, findings = parse_step_time(content, "f.json")
    assert found is None
    assert len(findings) == len(faults)
    for fault, finding in zip(faults, findings, strict=True):
        assert fault in finding.message
