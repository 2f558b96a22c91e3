"""The interface behind which an engine sits, as narrow as the policy needs it.

Whoever implements ``Engine`` promises, beyond the signatures:

- Sequences are prefilled in the order in which they were added, after one token of every decoding sequence, and a step runs
  at most ``EngineLimits.step_tokens`` tokens (what does not fit goes on in the next step).
- A sequence that finishes holds no block after the step that reports it. One that was cancelled holds none after the next
  step, and is not reported any more.
- With ``EngineLimits.prefix_cache``, the full blocks of a finished sequence stay findable by their content until their room
  is needed, and count as free meanwhile. A sequence that begins with the same tokens takes them over when it is added.
- It may find partly filled blocks, too, and may share them as badly as openvino-genai does (``brim.engine.partial_blocks``):
  whoever adds sequences keeps those apart that would write into one.
- A sequence's tokens otherwise depend on its own prompt and sampling alone, never on who shares its steps.

One thread owns an engine; nothing here is safe to call from two.

How openvino-genai's ``ContinuousBatchingPipeline`` meets it (2026.4, ``dynamic_split_fuse``, ``enable_prefix_caching``):
``add`` is ``add_request(id, tokens, config)``; ``step`` is ``step()``, then ``can_read()``/``read()`` and ``get_status()``
of every handle; ``cancel`` is ``handle.cancel()``; blocks in use are ``get_metrics().cache_usage`` percent of
``num_kv_blocks``, as of when the last step was planned: what finished in that step still counts. ``step_tokens`` is
``max_num_batched_tokens``. A step that can schedule nothing ends every sequence that has begun as out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn and when a text ends. Names and meanings are those of vLLM's ``SamplingParams``.

    Attributes:
        max_tokens: most tokens to produce, 1 or more.
        min_tokens: tokens before which neither end-of-text nor a stop token ends the text.
        temperature: 0 is greedy: the likeliest token, and the other drawing options have no meaning.
        top_p: the smallest set of likeliest tokens whose probabilities add up to this; 1 is all of them.
        top_k: so many likeliest tokens; 0 is all of them.
        min_p: tokens at least so likely as this share of the likeliest; 0 is all of them.
        repetition_penalty: above 1 makes tokens of the prompt and of the text less likely; 1 does nothing.
        presence_penalty: taken from a token that is in the text; 0 does nothing.
        frequency_penalty: taken from a token for each time that it is in the text; 0 does nothing.
        seed: of this sequence's own random numbers. A caller who gave none gets one drawn for it, so that every text can
            be produced again.
        ignore_eos: end-of-text does not end the text.
        stop_token_ids: tokens that end the text.
        stop: strings that end the text. No engine sees them: whoever detokenises finds them, and tells the scheduler.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.temperature == 0

    @property
    def continues_from_text(self) -> bool:
        """Whether a sequence of prompt + text so far produces what this one would have produced.

        It does where the next token depends on nothing but the tokens before it: no random numbers, whose state is lost,
        no penalty that tells the text from the prompt, no minimum that counts from the prompt's end.
        """
        return (
            self.greedy
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
            and self.repetition_penalty == 1
            and self.min_tokens == 0
        )


class Finish(StrEnum):
    """How the engine ended a sequence."""

    STOP = "stop"
    """End-of-text, or a stop token."""
    LENGTH = "length"
    """``max_tokens`` were produced."""
    IGNORED = "ignored"
    """The engine will not run it: it does not fit the whole KV cache."""


@dataclass(frozen=True, slots=True)
class Produced:
    """What one step produced for one sequence.

    Attributes:
        sequence_id: as given to ``add``.
        tokens: new ones, in order; none when only ``finish`` is news. An end-of-text token is not among them.
        finish: set once, with the last tokens.
    """

    sequence_id: int
    tokens: tuple[int, ...]
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        produced: at most one entry a sequence, those without news left out.
        took_us: wall time of the step.
        used_blocks: KV blocks that sequences hold after it; cached blocks that nobody holds do not count.
    """

    produced: tuple[Produced, ...]
    took_us: int
    used_blocks: int


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine can hold, fixed for its life.

    Attributes:
        total_blocks: KV blocks.
        block_tokens: tokens a block.
        step_tokens: most tokens of one step, decoded and prefilled together.
        context_tokens: most tokens of prompt and text together that the model takes.
        vocabulary: tokens are 0..vocabulary - 1.
        prefix_cache: whether blocks of finished sequences are found again.
    """

    total_blocks: int
    block_tokens: int
    step_tokens: int
    context_tokens: int
    vocabulary: int
    prefix_cache: bool = True


class Engine(Protocol):
    """A continuous-batching engine. See the module's text for what it promises."""

    @property
    def limits(self) -> EngineLimits:
        """What it can hold."""

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """Queue a sequence; the next step begins its prefill.

        Args:
            sequence_id: never used before.
            tokens: the prompt, 1 token or more.
            sampling: how to go on. ``stop`` is not looked at.

        Raises:
            Exception: the engine will not take it; no other sequence is touched.
        """

    def cancel(self, sequence_id: int) -> None:
        """Drop a sequence. One that has finished or was never added is left alone."""

    def step(self) -> Step:
        """Run the model once. Without sequences it produces nothing, but still lets go of what was cancelled."""

    def used_blocks(self) -> int:
        """KV blocks that sequences hold now."""
