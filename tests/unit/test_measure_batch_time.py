"""Fitting tau(b): a line with honest error bars, steps as steps, monotone, unmoved by one bad run, and no fit out of nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.batcher.batch_time import pool_adjacent_violators, read_batch_time
from brim.errors import CouldNotTell, InputError
from brim.limits import BATCH_LIMIT
from brim.measure.batch_time import (
    BatchTime,
    Form,
    MeasuredBatchTime,
    design_sizes,
    finer_sizes,
    fit,
)
from brim.measure.batch_time_run import Design

SIZES = design_sizes()
SEEDS = range(200)


def line(rows: int) -> float:
    return 10_000 + 100.0 * rows


def steps(rows: int) -> float:
    return 5_000 + 100.0 * -(-rows // 32) * 32


def runs_of(
    tau: Callable[[int], float], *, noise: float = 0.02, runs: int = 5, seed: int = 0
) -> dict[int, list[float]]:
    draw = np.random.default_rng(seed)
    return {rows: (tau(rows) * draw.normal(1, noise, runs)).tolist() for rows in SIZES}


def test_a_line_is_recovered_within_its_error_bars() -> None:
    fits = [fit(runs_of(line, seed=seed)) for seed in SEEDS]
    assert sum(one.form is Form.AFFINE for one in fits) >= 0.99 * len(SEEDS)
    for true, values, errors in (
        (10_000, [one.tau0_us for one in fits], [one.stderr_tau0_us for one in fits]),
        (100, [one.alpha_us for one in fits], [one.stderr_alpha_us for one in fits]),
    ):
        off = np.abs(np.array(values) - true) / np.array(errors)
        assert np.mean(off < 2) >= 0.9, "two standard errors hold the true value nine times in ten at least"
        assert off.max() < 5
        # Error bars that are far too wide would pass the above.
        assert np.mean(off) > 0.4


def test_more_runs_give_smaller_error_bars() -> None:
    few = [fit(runs_of(line, runs=4, seed=seed)).stderr_alpha_us for seed in SEEDS]
    many = [fit(runs_of(line, runs=64, seed=seed)).stderr_alpha_us for seed in SEEDS]
    assert 3 < np.median(few) / np.median(many) < 6, "four times smaller with sixteen times the runs"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_steps_are_steps(noise: float) -> None:
    for seed in range(20):
        found = fit(runs_of(steps, noise=noise, seed=seed))
        assert found.form is Form.PIECEWISE
        assert found.largest_residual > 0.02
        for rows in SIZES:
            assert found.time_us(rows) == pytest.approx(steps(rows), rel=4 * noise + 1e-9)
        assert found.time_us(20) == pytest.approx(found.time_us(16), rel=4 * noise + 1e-9)


def test_a_curve_that_a_line_describes_well_enough_stays_a_line() -> None:
    """A bend of one percent, measured so exactly that it is certain."""
    found = fit(runs_of(lambda rows: line(rows) + 60.0 * (rows > 50), noise=1e-5))
    assert found.form is Form.AFFINE
    assert found.misfit > 100
    assert found.tau0_us == pytest.approx(10_000, abs=3 * found.stderr_tau0_us)


@pytest.mark.parametrize("tau", [line, steps])
def test_one_run_that_was_held_up_moves_little(tau: Callable[[int], float]) -> None:
    clean = fit(runs_of(tau))
    for rows in SIZES:
        runs = runs_of(tau)
        runs[rows][2] *= 100
        held_up = fit(runs)
        assert held_up.form is clean.form
        for size in SIZES:
            assert held_up.time_us(size) == pytest.approx(clean.time_us(size), rel=0.05)


def test_times_of_whole_sizes_never_fall() -> None:
    for seed in range(50):
        found = fit(runs_of(lambda rows: 1_000.0 + rows * 0.01, noise=0.1, seed=seed))
        times = [point.time_us for point in found.points]
        assert times == sorted(times)
        assert found.alpha_us >= 0
        assert found.tau0_us >= 0


def test_a_line_through_the_origin_has_no_negative_part() -> None:
    for seed in range(50):
        found = fit(runs_of(lambda rows: 50.0 * rows, noise=0.02, seed=seed))
        assert found.tau0_us >= 0
        assert found.alpha_us == pytest.approx(50, rel=0.05)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e3)), min_size=1, max_size=30),
)
def test_pooling_gives_the_nearest_sequence_that_never_falls(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    found = pool_adjacent_violators(values, weights)
    assert len(found) == len(values)
    # Rounding in a mean may undo the order by one unit in the last place.
    assert np.all(np.diff(found) >= -1e-9 * np.max(np.abs(values), initial=1))
    assert np.sum(found * weights) == pytest.approx(np.sum(values * weights))
    # Optimality: no constant shift of a tail or a head that keeps the order is nearer. (The conditions of Karush, Kuhn
    # and Tucker: what lies behind any cut sums up to 0 or less against the fit, and each level's own mean is its value.)
    behind = np.cumsum(((values - found) * weights)[::-1])[::-1]
    assert np.all(behind <= 1e-6 * np.sum(np.abs(values * weights)) + 1e-6)
    if np.all(np.diff(values) >= 0):
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {1: [1.0] * 5, 100: [2.0] * 5},
        {1: [1.0, 1.0], 50: [1.5, 1.5], 100: [2.0, 2.0]},
    ],
)
def test_too_little_is_no_fit(runs: dict[int, list[float]]) -> None:
    with pytest.raises(CouldNotTell, match="at least 3 are needed") as caught:
        fit(runs)
    assert caught.value.exit_code == 3


def test_runs_that_differ_too_much_are_no_fit() -> None:
    with pytest.raises(CouldNotTell, match="runs of one batch size differ by"):
        fit({rows: [0.4 * line(rows), line(rows), 1.6 * line(rows)] for rows in SIZES})


def test_sizes_with_too_few_runs_are_left_out() -> None:
    runs = runs_of(line, noise=0)
    runs[60] = [1.0, 1e9]
    assert 60 not in [point.rows for point in fit(runs).points]


def test_what_is_no_time_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        fit({0: [1.0], 101: [1.0], 5: [-1.0, float("nan"), float("inf")]})
    for words in ("0 rows", "101 rows", "-1 us at 5", "nan us at 5", "inf us at 5"):
        assert words in caught.value.message


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 100])
def test_designs_cover_the_range(limit: int) -> None:
    sizes = design_sizes(limit)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, limit)
    assert len(sizes) <= 12
    if limit == BATCH_LIMIT:
        assert len(sizes) >= 10


@pytest.mark.parametrize("limit", [0, 101])
def test_no_design_outside_the_limit(limit: int) -> None:
    with pytest.raises(InputError, match=f"limit {limit}"):
        design_sizes(limit)


def test_a_design_that_makes_no_sense_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        Design(sizes=(0, 101), repeats=0, executions=0, timeout_s=0, refinements=-1)
    for words in ("size 0", "size 101", "repeats 0", "executions 0", "timeout_s 0", "refinements -1"):
        assert words in caught.value.message


def test_a_curve_says_nothing_outside_its_sizes() -> None:
    curve = fit({rows: [steps(rows)] * 3 for rows in (4, 32, 40, 64, 70)})
    assert curve.form is Form.PIECEWISE
    for rows in (3, 71):
        with pytest.raises(InputError, match="known for 4 to 70"):
            curve.time_us(rows)
    straight: BatchTime = fit({rows: [line(rows)] * 3 for rows in (4, 32, 64)})
    assert straight.time_us(100) == pytest.approx(line(100))
    with pytest.raises(InputError, match="101 rows"):
        straight.time_us(101)


def test_further_sizes_close_in_on_the_steps() -> None:
    draw = np.random.default_rng(0)
    runs = runs_of(steps, noise=0.005)
    rounds = 0
    while further := finer_sizes(fit(runs)):
        assert not set(further) & set(runs)
        assert further == sorted(set(further))
        assert len(further) <= 4
        runs |= {rows: (steps(rows) * draw.normal(1, 0.005, 5)).tolist() for rows in further}
        rounds += 1
    found = fit(runs)
    # Halving the 27 sizes between two of the design takes five rounds.
    assert rounds <= 6
    assert {32, 33, 64, 65, 96, 97} <= {point.rows for point in found.points}
    for rows in range(1, BATCH_LIMIT + 1):
        assert found.time_us(rows) == pytest.approx(steps(rows), rel=0.02)


def test_a_line_needs_no_further_sizes() -> None:
    assert finer_sizes(fit(runs_of(line))) == []


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "batch_time.json"
    MeasuredBatchTime("m", fit(runs_of(line)), 2.5, 300.0, {"server": "triton 2.51.0"}).write(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["model"] == "m"
    assert document["form"] == "affine"
    assert document["tau0_us"] == pytest.approx(10_000, rel=0.1)
    assert document["alpha_us"] == pytest.approx(100, rel=0.1)
    assert set(document["stderr"]) == {"tau0_us", "alpha_us"}
    assert document["overhead_us"] == 2.5
    assert [point["rows"] for point in document["points"]] == SIZES
    assert all(point.keys() >= {"rows", "time_us", "stderr_us", "runs"} for point in document["points"])
    read = read_batch_time(path)
    assert [read.time_us(point["rows"]) for point in document["points"]] == [
        round(point["time_us"]) for point in document["points"]
    ]
