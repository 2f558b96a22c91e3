"""One dynamic batch through the runtime: right rows to the right caller, faults to nobody else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.runtime import (
    Answer,
    BatchRuntime,
    Contract,
    Failure,
    Guard,
    InputRules,
    PaddingCost,
    Planner,
    Reason,
    Refusal,
    TensorSpec,
)
from brim.runtime.contract import Request, dtype_of
from brim.runtime.outcome import Outcome

FP32 = dtype_of("FP32")
Tensors = dict[str, Any]
CONTRACT = Contract((TensorSpec("X", FP32, (4,)),), (TensorSpec("Y", FP32, (4,)),))


class Recorder:
    """A model function that remembers the row counts of its runs and everything that the runtime logged."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.sizes: list[int] = []
        self.logged: list[str] = []

    def __call__(self, inputs: Tensors) -> Any:
        self.sizes.append(len(next(iter(inputs.values()))))
        return self.function(inputs)


def runtime(
    model: Recorder, contract: Contract = CONTRACT, planner: Planner | None = None, **options: Any
) -> BatchRuntime:
    guard = options.pop("guard", Guard(contract))
    return BatchRuntime(contract, guard, model, planner, log=model.logged.append, **options)


def doubled(inputs: Tensors) -> Tensors:
    return {"Y": 2 * inputs["X"] + 1}


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def value(outcome: Outcome, name: str = "Y") -> Any:
    assert isinstance(outcome, Answer), outcome
    return outcome.outputs[name]


def test_no_requests_no_runs() -> None:
    model = Recorder(doubled)
    assert runtime(model).execute([]) == []
    assert model.sizes == []


def test_large_and_small_batches_in_turn(cases: Path) -> None:
    case = json.loads((cases / "20_batch_sizes.json").read_text(encoding="utf-8"))
    model = Recorder(doubled)
    batches = runtime(model)
    for index, size in enumerate(case["send_in_order_one_instance"]):
        r, c = np.mgrid[0:size, 0:4]
        x = (1000 * index + r + c / 8).astype(np.float32)
        (outcome,) = batches.execute([{"X": x}])
        assert np.array_equal(value(outcome), 2 * x + 1)
    assert model.sizes == case["send_in_order_one_instance"]


SUMS = Contract((TensorSpec("X", FP32, (4,)),), (TensorSpec("Y", FP32, (1,)),))


def sums(inputs: Tensors) -> Tensors:
    x = inputs["X"]
    if (x < 0).any():
        raise ValueError(f"negative input {x.tolist()}")
    return {"Y": x.sum(axis=1, keepdims=True)}


@pytest.mark.parametrize("poison_rows", [1, 2, 7, 64, 95])
@pytest.mark.parametrize("order", list(itertools.permutations("ABC")))
def test_one_bad_request_neither_fails_nor_shifts_the_others(order: Sequence[str], poison_rows: int) -> None:
    requests: dict[str, Request] = {"A": {"X": rows(1, 2)}, "C": {"X": rows(3, 4, 5)}}
    poison = np.zeros((poison_rows, 4), np.float32)
    poison[-1, 0] = -1
    requests["B"] = {"X": poison}
    model = Recorder(sums)
    outcomes = dict(zip(order, runtime(model, SUMS).execute([requests[name] for name in order]), strict=True))
    assert value(outcomes["A"]).tolist() == [[4], [8]]
    assert value(outcomes["C"]).tolist() == [[12], [16], [20]]
    assert isinstance(outcomes["B"], Failure)
    assert len(model.sizes) - 1 <= 2 * ceil(log2(poison_rows + 5))


@pytest.mark.parametrize("position", [0, 1, 49, 98, 99])
def test_a_poison_row_costs_at_most_two_runs_a_level(position: int) -> None:
    requests = [{"X": rows(1000 + number)} for number in range(100)]
    requests[position] = {"X": rows(-1)}
    model = Recorder(sums)
    outcomes = runtime(model, SUMS).execute(requests)
    failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Failure)]
    assert failed == [position]
    assert all(value(outcomes[n]).tolist() == [[4 * (1000 + n)]] for n in range(100) if n != position)
    assert len(model.sizes) - 1 <= 2 * ceil(log2(100))


