"""Driving and measuring an engine, against one whose steps take what they are told."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from brim.engine.admission import Policy
from brim.engine.calibration import CONTEXTS, CONTEXTS_TOKENS, DECODE_TOKENS, OWN_TOKENS, calibrate, design
from brim.engine.drive import ProcessorClock, WallClock, drive
from brim.engine.kv_cache import blocks_for
from brim.engine.simulate import closed_loop, open_loop
from brim.engine.static_batching import drive_static, simulate_static
from brim.engine.step_time import StepTime, parse_step_time
from brim.engine.traffic import Call, Lengths, draw_calls, poisson_times_us
from brim.errors import CouldNotTell, InputError
from tests.unit.text_bench import LIMITS, REAL, engine_on_clock

POLICY = Policy(max_sequences=16, max_waiting=200, max_waiting_batch=200)


def traffic(count: int = 60) -> tuple[list[Call], list[int]]:
    rng = np.random.default_rng(7)
    calls = draw_calls(
        count, Lengths(120, 0.9, 4, 900), Lengths(30, 0.7, 1, 120), rng, context_tokens=2048, batch_share=0.3
    )
    return calls, poisson_times_us(4, count, rng)


def test_an_engine_that_takes_what_the_model_says_gives_what_the_simulator_says() -> None:
    calls, sent_us = traffic()
    engine, clock = engine_on_clock()
    driven = drive(engine, POLICY, calls, sent_us=sent_us, clock=clock)
    assert driven.as_json() == open_loop(calls, sent_us, REAL, LIMITS, POLICY).as_json()
    assert engine.sequences == engine.used_blocks() == 0
    again, clock = engine_on_clock()
    looped = drive(again, POLICY, calls, callers=5, clock=clock)
    assert looped.as_json() == closed_loop(calls, 5, REAL, LIMITS, POLICY).as_json()
    assert drive(again, POLICY, calls[:3], sent_us=[0, 0, 0], clock=clock).complete.all(), "an engine is used again"


def test_what_calls_share_is_prefilled_once_and_nothing_else_is_found() -> None:
    calls = [Call(320, 1, 1, shared_tokens=256)] * 3
    engine, clock = engine_on_clock()
    drive(engine, POLICY, calls, sent_us=[0, 10**7, 2 * 10**7], clock=clock)
    assert [shape.prefill_tokens for shape in engine.shapes if shape.prefill_tokens] == [256, 64, 64, 64]
    engine, clock = engine_on_clock()
    drive(engine, POLICY, [Call(320, 1, 1)] * 3, sent_us=[0, 10**7, 2 * 10**7], clock=clock)
    assert sum(shape.prefill_tokens for shape in engine.shapes) == 3 * 320


def test_whole_requests_keep_their_seats_on_an_engine_as_in_the_simulator() -> None:
    calls, sent_us = traffic(40)[0], [0] * 40
    engine, clock = engine_on_clock()
    driven = drive_static(calls, sent_us, engine, 8, clock)
    assert driven.complete.all() and engine.sequences == 0
    assert driven.tokens.tolist() == [call.output_tokens for call in calls], "what is beyond a text does not count"
    assert max(shape.decoding for shape in engine.shapes) == 8
    said = simulate_static(calls, sent_us, REAL, LIMITS, 8)
    assert driven.tokens_per_s == pytest.approx(said.tokens_per_s, rel=0.1)
    assert np.median(driven.ttft_us) == pytest.approx(np.median(said.ttft_us), rel=0.1)
    first, clock = engine_on_clock()
    drive_static([Call(10, 2, 2), Call(10, 30, 30), Call(10, 1, 1)], [0, 0, 0], first, 2, clock)
    assert [shape.decoding for shape in first.shapes[1:30]] == [2] * 29, "the short one's seat is taken to the end"


def test_a_static_batch_is_cut_where_the_cache_has_no_room_for_texts_as_long_as_the_longest() -> None:
    limits = replace(LIMITS, total_blocks=20)
    engine, clock = engine_on_clock(limits)
    driven = drive_static([Call(32, 10, 10), Call(32, 300, 300), Call(32, 10, 10)], [0] * 3, engine, 8, clock)
    assert driven.complete.all() and driven.most_blocks <= 20
    assert max(shape.decoding for shape in engine.shapes) == 1, "two as long as the longest need 22 blocks"
    for seats, call in ((0, Call(1, 1, 1)), (4, Call(32, 700, 700))):
        with pytest.raises(InputError, match="seats, and the largest call"):
            drive_static([call], [0], engine, seats, clock)


@pytest.mark.parametrize("given", [{}, {"sent_us": [0], "callers": 1}, {"callers": 0}])
def test_a_load_that_is_none_or_two_is_refused(given: dict[str, object]) -> None:
    engine, clock = engine_on_clock()
    with pytest.raises(InputError):
        drive(engine, POLICY, [Call(1, 1, 1)], clock=clock, **given)  # type: ignore[arg-type]


def test_clocks() -> None:
    wall = WallClock(limit_s=0.0)
    assert wall.now_us() >= 0
    wall.wait_until(wall.now_us() + 2_000)
    assert wall.now_us() >= 2_000
    with pytest.raises(CouldNotTell, match="not over after 0 s"):
        wall.stepped(1)
    used = ProcessorClock(os.getpid())
    before, ends = used.now_us(), time.process_time() + 0.02
    while time.process_time() < ends:
        pass
    assert used.now_us() - before >= 19_000
    used.wait_until(10**9)
    assert 10**9 <= used.now_us() < 2 * 10**9, "waiting costs no time"


def test_a_calibration_finds_what_made_the_steps() -> None:
    engine, clock = engine_on_clock()
    found = calibrate(engine, max_sequences=32, most_passes=2, clock=clock, conditions={"cores": 2})
    assert found.passes == 2
    *usual, crowd_us = found.step_time.coefficients
    assert np.allclose(usual, REAL.coefficients[:-1], rtol=0.01) and crowd_us < 1
    assert found.jitter < 1e-3
    seen = {shape.decoding for shape, _ in found.steps}
    assert {0, 1, 2, 4, 8, 12, 16, 24, 32} <= seen
    assert any(shape.decoding and shape.prefill_tokens for shape, _ in found.steps), "prefill beside decoding"
    data = found.as_json()
    assert data["conditions"] == {"cores": 2} and data["error"]["p90"] < 1e-3
    read, findings = parse_step_time(json.dumps(data).encode(), "f")
    assert not findings and read == found.step_time


def test_noise_of_steps_is_the_jitter() -> None:
    rng = np.random.default_rng(1)
    engine, clock = engine_on_clock()
    step = engine.step

    def noisy():  # type: ignore[no-untyped-def]
        done = step()
        clock.move(round(done.took_us * abs(rng.normal(0, 0.2))))
        return done

    engine.step = noisy  # type: ignore[method-assign]
    found = calibrate(engine, max_sequences=16, most_passes=2, clock=clock)
    assert 0.03 < found.jitter < 0.2


@pytest.mark.parametrize(
    "limits",
    [
        LIMITS,
        replace(LIMITS, total_blocks=20),
        replace(LIMITS, total_blocks=2),
        replace(LIMITS, step_tokens=64),
        replace(LIMITS, context_tokens=64),
    ],
)
def test_the_design_fits_the_engine(limits) -> None:  # type: ignore[no-untyped-def]
    seats = min(32, limits.step_tokens - limits.block_tokens + 1)
    parts = list(design(limits, seats))
    assert parts[0].context_tokens == CONTEXTS[0]
    for part in parts:
        blocks = blocks_for(part.context_tokens + OWN_TOKENS + DECODE_TOKENS, limits.block_tokens)
        assert part.different == 1 or part.different * blocks <= limits.total_blocks
        assert part.different * part.context_tokens <= max(CONTEXTS_TOKENS, part.context_tokens)
        assert max(part.decoding) <= seats and max(part.decoding) * blocks <= limits.total_blocks
    engine, clock = engine_on_clock(limits)
    found = calibrate(engine, max_sequences=seats, most_passes=1, clock=clock)
    assert found.steps and engine.sequences == 0
    assert isinstance(found.step_time, StepTime)
