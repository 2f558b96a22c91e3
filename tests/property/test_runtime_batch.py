"""Whatever arrives together: one outcome each, right, and the same as alone."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.runtime import (
    Answer,
    BatchRuntime,
    Contract,
    Failure,
    Guard,
    InputRules,
    PaddingCost,
    Planner,
    Refusal,
    TensorSpec,
)
from brim.runtime.contract import dtype_of
from brim.runtime.padding import cut

LIMIT = 100
GOOD, POISON, NAN, LARGE, EMPTY, WIDE = "good", "poison", "nan", "large", "empty", "wide"
REFUSED = {NAN, LARGE, EMPTY, WIDE}
CONTRACT = Contract((TensorSpec("X", dtype_of("FP32"), (2,)),), (TensorSpec("Y", dtype_of("FP32"), (2,)),))
GUARD = Guard(CONTRACT, {"X": InputRules(maximum=2**20)})


class Call:
    """One caller: a number that stands in every good row it sends, a row count, and what is wrong with it, and where."""

    def __init__(self, kind: str, count: int, place: float) -> None:
        self.kind, self.count, self.place = kind, count, place

    def __repr__(self) -> str:
        return f"{self.kind}x{self.count}@{self.place:.2f}"

    def request(self, number: int) -> dict[str, np.ndarray[Any, Any]]:
        x = np.empty((self.count, 2), np.float32)
        x[:, 0] = 1000 + number
        x[:, 1] = np.arange(self.count)
        if self.kind == EMPTY:
            return {"X": x[:0]}
        if self.kind == WIDE:
            return {"X": np.hstack([x, x])}
        bad = {POISON: -1.0, NAN: np.nan, LARGE: 2.0**21}.get(self.kind)
        if bad is not None:
            x[int(self.place * (self.count - 1)), 1] = bad
        return {"X": x}


calls = st.lists(
    st.builds(
        Call,
        st.sampled_from([GOOD, GOOD, GOOD, POISON, NAN, LARGE, EMPTY, WIDE]),
        st.one_of(st.just(1), st.integers(1, LIMIT)),
        st.floats(0, 1),
    ),
    max_size=25,
)


class Model:
    """Doubles, raises on a negative value with everything it was given, and counts its runs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        x = inputs["X"]
        self.sizes.append(len(x))
        if (x < 0).any():
            raise ValueError(f"negative among {x.tolist()}")
        return {"Y": 2 * x}


def outcomes_of(sent: list[Call], numbers: list[int]) -> tuple[list[Any], Model]:
    model = Model()
    runtime = BatchRuntime(CONTRACT, GUARD, model, new_incident=lambda: "abcdef")
    return runtime.execute([call.request(number) for call, number in zip(sent, numbers, strict=True)]), model


@given(calls)
def test_every_request_gets_its_own_outcome(sent: list[Call]) -> None:
    outcomes, model = outcomes_of(sent, list(range(len(sent))))
    assert len(outcomes) == len(sent)
    for number, (call, outcome) in enumerate(zip(sent, outcomes, strict=True)):
        if call.kind in REFUSED:
            assert isinstance(outcome, Refusal), call
        elif call.kind == POISON:
            assert isinstance(outcome, Failure), call
        else:
            assert isinstance(outcome, Answer), call
            assert np.array_equal(outcome.outputs["Y"], 2 * call.request(number)["X"])
    assert all(size <= LIMIT for size in model.sizes)


@given(calls, st.randoms(use_true_random=False))
def test_neither_order_nor_neighbours_change_an_outcome(sent: list[Call], random: Any) -> None:
    numbers = list(range(len(sent)))
    shuffled = numbers.copy()
    random.shuffle(shuffled)
    together = dict(zip(shuffled, outcomes_of([sent[n] for n in shuffled], shuffled)[0], strict=True))
    for number in numbers:
        (alone,), _ = outcomes_of([sent[number]], [number])
        outcome = together[number]
        assert type(outcome) is type(alone)
        if isinstance(alone, Refusal):
            assert outcome == alone
        if isinstance(alone, Answer) and isinstance(outcome, Answer):
            assert np.array_equal(outcome.outputs["Y"], alone.outputs["Y"])


@given(calls)
def test_no_text_shows_a_neighbours_value(sent: list[Call]) -> None:
    outcomes, _ = outcomes_of(sent, list(range(len(sent))))
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, Answer):
            assert not any(str(1000 + other) in str(outcome) for other in range(len(sent)) if other != number)


@given(st.integers(1, LIMIT), st.sets(st.integers(0, LIMIT - 1), max_size=5))
def test_poison_costs_two_runs_a_level_each(count: int, poison: set[int]) -> None:
    poison = {number for number in poison if number < count}
    _, model = outcomes_of([Call(POISON if n in poison else GOOD, 1, 0) for n in range(count)], list(range(count)))
    assert len(model.sizes) - 1 <= len(poison) * 2 * ceil(log2(count) if count > 1 else 0)


@given(calls)
def test_the_batch_check_refuses_what_the_single_check_refuses(sent: list[Call]) -> None:
    requests = [call.request(number) for number, call in enumerate(sent)]
    outcomes = BatchRuntime(CONTRACT, GUARD, lambda inputs: {"Y": inputs["X"]}).execute(requests)
    assert [outcome if isinstance(outcome, Refusal) else None for outcome in outcomes] == [
        GUARD.check(request) for request in requests
    ]


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=120)
COSTS = st.builds(
    PaddingCost,
    st.floats(0, 1000),
    st.floats(0.01, 10),
    per_pair_us=st.floats(0, 1),
    max_tokens=st.sampled_from([0, 0, 64, 256]),
)


@given(LENGTHS, COSTS, st.integers(1, LIMIT))
def test_a_cut_places_every_row_once_within_the_limits(lengths: list[int], cost: PaddingCost, max_rows: int) -> None:
    runs = cut(lengths, cost, max_rows)
    assert sorted(np.concatenate(runs).tolist()) == list(range(len(lengths)))
    for run in runs:
        longest = max(lengths[row] for row in run)
        assert len(run) <= max_rows
        assert not cost.max_tokens or len(run) == 1 or len(run) * longest <= cost.max_tokens


TOKENS = Contract((TensorSpec("T", dtype_of("INT64"), (-1,)),), (TensorSpec("S", dtype_of("INT64"), (1,)),))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), max_size=30), COSTS, st.booleans())
def test_padding_changes_no_answer(shapes: list[tuple[int, int]], cost: PaddingCost, pad: bool) -> None:
    planner = Planner(LIMIT, cost=cost, pads={"T": 0} if pad else {})
    sizes: list[int] = []

    def model(inputs: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(inputs["T"]))
        return {"S": inputs["T"].sum(axis=1, keepdims=True)}

    requests = [{"T": np.full((rows, length), n + 1, np.int64)} for n, (rows, length) in enumerate(shapes)]
    outcomes = BatchRuntime(TOKENS, Guard(TOKENS), model, planner).execute(requests)
    for n, (outcome, (rows, length)) in enumerate(zip(outcomes, shapes, strict=True)):
        assert isinstance(outcome, Answer)
        assert outcome.outputs["S"].tolist() == [[(n + 1) * length]] * rows
    assert sum(sizes) == sum(rows for rows, _ in shapes)
    assert all(size <= LIMIT for size in sizes)
