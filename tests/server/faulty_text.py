"""A language model without an engine that hurts its callers in one way at a time: the file ``fault`` beside it says in which.

It is the real host of ``brim.engine`` around its fake engine: tokens are bytes, and the next one is a hash of what a model's
would depend on. Triton's stub runs this file as ``model.py``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from brim.engine import adapter, host
from brim.engine.detokenise import TextStream
from brim.engine.engine import EngineLimits, Sampling, Step
from brim.engine.fake import EOS, FakeEngine
from brim.engine.host import Host, Piece
from brim.engine.lifecycle import End
from brim.engine.settings import Settings

HERE = Path(__file__).parent
BLOCK_TOKENS = 16
STEP_S = 0.001
SLOW_STEP_S = 0.03
"""Where steps are counted by what a caller hears: longer than a piece takes to travel."""
TWO_BYTES = 0xC3
LETTERS = b"etaoinshrdlu mfgypbvk"
OFTEN = 7
LONG_TOKENS = 1_000
STALL_S = 1.0
Line: Any = adapter._TritonLine


def fault() -> str:
    """The one that is planted now."""
    found = HERE / "fault"
    return found.read_text(encoding="utf-8") if found.exists() else ""


@dataclass
class Shared:
    """What callers share, and should not."""

    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    prompts: list[str] = field(default_factory=list)
    ids: dict[str, bytes] = field(default_factory=dict)
    lines: list[Any] = field(default_factory=list)
    held: list[tuple[Any, Piece]] = field(default_factory=list)
    beginnings: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    last_text: str = ""
    left_text: str = ""
    cancelled: int = 0
    salt: int = 0
    long_until: float = 0.0


shared = Shared()


def often() -> bool:
    """Now and then."""
    return next(shared.count) % OFTEN == 0


class FaultyEngine(FakeEngine):
    """Takes a millisecond a step. Tokens are bytes."""

    def __init__(self, settings: Settings) -> None:
        limits = EngineLimits(settings.kv_blocks, BLOCK_TOKENS, 256, settings.context_tokens, 256)
        super().__init__(limits, next_token=self._letter)
        self.step_s = SLOW_STEP_S if settings.max_sequences == 2 else STEP_S

    def restart(self) -> None:
        """It is never lost."""

    def end(self) -> None:
        """It has no process."""

    def close(self) -> None:
        """Nothing to close."""

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        if len(tokens) > LONG_TOKENS:
            shared.long_until = time.monotonic() + 1
        begin, known = tuple(tokens[:BLOCK_TOKENS]), shared.beginnings
        if fault() == "prefix_mixes" and len(tokens) > 4 * BLOCK_TOKENS:
            # The text goes on from whoever came last with the same first block.
            tokens, known[begin] = (*known.get(begin, tuple(tokens))[: len(tokens) - 1], tokens[-1]), tuple(tokens)
        super().add(sequence_id, tokens, sampling)

    def cancel(self, sequence_id: int) -> None:
        shared.cancelled += 1
        super().cancel(sequence_id)

    def used_blocks(self) -> int:
        return super().used_blocks() + (shared.cancelled if fault() == "keeps_blocks" else 0)

    def step(self) -> Step:
        time.sleep(self.step_s)
        shared.salt = shared.cancelled if fault() == "preemption_changes" else 0
        return super().step()

    def _letter(self, tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
        drawn = () if sampling.greedy else (sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k)
        value = hash((tuple(tokens), drawn, sampling.presence_penalty, sampling.repetition_penalty, shared.salt))
        if len(tokens) > prompt_tokens and tokens[-1] == TWO_BYTES:
            return 0xA0 + value % 32
        if value % 97 == 0:
            return EOS
        return TWO_BYTES if value % 5 == 0 else LETTERS[value // 5 % len(LETTERS)]


class FaultyLine(Line):  # type: ignore[misc]
    """Hands over what it should not."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.so_far, self.over, self.doomed = "", False, False
        shared.lines.append(self)

    def send(self, piece: Piece) -> None:
        if self.over:
            return
        if self.doomed:
            piece = Piece("", 0, End.FAILED, None, "a neighbour was refused")
        planted = fault()
        self.so_far += piece.text
        text = piece.text
        if planted == "mixes_callers" and piece.text and often():
            text = shared.last_text or text
        elif planted == "quotes_prompts" and piece.end is End.LENGTH and len(shared.prompts) > 1:
            text += shared.prompts[-1 - next(shared.count) % min(24, len(shared.prompts))]
        elif planted == "leaver_speaks" and piece.text:
            text, shared.left_text = shared.left_text or text, ""
        elif planted == "long_disturbs" and time.monotonic() < shared.long_until:
            text = text.upper()
        elif planted == "waits_for_readers" and "A long tale" in "".join(shared.prompts[-50:]):
            time.sleep(STALL_S)
        shared.last_text = piece.text
        piece = Piece(text, piece.tokens, piece.end, piece.reason, piece.message)
        if piece.end is not None:
            shared.lines.remove(self)
            self.over = True
        if planted == "two_ends" and piece.end is End.LENGTH and often():
            self._sender.send(self._response(piece))
        if planted == "ends_together" and piece.end is not None:
            shared.held.append((self, piece))
            if not shared.lines:
                for line, held in reversed(shared.held):
                    Line.send(line, held)
                shared.held.clear()
            return
        super().send(piece)

    def gone(self) -> bool:
        # After its last response a sender must not be asked: the server would end.
        gone = self.over or super().gone()
        if gone and fault() == "leaver_speaks":
            shared.left_text = self.so_far[-8:]
        return gone


