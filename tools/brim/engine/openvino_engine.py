"""openvino-genai's continuous-batching pipeline behind ``brim.engine.engine``.

What the pipeline does, as found by trying release 2026.4.1:

- A block of its KV cache holds 32 tokens on a CPU.
- ``step`` holds Python's interpreter lock for its whole length.
- It takes a number twice without a word, tokens beyond its vocabulary, and lengths beyond its cache; whoever calls ``add``
  has checked them (``brim.engine.admission``).
- Its prefix cache finds partly filled blocks, too, and lets two prompts write into one. Whoever calls ``add`` keeps such
  prompts a step apart (``brim.engine.partial_blocks``).
- Its reader of quantised GGUF files loses precision, so the export gives it an F16 file.
- Of a sequence it tells tokens and a status, and nothing of the numbers behind them. So values that are not finite cannot be
  seen here, neither refused nor kept out of the prefix cache: weights that make some are what the export's gate ``parity``
  is for, and options that would (a temperature or a penalty that is not finite) are refused before ``add``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from brim.engine.engine import EngineLimits, Finish, Produced, Sampling, Step
from brim.engine.openvino_precision import Precision
from brim.engine.tokenise import Tokenizer, has_own_tokenizer
from brim.errors import ModelFileError
from brim.service.schema import KV_BLOCK_TOKENS


@dataclass(slots=True)
class _Sequence:
    handle: Any
    ends: frozenset[int]
    """Tokens that end the text, and are no part of it."""


class OpenVinoEngine:
    """The engine on the processors of this machine. One thread owns it."""

    def __init__(
        self,
        model: Path,
        *,
        context_tokens: int,
        kv_blocks: int,
        chunk_tokens: int,
        precision: Precision = "f32",
        threads: int = 0,
        prefix_cache: bool = False,
    ) -> None:
        """Load the model; it takes seconds.

        Args:
            model: a GGUF file, or a folder with ``openvino_model.xml`` and its tokenizer.
            context_tokens: most tokens of a prompt and its text together.
            kv_blocks: blocks of the KV cache, ``KV_BLOCK_TOKENS`` tokens each.
            chunk_tokens: most tokens of one step.
            precision: of the arithmetic and of the KV cache; ``auto`` follows the processor.
            threads: of the engine; 0 leaves it to the engine.
            prefix_cache: whether blocks are found again by their content. While it is false, long prompts cannot be fed in pieces, and
                short ones wait for their prefill.

        Raises:
            ModelFileError: the engine cannot load the model.
        """
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.num_kv_blocks = kv_blocks
        scheduling.max_num_batched_tokens = chunk_tokens
        scheduling.dynamic_split_fuse = True
        scheduling.enable_prefix_caching = prefix_cache
        properties: dict[str, Any] = {}
        if precision != "auto":
            properties |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        beside = Tokenizer.load(model) if has_own_tokenizer(model) else None
        load = openvino_genai.ContinuousBatchingPipeline
        try:
            if beside is None:
                self._pipeline = load(str(model), scheduling, "CPU", properties)
            else:
                self._pipeline = load(str(model), beside.found, scheduling, "CPU", **properties)
        except Exception as error:  # a bad file ends in whatever its reader stumbles over
            raise ModelFileError(
                f"{model} cannot be loaded by openvino-genai: {(str(error).strip() or repr(error)).splitlines()[-1]}",
                hint="give a GGUF file of a llama or qwen model, or a folder that `optimum-cli export openvino` made",
            ) from error
        self.tokenizer = beside or Tokenizer(self._pipeline.get_tokenizer())
        self._limits = EngineLimits(
            total_blocks=kv_blocks,
            block_tokens=KV_BLOCK_TOKENS,
            step_tokens=chunk_tokens,
            context_tokens=context_tokens,
            vocabulary=1 + max(self.tokenizer.vocabulary.values()),
            prefix_cache=prefix_cache,
        )
        self._sequences: dict[int, _Sequence] = {}
        self._used_blocks = 0

    @property
    def limits(self) -> EngineLimits:
        """What it can hold."""
        return self._limits

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """Queue a sequence; the next step begins its prefill.

        Raises:
            RuntimeError: the engine will not take it.
        """
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends.add(self.tokenizer.end_of_text)
        prompt = openvino.Tensor(np.array([tokens], np.int64))
        handle = self._pipeline.add_request(sequence_id, prompt, self._config(sampling, ends))
        self._sequences[sequence_id] = _Sequence(handle, frozenset(ends))

    def _config(self, sampling: Sampling, ends: set[int]) -> Any:
        config = openvino_genai.GenerationConfig()
        config.apply_chat_template = False
        config.max_new_tokens = sampling.max_tokens
        config.min_new_tokens = sampling.min_tokens
        if not sampling.ignore_eos:
            config.eos_token_id = self.tokenizer.end_of_text
        # With ignore_eos the engine passes over stop tokens, too, so it is told of that only where there are none.
        config.ignore_eos = not ends
        config.stop_token_ids = ends
        config.repetition_penalty = sampling.repetition_penalty
        config.presence_penalty = sampling.presence_penalty
        config.frequency_penalty = sampling.frequency_penalty
        config.do_sample = not sampling.greedy
        if not sampling.greedy:
            config.temperature = sampling.temperature
            config.top_p = sampling.top_p
            if sampling.top_k:
                config.top_k = sampling.top_k
            config.min_p = sampling.min_p
            config.rng_seed = sampling.seed
        config.validate()
        return config

    def cancel(self, sequence_id: int) -> None:
        """Drop a sequence. One that has finished or was never added is left alone."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            sequence.handle.cancel()

    def step(self) -> Step:
        """Run the model once over everything that was added."""
        began = time.perf_counter_ns()
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        produced = [entry for key in list(self._sequences) if (entry := self._news(key)) is not None]
        took_us = (time.perf_counter_ns() - began) // 1_000
        self._used_blocks = self._held_blocks()
        return Step(tuple(produced), took_us, self._used_blocks)

    def _news(self, sequence_id: int) -> Produced | None:
        sequence = self._sequences[sequence_id]
        tokens: list[int] = []
        reason = openvino_genai.GenerationFinishReason.NONE
        while sequence.handle.can_read():
            for output in sequence.handle.read().values():
                tokens += output.generated_ids
                reason = output.finish_reason
        status = sequence.handle.get_status()
        if status == openvino_genai.GenerationStatus.RUNNING:
            return Produced(sequence_id, tuple(tokens)) if tokens else None
        del self._sequences[sequence_id]
        if status == openvino_genai.GenerationStatus.IGNORED:
            return Produced(sequence_id, tuple(tokens), Finish.IGNORED)
        if tokens and tokens[-1] in sequence.ends:
            return Produced(sequence_id, tuple(tokens[:-1]), Finish.STOP)
        stopped = reason == openvino_genai.GenerationFinishReason.STOP
        return Produced(sequence_id, tuple(tokens), Finish.STOP if stopped else Finish.LENGTH)

    def used_blocks(self) -> int:
        """KV blocks that sequences held after the last step. Unlike everything else here, any thread may ask."""
        return self._used_blocks

    def _held_blocks(self) -> int:
        # The engine's own figure is of its last step, so it is stale once nothing is left to run; then nothing is held.
        if not self._pipeline.has_non_finished_requests():
            return 0
        share = float(self._pipeline.get_metrics().cache_usage) / 100
        return round(share * self._limits.total_blocks)
