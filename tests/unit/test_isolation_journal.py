"""Evidence: a bounded sample, with whoever was in flight at the same time."""

from __future__ import annotations

import numpy as np
import pytest

from brim.isolation import flights as flights_module
from brim.isolation.evidence import Company
from brim.isolation.flights import Flights
from brim.isolation.journal import FAULTS_SHOWN, OTHERS_SHOWN, Journal
from brim.isolation.judge import Judgement, Verdict
from brim.isolation.request import Came, Expected, Request
from brim.measure.plan import Protocol

GOOD = Judgement(Verdict.RIGHT)
BAD = Judgement(Verdict.WRONG, "off by 3")
OUTPUTS = {"Y": np.arange(6, dtype=np.float32).reshape(1, 6)}


def request(row: int = 0, what: str = "") -> Request:
    return Request("m", Protocol.HTTP, what, expected=Expected(OUTPUTS), rows=() if what else (row,))


class Clock:
    """Time that only moves when told to."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flights_module, "perf_counter_ns", made)
    return made


def fly(clock: Clock, *times_us: tuple[int, int]) -> Flights:
    """Requests that are sent and end at these times, numbered in this order."""
    made = Flights()
    numbers: dict[int, int] = {}
    events = [(begin, number, False) for number, (begin, _) in enumerate(times_us)]
    events += [(end, number, True) for number, (_, end) in enumerate(times_us)]
    for at_us, number, ends in sorted(events):
        clock.now_ns = at_us * 1_000
        if ends:
            made.land(numbers[number])
        else:
            numbers[number] = made.leave(request(number))
    return made


def test_neighbours_are_those_that_overlap_in_time_nearest_end_first(clock: Clock) -> None:
    flown = fly(clock, (0, 10), (5, 20), (12, 40), (15, 21), (30, 50))
    assert flown.beside(1).tolist() == [3, 0, 2]
    assert flown.beside(4).tolist() == [2]
    assert flown.in_flight(16).tolist() == [1, 2, 3]
    assert flown.released_us(16).tolist() == [4, 24, 5]
    assert flown.span_us() == 50
    assert flown.took_us(2) == 28
    assert flown.landed_since(49) and not flown.landed_since(50)


def test_who_has_not_ended_is_still_in_flight(clock: Clock) -> None:
    flown = fly(clock, (0, 10))
    clock.now_ns = 11_000
    flown.leave(request())
    clock.now_ns = 99_000
    assert flown.in_flight(50).tolist() == [1]
    assert flown.took_us(1) == 88
    assert flown.beside(0).tolist() == []


def test_everything_hurt_is_kept_up_to_a_bound_and_a_few_of_the_rest() -> None:
    journal, flown = Journal(), Flights()
    for number in range(3 * FAULTS_SHOWN):
        one = request(number)
        flown.land(flown.leave(one))
        journal.note(number, one, f"c-{number}", Came(outputs=OUTPUTS), BAD if number % 2 else GOOD)
    for number in range(100):
        one = request(what=f"kind {number}")
        flown.land(flown.leave(one))
        journal.note(3 * FAULTS_SHOWN + number, one, "c", Came(error="no", status="400"), Judgement(Verdict.OWN_ERROR))
    journal.close(flown, prefix="c")
    verdicts = [one.verdict for one in journal.kept]
    assert verdicts.count("wrong") == FAULTS_SHOWN
    assert verdicts.count("right") == 2
    assert len(verdicts) == FAULTS_SHOWN + OTHERS_SHOWN
    assert all(one.fault == "off by 3" for one in journal.kept if one.verdict == "wrong")


def test_what_is_special_is_named_first_and_all_are_counted(clock: Clock) -> None:
    journal, flown = Journal(), Flights()
    sent = [request(1), *(request(number) for number in range(20)), request(what="NaN in X")]
    for one in sent:
        flown.leave(one)
    clock.now_ns = 5_000
    for number in range(len(sent)):
        flown.land(number)
    journal.note(0, sent[0], "c-0", Came(outputs=OUTPUTS), BAD)
    journal.close(flown, prefix="c")
    (seen,) = journal.kept
    assert seen.company is Company.OVERLAPPING and seen.neighbour_count == 21 and len(seen.neighbours) == 8
    assert seen.neighbours[0] == "c-21 (NaN in X)"
    assert seen.sent == "row 1" and seen.expected == seen.came == "Y float32 [1, 6]: 0.0, 1.0, 2.0, 3.0, ..."
    assert seen.as_json()["company"] == "overlapping in time"


def test_in_known_batches_the_neighbours_are_exactly_the_batch() -> None:
    journal, flown = Journal(), Flights()
    for number in range(5):
        one = request(number)
        flown.land(flown.leave(one))
        journal.note(number, one, f"c-{number}", Came(outputs=OUTPUTS), BAD)
    journal.close(flown, prefix="c", batches=[[0, 1, 2], [3], [4]])
    assert [one.neighbours for one in journal.kept][:1] == [("c-1 (row 1)", "c-2 (row 2)")]
    assert [one.company for one in journal.kept] == [Company.BATCH] * 3 + [Company.ALONE] * 2


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (Came(hung=True), "no answer in time"),
        (Came(left=True), "the caller had gone"),
        (Came(error="no", status="400"), "[400] no"),
        (Came(), "an answer without outputs"),
    ],
)
def test_what_came_in_words(came: Came, words: str) -> None:
    journal, flown = Journal(), Flights()
    flown.land(flown.leave(request()))
    journal.note(0, request(), "c-0", came, GOOD)
    journal.close(flown, prefix="c")
    assert journal.kept[0].came == words
