"""A deterministic engine without a model, for tests and for the simulator.

It keeps every promise of ``Engine``, as late as each allows (what was cancelled holds its blocks through the next step),
and does not forgive: where a real engine that runs out of blocks preempts of its own accord, and one whose partly filled
blocks are shared writes two texts into one (``brim.engine.partial_blocks``), this one raises.

What it keeps of a real one: paged blocks, the prefix cache and the order in which it forgets, first come, first served
prefills in chunks, a token budget a step. That order is openvino-genai's (``BlockAllocator`` and
``OverwritableBlocksHashStore`` at 2026.3): a block is as old as the moment in which a sequence last took it over, or got it
in place of a forgotten one; blocks that nobody had before are older than all others, in the order of their numbers. So a
beginning is forgotten from its first block on, and a text that was long in the making soon after its end.

Its next token is a hash of what a model's would depend on: the tokens so far, and for sampled texts the seed and how many
random numbers were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import takewhile

from brim.engine.engine import EngineLimits, Finish, Produced, Sampling, Step
from brim.engine.kv_cache import block_hashes, blocks_for
from brim.engine.step_time import StepShape, prefill_pairs

EOS = 0
"""The token that ends a text."""
STALE_SHARE = 4
"""Places for ages, over blocks: of a block that was handed out again the earlier ones stay until they are the oldest."""
TOKENS_PER_EOS = 97
"""One next token in so many is ``EOS``."""


@dataclass(eq=False, slots=True)
class _Sequence:
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    done: int = 0
    ages: list[int] = field(default_factory=list)
    """Of its blocks; smaller is older."""
    hashes: list[int] = field(default_factory=list)
    takes: int | None = None
    cut: bool = False

    @property
    def prefilled(self) -> bool:
        return self.done >= self.prompt_tokens

    @property
    def text_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


def _tail_key(before: int, tokens: Sequence[int]) -> int:
    """Of a partly filled block, by the full blocks before it and what is in it."""
    return hash(("tail", before, *tokens))


class OutOfBlocks(Exception):
    """More blocks are needed than there are: whoever admits has promised too much."""


class MixedTexts(Exception):
    """Two sequences would write into one block, or one would read what is not there yet."""


class FakeEngine:
    """Keeps sequences in the order in which they were added, and runs all of them a step at a time."""

    def __init__(
        self,
        limits: EngineLimits,
        step_us: Callable[[StepShape], int] = lambda _shape: 1,
        next_token: Callable[[Sequence[int], int, Sampling], int] | None = None,
    ) -> None:
        """Without sequences.

        Args:
            limits: what it can hold.
            step_us: how long a step takes; nothing waits for so long.
            next_token: tokens so far, length of the prompt, sampling -> the next token.
        """
        self._limits = limits
        self._step_us = step_us
        self._next_token = next_token or self._hashed_token
        self._sequences: dict[int, _Sequence] = {}
        self._used_ids: set[int] = set()
        self._cache: dict[int, int] = {}
        self._oldest: list[tuple[int, int]] = []
        self._fresh_taken, self._newest = 0, limits.total_blocks
        self._dropped: list[_Sequence] = []
        self._used = 0
        self.most_used_blocks = 0
        self.shapes: list[StepShape] = []

    @property
    def limits(self) -> EngineLimits:
        """As given."""
        return self._limits

    @property
    def sequences(self) -> int:
        """Sequences that it holds."""
        return len(self._sequences)

    def used_blocks(self) -> int:
        """Blocks of all sequences; shared prefixes count once a sequence."""
        return self._used

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """See ``Engine``.

        Raises:
            ValueError: the id was used before, or there are no tokens or none to produce.
            MixedTexts: it would share a partly filled block with another one.
        """
        if sequence_id in self._used_ids or not tokens or sampling.max_tokens < 1:
            raise ValueError(f"sequence {sequence_id} with {len(tokens)} tokens, max_tokens {sampling.max_tokens}")
        self._used_ids.add(sequence_id)
        sequence = _Sequence(list(tokens), len(tokens), sampling)
        self._sequences[sequence_id] = sequence
        if self._limits.prefix_cache:
            sequence.hashes = block_hashes(tokens, self._limits.block_tokens)
            self._restore(sequence)
            self._take_tail(sequence)

    def cancel(self, sequence_id: int) -> None:
        """See ``Engine``.

        Raises:
            MixedTexts: it would leave a block that is found as full, and is not.
        """
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            half_filled = sequence.cut and not sequence.prefilled and sequence.done % self._limits.block_tokens
            if half_filled and self._limits.prefix_cache:
                raise MixedTexts(f"sequence {sequence_id} is dropped in the middle of its prompt")
            self._dropped.append(sequence)

    def step(self) -> Step:
        """See ``Engine``.

        Raises:
            OutOfBlocks: a sequence cannot go on.
        """
        left = self._limits.step_tokens
        decoding = prefilled = context = pairs = 0
        produced: list[Produced] = []
        drawing: list[int] = []
        decodes = [ids for ids, sequence in self._sequences.items() if sequence.prefilled]
        for ids in decodes[:left]:
            sequence = self._sequences[ids]
            self._run(sequence, 1)
            left -= 1
            decoding += 1
            context += sequence.done
            drawing.append(ids)
        for ids in [ids for ids in self._sequences if ids not in set(decodes)]:
            sequence = self._sequences[ids]
            if blocks_for(sequence.prompt_tokens, self._limits.block_tokens) > self._limits.total_blocks:
                self._finish(ids, sequence)
                produced.append(Produced(ids, (), Finish.IGNORED))
                continue
            tokens = min(left, sequence.prompt_tokens - sequence.done)
            if tokens > 0:
                pairs += prefill_pairs(tokens, sequence.done)
                self._run(sequence, tokens)
                left -= tokens
                prefilled += tokens
            if sequence.prefilled:
                drawing.append(ids)
            sequence.cut = True
        self.most_used_blocks = max(self.most_used_blocks, self.used_blocks())
        produced += [self._draw(ids, self._sequences[ids]) for ids in drawing]
        for sequence in self._dropped:
            self._keep(sequence)
        self._dropped.clear()
        self._evict()
        shape = StepShape(decoding, prefilled, context, pairs)
        self.shapes.append(shape)
        return Step(tuple(produced), self._step_us(shape), self.used_blocks())

    def _run(self, sequence: _Sequence, tokens: int) -> None:
        """Run tokens of a sequence; they need blocks."""
        sequence.done += tokens
        self._take(sequence, blocks_for(sequence.done, self._limits.block_tokens) - len(sequence.ages))

    def _take(self, sequence: _Sequence, blocks: int) -> None:
        free = self._limits.total_blocks - self.used_blocks()
        if blocks > free:
            raise OutOfBlocks(f"a sequence of {sequence.done} tokens needs {blocks} blocks more, {free} are free")
        sequence.ages += [self._age() for _ in range(blocks)]
        self._used += blocks
        self._evict()

    def _age(self) -> int:
        """Of a block that is handed out now."""
        if self._fresh_taken < self._limits.total_blocks:
            self._fresh_taken += 1
            return self._fresh_taken
        self._newest += 1
        return self._newest

    def _draw(self, ids: int, sequence: _Sequence) -> Produced:
        sampling = sequence.sampling
        token = self._next_token(sequence.tokens, sequence.prompt_tokens, sampling)
        position = sequence.text_tokens
        ends = (token == EOS and not sampling.ignore_eos) or token in sampling.stop_token_ids
        if ends and position >= sampling.min_tokens:
            self._finish(ids, sequence)
            return Produced(ids, (), Finish.STOP)
        sequence.tokens.append(token)
        if sequence.text_tokens == sampling.max_tokens:
            self._finish(ids, sequence)
            return Produced(ids, (token,), Finish.LENGTH)
        return Produced(ids, (token,))

    def _hashed_token(self, tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
        """One that depends on all that a model's next token does."""
        text = tokens[prompt_tokens:]
        depends: list[object] = [tuple(tokens)]
        if not sampling.greedy:
            depends += [sampling.seed, len(text), sampling.temperature, sampling.top_p, sampling.top_k]
        if sampling.presence_penalty or sampling.frequency_penalty:
            depends.append(tuple(sorted(text)))
        value = hash(tuple(depends))
        return EOS if value % TOKENS_PER_EOS == 0 else 1 + value % (self._limits.vocabulary - 1)

    def _restore(self, sequence: _Sequence) -> None:
        """Take over cached blocks, and those that others hold; the last token is run in any case."""
        held = max((self._computed_alike(sequence, other) for other in self._sequences.values()), default=0)
        for number, block in enumerate(sequence.hashes):
            if self._cache.pop(block, None) is None and number >= held:
                break
            self._newest += 1
            sequence.ages.append(self._newest)
        sequence.done = min(len(sequence.ages) * self._limits.block_tokens, sequence.prompt_tokens - 1)
        self._used += len(sequence.ages)
        if self._used > self._limits.total_blocks:
            raise OutOfBlocks(f"{self._used} blocks are held, there are {self._limits.total_blocks}")

    def _computed_alike(self, sequence: _Sequence, other: _Sequence) -> int:
        """Leading blocks of a prompt that another sequence has computed."""
        if other is sequence:
            return 0
        computed = other.hashes[: other.done // self._limits.block_tokens]
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sequence.hashes, computed, strict=False)))

    def _take_tail(self, sequence: _Sequence) -> None:
        """Take over the partly filled block with which the prompt goes on behind its cached blocks, if there is one."""
        size, tokens, full = self._limits.block_tokens, sequence.tokens, len(sequence.ages)
        others = [other for other in self._sequences.values() if other is not sequence]
        before = sequence.hashes[full - 1] if full else 0
        for end in range(full * size + 1, min((full + 1) * size, len(tokens))):
            key = _tail_key(before, tokens[full * size : end])
            at_end = (other for other in others if other.prefilled and other.done == end)
            if key in self._cache or any(other.tokens[:end] == tokens[:end] for other in at_end):
                sequence.takes = key
                break
        for other in others:
            until = blocks_for(other.done, size) * size
            half_filled = other.cut and not other.prefilled and other.done < until <= len(tokens)
            if half_filled and tokens[:until] == other.tokens[:until]:
                raise MixedTexts(f"{len(tokens)} tokens begin with a block that is half filled")
            if not other.prefilled and sequence.takes is not None and sequence.takes == other.takes:
                raise MixedTexts("two sequences go on behind one partly filled block")

    def _finish(self, ids: int, sequence: _Sequence) -> None:
        del self._sequences[ids]
        self._keep(sequence)

    def _keep(self, sequence: _Sequence) -> None:
        """It holds no block any more, but they stay findable."""
        self._used -= len(sequence.ages)
        if not self._limits.prefix_cache:
            return
        known = sequence.tokens[: sequence.done]
        blocks = block_hashes(known, self._limits.block_tokens)
        if len(known) % self._limits.block_tokens:
            blocks.append(_tail_key(blocks[-1] if blocks else 0, known[len(blocks) * self._limits.block_tokens :]))
        for block, age in zip(blocks, sequence.ages, strict=True):
            self._cache[block] = max(age, self._cache.get(block, age))
            heappush(self._oldest, (self._cache[block], block))

    def _evict(self) -> None:
        if len(self._oldest) > STALE_SHARE * max(self._limits.total_blocks, len(self._cache)):
            self._oldest = [(age, block) for block, age in self._cache.items()]
            heapify(self._oldest)
        while len(self._cache) > max(0, self._limits.total_blocks - self.used_blocks()):
            age, block = heappop(self._oldest)
            if self._cache.get(block) == age:
                del self._cache[block]