def test_what_the_model_says_stays_in_the_log() -> None:
    model = Recorder(sums)
    outcomes = runtime(model, SUMS).execute([{"X": rows(-4321)}, {"X": rows(77)}])
    failure = outcomes[0]
    assert isinstance(failure, Failure)
    assert "4321" not in str(failure) and "ValueError" not in str(failure) and __file__ not in str(failure)
    (logged,) = model.logged
    assert failure.incident in str(failure) and failure.incident in logged
    assert "ValueError" in logged and "-4321" in logged


@pytest.mark.parametrize("raised", [SystemExit(3), MemoryError(), RuntimeError()])
def test_whatever_is_raised_fails_its_own_request_only(raised: BaseException) -> None:
    def model(inputs: Tensors) -> Tensors:
        if (inputs["X"] < 0).any():
            raise raised
        return doubled(inputs)

    outcomes = runtime(Recorder(model)).execute([{"X": rows(1)}, {"X": rows(-1)}, {"X": rows(2)}])
    assert [type(outcome) for outcome in outcomes] == [Answer, Failure, Answer]


def test_a_run_that_fails_for_its_size_is_answered_in_parts() -> None:
    def small_only(inputs: Tensors) -> Tensors:
        if len(inputs["X"]) > 30:
            raise MemoryError
        return doubled(inputs)

    outcomes = runtime(Recorder(small_only)).execute([{"X": rows(number)} for number in range(100)])
    assert [value(outcome)[0, 0] for outcome in outcomes] == [2 * number + 1 for number in range(100)]


@pytest.mark.parametrize(
    ("broken", "runs"),
    [
        (lambda i: {"Z": i["X"]}, 1),
        (lambda i: {"Y": i["X"].astype(np.float64)}, 1),
        (lambda i: {"Y": i["X"].tolist()}, 1),
        (lambda i: None, 1),
        (lambda i: i["X"], 1),
        (lambda i: {"Y": i["X"][:-1]}, 7),
        (lambda i: {"Y": np.concatenate([i["X"], i["X"][:1]])}, 7),
        (lambda i: {"Y": i["X"][:, :3]}, 7),
        (lambda i: {"Y": i["X"].ravel()}, 7),
        (lambda i: {"Y": np.array(1, np.float32)}, 7),
    ],
)
def test_a_model_that_breaks_its_contract_fails_everyone_and_shifts_nobody(broken: Any, runs: int) -> None:
    model = Recorder(broken)
    outcomes = runtime(model).execute([{"X": rows(number)} for number in range(4)])
    assert [type(outcome) for outcome in outcomes] == [Failure] * 4
    assert len(model.sizes) == runs


def test_a_row_that_the_model_drops_is_the_only_one_to_fail() -> None:
    outcomes = runtime(Recorder(lambda i: {"Y": i["X"][i["X"][:, 0] >= 0]})).execute(
        [{"X": rows(1)}, {"X": rows(-1)}, {"X": rows(2, 3)}]
    )
    assert isinstance(outcomes[1], Failure)
    assert value(outcomes[0])[:, 0].tolist() == [1]
    assert value(outcomes[2])[:, 0].tolist() == [2, 3]


def test_a_refused_request_never_reaches_the_model() -> None:
    model = Recorder(doubled)
    outcomes = runtime(model).execute([{"X": rows(1)}, {"X": rows(np.nan)}, {"X": rows(2, 3)}, {"X": rows()}])
    assert [type(outcome) for outcome in outcomes] == [Answer, Refusal, Answer, Refusal]
    assert value(outcomes[0])[0, 0] == 3 and value(outcomes[2])[:, 0].tolist() == [5, 7]
    assert model.sizes == [3]


