"""Climbing a ladder: the highest rung that passes, within the tries, from wherever it begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.tune.rungs import climb, rate_of, rung_of


@given(top=st.integers(-40, 40), start=st.integers(-60, 60))
def test_enough_tries_find_the_top(top: int, start: int) -> None:
    asked: list[int] = []

    def passes(rung: int) -> bool:
        asked.append(rung)
        return rung <= top

    assert climb(passes, start, lowest=-40, highest=40, tries=30) == top
    assert len(asked) == len(set(asked)) <= 16
    assert all(-40 <= rung <= 40 for rung in asked)


@given(top=st.integers(-40, 40), start=st.integers(-40, 40), tries=st.integers(1, 8))
def test_few_tries_are_kept_and_never_overstate(top: int, start: int, tries: int) -> None:
    asked: list[int] = []

    def passes(rung: int) -> bool:
        asked.append(rung)
        return rung <= top

    found = climb(passes, start, lowest=-40, highest=40, tries=tries)
    assert len(asked) <= tries
    assert found == max((rung for rung in asked if rung <= top), default=None)


def test_nothing_passes_and_everything_passes() -> None:
    assert climb(lambda rung: False, 3, lowest=0, highest=10, tries=20) is None
    assert climb(lambda rung: True, 3, lowest=0, highest=10, tries=20) == 10


@given(st.floats(0.01, 1e6))
def test_a_rate_is_half_a_step_from_its_rung_at_most(rate_per_s: float) -> None:
    ratio = rate_of(rung_of(rate_per_s, 1.06), 1.06) / rate_per_s
    assert 1.06**-0.501 <= ratio <= 1.06**0.501
