"""When requests are due: counts and times follow the rate, seeds repeat, traces are read or explained."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import InputError
from brim.measure.arrivals import (
    LONGEST_RUN_US,
    MOST_ARRIVALS,
    Profile,
    Stretch,
    bursty,
    checked,
    duration_us,
    offsets,
    ramp,
    read_trace,
    steady,
    steps,
)
from brim.measure.plan import Distribution

S = 1_000_000
rates = st.floats(0, 500)
profiles = st.lists(st.builds(Stretch, st.integers(1, 3 * S), rates, rates), min_size=1, max_size=5).map(tuple)


def constant(profile: Profile) -> list[int]:
    return list(offsets(profile, Distribution.CONSTANT))


def poisson(profile: Profile, seed: int = 0) -> list[int]:
    return list(offsets(profile, Distribution.POISSON, seed=seed))


def test_constant_gaps() -> None:
    assert constant(steady(10, S)) == [100_000 * i for i in range(10)]
    assert constant(steps([2, 4], S)) == [0, 500_000, 1_000_000, 1_250_000, 1_500_000, 1_750_000]
    assert constant(steps([0, 1, 0], S)) == [S]
    assert constant(steady(0, S)) == []


def test_a_ramp_has_the_arrivals_of_its_mean_rate_and_ever_smaller_gaps() -> None:
    found = constant(ramp(0, 100, 10 * S))
    assert len(found) == 500
    gaps = [b - a for a, b in pairwise(found)]
    assert all(later <= earlier + 1 for earlier, later in pairwise(gaps))
    down = constant(ramp(100, 0, 10 * S))
    assert len(down) == 500
    # The k-th arrival is where the rate has added up to k: 10 t - t^2 / 2 ... worked out for k = 100.
    assert down[100] == pytest.approx((10 - (100 - 20) ** 0.5) * S, abs=2)


def test_poisson_arrivals_scatter_as_they_should() -> None:
    found = np.diff(poisson(steady(1_000, 100 * S)))
    # Mean and standard deviation of an exponential are the same; 100,000 gaps fix both within a percent or so.
    assert np.mean(found) == pytest.approx(1_000, rel=0.02)
    assert np.std(found) == pytest.approx(1_000, rel=0.03)


def test_poisson_arrivals_follow_a_rate_that_changes() -> None:
    found = np.array(poisson(steps([100, 1_000, 0, 500], 20 * S)))
    counts = np.histogram(found, bins=4, range=(0, 80 * S))[0]
    for count, expected in zip(counts, (2_000, 20_000, 0, 10_000), strict=True):
        assert abs(count - expected) <= 5 * expected**0.5


@settings(deadline=None, max_examples=50)
@given(profiles, st.sampled_from(Distribution), st.integers(0, 5))
def test_arrivals_are_in_order_inside_the_run_and_repeatable(profile: Profile, how: Distribution, seed: int) -> None:
    found = list(offsets(profile, how, seed=seed))
    assert found == sorted(found)
    assert all(0 <= at_us < duration_us(profile) for at_us in found)
    assert found == list(offsets(profile, how, seed=seed))
    if how is Distribution.CONSTANT:
        assert abs(len(found) - sum(stretch.expected for stretch in profile)) <= 1


def test_seeds_differ() -> None:
    assert poisson(steady(100, S), seed=1) != poisson(steady(100, S), seed=2)


def test_bursts_keep_the_mean_rate_and_have_two_rates() -> None:
    profile = bursty(100, 2_000 * S, burst_factor=8, burst_ratio=0.2, burst_us=S, seed=3)
    assert duration_us(profile) == 2_000 * S
    quiet, burst = sorted({stretch.begin_per_s for stretch in profile})
    assert burst == pytest.approx(8 * quiet)
    assert 0.8 * quiet + 0.2 * burst == pytest.approx(100)
    in_burst = sum(stretch.duration_us for stretch in profile if stretch.begin_per_s == burst)
    assert in_burst / duration_us(profile) == pytest.approx(0.2, abs=0.04)
    assert all(a.begin_per_s != b.begin_per_s for a, b in pairwise(profile))
    counts = np.histogram(poisson(profile), bins=2_000, range=(0, 2_000 * S))[0]
    assert np.var(counts) > 2 * np.mean(counts), "over-dispersed against a Poisson process of one rate"
    assert profile == bursty(100, 2_000 * S, burst_factor=8, burst_ratio=0.2, burst_us=S, seed=3)


def test_a_process_may_take_its_share() -> None:
    whole = poisson(steady(1_000, S))
    shares = [list(islice(offsets(steady(1_000, S), Distribution.POISSON), k, None, 3)) for k in range(3)]
    assert sorted(at_us for share in shares for at_us in share) == whole


def test_what_cannot_be_carried_out_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        checked((Stretch(0, 1, 1), Stretch(S, -1, 1), Stretch(S, float("nan"), float("inf"))))
    for words in ("stretch 0: duration_us 0", "stretch 1: a rate of -1", "rate of nan", "rate of inf"):
        assert words in caught.value.message
    with pytest.raises(InputError, match="no stretch"):
        checked(())
    with pytest.raises(InputError, match=f"at most {MOST_ARRIVALS}"):
        steady(1e6, 3_600 * S)
    with pytest.raises(InputError, match="at most a day"):
        steady(1, LONGEST_RUN_US + 1)
    with pytest.raises(InputError) as caught:
        bursty(100, S, burst_factor=0.5, burst_ratio=1, burst_us=0)
    for words in ("burst_factor 0.5", "burst_ratio 1", "burst_us 0"):
        assert words in caught.value.message
    with pytest.raises(InputError, match="changes"):
        bursty(100, 3_600 * S, burst_us=1)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps({"offset_us": at_us, "row": 3}) for at_us in (0, 5, 5, 900)]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert read_trace(path) == [0, 5, 5, 900]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no arrival"),
        ("nonsense\n[]\n7\n{}", "line 4"),
        ('{"offset_us": 5}\n{"offset_us": 4}', "4 comes after 5"),
        ('{"offset_us": -1}', "line 1: offset_us '-1'"),
        ('{"offset_us": 1.5}', "'1.5'"),
        ('{"offset_us": true}', "'True'"),
        ('{"offset_us": 1e300}', "not a whole number"),
        (f'{{"offset_us": {LONGEST_RUN_US + 1}}}', "a day"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_a_trace_that_is_none_is_explained(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        read_trace(path)
    assert len(caught.value.message) < 5_000


def test_a_trace_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "bytes")
