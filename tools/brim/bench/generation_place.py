"""The language model of ``brim bench generation``: served, and its engine alone beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from brim.config.generation import engine_settings
from brim.engine.adapter import MODEL_NAMES
from brim.engine.engine import Sampling
from brim.engine.engine_process import EngineArguments, EngineProcess
from brim.engine.settings import Settings
from brim.engine.tokenise import Tokenizer
from brim.errors import CouldNotTell, ServerFailed
from brim.measure.text.server_side import read_page
from brim.measure.text.stream import Ask, Heard
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.service.samples import sample_rows
from brim.service.schema import Service
from brim.units import US_PER_S

GREEDY = {"temperature": 0, "ignore_eos": True}
WORDS = ("river", "stone", "light", "winter", "paper", "garden", "engine", "letter", "window", "copper")


class Place:
    """Both, for the length of a ``with`` block."""

    def __init__(
        self, project: Project, service: Service, *, log_file: Path, on_progress: Callable[[str], None]
    ) -> None:
        """Of an exported service."""
        self.project, self.service, self._log_file, self._say = project, service, log_file, on_progress
        folder = project.model_repository / service.name / "1"
        self.model = next(folder / name for name in MODEL_NAMES if (folder / name).exists())
        self.settings = Settings.model_validate(engine_settings(service))
        self.tokenizer = Tokenizer.load(self.model)
        self._sequences = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start both.

        Raises:
            ServerFailed: one does not start.
        """
        with ExitStack() as stack:
            self.server = stack.enter_context(
                EmbeddedServer(
                    self.project.model_repository,
                    [self.service.name],
                    cache=self.project.cache,
                    log_file=self._log_file,
                    canaries={self.service.name: next(iter(sample_rows(self.service)), None)},
                    on_progress=self._say,
                )
            )
            self._say("loading the engine alone")
            self._engine = EngineProcess(
                EngineArguments(
                    str(self.model),
                    context_tokens=self.settings.context_tokens,
                    kv_blocks=self.settings.kv_blocks,
                    chunk_tokens=self.settings.chunk_tokens,
                    precision=self.settings.precision,
                    threads=self.settings.threads,
                    prefix_cache=self.settings.prefix_cache,
                )
            )
            stack.callback(self._engine.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._stack.close()

    @property
    def endpoint(self) -> Endpoint:
        """Of the server."""
        return self.server.endpoint

    def alone_per_s(self, prompts: Sequence[str], tokens: int) -> float:
        """Tokens a second of the engine without a server: all prompts at once, so many tokens of each."""
        sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
        cut = [self.tokenizer.tokens_of(prompt, most=self.settings.context_tokens) for prompt in prompts]
        began_s, produced, going = time.perf_counter(), 0, len(cut)
        for one in cut:
            self._engine.add(self._sequences, one, sampling)
            self._sequences += 1
        while going:
            for news in self._engine.step().produced:
                produced += len(news.tokens)
                going -= news.finish is not None
        elapsed_s = time.perf_counter() - began_s
        if produced != tokens * len(cut):
            raise CouldNotTell(
                f"the engine alone made {produced} tokens of {tokens * len(cut)}", hint="see its words on stderr"
            )
        return produced / elapsed_s

    def metrics(self) -> Mapping[str, float]:
        """The model's own numbers now, by name: counters, gauges, and of a histogram ``_sum`` and ``_count``.

        Raises:
            ServerFailed: the page does not come.
        """
        reading = None if self.endpoint.metrics is None else read_page(self.endpoint.metrics, self.service.name)
        if reading is None:
            raise ServerFailed("the metrics page does not come", hint=f"see {self._log_file}")
        return {name: value for (name, label), value in reading.values.items() if not label}


def prompt_of(rng: np.random.Generator, words: int) -> str:
    """So many words, unlike any other prompt's from its first block on."""
    return " ".join([f"{rng.integers(1 << 32):x}", *(WORDS[place] for place in rng.integers(len(WORDS), size=words))])


def ask(prompt: str, tokens: int, kind: str = "") -> Ask:
    """A greedy request for exactly so many tokens."""
    return Ask(prompt.encode(), {**GREEDY, "max_tokens": tokens}, {"brim_class": kind} if kind else {})


def first_token_us(heard: Heard) -> int:
    """From sending to the first token.

    Raises:
        CouldNotTell: none came.
    """
    if heard.first_us is None:
        raise CouldNotTell(f"a request failed: {heard.error or 'no token came'}", hint="see the server's log")
    return heard.first_us - heard.sent_us


def per_s(count: float, elapsed_us: float) -> float:
    """A rate."""
    return count * US_PER_S / elapsed_us
