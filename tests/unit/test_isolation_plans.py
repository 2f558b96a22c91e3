"""Batches that are known beforehand, and the verdict on what poison costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.isolation.contract import ModelContract, TensorSpec
from brim.isolation.known_batches import batches_of, make_plans, no_plan, widened
from brim.isolation.pool import Pool
from brim.isolation.request import Expected, Request
from brim.isolation.throughput import LEAST_RATIO, Comparison
from brim.isolation.wire import wire_tensors
from brim.measure.plan import Protocol

MOST = 100


def test_sizes_of_the_public_case() -> None:
    assert batches_of([100, 3, 100, 1, 57, 2, 100], MOST) == [[0], [1], [2], [3, 4, 5], [6]]
    assert batches_of([1] * 150, MOST) == [list(range(100)), list(range(100, 150))]
    assert batches_of([2, 1, 3], MOST) == [[0, 1, 2]]


@given(st.lists(st.integers(1, MOST), min_size=1, max_size=60))
def test_batches_keep_the_order_never_overflow_and_wait_for_nobody(rows: list[int]) -> None:
    batches = batches_of(rows, MOST)
    assert [number for batch in batches for number in batch] == list(range(len(rows)))
    sizes = [sum(rows[number] for number in batch) for batch in batches]
    assert all(0 < size <= MOST for size in sizes)
    assert all(size + rows[following[0]] > MOST for size, following in zip(sizes, batches[1:], strict=False))


@pytest.mark.parametrize(
    ("config", "max_rows", "words"),
    [
        ({"dynamic_batching": {}}, 1, "one row"),
        ({}, 100, "no dynamic batcher"),
        ({"dynamic_batching": {"preferred_batch_size": [50, 100]}}, 100, "[50]"),
        ({"dynamic_batching": {"priority_levels": 2}}, 100, "priorities"),
        ({"dynamic_batching": {"default_queue_policy": {"max_queue_size": 8}}}, 100, "bound"),
        ({"dynamic_batching": {"preferred_batch_size": [100], "max_queue_delay_microseconds": 500}}, 100, ""),
        ({"dynamic_batching": {}}, 100, ""),
    ],
)
def test_batches_of_some_configurations_are_a_matter_of_timing(
    config: Mapping[str, Any], max_rows: int, words: str
) -> None:
    reason = no_plan(config, max_rows)
    assert words in reason and bool(words) == bool(reason)


def pool(rows: int = 10, max_rows: int = MOST) -> Pool:
    contract = ModelContract("m", (TensorSpec("X", "FP32", (2,)),), (TensorSpec("Y", "FP32", (1,)),), max_rows, True)
    found = [{"X": np.full((1, 2), number, np.float32)} for number in range(rows)]
    answers = [{"Y": np.full((1, 1), number, np.float32)} for number in range(rows)]
    tensors = [wire_tensors(contract, row) for row in found]
    return Pool(contract, found, tensors, answers, 1_000, [list(range(rows))])


def poison(made: Pool, status: str) -> Request:
    outputs = None if status else {"Y": np.zeros((1, 1), np.float32)}
    return Request("m", Protocol.HTTP, "NaN in X", made.tensors[0], expected=Expected(outputs, status))


@pytest.mark.parametrize("max_rows", [2, 3, 8, 32, 100])
@pytest.mark.parametrize(("status", "names"), [
    ("400", ["sizes", "one_poison", "poison_of_several_rows"]),
    ("", ["sizes", "one_poison"]),
    (None, ["sizes"]),
])  # fmt: skip
def test_every_plan_fills_the_queue_with_requests_that_fit(max_rows: int, status: str | None, names: list[str]) -> None:
    made = pool(max_rows=max_rows)
    bad = [] if status is None else [poison(made, status)]
    count = max(7, max_rows)
    plans = make_plans(made, made.alike[0], bad, count, np.random.default_rng(0))
    assert [plan.name for plan in plans] == names
    for plan in plans:
        assert len(plan.requests) == count
        rows = [one.tensors[0].shape[0] for one in plan.requests]
        assert all(1 <= size <= max_rows for size in rows)
        for one, size in zip(plan.requests, rows, strict=True):
            assert len(one.tensors[0].data) == size * 8
            if not one.what:
                assert one.expected is not None and one.expected.outputs is not None
                assert one.expected.outputs["Y"].ravel().tolist() == [float(number) for number in one.rows]
    if status is not None:
        (known,) = [plan for plan in plans if plan.name == "one_poison"]
        assert sum(bool(one.what) for one in known.requests) == 1


def test_a_poisoned_row_with_good_ones_behind_it_is_one_right_request() -> None:
    made = pool()
    several = widened(poison(made, "400"), [3, 4], made)
    assert several.tensors[0].shape == (3, 2)
    assert np.frombuffer(several.tensors[0].data, np.float32).tolist() == [0, 0, 3, 3, 4, 4]
    assert several.expected == poison(made, "400").expected


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.97, 0.99, 1.02, 0.98], "kept"),
        ([0.89, 0.90, 1.5, 0.90], "kept"),
        ([0.5, 0.6, 0.89, 0.7, 0.7], "lost"),
        ([0.5, 0.6, 1.9, 0.7, 0.7], "lost"),
        ([0.5, 0.6, 0.95, 0.9, 0.8], "could not tell"),
    ],
)
def test_a_loss_is_only_said_when_all_pairs_but_one_show_it(ratios: list[float], verdict: str) -> None:
    found = Comparison([(1000.0, 1000.0 * ratio) for ratio in ratios])
    assert found.verdict == verdict
    figures = found.figures()
    assert figures["lowest_ratio"] == min(ratios) and figures["highest_ratio"] == max(ratios)
    assert (figures["poison_throughput_ratio"] >= LEAST_RATIO) == (verdict == "kept")
    assert ("spread" in found.words(0.01)) == (verdict == "could not tell")
