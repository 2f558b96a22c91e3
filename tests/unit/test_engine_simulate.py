"""Simulated token models, against times worked out by hand and against what must always hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits
from brim.engine.lifecycle import RequestClass
from brim.engine.simulate import closed_loop, open_loop
from brim.engine.simulated import Simulated
from brim.engine.static_batching import simulate_static
from brim.engine.step_time import StepTime
from brim.engine.traffic import SHAREGPT_PROMPTS, SHAREGPT_TEXTS, Call, Lengths, draw_calls, poisson_times_us
from brim.errors import InputError

LIMITS = EngineLimits(200, 16, 64, 1024, 2**31)
MS_A_STEP = StepTime(1_000, 0, 0, 0, 0)
REAL = StepTime(9_000, 300, 0.9, 310, 0.02)
TWO_SEATS = Policy(max_sequences=2)


def test_a_short_text_leaves_when_it_is_done_and_the_next_takes_its_seat_at_the_next_step() -> None:
    calls = [Call(10, 8, 8), Call(10, 64, 64), Call(10, 5, 5)]
    found = open_loop(calls, [0, 0, 0], MS_A_STEP, LIMITS, TWO_SEATS)
    assert found.first_us.tolist() == [1_000, 1_000, 9_000]
    assert found.last_us.tolist() == [8_000, 64_000, 13_000]
    assert found.tpot_us.tolist() == [1_000, 1_000, 1_000]
    static = simulate_static(calls, [0, 0, 0], MS_A_STEP, LIMITS, 2)
    assert static.first_us.tolist() == [1_000, 1_000, 65_000]
    assert static.last_us.tolist() == [8_000, 64_000, 69_000]


def test_a_text_that_ends_by_itself_costs_the_step_that_drew_its_end() -> None:
    found = open_loop([Call(10, 3, 50), Call(10, 1, 1)], [0, 0], MS_A_STEP, LIMITS, Policy(max_sequences=1))
    assert found.tokens.tolist() == [3, 1]
    assert found.last_us.tolist() == [3_000, 5_000]


def test_callers_of_mixed_lengths_are_answered_in_the_order_of_length() -> None:
    lengths = [160, 20, 140, 40, 120, 60, 100, 80]
    found = open_loop([Call(5, n, n) for n in lengths], [0] * 8, MS_A_STEP, LIMITS, Policy(max_sequences=8))
    assert [lengths[index] for index in np.argsort(found.last_us)] == sorted(lengths)


def test_a_long_prompt_is_prefilled_in_steps_and_a_short_one_does_not_wait_for_it() -> None:
    calls = [Call(640, 1, 1), Call(10, 1, 1)]
    found = open_loop(calls, [0, 2_500], MS_A_STEP, LIMITS, TWO_SEATS)
    assert found.first_us.tolist() == [11_000, 4_000]
    with_chunks = open_loop(calls, [0, 2_500], MS_A_STEP, LIMITS, replace(TWO_SEATS, chunk_tokens=32))
    assert with_chunks.first_us.tolist() == [21_000, 4_000]


def test_a_shared_prefix_is_prefilled_once() -> None:
    calls = [Call(320, 1, 1, shared_tokens=256)] * 2
    found = open_loop(calls, [0, 50_000], MS_A_STEP, LIMITS, TWO_SEATS)
    assert (found.first_us - found.sent_us).tolist() == [5_000, 1_000]


def test_callers_who_come_while_a_step_runs_are_in_the_next_one() -> None:
    found = open_loop([Call(1, 4, 4), Call(1, 1, 1)], [0, 1_001], MS_A_STEP, LIMITS, TWO_SEATS)
    assert found.first_us.tolist() == [1_000, 3_000]


def test_the_kv_cache_limits_how_many_texts_run() -> None:
    calls = [Call(100, 60, 60)] * 12
    for blocks, most_running in ((10, 1), (20, 2), (60, 6)):
        found = open_loop(calls, [0] * 12, MS_A_STEP, replace(LIMITS, total_blocks=blocks), Policy(max_sequences=12))
        assert found.most_blocks <= blocks
        assert max(shape.decoding for shape in found.shapes) == most_running


def test_a_closed_loop_has_so_many_calls_at_once_and_sends_the_next_when_one_has_ended() -> None:
    found = closed_loop([Call(1, 2, 2)] * 6, 2, MS_A_STEP, LIMITS, Policy(max_sequences=8))
    assert found.sent_us.tolist() == [0, 0, 2_000, 2_000, 4_000, 4_000]


def any_traffic(chance: Random) -> tuple[list[Call], list[int]]:
    rng = np.random.default_rng(chance.randint(0, 2**32))
    count = chance.randint(1, 60)
    calls = draw_calls(
        count,
        Lengths(chance.choice([5, 80]), 1.0, 1, 900),
        Lengths(chance.choice([3, 40]), 1.0, 1, 300),
        rng,
        context_tokens=LIMITS.context_tokens,
        batch_share=chance.choice([0, 0.5]),
        max_tokens=chance.choice([None, 200]),
    )
    return calls, poisson_times_us(chance.choice([1, 20, 1000]), count, rng)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**48).map(Random))
def test_every_call_has_its_end_and_time_only_goes_forward(chance: Random) -> None:
    calls, sent_us = any_traffic(chance)
    policy = Policy(max_sequences=chance.randint(1, 16), max_waiting=chance.choice([0, 5, 100]))
    found = open_loop(calls, sent_us, REAL, LIMITS, policy, jitter=chance.choice([0, 0.2]), seed=3)
    assert len(found.ends) == len(calls)
    shown = found.as_json()
    assert shown["refused"] + shown["stop"] + shown["length"] == len(calls)
    assert sum(found.reasons.values()) == shown["refused"]
    complete = found.complete
    assert found.tokens[complete].tolist() == [
        call.output_tokens for call, ok in zip(calls, complete, strict=True) if ok
    ]
    assert (found.first_us[complete] > found.sent_us[complete]).all()
    assert (found.last_us[complete] >= found.first_us[complete]).all()
    assert not found.tokens[~complete].any()
    assert found.most_blocks <= LIMITS.total_blocks
    assert len(found.step_us) == len(found.shapes)
    assert found.goodput_per_s(10**12, 10**12) == pytest.approx(complete.sum() * 1e6 / found.wall_us)
    assert found.goodput_per_s(0, 0) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**48).map(Random))
def test_static_batches_end_together_and_follow_one_another(chance: Random) -> None:
    calls, sent_us = any_traffic(chance)
    seats = chance.randint(1, 16)
    found = simulate_static(calls, sent_us, REAL, LIMITS, seats)
    assert found.complete.all()
    assert found.tokens.tolist() == [call.output_tokens for call in calls]
    assert found.most_blocks <= LIMITS.total_blocks
    firsts = sorted(set(found.first_us.tolist()))
    for first, following in pairwise(firsts):
        members = np.flatnonzero(found.first_us == first)
        assert len(members) <= seats
        assert found.last_us[members].max() < following


def figures(found: Simulated) -> tuple[object, ...]:
    return found.as_json(), found.first_us.tolist(), list(found.step_us)


def test_a_seed_decides_everything() -> None:
    calls, sent_us = any_traffic(Random(5))
    policy = Policy(max_sequences=8)
    runs = [figures(open_loop(calls, sent_us, REAL, LIMITS, policy, jitter=0.3, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_continuous_batching_beats_static_on_chats() -> None:
    rng = np.random.default_rng(1)
    calls = draw_calls(120, SHAREGPT_PROMPTS, SHAREGPT_TEXTS, rng, context_tokens=4096)
    limits = EngineLimits(4096, 16, 288, 4096, 2**31)
    continuous = open_loop(calls, [0] * 120, REAL, limits, Policy(max_sequences=16, max_waiting=200))
    static = simulate_static(calls, [0] * 120, REAL, limits, 16)
    assert continuous.tokens.sum() == static.tokens.sum()
    assert continuous.tokens_per_s > 2 * static.tokens_per_s


def test_under_overload_batch_calls_are_refused_first() -> None:
    rng = np.random.default_rng(2)
    calls = draw_calls(400, Lengths(50, 0.5), Lengths(40, 0.5), rng, context_tokens=1024, batch_share=0.5)
    found = open_loop(
        calls,
        poisson_times_us(60, 400, rng),
        REAL,
        replace(LIMITS, total_blocks=400),
        Policy(max_sequences=16, max_waiting=16, max_waiting_batch=8),
    )
    batch = np.array([call.kind is RequestClass.BATCH for call in calls])
    answered = found.complete
    assert answered[~batch].mean() > 2 * answered[batch].mean()
    assert found.reasons.keys() >= {"room_full", "shed"}


def test_drawn_lengths_keep_their_mean_their_bounds_and_the_context() -> None:
    rng = np.random.default_rng(0)
    assert np.mean(Lengths(161.31, 1.0, 1, 10**6).draw(50_000, rng)) == pytest.approx(161.31, rel=0.03)
    for call in draw_calls(500, Lengths(300, 2), Lengths(300, 2), rng, context_tokens=256, max_tokens=100):
        assert 1 <= call.output_tokens <= call.max_tokens <= 100
        assert call.prompt_tokens >= 1 and call.prompt_tokens + call.max_tokens <= 256


def test_what_makes_no_sense_is_refused() -> None:
    call = Call(10, 5, 5)
    for attempt in (
        lambda: open_loop([call], [0, 1], REAL, LIMITS, TWO_SEATS),
        lambda: open_loop([call] * 2, [1, 0], REAL, LIMITS, TWO_SEATS),
        lambda: open_loop([call], [0], REAL, LIMITS, Policy(max_sequences=64)),
        lambda: closed_loop([call], 0, REAL, LIMITS, TWO_SEATS),
        lambda: simulate_static([call], [0], REAL, LIMITS, 0),
        lambda: simulate_static([Call(9_000, 1, 1)], [0], REAL, LIMITS, 1),
        lambda: Lengths(float("nan"), 1),
        lambda: Lengths(5, 1, 3, 2),
        lambda: poisson_times_us(0, 1, np.random.default_rng(0)),
        lambda: draw_calls(-1, SHAREGPT_PROMPTS, SHAREGPT_TEXTS, np.random.default_rng(0), context_tokens=10),
    ):
        with pytest.raises(InputError):
            attempt()
