"""Run traffic through the scheduler and a fake engine whose steps take as long as a fitted model says.

The policy that is simulated is the one that serves: the same ``Scheduler``. So chunk size, sequence limit, KV blocks and
waiting room can be tried without an engine. ``brim.engine.static_batching`` is what batching whole requests would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.fake import EOS, FakeEngine
from brim.engine.lifecycle import Request
from brim.engine.replay import Replay
from brim.engine.simulated import Simulated
from brim.engine.step_time import StepShape, StepTime
from brim.engine.traffic import Call
from brim.errors import InputError

FIRST_OWN_TOKEN = 2
"""Token 0 ends texts, token 1 is what texts and shared prompts are made of; call n's own tokens are n + this."""
SHARED_TOKEN = 1
MOST_JITTER = 5.0
Factor = Callable[[], float]


def open_loop(
    calls: Sequence[Call],
    sent_us: Sequence[int],
    step_time: StepTime,
    limits: EngineLimits,
    policy: Policy,
    *,
    jitter: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """Every call is sent at its time, whatever became of the others.

    Args:
        calls: what is sent.
        sent_us: when, ascending.
        step_time: how long steps take.
        limits: the engine's.
        policy: the scheduler's.
        jitter: standard deviation of the logarithm of a lognormal factor of mean 1 on every step's time.
        seed: of the jitter.

    Raises:
        InputError: the policy does not fit the engine, or times and calls do not go together.
    """
    if len(calls) != len(sent_us):
        raise InputError(f"{len(calls)} calls and {len(sent_us)} times", hint="one time a call is expected")
    return _replay(calls, step_time, limits, policy, jitter, seed).open_loop(sent_us)


def closed_loop(
    calls: Sequence[Call],
    callers: int,
    step_time: StepTime,
    limits: EngineLimits,
    policy: Policy,
    *,
    jitter: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """So many callers, each of whom sends the next call when their last one has ended. Otherwise as ``open_loop``.

    Raises:
        InputError: the policy does not fit the engine, or there is no caller.
    """
    return _replay(calls, step_time, limits, policy, jitter, seed).closed_loop(len(calls), callers)


class _VirtualClock:
    """Time that only steps and waiting move."""

    def __init__(self) -> None:
        self._now_us = 0

    def now_us(self) -> int:
        return self._now_us

    def wait_until(self, at_us: int) -> None:
        self._now_us = max(self._now_us, at_us)

    def stepped(self, took_us: int) -> None:
        self._now_us += took_us


def _replay(
    calls: Sequence[Call], step_time: StepTime, limits: EngineLimits, policy: Policy, jitter: float, seed: int
) -> Replay:
    factor = _factors(jitter, seed)

    def step_us(shape: StepShape) -> int:
        return max(1, round(step_time.time_us(shape) * factor()))

    def next_token(tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
        call = calls[sampling.seed]
        return EOS if len(tokens) - call.prompt_tokens >= call.output_tokens else SHARED_TOKEN

    def request(index: int) -> Request:
        call = calls[index]
        tokens = (SHARED_TOKEN,) * call.shared_tokens + (FIRST_OWN_TOKEN + index,) * (
            call.prompt_tokens - call.shared_tokens
        )
        return Request(str(index), tokens, Sampling(call.max_tokens, temperature=0, seed=index), call.kind)

    return Replay(FakeEngine(limits, step_us, next_token), policy, _VirtualClock(), request)


def _factors(sigma: float, seed: int) -> Factor:
    """Endless lognormal factors of mean 1; all 1 without a spread.

    Raises:
        InputError: the spread is none.
    """
    if not 0 <= sigma <= MOST_JITTER:
        raise InputError(
            f"jitter is {sigma}; 0 to {MOST_JITTER:g} is expected", hint="0.1 makes steps vary by a tenth or so"
        )
    if sigma == 0:
        return lambda: 1.0
    rng = np.random.default_rng(seed)
    return lambda: float(rng.lognormal(-sigma * sigma / 2, sigma))