def test_never_more_rows_a_run_than_the_limit() -> None:
    model = Recorder(doubled)
    outcomes = runtime(model).execute([{"X": rows(*range(number, number + 60))} for number in range(5)])
    assert model.sizes == [100, 100, 100]
    for number, outcome in enumerate(outcomes):
        assert value(outcome)[:, 0].tolist() == [2 * x + 1 for x in range(number, number + 60)]


@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_model_that_writes_into_its_input_fails_whoever_is_there(neighbours: int) -> None:
    def writes(inputs: Tensors) -> Tensors:
        inputs["X"] -= 1
        return doubled(inputs)

    outcomes = runtime(Recorder(writes)).execute([{"X": rows(5)}] * (1 + neighbours))
    assert {type(outcome) for outcome in outcomes} == {Failure}


def test_a_request_that_has_failed_is_run_no_further() -> None:
    model = Recorder(sums)
    outcomes = runtime(model, SUMS).execute([{"X": np.full((64, 4), -1, np.float32)}, {"X": rows(1)}])
    assert [type(outcome) for outcome in outcomes] == [Failure, Answer]
    assert len(model.sizes) - 1 <= 2 * ceil(log2(65))


TOKENS = Contract(
    (TensorSpec("IDS", dtype_of("INT64"), (-1,)), TensorSpec("MASK", dtype_of("INT64"), (-1,))),
    (TensorSpec("SUM", dtype_of("INT64"), (1,)), TensorSpec("EACH", dtype_of("INT64"), (-1,))),
)


def tokens(*ids: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"IDS": np.array([ids], np.int64), "MASK": np.ones((1, len(ids)), np.int64)}


def token_model(inputs: Tensors) -> Tensors:
    assert (inputs["IDS"][inputs["MASK"] == 0] == -7).all()
    return {"SUM": (inputs["IDS"] * inputs["MASK"]).sum(axis=1, keepdims=True), "EACH": inputs["IDS"] * 10}


def token_runtime(model: Recorder, fixed_us: float) -> BatchRuntime:
    planner = Planner(100, cost=PaddingCost(fixed_us, 1), pads={"IDS": -7, "MASK": 0}, trim=frozenset({"EACH"}))
    return runtime(model, TOKENS, planner, guard=Guard(TOKENS, aligned=("IDS", "MASK")))


@pytest.mark.parametrize(("fixed_us", "runs"), [(1e9, 1), (0, 3)])
def test_rows_of_different_length_are_padded_and_cut_back(fixed_us: float, runs: int) -> None:
    model = Recorder(token_model)
    batches = token_runtime(model, fixed_us)
    two_rows = {"IDS": np.array([[1, 2], [3, 4]], np.int64), "MASK": np.ones((2, 2), np.int64)}
    outcomes = batches.execute([tokens(5, 6, 7), tokens(1), two_rows, tokens(9, 9, 9)])
    assert [value(outcome, "SUM").tolist() for outcome in outcomes] == [[[18]], [[1]], [[3], [7]], [[27]]]
    assert [value(outcome, "EACH").tolist() for outcome in outcomes] == [
        [[50, 60, 70]],
        [[10]],
        [[10, 20], [30, 40]],
        [[90, 90, 90]],
    ]
    assert len(model.sizes) == runs
    padding = batches.stats.padding
    assert (padding.real_tokens, padding.padded_tokens) == (11, 15 if runs == 1 else 11)


def test_without_padding_unequal_rows_do_not_share_a_run() -> None:
    contract = Contract((TensorSpec("X", FP32, (-1,)),), (TensorSpec("Y", FP32, (-1,)),))
    model = Recorder(doubled)
    requests = [{"X": np.full((1, length), number, np.float32)} for number, length in enumerate([2, 3, 2, 3, 2])]
    outcomes = runtime(model, contract).execute(requests)
    assert sorted(model.sizes) == [2, 3]
    for number, (outcome, length) in enumerate(zip(outcomes, [2, 3, 2, 3, 2], strict=True)):
        assert value(outcome).tolist() == [[2 * number + 1] * length]


