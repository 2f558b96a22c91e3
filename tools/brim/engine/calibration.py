"""Measure how long steps take on an engine, over a designed set of shapes, and fit them.

The design takes each length of context in turn: a prompt alone, in chunks, early and late ones; then more such prompts; then
texts that go on from them, one to as many as there are seats, each from another as far as there was time to prefill them, so
that only their decoding is new; then a fresh prompt that is prefilled beside decoding texts. Texts that all went on from one
context would find it in the processor's caches: the price of a token in the context came out at a half.

Passes are repeated in another order while there is time, so that a machine whose speed wanders is seen as it is on the whole.
There is no server and no client: the scheduler, the engine, and a clock.

A time is what a step takes the callers: the scheduler's part and the way to the engine's process are in it. The saved file
is one that ``brim.engine.step_time.read_step_time`` takes; the fit and the conditions stand beside the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from time import monotonic
from typing import Any

import numpy as np

from brim.engine.admission import Policy
from brim.engine.drive import WallClock, plain_tokens
from brim.engine.engine import Engine, EngineLimits, Sampling
from brim.engine.kv_cache import blocks_for
from brim.engine.lifecycle import Request
from brim.engine.replay import Clock
from brim.engine.scheduler import Scheduler
from brim.engine.step_log import StepLog
from brim.engine.step_time import StepShape, StepTime, fit, relative_errors

USUAL_BUDGET_S = 30.0
SEATS = (1, 2, 4, 8, 12, 16, 24, 32)
"""Sequences that decode at once, as far as there are seats."""
CONTEXTS = (32, 256, 1024, 3072)
"""Tokens of a prompt, as far as the model and its cache take them."""
DECODE_TOKENS = 6
BESIDE = 8
"""Sequences that decode while a prompt is prefilled."""
BESIDE_CHUNKS = 2.5
"""Length of that prompt in steps."""
CONTEXTS_TOKENS = 4_096
"""Of all different contexts of one length together: more take too long to prefill."""
OWN_TOKENS = 4
"""Of a prompt beyond what it shares."""
KEPT_PERCENT = 90.0
"""Residuals that the jitter is made of; the others are what else the machine did, and would make every step vary."""

Timed = list[tuple[StepShape, float]]


@dataclass(frozen=True)
class Calibration:
    """Steps that were measured, and what follows from them.

    Attributes:
        steps: shape and time in microseconds of each.
        passes: times that the design was run, the last one perhaps in part.
        conditions: where and how, for the file.
    """

    steps: Sequence[tuple[StepShape, float]]
    passes: int
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def step_time(self) -> StepTime:
        """The fit."""
        return fit(self.steps)

    @property
    def jitter(self) -> float:
        """Of the fit's residuals, for the simulator."""
        return jitter_of(self.step_time, self.steps)

    def as_json(self) -> dict[str, Any]:
        """As a file holds it: ratios, microseconds."""
        model = self.step_time
        errors = np.abs(relative_errors(model, self.steps))
        return {
            "fit": model.as_json(),
            "jitter": self.jitter,
            "error": {f"p{percent}": float(np.percentile(errors, percent)) for percent in (50, 90)},
            "passes": self.passes,
            "conditions": self.conditions,
            "steps": [{**asdict(shape), "took_us": took_us} for shape, took_us in self.steps],
        }


def jitter_of(model: StepTime, steps: Sequence[tuple[StepShape, float]]) -> float:
    """Standard deviation of the logarithm of measured over predicted time, the most extreme steps left out."""
    logs = np.array([math.log(took_us / model.time_us(shape)) for shape, took_us in steps])
    off = np.abs(logs - np.median(logs))
    return float(logs[off <= np.percentile(off, KEPT_PERCENT)].std())


