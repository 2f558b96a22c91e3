"""A language model on the real server that has the fake engine: no weights, loaded at once, and every text is known.

A text is the letters of the alphabet in order, from the one that the prompt begins with. After a capital letter every token
is ``LONG`` bytes, so that a connection's window is full after some of them.
"""

from __future__ import annotations

import string
from pathlib import Path

from brim.config.files import write_configs
from brim.paths import Project
from brim.service.load import load_service

MODEL = "story"
BLOCK_TOKENS = 16
LONG = 2_000
LAST_WORDS = "the end"
"""A prompt after which the engine is lost, and none takes its place."""
SERVICE = """
name: story
model: {llm: story.gguf}
generation: {context_tokens: 4096, kv_blocks: 64, max_sequences: 3, chunk_tokens: 64, max_waiting: 4}
slo: {latency_ms: 100000}
callers:
  - {name: interactive, priority: 1, share: 0.5}
  - {name: batch, priority: 2, share: 0.5}
"""
MODEL_PY = f"""
import time

import triton_python_backend_utils as pb_utils

from brim.engine import host
from brim.engine.adapter import Loaded, TextModel
from brim.engine.engine import EngineLimits
from brim.engine.fake import FakeEngine

STEP_S = {{step_s}}
host.RESTARTS = 2
LETTERS = {string.ascii_lowercase.encode()!r}


def next_letter(tokens, prompt_tokens, sampling):
    place = (tokens[0] % 32 - 1 + len(tokens) - prompt_tokens) % 26
    return LETTERS[place] + (256 if tokens[0] in LETTERS.upper() else 0)


class Storyteller(FakeEngine):
    lost = False

    def step(self):
        time.sleep(STEP_S)
        if Storyteller.lost:
            raise RuntimeError("lost for good")
        return super().step()

    def add(self, sequence, tokens, sampling):
        Storyteller.lost = Storyteller.lost or bytes(tokens) == b"{LAST_WORDS}"
        super().add(sequence, tokens, sampling)

    def restart(self):
        raise RuntimeError("there is no other one")

    def end(self):
        pass

    close = end


def load(folder, settings):
    limits = EngineLimits(settings.kv_blocks, {BLOCK_TOKENS}, settings.chunk_tokens, settings.context_tokens, 512)
    table = [bytes([token]) for token in range(256)] + [bytes([token]) * {LONG} for token in range(256)]
    return Loaded(Storyteller(limits, next_token=next_letter), lambda text, most: list(text.encode()[:most]), table)


class TritonPythonModel:
    def initialize(self, args):
        self._model = TextModel(args, pb_utils, load)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.close()
"""


def make_project(root: Path, *, step_s: float) -> Project:
    """A project in a folder, ready to serve."""
    project = Project(root)
    project.services.mkdir()
    (project.services / f"{MODEL}.yaml").write_text(SERVICE, encoding="utf-8")
    write_configs(project.model_repository, load_service(project.services / f"{MODEL}.yaml"))
    version = project.model_repository / MODEL / "1"
    version.mkdir(exist_ok=True)
    (version / "model.py").write_text(MODEL_PY.replace("{step_s}", str(step_s)), encoding="utf-8")
    return project


def story(first: str, tokens: int) -> str:
    """The text after a prompt."""
    letters = string.ascii_lowercase
    start, times = letters.index(first.lower()), LONG if first.isupper() else 1
    return "".join(letters[(start + place) % 26] * times for place in range(tokens))
