"""What rounds allow to say."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.verdict import CONFIDENCE, ExitCode, Target, Verdict, exit_code, judge, spread_of

AT_MOST = Target("cost", most=1.1)
AT_LEAST = Target("speed", least=0.9)


@pytest.mark.parametrize(
    ("target", "values", "verdict"),
    [
        (AT_MOST, [1.01, 1.03, 1.05, 1.07, 1.09], Verdict.MET),
        (AT_MOST, [1.11, 1.2, 1.3, 1.2, 1.15], Verdict.MISSED),
        (AT_MOST, [1.01, 1.03, 1.05, 1.07, 1.2], Verdict.UNCLEAR),
        (AT_MOST, [1.0, 1.0, 1.0], Verdict.UNCLEAR),
        (AT_LEAST, [0.91, 0.95, 1.2, 0.99, 0.93], Verdict.MET),
        (AT_LEAST, [0.5, 0.6, 0.7, 0.8, 0.89], Verdict.MISSED),
        (AT_LEAST, [0.5, 0.6, 0.7, 0.8, 0.95], Verdict.UNCLEAR),
    ],
)
def test_the_whole_interval_must_be_on_one_side(target: Target, values: list[float], verdict: Verdict) -> None:
    assert judge(target, spread_of(values)) is verdict


def test_five_rounds_are_the_fewest_that_say_anything_and_eight_bear_an_outlier() -> None:
    assert [spread_of([1.0] * count).confidence >= CONFIDENCE for count in (1, 3, 4, 5)] == [False, False, False, True]
    one_off = spread_of([1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 9.0])
    assert (one_off.low, one_off.high) == (1.01, 1.06)
    assert judge(AT_MOST, one_off) is Verdict.MET


@pytest.mark.parametrize("rounds", [5, 7, 8, 12])
def test_the_interval_holds_the_true_median_as_often_as_it_says(rounds: int) -> None:
    draw = np.random.default_rng(1)
    spreads = [spread_of(draw.lognormal(0, 0.3, rounds).tolist()) for _ in range(2000)]
    held = sum(spread.low <= 1.0 <= spread.high for spread in spreads) / len(spreads)
    promised = spreads[0].confidence
    assert abs(held - promised) < 4 * math.sqrt(promised * (1 - promised) / len(spreads))


@pytest.mark.parametrize(("other_cores", "verdict"), [(0.0, Verdict.MISSED), (0.9, Verdict.UNCLEAR)])
def test_a_miss_needs_a_machine_of_its_own(other_cores: float, verdict: Verdict) -> None:
    conditions = replace(Watch().stop(), other_cores=other_cores)
    assert judged(AT_MOST, [2.0] * 5, conditions).verdict is verdict
    assert judged(AT_MOST, [1.0] * 5, conditions).verdict is Verdict.MET


def test_a_comparison_as_json_leaves_out_limits_that_are_not_set() -> None:
    conditions = Watch().stop()
    found = Comparison("x", (judged(AT_MOST, [1.0] * 5, conditions),), {"a_us": [1.0]}, conditions, {"more": 1})
    (ratio,) = json.loads(json.dumps(found.as_json()))["ratios"]
    assert ratio["most"] == 1.1 and "least" not in ratio
    assert (ratio["verdict"], ratio["values"], ratio["median"]) == ("met", [1.0] * 5, 1.0)
    assert found.as_json()["more"] == 1 and found.exit_code is ExitCode.YES


def test_no_round_is_no_spread() -> None:
    with pytest.raises(ValueError, match="no round"):
        spread_of([])


def test_a_miss_outweighs_a_doubt_and_a_doubt_a_yes() -> None:
    assert exit_code([Verdict.MET, Verdict.MET]) is ExitCode.YES
    assert exit_code([Verdict.MET, Verdict.UNCLEAR]) is ExitCode.COULD_NOT_TELL
    assert exit_code([Verdict.UNCLEAR, Verdict.MISSED, Verdict.MET]) is ExitCode.NO


def test_a_target_says_its_limits() -> None:
    assert [str(AT_MOST), str(AT_LEAST), str(Target("both", 0.5, 2))] == ["<= 1.10", ">= 0.90", ">= 0.50 and <= 2.00"]
