"""TTFT, ITL, TPOT and end to end, from what callers heard; and what became of their requests."""

from __future__ import annotations

import pytest

from brim.engine.lifecycle import Reason
from brim.measure.accounting import Outcome
from brim.measure.text.outcome import reason_of, reply_of
from brim.measure.text.stream import LEFT, Heard
from brim.measure.text.token_times import TokenObjective, TokenTimes, token_times
from tests.unit.text_example import S, account_of, failed, spoken


def test_the_times_of_a_whole_text() -> None:
    heard = spoken(1_000, ttft_us=100_000, gaps_us=(10_000, 50_000, 30_000))
    assert token_times(heard, 1_000) == TokenTimes(100_000, (10_000, 50_000, 30_000), 30_000, 190_000, 47_500)


def test_who_was_sent_late_is_charged_from_when_it_was_due() -> None:
    heard = spoken(5_000, ttft_us=100_000, gaps_us=(10_000,))
    times = token_times(heard, 1_000)
    assert (times.ttft_us, times.e2e_us) == (104_000, 114_000)
    assert times.tpot_us == 10_000, "lateness is before the first token"


def test_a_piece_of_several_tokens_ends_one_gap_and_text_without_a_token_none() -> None:
    heard = Heard(sent_us=0, finish_reason="stop", ended_us=70_000)
    heard.pieces = [(10_000, 0, "x"), (20_000, 1, "a"), (50_000, 3, "bcd"), (60_000, 0, "held back")]
    times = token_times(heard, 0)
    assert (times.ttft_us, times.itl_us) == (20_000, (30_000,))
    assert times.tpot_us == round(50_000 / 3), "to the last response, over all tokens but the first"


def test_one_token_has_no_tpot_and_a_text_that_was_cut_off_no_end() -> None:
    assert token_times(spoken(0, gaps_us=()), 0).tpot_us is None
    cut = spoken(0, gaps_us=(10_000, 10_000))
    cut.error, cut.finish_reason = LEFT, ""
    assert token_times(cut, 0) == TokenTimes(100_000, (10_000, 10_000), None, None, None)
    assert token_times(failed(0, "room_full: x"), 0) == TokenTimes(None, (), None, None, None)


@pytest.mark.parametrize(
    ("ttft_us", "gap_us", "met"), [(200, 50, True), (201, 50, False), (200, 51, False), (201, 51, False)]
)
def test_an_objective_holds_at_its_limits(ttft_us: int, gap_us: int, met: bool) -> None:
    times = token_times(spoken(0, ttft_us=ttft_us, gaps_us=(gap_us, gap_us)), 0)
    assert TokenObjective(99, 200, 50).met_by(times) is met
    assert TokenObjective(99, None, None).met_by(times)
    assert TokenObjective(99, 200, None).met_by(times) is (ttft_us <= 200)
    assert TokenObjective(99, None, 50).met_by(times) is (gap_us <= 50)
    assert not TokenObjective(99, None, None).met_by(token_times(failed(0, "x"), 0))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *[(f"{reason.value}: told why", Outcome.REFUSED) for reason in Reason],
        ("the request's deadline has passed", Outcome.EXPIRED),
        ("UNAVAILABLE: Request timeout expired", Outcome.EXPIRED),
        ("UNAVAILABLE: the model's queue is full", Outcome.REFUSED),
        ("UNAVAILABLE: failed to connect to all addresses", Outcome.FAILED),
        ("DEADLINE_EXCEEDED: Deadline Exceeded", Outcome.TIMED_OUT),
        (LEFT, Outcome.CANCELLED),
        ("temperature is nan. Hint: give a number", Outcome.FAILED),
        ("the stream ended without a final response", Outcome.FAILED),
    ],
)
def test_what_an_error_means(error: str, outcome: Outcome) -> None:
    heard = failed(0, error)
    assert reply_of(heard).outcome is outcome
    assert (reason_of(heard) is not None) is (error.partition(":")[0] in set(Reason))


def test_a_text_without_a_finish_reason_is_not_answered() -> None:
    heard = spoken(0)
    assert reply_of(heard).outcome is Outcome.ANSWERED
    heard.finish_reason = ""
    assert reply_of(heard).outcome is Outcome.FAILED and "finish reason" in reply_of(heard).message


def test_outcomes_add_up_and_tokens_are_counted_by_when_they_were_heard() -> None:
    texts = [spoken(0), spoken(900_000)]
    cut = spoken(0, gaps_us=(20_000,))
    cut.error, cut.finish_reason = LEFT, ""
    account = account_of([*texts, cut, failed(0, "room_full: x"), failed(0, "shed: y"), failed(0, "broken")])
    account.add_unsent()
    counts = account.outcomes.counts
    assert (account.outcomes.offered, counts[Outcome.ANSWERED], counts[Outcome.NOT_SENT]) == (7, 2, 1)
    assert (counts[Outcome.REFUSED], counts[Outcome.CANCELLED], counts[Outcome.FAILED]) == (2, 1, 1)
    assert account.refused_by == {"room_full": 1, "shed": 1}
    assert (account.output_tokens, account.output_tokens_in_window) == (10, 4 + 1 + 2)
    assert (account.input_tokens, account.asked_tokens, account.input_tokens_in_window) == (20, 20, 30)
    assert (account.ended_in_window, account.in_slo, account.in_slo_in_window) == (1, 2, 1)
    assert account.ttft.count == 3 and account.tpot.count == 2 and account.itl.count == 7


def test_a_growing_queue_is_not_stable() -> None:
    steady = [spoken(at_us, ttft_us=100_000) for at_us in range(0, S, 100_000)]
    growing = [spoken(at_us, ttft_us=100_000 + at_us) for at_us in range(0, S, 100_000)]
    assert account_of(steady).is_stable(10) and not account_of(growing).is_stable(10)
    assert not account_of(steady[:3]).is_stable(10), "two thirds without a text say nothing"