class FaultyStream(TextStream):
    """Shows what it should hold back."""

    def push(self, tokens: Any) -> str:
        if fault() == "splits_characters":
            return b"".join(self._table[token] for token in tokens).decode("utf-8", "replace")
        text = super().push(tokens)
        return text + self._stop[0][:1] if self.stopped and fault() == "leaks_stop" else text


class FaultyHost(Host):
    """With ``static``, nobody joins before all others have ended."""

    def __init__(self, *arguments: Any, on_step: Any, **more: Any) -> None:
        self.pending: list[tuple[Any, ...]] = []

        def stepped() -> None:
            on_step()
            while self.pending and not self.living:
                request, line, more = self.pending.pop(0)
                super(FaultyHost, self).submit(request, line, **more)

        super().__init__(*arguments, on_step=stepped, **more)

    def submit(self, request: Any, line: Any, **more: Any) -> None:
        if fault() == "static" and self.living >= 2:
            self.pending.append((request, line, more))
        else:
            super().submit(request, line, **more)


class FaultyModel(adapter.TextModel):
    """Reads requests, and sometimes the wrong ones."""

    def _read(self, request: Any) -> Any:
        prompt = bytes(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0])
        shared.prompts.append(prompt.decode("utf-8", "replace"))
        del shared.prompts[:-100]
        known = request.request_id()
        first = shared.ids.setdefault(known, prompt)
        if fault() == "confuses_ids" and known.startswith("twice") and first != prompt:
            request = _Other(request, first)
        return super()._read(request)

    def _refuse(self, sender: Any, text: str, code: Any) -> None:
        if fault() == "refusal_hurts" and shared.lines:
            shared.lines[0].doomed = True
        if fault() == "error_quotes" and len(shared.prompts) > 1:
            text += f"; not like {shared.prompts[-2]}"
        super()._refuse(sender, text, code)


class _Other:
    """A request with somebody else's prompt."""

    def __init__(self, request: Any, prompt: bytes) -> None:
        self._request, self._prompt = request, prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def inputs(self) -> list[Any]:
        import numpy as np

        kept = [one for one in self._request.inputs() if one.name() != "text_input"]
        return [*kept, pb_utils.Tensor("text_input", np.array([self._prompt], np.object_))]


def load(folder: Path, settings: Settings) -> adapter.Loaded:
    """Tokens are bytes."""
    table = (b"", *(bytes([byte]) for byte in range(1, 256)))
    return adapter.Loaded(FaultyEngine(settings), lambda text, most: list(text.encode()[:most]), table)


adapter._TritonLine = FaultyLine  # type: ignore[misc]
adapter.Host = FaultyHost  # type: ignore[misc]
host.TextStream = FaultyStream  # type: ignore[misc]


class TritonPythonModel:
    """Triton calls these three methods."""

    def initialize(self, args: dict[str, str]) -> None:
        self._model = FaultyModel(args, pb_utils, load)

    def execute(self, requests: list[Any]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
