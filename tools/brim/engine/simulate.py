"""Run traffic through the scheduler and a fake engine whose steps take as long as a fitted model says.

The policy that is simulated is the one that serves: the same ``Scheduler``. So chunk size, sequence limit, KV blocks and
waiting room can be tried without an engine. ``simulate_static`` is what batching whole requests would have done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.engine import metrics as m
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.fake import EOS, FakeEngine
from brim.engine.kv_cache import blocks_for
from brim.engine.lifecycle import Delta, End, Ended, Event, Reason, Request
from brim.engine.scheduler import Scheduler
from brim.engine.step_time import StepShape, StepTime, prefill_pairs
from brim.engine.traffic import Call
from brim.errors import InputError
from brim.units import US_PER_S

FIRST_OWN_TOKEN = 2
"""Token 0 ends texts, token 1 is what texts and shared prompts are made of; call n's own tokens are n + this."""
SHARED_TOKEN = 1
OUTCOMES = tuple(End)
"""``Simulated.ends`` holds places in this tuple."""
Integers = NDArray[np.int64]
Factor = Callable[[], float]


@dataclass(slots=True)
class _Seen:
    """What became of one call."""

    sent_us: int
    first_us: int = -1
    last_us: int = -1
    tokens: int = 0
    end: End | None = None
    reason: Reason | None = None


@dataclass(frozen=True)
class Simulated:
    """What became of a traffic: one entry of each array a call, in the order in which they were sent.

    Attributes:
        sent_us: when it was sent.
        first_us: when its first token came; -1 without one.
        last_us: when its last token came, or its end; -1 for one that was refused.
        tokens: how many came.
        ends: place of its end in ``OUTCOMES``.
        reasons: refusals by reason.
        shapes: what each step ran.
        step_us: how long each step took.
        wall_us: from 0 to the last end.
        most_blocks: most KV blocks held at once.
        preemptions: seats lost to others.
    """

    sent_us: Integers
    first_us: Integers
    last_us: Integers
    tokens: Integers
    ends: Integers
    reasons: dict[str, int]
    shapes: Sequence[StepShape]
    step_us: Sequence[int]
    wall_us: int
    most_blocks: int
    preemptions: int

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which texts are complete."""
        return np.isin(self.ends, [OUTCOMES.index(End.STOP), OUTCOMES.index(End.LENGTH)])

    @property
    def ttft_us(self) -> Integers:
        """Time to first token of every complete text."""
        return self.first_us[self.complete] - self.sent_us[self.complete]

    @property
    def e2e_us(self) -> Integers:
        """Time to the last token of every complete text."""
        return self.last_us[self.complete] - self.sent_us[self.complete]

    @property
    def tpot_us(self) -> NDArray[np.float64]:
        """(End-to-end - TTFT) / (tokens - 1) of every complete text of two tokens or more."""
        several = self.complete & (self.tokens > 1)
        gaps: NDArray[np.float64] = (self.last_us[several] - self.first_us[several]) / (self.tokens[several] - 1)
        return gaps

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all texts over the whole time."""
        return float(self.tokens.sum()) * US_PER_S / max(1, self.wall_us)

    @property
    def mean_sequences(self) -> float | None:
        """Sequences that decoded, the mean over steps; None without a step."""
        return float(np.mean([shape.decoding for shape in self.shapes])) if self.shapes else None

    def goodput_per_s(self, ttft_us: int, tpot_us: int) -> float:
        """Complete texts a second that kept both objectives."""
        single = self.complete & (self.tokens <= 1)
        tpot = np.zeros(len(self.tokens))
        several = self.complete & ~single
        tpot[several] = self.tpot_us
        good = self.complete & (self.first_us - self.sent_us <= ttft_us) & (tpot <= tpot_us)
        return float(good.sum()) * US_PER_S / max(1, self.wall_us)

    def as_json(self) -> dict[str, Any]:
        """Integer microseconds, ratios 0..1, None for what does not exist."""
        values = {"ttft": self.ttft_us, "tpot": self.tpot_us, "e2e": self.e2e_us}
        return {
            **{
                f"{name}_p{percent}_us": _nearest_rank(np.sort(of), percent)
                for name, of in values.items()
                for percent in (50, 90, 99)
            },
            "offered": len(self.ends),
            **{end.value: int(np.count_nonzero(self.ends == place)) for place, end in enumerate(OUTCOMES)},
            "reasons": self.reasons,
            "tokens": int(self.tokens.sum()),
            "tokens_per_s": self.tokens_per_s,
            "mean_sequences": self.mean_sequences,
            "steps": len(self.step_us),
            "step_p50_us": _nearest_rank(np.sort(np.array(self.step_us, np.int64)), 50),
            "step_max_us": max(self.step_us, default=None),
            "most_blocks": self.most_blocks,
            "preemptions": self.preemptions,
            "wall_us": self.wall_us,
        }


