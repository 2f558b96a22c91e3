"""Run traffic through the scheduler and a fake engine whose steps take as long as a fitted model says.

The policy that is simulated is the one that serves: the same ``Scheduler``. So chunk size, sequence limit, KV blocks and
waiting room can be tried without an engine. ``brim.engine.static_batching`` is what batching whole requests would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from brim.engine import metrics as m
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.fake import EOS, FakeEngine
from brim.engine.lifecycle import Delta, Ended, Event, Request
from brim.engine.scheduler import Scheduler
from brim.engine.simulated import Seen, Simulated, simulated
from brim.engine.step_time import StepShape, StepTime
from brim.engine.traffic import Call
from brim.errors import InputError

FIRST_OWN_TOKEN = 2
"""Token 0 ends texts, token 1 is what texts and shared prompts are made of; call n's own tokens are n + this."""
SHARED_TOKEN = 1
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
    if len(calls) != len(sent_us) or any(a > b for a, b in pairwise(sent_us)):
        raise InputError(
            f"{len(calls)} calls and {len(sent_us)} times; one time a call, ascending, is expected",
            hint="sort the times",
        )
    run = _Run(calls, step_time, limits, policy, jitter, seed)
    for index, at_us in enumerate(sent_us):
        run.send(index, at_us)
    return run.finish()


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
    if callers < 1:
        raise InputError(
            f"{callers} callers; 1 or more is expected", hint="callers are those who send one call at a time"
        )
    run = _Run(calls, step_time, limits, policy, jitter, seed)
    following = iter(range(callers, len(calls)))

    def send_next(at_us: int) -> None:
        index = next(following, None)
        if index is not None:
            run.send(index, at_us)

    run.on_end = send_next
    for index in range(min(callers, len(calls))):
        run.send(index, 0)
    return run.finish()


@dataclass
class _Run:
    calls: Sequence[Call]
    step_time: StepTime
    limits: EngineLimits
    policy: Policy
    jitter: float
    seed: int
    on_end: Callable[[int], None] = lambda at_us: None
    now_us: int = 0
    seen: dict[int, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._factor = _factors(self.jitter, self.seed)
        self._steps: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._engine = FakeEngine(self.limits, self._step_us, self._next_token)
        self._scheduler = Scheduler(self._engine, self.policy, lambda: self.now_us)

    def send(self, index: int, at_us: int) -> None:
        heappush(self._due, (at_us, index))

    def finish(self) -> Simulated:
        while self._due or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self.now_us = max(self.now_us, self._due[0][0])
            self._submit_until(self.now_us)
            if not self._scheduler.has_work:
                continue
            self._hear(self._scheduler.feed())
            began_us = self.now_us
            step = self._engine.step()
            self._submit_until(began_us + step.took_us)
            self.now_us = began_us + step.took_us
            self._hear(self._scheduler.collect(step))
        return simulated(
            list(self.seen.values()),
            self._engine.shapes,
            self._steps,
            self._engine.most_used_blocks,
            round(self._scheduler.metrics.value(m.PREEMPTIONS)),
        )

    def _submit_until(self, until_us: int) -> None:
        """Those who come while a step runs are heard at once, and wait for the next one."""
        while self._due and self._due[0][0] <= until_us:
            at_us, index = heappop(self._due)
            self.now_us = max(self.now_us, at_us)
            self.seen[index] = Seen(at_us)
            self._hear(self._scheduler.submit(self._request(index)))

    def _request(self, index: int) -> Request:
        call = self.calls[index]
        tokens = (SHARED_TOKEN,) * call.shared_tokens + (FIRST_OWN_TOKEN + index,) * (
            call.prompt_tokens - call.shared_tokens
        )
        return Request(str(index), tokens, Sampling(call.max_tokens, temperature=0, seed=index), call.kind)

    def _next_token(self, tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
        call = self.calls[sampling.seed]
        return EOS if len(tokens) - call.prompt_tokens >= call.output_tokens else SHARED_TOKEN

    def _step_us(self, shape: StepShape) -> int:
        took_us = max(1, round(self.step_time.time_us(shape) * self._factor()))
        self._steps.append(took_us)
        return took_us

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            seen = self.seen[int(event.request_id)]
            if isinstance(event, Delta):
                seen.tokens += len(event.tokens)
                seen.first_us = self.now_us if seen.first_us < 0 else seen.first_us
                seen.last_us = self.now_us
            elif isinstance(event, Ended):
                seen.end, seen.reason = event.end, event.reason
                self.on_end(self.now_us)


def _factors(sigma: float, seed: int) -> Factor:
    """Endless lognormal factors of mean 1; all 1 without a spread."""
    if sigma == 0:
        return lambda: 1.0
    rng = np.random.default_rng(seed)
    return lambda: float(rng.lognormal(-sigma * sigma / 2, sigma))
