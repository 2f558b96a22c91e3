"""What the guard refuses, with which reason, and that its text shows the request's own facts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from brim.runtime import Contract, Guard, InputRules, Reason, TensorSpec
from brim.runtime.contract import dtype_of


def spec(name: str, kind: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, dtype_of(kind), shape)


def guard(*inputs: TensorSpec, rules: dict[str, InputRules] | None = None, aligned: tuple[str, ...] = ()) -> Guard:
    return Guard(Contract(inputs, ()), rules, aligned)


X = guard(spec("X", "FP32", 4))
IDS = guard(
    spec("IDS", "INT64", -1),
    spec("MASK", "INT64", -1),
    rules={"IDS": InputRules(minimum=0, maximum=9)},
    aligned=("IDS", "MASK"),
)
TEXT = guard(spec("S", "BYTES", 1), rules={"S": InputRules(longest_bytes=5)})
FLAGS = guard(spec("M", "BOOL", 4))
PIXELS = guard(spec("P", "FP32", -1, 3), rules={"P": InputRules(largest_size=2)})
TWO = guard(spec("X", "FP32", 4), spec("W", "FP32", 4))


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def longs(*rows: list[int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64)


def texts(*values: bytes) -> np.ndarray[Any, Any]:
    return np.array([[value] for value in values], dtype=np.object_)


@pytest.mark.parametrize(
    ("checks", "request_", "reason", "words"),
    [
        (X, {"X": floats(0, 4)}, Reason.NO_ROWS, ["X", "[0, 4]"]),
        (X, {"X": floats(101, 4)}, Reason.TOO_MANY_ROWS, ["101", "100"]),
        (X, {"X": floats(4)}, Reason.RANK, ["[4]", "batch"]),
        (X, {"X": np.array(1, np.float32)}, Reason.RANK, ["[]", "batch"]),
        (X, {"X": floats(1, 5)}, Reason.SHAPE, ["[1, 5]", "[rows, 4]"]),
        (X, {"X": np.zeros((1, 4))}, Reason.DTYPE, ["FP64", "FP32"]),
        (X, {}, Reason.MISSING_INPUT, ["X"]),
        (X, {"X": floats(1, 4), "Z": floats(1, 4)}, Reason.UNKNOWN_INPUT, ["Z"]),
        (X, {"X": np.array([[0, 0, np.nan, 0]], np.float32)}, Reason.NON_FINITE, ["X", "[0, 2]", "nan"]),
        (X, {"X": np.array([[0, -np.inf, 0, 0]], np.float32)}, Reason.NON_FINITE, ["[0, 1]", "-inf"]),
        (TWO, {"X": floats(3, 4), "W": floats(4, 4)}, Reason.ROWS_DIFFER, ["batch", "3", "4"]),
        (TWO, {"X": floats(3, 4)}, Reason.MISSING_INPUT, ["W"]),
        (IDS, {"IDS": longs([1, 10]), "MASK": longs([1, 1])}, Reason.OUT_OF_RANGE, ["[0, 1]", "10", "0..9"]),
        (IDS, {"IDS": longs([1, -1]), "MASK": longs([1, 1])}, Reason.OUT_OF_RANGE, ["-1", "0..9"]),
        (IDS, {"IDS": longs([1, 2]), "MASK": longs([1])}, Reason.LENGTHS_DIFFER, ["2", "1"]),
        (IDS, {"IDS": longs([]), "MASK": longs([])}, Reason.SHAPE, ["[1, 0]"]),
        (TEXT, {"S": texts(b"123456")}, Reason.TOO_MANY_BYTES, ["6", "5"]),
        (TEXT, {"S": texts(b"ok", b"a\xff")}, Reason.NOT_UTF8, ["element 1", "byte 1"]),
        (TEXT, {"S": np.array([[3]], dtype=np.object_)}, Reason.DTYPE, ["int", "BYTES"]),
        (FLAGS, {"M": np.array([[0, 1, 2, 255]], np.uint8).view(np.bool_)}, Reason.BOOL_VALUE, ["255"]),
        (PIXELS, {"P": floats(1, 3, 3)}, Reason.TOO_LARGE, ["3", "2"]),
    ],
)
def test_a_bad_request_is_refused_for_its_reason(
    checks: Guard, request_: dict[str, Any], reason: Reason, words: list[str]
) -> None:
    refusal = checks.check(request_)
    assert refusal is not None
    assert refusal.reason is reason
    assert all(word in str(refusal) for word in words), str(refusal)


@pytest.mark.parametrize(
    ("checks", "request_"),
    [
        (X, {"X": floats(1, 4)}),
        (X, {"X": floats(100, 4)}),
        (X, {"X": np.full((1, 4), np.finfo(np.float32).max, np.float32)}),
        (X, {"X": floats(4, 1).T.repeat(3, axis=0)}),
        (TWO, {"W": floats(3, 4), "X": floats(3, 4)}),
        (IDS, {"IDS": longs([0, 9]), "MASK": longs([1, 1])}),
        (TEXT, {"S": texts(b"")}),
        (TEXT, {"S": texts(b"a\x00\x00")}),
        (TEXT, {"S": texts("ä€".encode())}),
        (FLAGS, {"M": np.array([[0, 1, 1, 0]], np.bool_)}),
        (PIXELS, {"P": floats(5, 2, 3)}),
    ],
)
def test_a_good_request_passes(checks: Guard, request_: dict[str, Any]) -> None:
    assert checks.check(request_) is None


@pytest.mark.parametrize("kind", ["FP16", "FP32", "FP64"])
def test_non_finite_values_pass_where_the_service_says_so(kind: str) -> None:
    checks = guard(spec("X", kind, 2), rules={"X": InputRules(finite=False, minimum=0)})
    assert checks.check({"X": np.array([[np.nan, np.inf]], dtype_of(kind))}) is None


@pytest.mark.parametrize(
    ("limits", "bad"), [({"minimum": 0, "maximum": 1}, 7), ({"maximum": 1}, 7), ({"minimum": 0}, -7)]
)
def test_a_nan_that_may_pass_does_not_hide_a_value_out_of_range(limits: dict[str, float], bad: float) -> None:
    checks = guard(spec("X", "FP32", 1), rules={"X": InputRules(finite=False, **limits)})
    batch = np.array([[np.nan], [bad], [0.5]], np.float32)
    assert not checks.values_ok("X", batch)
    assert checks.suspect_rows("X", batch) == [1]


def test_large_finite_halves_are_no_false_alarm() -> None:
    checks = guard(spec("X", "FP16", 4))
    assert checks.check({"X": np.full((100, 4), np.finfo(np.float16).max)}) is None


def test_rules_for_an_input_that_does_not_exist_are_an_error() -> None:
    with pytest.raises(ValueError, match="'Y'"):
        guard(spec("X", "FP32", 4), rules={"Y": InputRules()})


FORMS: tuple[dict[str, np.ndarray[Any, Any]], ...] = (
    {"X": floats(1, 4), "W": floats(1, 4)},
    {"X": floats(3, 4), "W": floats(3, 4)},
    {"X": floats(100, 4), "W": floats(100, 4)},
    {"X": floats(1, 4)},
    {"X": floats(1, 4), "W": floats(1, 4), "Z": floats(1, 4)},
    {"X": floats(1, 4), "Z": floats(1, 4)},
    {"X": floats(0, 4), "W": floats(0, 4)},
    {"X": floats(101, 4), "W": floats(101, 4)},
    {"X": floats(1, 4), "W": floats(2, 4)},
    {"X": floats(2, 4), "W": floats(1, 4)},
    {"X": floats(1, 5), "W": floats(1, 5)},
    {"X": floats(4), "W": floats(4)},
    {"X": floats(1, 4, 1), "W": floats(1, 4, 1)},
    {"X": np.array(0, np.float32), "W": np.array(0, np.float32)},
    {"X": np.zeros((1, 4), np.float16), "W": floats(1, 4)},
    {"X": np.zeros((1, 4), np.int16), "W": floats(1, 4)},
    {"X": np.zeros((1, 4), np.bool_), "W": floats(1, 4)},
    {"X": np.zeros((1, 4)), "W": np.zeros((1, 4))},
    {"X": np.zeros((1, 4), ">f4"), "W": floats(1, 4)},
    {"X": np.array([[b"a"] * 4], dtype=np.object_), "W": floats(1, 4)},
)


@pytest.mark.parametrize("batch", [*((form,) for form in FORMS), *itertools.permutations(FORMS, 2)])
def test_one_look_at_all_requests_lets_pass_what_a_look_at_each_does(batch: tuple[dict[str, Any], ...]) -> None:
    stacked = TWO.stack(batch)
    assert (stacked is None) == any(TWO.check_form(request) for request in batch)
    if stacked:
        assert stacked.sizes == [len(request["X"]) for request in batch]
        for name, column in stacked.columns.items():
            assert np.array_equal(column, np.concatenate([request[name] for request in batch]))


def test_the_joined_rows_are_those_of_each_request_in_order() -> None:
    stacked = X.stack([{"X": floats(2, 4) + 1}, {"X": floats(1, 4) + 2}, {"X": floats(1, 4) + 3}])
    assert stacked is not None
    assert (stacked.sizes, stacked.columns["X"][:, 0].tolist()) == ([2, 1, 1], [1, 1, 2, 3])


@pytest.mark.parametrize(
    ("checks", "request_"),
    [
        (IDS, {"IDS": longs([1]), "MASK": longs([1])}),
        (TEXT, {"S": texts(b"abc")}),
        (FLAGS, {"M": np.zeros((1, 4), np.bool_)}),
        (PIXELS, {"P": floats(1, 2, 3)}),
    ],
)
def test_where_type_and_shape_do_not_settle_the_form_each_request_is_looked_at(
    checks: Guard, request_: dict[str, Any]
) -> None:
    assert checks.check_form(request_) is None
    assert checks.stack([request_]) is None
