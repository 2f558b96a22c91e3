"""The Pareto front against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.report.front import pareto_front

SMALL = st.integers(0, 4).map(float)


def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other


@given(st.lists(st.tuples(SMALL, SMALL), max_size=12))
def test_the_front_is_whoever_nobody_dominates(places: list[tuple[float, float]]) -> None:
    front = pareto_front(places)
    wanted = {index for index, place in enumerate(places) if not any(dominates(other, place) for other in places)}
    assert set(front) == wanted and len(front) == len(wanted)
    assert [places[index][0] for index in front] == sorted((places[index][0] for index in front), reverse=True)


@pytest.mark.parametrize(
    ("places", "front"),
    [
        ([], []),
        ([(5.0, 5.0), (5.0, 5.0)], [0, 1]),
        ([(5.0, 5.0), (5.0, 4.0), (5.0, 5.0)], [1]),
        ([(4.0, 5.0), (5.0, 5.0), (5.0, 5.0), (4.0, 5.0)], [1, 2]),
        ([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (2.0, 3.0)], [2, 1, 0]),
    ],
)
def test_ties_stay_together(places: list[tuple[float, float]], front: list[int]) -> None:
    assert pareto_front(places) == front
