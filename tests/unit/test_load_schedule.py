"""Load tests: traffic shapes, and who sends what when."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.measure.accounting import Objective
from brim.measure.arrivals import Profile, duration_us
from brim.measure.plan import Distribution
from brim.service.schema import CallerClass, Service, Slo
from brim_loadtest.schedule import LEAVES_WITHIN, LONGEST_TIMELINE, SLOW_BODY_US, Caller, Schedule, callers_of
from brim_loadtest.shapes import DECAYS, LOWEST_OF_DAY, MISBEHAVIOUR, RAMP_FROM, Behaviour, Shape, Travel, profile

S = 1_000_000
ONE = (Caller(None, 1.0, Objective(99, 200_000)),)
TWO = (
    Caller("interactive", 0.75, Objective(99, 200_000)),
    Caller("batch", 0.25, Objective(99, 5 * S), deadline_us=5 * S),
)


def expected(parts: Profile) -> float:
    return sum(stretch.expected for stretch in parts)


def rates(parts: Profile) -> list[float]:
    return [rate for stretch in parts for rate in (stretch.begin_per_s, stretch.end_per_s)]


@given(
    st.sampled_from(Shape),
    st.floats(0.1, 1_000),
    st.floats(1, 20),
    st.integers(1, 100 * S),
)
def test_every_shape_lasts_as_long_as_asked_and_stays_below_the_peak(
    shape: Shape, rate: float, factor: float, length_us: int
) -> None:
    made = profile(shape, rate, rate * factor, length_us)
    assert duration_us(made) == length_us
    assert min(rates(made)) >= 0
    if shape is not Shape.BURSTY:
        assert max(rates(made)) <= rate * factor * 1.000001


def test_a_steady_rate_is_steady_whatever_its_callers_do() -> None:
    for shape in (Shape.STEADY, Shape.SLOW_CLIENT, Shape.DISCONNECTING_CLIENT):
        assert set(rates(profile(shape, 50, 100, 10 * S))) == {50}


def test_a_ramp_ends_at_the_rate() -> None:
    (stretch,) = profile(Shape.RAMP, 100, 300, 10 * S)
    assert (stretch.begin_per_s, stretch.end_per_s) == (RAMP_FROM * 100, 100)


def test_a_spike_stands_in_the_middle() -> None:
    made = profile(Shape.SPIKE, 100, 300, 10 * S)
    assert [(part.duration_us, part.begin_per_s, part.end_per_s) for part in made] == [
        (4 * S, 100, 100),
        (2 * S, 300, 300),
        (4 * S, 100, 100),
    ]


def test_a_day_has_the_rate_as_its_mean_and_touches_the_peak_at_noon() -> None:
    made = profile(Shape.DIURNAL, 100, 150, 48 * S)
    assert expected(made) == pytest.approx(100 * 48)
    assert max(rates(made)) == pytest.approx(150) == pytest.approx(made[23].end_per_s)
    assert made[0].begin_per_s == pytest.approx(50) == pytest.approx(made[-1].end_per_s)
    assert min(rates(profile(Shape.DIURNAL, 100, 1_000, 48 * S))) == pytest.approx(100 * LOWEST_OF_DAY)


def test_a_crowd_comes_at_once_and_goes_slowly() -> None:
    made = profile(Shape.FLASH_CROWD, 100, 500, 30 * S)
    assert (made[0].duration_us, made[0].begin_per_s, made[0].end_per_s) == (10 * S, 100, 100)
    assert made[1].begin_per_s == 500
    assert all(later < earlier for earlier, later in pairwise(part.begin_per_s for part in made[1:]))
    assert 100 < made[-1].end_per_s < 100 + 400 * 2.72**-DECAYS * 1.1


@pytest.mark.parametrize(
    ("rate", "peak", "length_us"),
    [(100.0, 50.0, S), (float("nan"), 1.0, S), (1.0, float("inf"), S), (1.0, 2.0, 0), (-1.0, 2.0, S)],
)
def test_a_rate_that_cannot_be_sent_is_refused(rate: float, peak: float, length_us: int) -> None:
    for shape in Shape:
        with pytest.raises(InputError):
            profile(shape, rate, peak, length_us)


def schedule(
    callers: tuple[Caller, ...] = TWO,
    *,
    shape: Shape = Shape.STEADY,
    travel: Travel = Travel.BOTH,
    tenants: int = 0,
    seed: int = 0,
    count: int = 4_000,
) -> Schedule:
    return Schedule(
        profile(shape, count, 2 * count, S),
        callers,
        Distribution.CONSTANT,
        travel,
        MISBEHAVIOUR.get(shape, Behaviour.PLAIN),
        rows=7,
        tenants=tenants,
        seed=seed,
    )


def test_a_run_does_not_depend_on_how_many_workers_share_it() -> None:
    # More than are drawn at once, so that the boundary of a draw is met, too.
    one = schedule(count=10_000, tenants=5)
    whole = list(one.arrivals())
    assert [arrival.number for arrival in whole] == list(range(10_000))
    for workers in (2, 3):
        parts = [list(one.arrivals(worker, workers)) for worker in range(workers)]
        assert all(arrival.number % workers == worker for worker, part in enumerate(parts) for arrival in part)
        assert sorted((arrival for part in parts for arrival in part), key=lambda arrival: arrival.number) == whole
    assert list(one.arrivals()) == whole
    assert list(schedule(count=10_000, tenants=5, seed=1).arrivals()) != whole


def test_classes_have_their_share_and_everything_is_in_range() -> None:
    arrivals = list(schedule(tenants=3).arrivals())
    counts = Counter(arrival.caller for arrival in arrivals)
    # 4,000 draws of 0.25: six standard deviations are 164.
    assert abs(counts[1] - 1_000) < 164
    assert {arrival.row for arrival in arrivals} == set(range(7))
    assert {arrival.tenant for arrival in arrivals} == {1, 2, 3}
    assert abs(sum(arrival.over_grpc for arrival in arrivals) - 2_000) < 190
    assert {arrival.tenant for arrival in schedule().arrivals()} == {0}
    due = [arrival.due_us for arrival in arrivals]
    assert due == sorted(due)
    assert due[-1] < S


@pytest.mark.parametrize(("travel", "over_grpc"), [(Travel.HTTP, {False}), (Travel.GRPC, {True})])
def test_one_protocol_is_one_protocol(travel: Travel, over_grpc: set[bool]) -> None:
    assert {arrival.over_grpc for arrival in schedule(travel=travel).arrivals()} == over_grpc


def test_a_fifth_misbehaves_and_nobody_else() -> None:
    for shape, behaviour in MISBEHAVIOUR.items():
        counts = Counter(arrival.behaviour for arrival in schedule(shape=shape).arrivals())
        assert set(counts) == {Behaviour.PLAIN, behaviour}
        assert abs(counts[behaviour] - 800) < 152
    assert {arrival.behaviour for arrival in schedule().arrivals()} == {Behaviour.PLAIN}


def test_slow_callers_come_over_http_and_wait_from_their_last_byte() -> None:
    arrivals = list(schedule(shape=Shape.SLOW_CLIENT).arrivals())
    slow = [arrival for arrival in arrivals if arrival.behaviour is Behaviour.SLOW]
    assert {arrival.over_grpc for arrival in slow} == {False}
    assert {arrival.clock_us - arrival.due_us for arrival in slow} == {SLOW_BODY_US}
    assert {arrival.clock_us - arrival.due_us for arrival in arrivals if arrival not in slow} == {0}


def test_who_leaves_does_so_early() -> None:
    leaving = [
        one for one in schedule(ONE, shape=Shape.DISCONNECTING_CLIENT).arrivals() if one.behaviour is Behaviour.LEAVING
    ]
    assert min(one.leaves_us for one in leaving) >= 0
    assert max(one.leaves_us for one in leaving) < LEAVES_WITHIN * 200_000


def test_a_schedule_survives_the_way_to_another_process() -> None:
    for one in (schedule(tenants=2, shape=Shape.DISCONNECTING_CLIENT, seed=3), schedule(ONE, shape=Shape.DIURNAL)):
        again = Schedule.from_json(json.loads(json.dumps(one.as_json())))
        assert again == one
        assert list(again.arrivals()) == list(one.arrivals())


def test_the_timeline_is_bounded_however_long_the_run() -> None:
    def entries(seconds: int) -> tuple[int, float]:
        one = Schedule(profile(Shape.STEADY, 1, 1, seconds * S), ONE)
        return one.entry_s, seconds / one.entry_s

    assert entries(10) == (1, 10)
    assert entries(LONGEST_TIMELINE) == (1, LONGEST_TIMELINE)
    assert entries(LONGEST_TIMELINE + 1)[0] == 2
    assert entries(86_400)[1] <= LONGEST_TIMELINE


def service(**changes: object) -> Service:
    document = {
        "name": "one",
        "model": {"onnx": "one.onnx"},
        "inputs": [{"name": "X", "dtype": "FP32", "shape": [4]}],
        "outputs": [{"name": "Y", "dtype": "FP32", "shape": [4]}],
        "slo": Slo(latency_ms=200.0, percentile=95.0),
        **changes,
    }
    return Service.model_validate(document)


def test_a_service_without_classes_has_one_that_no_header_names() -> None:
    (only,) = callers_of(service())
    assert (only.name, only.label, only.share, only.deadline_us) == (None, "default", 1.0, None)
    assert only.objective == Objective(95, 200_000)


def test_a_class_is_held_to_its_own_deadline() -> None:
    classes = (CallerClass(name="a", share=0.5), CallerClass(name="b", share=0.5, deadline_ms=1_500.0))
    first, second = callers_of(service(callers=classes))
    assert (first.objective.latency_us, first.deadline_us) == (200_000, None)
    assert (second.objective.latency_us, second.deadline_us) == (1_500_000, 1_500_000)
    assert (first.late_us, second.late_us) == (10_000, 75_000)
