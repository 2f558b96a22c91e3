"""Any signals: never outside the bounds, no fewer on missing figures, more at once, fewer slowly."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brim.plan.scaling import Fleet, Memory, Signals, Thresholds, paced, wanted, wanted_by_utilisation
from brim.units import US_PER_S

figure = st.none() | st.floats(allow_nan=True, allow_infinity=True)
known = st.floats(0, 1e6)
limit = st.none() | st.floats(1e-3, 1e6)
thresholds = st.builds(
    Thresholds,
    waiting=st.floats(1e-3, 1e6),
    queue_us=limit,
    ttft_p90_us=limit,
    kv_usage=limit,
    relaxed=st.floats(0.1, 0.9),
)
fleets = st.builds(
    lambda least, more, **rest: Fleet(least, least + more, **rest),
    st.integers(1, 50),
    st.integers(0, 1000),
    spares=st.integers(0, 5),
    down_after_us=st.integers(0, 600 * US_PER_S),
    down_step=st.integers(1, 5),
    down_every_us=st.integers(0, 120 * US_PER_S),
)


@st.composite
def signals(draw: st.DrawFn, figures: st.SearchStrategy[float | None] = figure) -> Signals:
    present = draw(st.integers(0, 1050))
    ready = draw(st.integers(0, present))
    reporting = draw(st.integers(0, ready))
    return Signals(present, ready, reporting, *(draw(figures) for _ in range(7)))


@given(signals(), thresholds, fleets)
def test_wants_stay_inside_the_bounds(seen: Signals, at: Thresholds, fleet: Fleet) -> None:
    for want in (wanted(seen, at, fleet), wanted_by_utilisation(seen, fleet)):
        assert fleet.min_replicas <= want.replicas <= fleet.max_replicas


@given(
    signals(known),
    thresholds,
    fleets,
    st.sampled_from(["waiting", "queue_us", "ttft_p90_us", "kv_usage"]),
    st.sampled_from([None, math.nan, math.inf, -1.0]),
)
def test_with_a_figure_missing_there_are_never_fewer(
    seen: Signals, at: Thresholds, fleet: Fleet, name: str, nothing: float | None
) -> None:
    at = replace(at, queue_us=at.queue_us or 1.0, ttft_p90_us=at.ttft_p90_us or 1.0, kv_usage=at.kv_usage or 1.0)
    seen = replace(seen, answered_per_s=1.0, **{name: nothing})
    want = wanted(seen, at, fleet)
    assert not want.complete
    assert want.replicas >= min(max(seen.present, fleet.min_replicas), fleet.max_replicas)


@given(signals(), thresholds, fleets)
def test_a_fleet_that_says_nothing_keeps_its_number(seen: Signals, at: Thresholds, fleet: Fleet) -> None:
    silent = Signals(seen.present, seen.ready, 0)
    want = wanted(silent, at, fleet)
    assert want.replicas == min(max(seen.present, fleet.min_replicas), fleet.max_replicas)
    assert want.pressure is None
    assert not want.shed_batch


@given(
    signals(known),
    thresholds,
    fleets,
    st.floats(0, 1e6),
    st.sampled_from(["waiting", "queue_us", "ttft_p90_us", "kv_usage"]),
)
def test_a_worse_figure_never_asks_for_fewer(seen: Signals, at: Thresholds, fleet: Fleet, by: float, name: str) -> None:
    worse = replace(seen, **{name: (getattr(seen, name) or 0.0) + by})
    assert wanted(worse, at, fleet).replicas >= wanted(seen, at, fleet).replicas


@given(signals(), thresholds, fleets, figure)
def test_utilisation_is_not_looked_at(seen: Signals, at: Thresholds, fleet: Fleet, other: float | None) -> None:
    assert wanted(seen, at, fleet) == wanted(replace(seen, utilisation=other), at, fleet)


@given(signals(known), thresholds, fleets)
def test_batch_traffic_is_shed_before_anything_else_is_and_only_when_the_fleet_is_short(
    seen: Signals, at: Thresholds, fleet: Fleet
) -> None:
    want = wanted(seen, at, fleet)
    if want.shed_batch:
        assert want.replicas > seen.ready or want.replicas == fleet.max_replicas or seen.ready == 0
    else:
        assert want.pressure is None or want.pressure < 2


@given(fleets, st.lists(st.tuples(st.integers(1, 90), st.integers(-5, 1100)), min_size=1, max_size=60))
def test_more_at_once_and_fewer_slowly(fleet: Fleet, course: list[tuple[int, int]]) -> None:
    """Along any course of wants."""
    bare = wanted(Signals(1, 0, 0), Thresholds(1.0), fleet)
    memory, now_us, present = Memory(), 0, fleet.min_replicas
    seen: list[tuple[int, int]] = []
    lowered_at_us: int | None = None
    for after_s, asked in course:
        now_us += after_s * US_PER_S
        want = replace(bare, replicas=min(max(asked, fleet.min_replicas), fleet.max_replicas))
        seen.append((now_us, want.replicas))
        before = present
        present, memory = paced(want, present, fleet, memory, now_us)
        assert fleet.min_replicas <= present <= fleet.max_replicas
        assert present >= want.replicas
        assert len(memory.wanted) <= fleet.max_replicas
        if want.replicas >= before:
            assert present == want.replicas
        if present < before:
            since_us = min(now_us - 1, now_us - fleet.down_after_us)
            recent = max(number for at_us, number in seen if at_us > since_us)
            assert present >= recent
            assert before - present <= fleet.down_step
            assert now_us - seen[0][0] >= fleet.down_after_us
            assert lowered_at_us is None or now_us - lowered_at_us >= fleet.down_every_us
            lowered_at_us = now_us
