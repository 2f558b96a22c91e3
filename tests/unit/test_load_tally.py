"""Load tests: every request has one outcome, workers merge into one, and the verdict follows from the counts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import InputError
from brim.measure.accounting import Objective, Outcome, Reply
from brim.measure.openloop_limits import Evidence
from brim_loadtest.results import Slo, document
from brim_loadtest.run import Ran
from brim_loadtest.schedule import Arrival, Caller, Schedule
from brim_loadtest.shapes import Behaviour, Shape, profile
from brim_loadtest.tally import MOST_REASONS, OTHER_REASONS, Ended, Tally, merged, rounded_up
from brim_loadtest.verdict import Judgement, Verdict, judge

S = 1_000_000
CALLERS = (
    Caller("interactive", 0.75, Objective(90, 200_000)),
    Caller("batch", 0.25, Objective(90, 5 * S), deadline_us=5 * S),
)
SCHEDULE = Schedule(profile(Shape.STEADY, 10, 20, 4 * S), CALLERS)
FIVE = ("answered", "refused", "expired", "cancelled", "failed")
GOOD = Evidence(loop_cores=0.1, lag_us=100, most_under_way=5)


def arrival(due_us: int = 0, *, caller: int = 0, behaviour: Behaviour = Behaviour.PLAIN) -> Arrival:
    return Arrival(0, due_us, caller, 0, 0, False, behaviour, 0)


def ended(outcome: Outcome, **more: object) -> Ended:
    return Ended(Reply(outcome), **more)


def count(tally: Tally, outcome: Outcome, times: int, *, latency_us: int = 1_000, **more: object) -> None:
    for number in range(times):
        tally.add(arrival(number), number, number + latency_us, ended(outcome, **more))


happened = st.tuples(
    st.integers(0, 4 * S - 1),
    st.integers(0, 1),
    st.sampled_from(Behaviour),
    st.integers(0, 6 * S),
    st.sampled_from(Outcome),
    st.booleans(),
)


def tallied(events: Sequence[tuple[int, int, Behaviour, int, Outcome, bool]]) -> Tally:
    tally = Tally(SCHEDULE)
    for due_us, caller, behaviour, took_us, outcome, with_reason in events:
        one = arrival(due_us, caller=caller, behaviour=behaviour)
        if outcome is Outcome.NOT_SENT:
            tally.add_unsent(one)
        else:
            tally.add(one, due_us, due_us + took_us, ended(outcome, reason="queue_full" if with_reason else ""))
    return tally


def through_a_message(tally: Tally) -> Tally:
    return Tally.from_message(SCHEDULE, json.loads(json.dumps(tally.as_message())))


@settings(max_examples=50)
@given(st.lists(happened, max_size=40), st.lists(happened, max_size=40))
def test_offered_is_the_sum_of_the_five_outcomes_and_workers_merge_into_the_same(
    first: list[tuple[int, int, Behaviour, int, Outcome, bool]],
    second: list[tuple[int, int, Behaviour, int, Outcome, bool]],
) -> None:
    whole = tallied([*first, *second])
    shown = whole.as_json()
    sent = sum(event[4] is not Outcome.NOT_SENT for event in [*first, *second])
    for one in shown["classes"].values():
        assert one["offered"] == sum(one[name] for name in FIVE)
        assert one["in_slo"] <= one["answered"]
        assert (one["p50_us"] is None) == (one["answered"] == 0)
        assert (one["reject_p99_us"] is None) == (one["refused"] == 0)
    classes = shown["classes"].values()
    assert sum(one["offered"] for one in classes) == sent
    assert sum(one["not_sent"] for one in classes) == len(first) + len(second) - sent
    for name in ("offered", "answered", "in_slo", "refused"):
        assert sum(entry[name] for entry in shown["timeline"]) == sum(one[name] for one in classes)
    together = merged(SCHEDULE, [through_a_message(tallied(first)), through_a_message(tallied(second))]).as_json()
    assert together == shown


def test_accounts_of_other_objectives_do_not_merge() -> None:
    other = Schedule(SCHEDULE.profile, (Caller("interactive", 0.75, Objective(90, 1)), CALLERS[1]))
    with pytest.raises(InputError):
        merged(SCHEDULE, [Tally(other)])


def test_answers_and_refusals_are_timed_apart_and_from_the_schedule() -> None:
    tally = Tally(SCHEDULE)
    # Due at 1,000 us, sent 9,000 us late, answered 5,000 us after that.
    tally.add(arrival(1_000), 10_000, 15_000, ended(Outcome.ANSWERED))
    tally.add(arrival(1_000), 1_000, 3_000, ended(Outcome.REFUSED, reason="queue_full"))
    tally.add(arrival(1_000), 1_000, 900_000, ended(Outcome.FAILED))
    shown = tally.as_json()["classes"]["interactive"]
    assert (shown["p50_us"], shown["p99_us"], shown["reject_p99_us"]) == (14_000, 14_000, 2_000)
    assert shown["reasons"] == {"queue_full": 1}


def test_a_slow_caller_waits_from_its_last_byte_even_when_it_is_refused_before() -> None:
    tally = Tally(SCHEDULE)
    slow = arrival(0, behaviour=Behaviour.SLOW)
    tally.add(slow, slow.clock_us, slow.clock_us + 7_000, ended(Outcome.ANSWERED))
    tally.add(slow, slow.clock_us, 20_000, ended(Outcome.REFUSED))
    shown = tally.as_json()["classes"]["interactive"]
    assert (shown["p50_us"], shown["in_slo"], shown["reject_p99_us"], shown["late"]) == (7_000, 1, 0, 0)


def test_reasons_are_bounded() -> None:
    tally = Tally(SCHEDULE)
    for number in range(3 * MOST_REASONS):
        tally.add(arrival(), 0, 0, ended(Outcome.REFUSED, reason=f"reason {number} " + "x" * 1_000))
    reasons = tally.as_json()["classes"]["interactive"]["reasons"]
    assert len(reasons) == MOST_REASONS + 1
    assert reasons[OTHER_REASONS] == 2 * MOST_REASONS
    assert max(map(len, reasons)) < 100


def test_what_is_wrong_has_failed_and_what_had_no_answer_too() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.FAILED, 2, wrong=True)
    count(tally, Outcome.TIMED_OUT, 3)
    shown = tally.as_json()["classes"]["interactive"]
    assert (shown["failed"], shown["wrong"], shown["no_answer"], shown["offered"]) == (5, 2, 3, 5)


@given(st.integers(0, 10**10))
def test_latencies_of_the_timeline_are_one_percent_too_high_at_most(latency_us: int) -> None:
    assert latency_us <= rounded_up(latency_us) <= math.ceil(latency_us * 1.01)


def test_the_timeline_has_the_second_in_which_a_request_was_due() -> None:
    tally = Tally(SCHEDULE)
    tally.add(arrival(2_900_000), 2_900_000, 3_000_000, ended(Outcome.ANSWERED))
    tally.add(arrival(900_000), 900_000, 3_900_000, ended(Outcome.ANSWERED))
    seconds = [
        (entry["second"], entry["answered"], entry["in_slo"], entry["p99_us"]) for entry in tally.as_json()["timeline"]
    ]
    assert seconds == [(0, 1, 0, 3_000_000), (2, 1, 1, 100_000)]


# The verdict. p90 of 10 needs 9.


def verdict_on(tally: Tally, evidence: Evidence = GOOD, **more: object) -> Judgement:
    return judge(tally, evidence, 100, **more)


@pytest.mark.parametrize(("bad", "verdict"), [(1, Verdict.MET), (2, Verdict.MISSED)])
@pytest.mark.parametrize(
    "outcome", [Outcome.REFUSED, Outcome.EXPIRED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED]
)
def test_whatever_is_no_answer_in_time_counts_against_the_objective(
    outcome: Outcome, bad: int, verdict: Verdict
) -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 10 - bad)
    count(tally, outcome, bad)
    found = verdict_on(tally)
    assert found.verdict is verdict
    assert found.classes["interactive"].met is (verdict is Verdict.MET)
    assert found.classes["batch"].met is None


def test_one_missed_class_is_a_missed_objective() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 100)
    for _ in range(10):
        tally.add(arrival(caller=1), 0, 5 * S + 1, ended(Outcome.ANSWERED))
    found = verdict_on(tally)
    assert (found.verdict, found.verdict.exit_code) == (Verdict.MISSED, 1)
    assert (found.classes["interactive"].met, found.classes["batch"].met) == (True, False)
    assert "batch: 0 of 10" in found.message


def test_at_exactly_the_limit_is_in_time() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 10, latency_us=200_000)
    assert verdict_on(tally).verdict is Verdict.MET


def test_callers_that_came_in_order_to_leave_are_not_judged() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 10)
    for outcome in (Outcome.CANCELLED, Outcome.ANSWERED):
        for _ in range(20):
            tally.add(arrival(behaviour=Behaviour.LEAVING), 0, 100, ended(outcome))
    found = verdict_on(tally)
    assert found.verdict is Verdict.MET
    assert found.classes["interactive"].judged == found.classes["interactive"].in_slo == 10
    assert tally.as_json()["classes"]["interactive"]["offered"] == 50


def unsent(tally: Tally) -> Tally:
    tally.add_unsent(arrival())
    return tally


def late(tally: Tally) -> Tally:
    for _ in range(6):
        tally.add(arrival(), 10_001, 10_002, ended(Outcome.ANSWERED))
    return tally


@pytest.mark.parametrize(
    ("spoil", "evidence", "more", "words"),
    [
        (unsent, GOOD, {}, "not sent"),
        (late, GOOD, {}, "left more than 10 ms late"),
        (lambda tally: tally, Evidence(0.95, 100, 5), {}, "of one core"),
        (lambda tally: tally, Evidence(0.1, 50_000, 5), {}, "event loop came"),
        (lambda tally: tally, GOOD, {"lost": 1}, "1 of its processes ended"),
        (lambda tally: tally, GOOD, {"stopped": True}, "stopped before its end"),
    ],
)
def test_it_cannot_be_told_when_the_generator_was_the_limit(
    spoil: object, evidence: Evidence, more: dict[str, object], words: str
) -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 100)
    assert verdict_on(tally).verdict is Verdict.MET
    assert callable(spoil)
    found = verdict_on(spoil(tally), evidence, **more)
    assert (found.verdict, found.verdict.exit_code) == (Verdict.UNKNOWN, 3)
    assert words in found.message
    assert found.classes["interactive"].met is None


def test_nothing_sent_is_nothing_told() -> None:
    assert verdict_on(Tally(SCHEDULE)).verdict is Verdict.UNKNOWN


def test_a_server_that_is_gone_at_the_end_has_missed() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 100)
    assert verdict_on(tally, server_alive=False).verdict is Verdict.MISSED


def test_the_file_has_what_reports_read() -> None:
    tally = Tally(SCHEDULE)
    count(tally, Outcome.ANSWERED, 10)
    ran = Ran(tally, GOOD, lost=0, stopped=False)
    made = json.loads(json.dumps(document(ran, verdict_on(tally), Slo(200_000, 90), {"seed": 1}, "brim load one")))
    assert made["verdict"] == "met"
    assert made["slo"] == {"latency_ms": 200, "percentile": 90}
    assert made["conditions"] == {"seed": 1}
    assert made["command"] == "brim load one"
    assert set(made["classes"]) == {"interactive", "batch"}
    assert made["classes"]["interactive"] | {"met": True, "answered": 10, "needed": 9} == made["classes"]["interactive"]
    assert made["timeline"][0] == {
        "second": 0,
        "offered": 10,
        "answered": 10,
        "in_slo": 10,
        "refused": 0,
        "p50_us": 1_000,
        "p99_us": 1_000,
    }