WORDS = Contract((TensorSpec("S", dtype_of("BYTES"), (1,)),), (TensorSpec("N", dtype_of("INT64"), (1,)),))


def spelled(requests: Sequence[Request]) -> list[list[Mapping[str, Any]]]:
    """Each text as its character codes; ``!`` cannot be prepared."""
    prepared = []
    for request in requests:
        words = [value.decode() for value in request["S"].ravel()]
        if any("!" in word for word in words):
            raise ValueError(f"cannot spell {words}")
        prepared.append([{"codes": np.array([ord(letter) for letter in word], np.int64)} for word in words])
    return prepared


def words(*values: str) -> Request:
    return {"S": np.array([[word.encode()] for word in values], dtype=np.object_)}


def spelling(model: Recorder) -> BatchRuntime:
    planner = Planner(100, cost=PaddingCost(1, 1), pads={"codes": 0})
    return runtime(model, WORDS, planner, prepare=spelled, prepared_names=["codes"])


def lengths(inputs: Tensors) -> Tensors:
    return {"N": (inputs["codes"] > 0).sum(axis=1, keepdims=True)}


def test_prepared_rows_go_back_to_their_request_whatever_the_plan() -> None:
    outcomes = spelling(Recorder(lengths)).execute([words("abc", "a"), words("abcdefgh"), words("b", "ab", "abc")])
    assert [value(outcome, "N").ravel().tolist() for outcome in outcomes] == [[3, 1], [8], [1, 2, 3]]


def test_what_cannot_be_prepared_is_its_own_refusal() -> None:
    model = Recorder(lengths)
    outcomes = spelling(model).execute([words("abc"), words("ok", "secret!"), words("a")])
    refusal = outcomes[1]
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.UNPREPARED
    assert "secret" not in str(refusal)
    assert value(outcomes[0], "N").tolist() == [[3]] and value(outcomes[2], "N").tolist() == [[1]]
    (logged,) = model.logged
    assert "secret!" in logged


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[:-1],
        lambda rows: [{"letters": row["codes"]} for row in rows],
        lambda rows: [{"codes": row["codes"].tolist()} for row in rows],
        lambda rows: [{"codes": row["codes"][0]} for row in rows],
        lambda rows: [{"codes": row["codes"][:, None]} for row in rows],
    ],
)
def test_a_preparation_that_spoils_one_request_fails_only_that(spoil: Any) -> None:
    def spoils(requests: Sequence[Request]) -> list[list[Mapping[str, Any]]]:
        return [spoil(rows) if len(rows) == 2 else rows for rows in spelled(requests)]

    planner = Planner(100, pads={"codes": 0})
    batches = runtime(Recorder(lengths), WORDS, planner, prepare=spoils, prepared_names=["codes"])
    outcomes = batches.execute([words("abc"), words("a", "b"), words("c")])
    assert [type(outcome) for outcome in outcomes] == [Answer, Failure, Answer]


def test_token_wise_outputs_of_prepared_rows_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="EACH"):
        runtime(
            Recorder(token_model),
            TOKENS,
            Planner(100, trim=frozenset({"EACH"})),
            prepare=spelled,
            prepared_names=["codes"],
        )


def test_counts() -> None:
    model = Recorder(sums)
    batches = runtime(model, SUMS, guard=Guard(SUMS, {"X": InputRules(maximum=50)}))
    batches.execute([{"X": rows(1)}, {"X": rows(99)}, {"X": rows(-1)}, {"X": rows(2, 3)}])
    stats = batches.stats
    assert (stats.requests, stats.refused, stats.failed, stats.rows) == (4, 1, 1, 4)
    assert stats.runs == len(model.sizes) == stats.extra_runs + 1