def calibrate(
    engine: Engine,
    *,
    max_sequences: int,
    budget_s: float = USUAL_BUDGET_S,
    most_passes: int | None = None,
    seed: int = 0,
    clock: Clock | None = None,
    conditions: dict[str, Any] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Run the design, and again while there is time.

    Args:
        engine: without sequences.
        max_sequences: seats of the service.
        budget_s: no part of the design begins later, but for the first one.
        most_passes: how often the design is run at most; None for as often as there is time.
        seed: of prompts and of the order.
        clock: for the steps; the machine's when absent.
        conditions: for the file.
        on_progress: told what is happening.

    Raises:
        InputError: the engine's step leaves no room for so many sequences.
        ServerFailed: the engine is lost, or does not answer.
    """
    began_s = monotonic()
    rng = np.random.default_rng(seed)
    bench = _Bench(engine, max_sequences, clock or WallClock(), rng)
    parts = list(design(engine.limits, max_sequences))
    bench.measure(parts[0])  # what comes first takes longer, whatever its shape
    steps: Timed = []
    passes = 0
    while passes != most_passes and (not steps or monotonic() - began_s < budget_s):
        # The first time from short to long, so that what there is no time for is the longest.
        order = rng.permutation(len(parts)).tolist() if passes else range(len(parts))
        for place in order:
            if steps and monotonic() - began_s >= budget_s:
                break
            steps += bench.measure(parts[place])
        passes += 1
        on_progress(f"{len(steps)} steps measured in {monotonic() - began_s:.0f} s")
    return Calibration(tuple(steps), passes, dict(conditions or {}))


@dataclass(frozen=True, slots=True)
class Part:
    """A context of the design.

    Attributes:
        context_tokens: of each prompt that is prefilled.
        different: so many of them.
        decoding: texts that then go on from them at once, one burst after the other.
        beside: texts that go on from them while a fresh prompt is prefilled.
        fresh_tokens: of that prompt.
    """

    context_tokens: int
    different: int
    decoding: tuple[int, ...]
    beside: int
    fresh_tokens: int


def design(limits: EngineLimits, max_sequences: int) -> Iterator[Part]:
    """The contexts that the engine takes; a short one in any case.

    Args:
        limits: the engine's.
        max_sequences: seats, all of which the largest burst takes where the cache has room for it.
    """
    fresh_tokens = min(round(BESIDE_CHUNKS * limits.step_tokens), limits.context_tokens - 1)
    fresh_blocks = blocks_for(fresh_tokens + 1, limits.block_tokens)
    for context_tokens in CONTEXTS:
        tokens = context_tokens + OWN_TOKENS + DECODE_TOKENS
        blocks = blocks_for(tokens, limits.block_tokens)
        if context_tokens > CONTEXTS[0] and (tokens > limits.context_tokens or blocks > limits.total_blocks):
            return
        most = min(max_sequences, limits.total_blocks // blocks)
        seats = sorted({seats for seats in (*SEATS, most) if seats <= most})
        beside = min(BESIDE, max_sequences - 1, max(0, limits.total_blocks - fresh_blocks) // blocks)
        different = max(1, min(most, CONTEXTS_TOKENS // context_tokens))
        yield Part(context_tokens, different, tuple(seats), beside, fresh_tokens)


class _Bench:
    """One scheduler for the whole calibration: what it knows of the prefix cache has to stay."""

    def __init__(self, engine: Engine, max_sequences: int, clock: Clock, rng: np.random.Generator) -> None:
        self._engine, self._clock, self._rng = engine, clock, rng
        self._log = StepLog(1)
        policy = Policy(max_sequences=max_sequences, max_waiting=max_sequences)
        self._scheduler = Scheduler(engine, policy, clock.now_us, step_log=self._log)
        self._numbers = count()

    def measure(self, part: Part) -> Timed:
        """The steps of one part of the design."""
        contexts = [self._tokens(part.context_tokens) for _ in range(part.different)]
        steps = self._run([self._request(contexts[0], 1)])
        steps += self._run([self._request(context, 1) for context in contexts[1:]])
        for seats in part.decoding:
            steps += self._going_on_from(contexts, seats)
        if part.beside:
            fresh = self._request(self._tokens(part.fresh_tokens), 1)
            steps += self._going_on_from(contexts, part.beside, fresh)
        return steps

    def _tokens(self, number: int) -> tuple[int, ...]:
        return plain_tokens(self._engine.limits, number, self._rng)

    def _request(self, tokens: tuple[int, ...], output_tokens: int) -> Request:
        return Request(str(next(self._numbers)), tokens, Sampling(output_tokens, temperature=0, ignore_eos=True))

    def _going_on_from(self, contexts: Sequence[tuple[int, ...]], texts: int, then: Request | None = None) -> Timed:
        """Steps of texts that go on from contexts, but for those that only run the few tokens by which they differ: so
        little prompt behind so long a context is no chunk, and takes longer a token than any.
        """
        requests = [
            self._request(contexts[number % len(contexts)] + self._tokens(OWN_TOKENS), DECODE_TOKENS)
            for number in range(texts)
        ]
        return [(shape, took_us) for shape, took_us in self._run(requests, then) if shape.decoding]

    def _run(self, requests: Sequence[Request], then: Request | None = None) -> Timed:
        """Steps until all have ended; ``then`` comes when the others decode."""
        for request in requests:
            self._scheduler.submit(request)
        timed: Timed = []
        while self._scheduler.has_work:
            began_us = self._clock.now_us()
            self._scheduler.step()
            took_us = float(max(1, self._clock.now_us() - began_us))
            (newest,) = self._log
            if newest.tokens:
                timed.append((newest.shape, took_us))
            if then is not None and newest.shape.decoding:
                self._scheduler.submit(then)
                then = None
        return timed
