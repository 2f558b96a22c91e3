"""Cutting rows of different length into runs."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from brim.runtime.padding import CPU_COST, GPU_COST, PaddingCost, PaddingStats, cut


def total(lengths: list[int], runs: list[np.ndarray[tuple[int], np.dtype[np.int64]]], cost: PaddingCost) -> float:
    return sum(cost.of(len(run), max(lengths[row] for row in run)) for run in runs)


def least(lengths: list[int], cost: PaddingCost, max_rows: int) -> float:
    """Cost of the best cut of the sorted lengths, by trying every one."""
    ordered = sorted(lengths)
    best = float("inf")
    for inner in range(len(ordered)):
        for boundaries in combinations(range(1, len(ordered)), inner):
            edges = [0, *boundaries, len(ordered)]
            parts = [ordered[a:b] for a, b in pairwise(edges)]
            if max(map(len, parts)) <= max_rows:
                best = min(best, sum(cost.of(len(part), part[-1]) for part in parts))
    return best


@pytest.mark.parametrize("max_rows", [2, 3, 8])
@pytest.mark.parametrize("cost", [PaddingCost(30, 1), PaddingCost(0, 1), PaddingCost(5, 1, per_pair_us=0.1)])
def test_the_cut_is_the_cheapest_there_is(cost: PaddingCost, max_rows: int) -> None:
    for lengths in ([3, 40, 5, 3, 41, 90, 4, 5], [7] * 6, [1], list(range(1, 9))):
        runs = cut(lengths, cost, max_rows)
        assert sorted(np.concatenate(runs).tolist()) == list(range(len(lengths)))
        assert max(map(len, runs)) <= max_rows
        assert total(lengths, runs, cost) == pytest.approx(least(lengths, cost, max_rows))


def test_a_cpu_cuts_where_a_gpu_does_not() -> None:
    lengths = [10] * 50 + [60] * 50
    assert len(cut(lengths, GPU_COST, 100)) == 1
    assert len(cut(lengths, CPU_COST, 100)) > 2


def test_the_token_cap_holds_but_for_a_single_row() -> None:
    lengths = [10, 10, 10, 10, 300]
    runs = cut(lengths, PaddingCost(1e9, 1, max_tokens=30), 100)
    assert sorted(sorted(lengths[row] for row in run) for run in runs) == [[10], [10, 10, 10], [300]]


def test_ties_keep_the_order_of_arrival() -> None:
    assert [run.tolist() for run in cut([4, 2, 4, 2], PaddingCost(1e9, 1), 100)] == [[1, 3, 0, 2]]


def test_no_rows_need_no_run() -> None:
    assert cut([], CPU_COST, 100) == []


def test_waste_is_the_share_of_padding() -> None:
    assert PaddingStats().waste == 0
    assert PaddingStats(real_tokens=30, padded_tokens=40).waste == pytest.approx(0.25)
