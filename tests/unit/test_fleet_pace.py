from __future__ import annotations

import pytest

from brim.fleet.pace import IN_A_ROW, Pace, Slowness, ratio


def pace(*batches: tuple[int, int], factor: float = 1.0, tau0_us: float = 8_000, alpha_us: float = 250) -> Pace:
    """Batches of a size, each so many."""
    return {"m": {size: (count, factor * (tau0_us + alpha_us * size)) for size, count in batches}}


def test_batches_of_one_size_are_held_against_each_other() -> None:
    well = pace((4, 30), (8, 10))
    assert ratio(pace((8, 5), factor=4), [well, well]) == pytest.approx(4.0)
    assert ratio(pace((1, 5)), [well]) == pytest.approx(1.0), "no other has batches of this size"
    assert ratio(pace((16, 50)), [well]) == pytest.approx(1.0), "larger ones take longer, and that is not slow"
    assert ratio(well, []) is None
    assert ratio({"other": {1: (5, 1.0)}}, [well]) is None
    assert ratio({}, [well]) is None


def test_of_several_models_the_worst_counts() -> None:
    both = {"m": {4: (10, 1_000.0)}, "n": {4: (10, 1_000.0)}}
    assert ratio({"m": {4: (10, 1_000.0)}, "n": {4: (10, 3_000.0)}}, [both]) == pytest.approx(3.0)


def test_noise_makes_no_line_that_falls() -> None:
    noisy: Pace = {"m": {1: (1, 9_000.0), 8: (1, 2_000.0)}}
    found = ratio({"m": {100: (1, 5_500.0)}}, [noisy])
    assert found is not None and 0 < found < 4


def test_slow_is_who_is_so_twice_and_until_it_is_not() -> None:
    slowness = Slowness()
    for name in ("r1", "r2"):
        assert not slowness.heard(name, pace((4, 30)))
    for _ in range(IN_A_ROW - 1):
        assert not slowness.heard("r3", pace((4, 30), factor=4))
    assert slowness.heard("r3", pace((4, 30), factor=4))
    assert slowness.heard("r3", pace((1, 4), factor=1.8)), "neither slow nor well changes anything"
    assert not slowness.heard("r1", pace((4, 30))), "the slow one is no measure for others"
    for _ in range(IN_A_ROW - 1):
        assert slowness.heard("r3", pace((1, 4)))
    assert not slowness.heard("r3", pace((1, 4)))


def test_one_slow_look_between_others_changes_nothing() -> None:
    slowness = Slowness()
    slowness.heard("r1", pace((4, 30)))
    for factor in (4.0, 1.0) * 5:
        assert not slowness.heard("r2", pace((4, 30), factor=factor))


def test_who_was_started_anew_begins_anew() -> None:
    slowness = Slowness()
    slowness.heard("r1", pace((4, 30)))
    for _ in range(IN_A_ROW):
        slow = slowness.heard("r2", pace((4, 30), factor=4))
    assert slow
    slowness.forget("r2")
    assert not slowness.heard("r2", pace((4, 30), factor=4))