def _nearest_rank(ascending: NDArray[Any], percent: float) -> int | None:
    """The smallest value that at least ``percent`` percent of all do not exceed; None without values."""
    if not len(ascending):
        return None
    return round(float(ascending[max(1, math.ceil(len(ascending) * percent / 100)) - 1]))


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
    seen: dict[int, _Seen] = field(default_factory=dict)

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
        return _simulated(
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
            self.seen[index] = _Seen(at_us)
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


def _simulated(
    seen: Sequence[_Seen], shapes: Sequence[StepShape], steps: Sequence[int], most_blocks: int, preemptions: int
) -> Simulated:
    def column(values: list[int]) -> Integers:
        return np.array(values, np.int64)

    reasons: dict[str, int] = {}
    for one in seen:
        if one.reason is not None:
            reasons[one.reason.value] = reasons.get(one.reason.value, 0) + 1
    return Simulated(
        column([one.sent_us for one in seen]),
        column([one.first_us for one in seen]),
        column([one.last_us for one in seen]),
        column([one.tokens for one in seen]),
        column([OUTCOMES.index(one.end) for one in seen if one.end is not None]),
        reasons,
        shapes,
        steps,
        max((max(one.sent_us, one.last_us) for one in seen), default=0),
        most_blocks,
        preemptions,
    )


def _factors(sigma: float, seed: int) -> Factor:
    """Endless lognormal factors of mean 1; all 1 without a spread."""
    if sigma == 0:
        return lambda: 1.0
    rng = np.random.default_rng(seed)
    return lambda: float(rng.lognormal(-sigma * sigma / 2, sigma))


def simulate_static(
    calls: Sequence[Call],
    sent_us: Sequence[int],
    step_time: StepTime,
    limits: EngineLimits,
    max_sequences: int,
) -> Simulated:
    """Batching whole requests: a batch is what waits when the engine is free, and its seats stay taken until its longest
    text is complete.

    Kinder to it than such servers are: tokens reach their callers at every step, prompts of unequal length cost no padding,
    and blocks are taken for the texts as they turn out, not for the longest. Arguments as for ``open_loop``; first come,
    first served, nobody is refused.

    Raises:
        InputError: a call is larger than the KV cache, or there is no seat.
    """
    sizes = [blocks_for(call.prompt_tokens + call.output_tokens, limits.block_tokens) for call in calls]
    if max_sequences < 1 or max(sizes, default=0) > limits.total_blocks:
        raise InputError(
            f"{max_sequences} seats, and the largest call needs {max(sizes, default=0)} of {limits.total_blocks} KV blocks",
            hint="every call must fit the cache alone",
        )
    seen = [_Seen(at_us) for at_us in sent_us]
    waiting = deque(range(len(calls)))
    shapes: list[StepShape] = []
    steps: list[int] = []
    now_us = most_blocks = 0

    def run(shape: StepShape) -> int:
        shapes.append(shape)
        steps.append(step_time.time_us(shape))
        return now_us + steps[-1]

    while waiting:
        now_us = max(now_us, sent_us[waiting[0]])
        batch: list[int] = []
        blocks = 0
        while waiting and len(batch) < max_sequences and sent_us[waiting[0]] <= now_us:
            if blocks + sizes[waiting[0]] > limits.total_blocks:
                break
            blocks += sizes[waiting[0]]
            batch.append(waiting.popleft())
        most_blocks = max(most_blocks, blocks)
        for chunk in _prefill_chunks([calls[index].prompt_tokens for index in batch], limits.step_tokens):
            now_us = run(chunk)
        context = sum(calls[index].prompt_tokens for index in batch)
        for produced in range(1, max(calls[index].output_tokens for index in batch) + 1):
            if produced > 1:
                now_us = run(StepShape(len(batch), 0, context + produced * len(batch)))
            for index in batch:
                if produced <= calls[index].output_tokens:
                    one = seen[index]
                    one.tokens = produced
                    one.first_us = now_us if produced == 1 else one.first_us
                    one.last_us = now_us
        for index in batch:
            seen[index].end = End.STOP
    return _simulated(seen, shapes, steps, most_blocks, 0)


def _prefill_chunks(prompts: Sequence[int], step_tokens: int) -> list[StepShape]:
    """Steps that prefill these prompts one after another, as full as they may be."""
    chunks: list[StepShape] = []
    left, tokens, pairs = step_tokens, 0, 0
    for prompt in prompts:
        done = 0
        while done < prompt:
            now = min(left, prompt - done)
            pairs += prefill_pairs(now, done)
            done, left, tokens = done + now, left - now, tokens + now
            if left == 0:
                chunks.append(StepShape(0, tokens, 0, pairs))
                left, tokens, pairs = step_tokens, 0, 0
    return [*chunks, StepShape(0, tokens, 0, pairs)] if tokens else chunks
