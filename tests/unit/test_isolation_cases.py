"""Case 21 through the batch runtime: one bad request of any size, in any order, neither fails nor shifts the others."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.runtime.batch import BatchRuntime
from brim.runtime.contract import Contract, TensorSpec
from brim.runtime.guard import Guard
from brim.runtime.outcome import Answer, Failure

FP32 = np.dtype(np.float32)
CONTRACT = Contract((TensorSpec("X", FP32, (4,)),), (TensorSpec("Y", FP32, (1,)),))


@pytest.fixture(scope="module")
def case() -> Mapping[str, Any]:
    return runpy.run_path(str(Path(__file__).resolve().parent.parent / "cases" / "21_poison_row_model.py"))


def outcomes(case: Mapping[str, Any], names: Sequence[str], rows: Mapping[str, Any]) -> dict[str, Any]:
    runtime = BatchRuntime(CONTRACT, Guard(CONTRACT), lambda inputs: {"Y": case["predict_rows"](inputs["X"])})
    return dict(zip(names, runtime.execute([{"X": rows[name]} for name in names]), strict=True))


def assert_case(case: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, expected in case["EXPECT"].items():
        if expected == "error":
            assert isinstance(found[name], Failure)
        else:
            assert isinstance(found[name], Answer)
            assert found[name].outputs["Y"].tolist() == expected


@pytest.mark.parametrize("order", list(itertools.permutations("ABC")))
def test_the_case_in_every_order(case: Mapping[str, Any], order: Sequence[str]) -> None:
    assert_case(case, outcomes(case, order, case["REQUESTS"]))


@pytest.mark.parametrize("order", list(itertools.permutations("ABC")))
def test_the_bad_request_may_have_1_to_98_rows_of_which_any_is_bad(
    case: Mapping[str, Any], order: Sequence[str]
) -> None:
    for size in range(1, 99):
        many = np.ones((size, 4), np.float32)
        many[size * 37 % 101 % size] = [-1, 0, 0, 0]
        # Above 100 rows in all they share no run, and nothing changes.
        assert_case(case, outcomes(case, order, {**case["REQUESTS"], "B": many}))
