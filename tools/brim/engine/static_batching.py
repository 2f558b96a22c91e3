"""Batching whole requests, for comparison: what text generation is like without joining at every step.

Simulated, and driven on an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from brim.engine.drive import plain_tokens
from brim.engine.engine import Engine, EngineLimits, Sampling
from brim.engine.kv_cache import blocks_for
from brim.engine.lifecycle import End
from brim.engine.replay import Clock
from brim.engine.scheduler import next_sequence
from brim.engine.simulated import Seen, Simulated, simulated
from brim.engine.step_time import StepShape, StepTime, prefill_pairs
from brim.engine.traffic import Call
from brim.errors import InputError


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
    sizes = [_blocks(call, call.output_tokens, limits) for call in calls]
    _check(sizes, limits, max_sequences)
    seen = [Seen(at_us) for at_us in sent_us]
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
                    seen[index].take(1, now_us)
        for index in batch:
            seen[index].end = End.STOP
    return simulated(seen, shapes, steps, most_blocks, 0)


def drive_static(
    calls: Sequence[Call],
    sent_us: Sequence[int],
    engine: Engine,
    max_sequences: int,
    clock: Clock,
    *,
    seed: int = 0,
) -> Simulated:
    """The same on a real engine, which has no rule for it: every text of a batch goes on as long as the longest one, and what
    it has beyond its own length is thrown away. So its seat and its blocks stay taken.

    Args:
        calls: what is sent.
        sent_us: when, ascending.
        engine: without sequences; it has none afterwards.
        max_sequences: requests of a batch at most; fewer where the cache has no room for so many that are as long as the
            longest one.
        clock: at 0.
        seed: of the prompts' tokens.

    Raises:
        InputError: a call is larger than the KV cache, or there is no seat.
        CouldNotTell, ServerFailed: the clock's time is over, or the engine is lost.
    """
    limits = engine.limits
    _check([_blocks(call, call.output_tokens, limits) for call in calls], limits, max_sequences)
    rng = np.random.default_rng(seed)
    prompts = [plain_tokens(limits, call.prompt_tokens, rng) for call in calls]
    seen = [Seen(at_us, end=End.LENGTH) for at_us in sent_us]
    waiting = deque(range(len(calls)))
    steps: list[int] = []
    most_blocks = 0
    while waiting:
        clock.wait_until(sent_us[waiting[0]])
        batch: list[int] = []
        longest = 0
        while waiting and len(batch) < max_sequences and sent_us[waiting[0]] <= clock.now_us():
            longest_with = max(longest, calls[waiting[0]].output_tokens)
            together = [*batch, waiting[0]]
            if sum(_blocks(calls[index], longest_with, limits) for index in together) > limits.total_blocks:
                break
            batch, longest = together, longest_with
            waiting.popleft()
        running = {next_sequence(): index for index in batch}
        for sequence, index in running.items():
            engine.add(sequence, prompts[index], Sampling(longest, temperature=0, ignore_eos=True))
        while running:
            began_us = clock.now_us()
            step = engine.step()
            clock.stepped(step.took_us)
            steps.append(max(1, clock.now_us() - began_us))
            most_blocks = max(most_blocks, step.used_blocks)
            for produced in step.produced:
                index = running[produced.sequence_id]
                seen[index].take(
                    min(len(produced.tokens), calls[index].output_tokens - seen[index].tokens), clock.now_us()
                )
                if produced.finish is not None:
                    del running[produced.sequence_id]
    return simulated(seen, (), steps, most_blocks, 0)


def _blocks(call: Call, output_tokens: int, limits: EngineLimits) -> int:
    return blocks_for(call.prompt_tokens + output_tokens, limits.block_tokens)


def _check(sizes: Sequence[int], limits: EngineLimits, max_sequences: int) -> None:
    if max_sequences < 1 or max(sizes, default=0) > limits.total_blocks:
        raise InputError(
            f"{max_sequences} seats, and the largest call needs {max(sizes, default=0)} of {limits.total_blocks} KV blocks",
            hint="every call must fit the cache alone",
        )


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
