"""Batching whole requests, for comparison: what text generation is like without joining at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from brim.engine.engine import EngineLimits
from brim.engine.kv_cache import blocks_for
from brim.engine.lifecycle import End
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
    sizes = [blocks_for(call.prompt_tokens + call.output_tokens, limits.block_tokens) for call in calls]
    if max_sequences < 1 or max(sizes, default=0) > limits.total_blocks:
        raise InputError(
            f"{max_sequences} seats, and the largest call needs {max(sizes, default=0)} of {limits.total_blocks} KV blocks",
            hint="every call must fit the cache alone",
        )
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
                    one = seen[index]
                    one.tokens = produced
                    one.first_us = now_us if produced == 1 else one.first_us
                    one.last_us = now_us
        for index in batch:
            seen[index].end = End.STOP
    return simulated(seen, shapes, steps, most_blocks, 0)


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
