"""A sentence encoder without a server: the same graph, tokenizer and threads, in a loop of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from brim.errors import ModelFileError
from brim.limits import BATCH_LIMIT
from brim.runtime.padding import PaddingCost, cut
from brim.runtime.session import Device, OnnxSession
from brim.runtime.text import IDS, MASK, TOKENIZER_FILE, TYPES

Embeddings: TypeAlias = npt.NDArray[np.float32]
Loop: TypeAlias = Callable[[Sequence[str]], Embeddings]
"""Sentences to embeddings, ``[sentences, width]``, in order."""


class OfflineEncoder:
    """Three ways through the same session."""

    def __init__(self, folder: Path, *, threads: int, cost: PaddingCost, longest_tokens: int, remedy: str) -> None:
        """Load graph and tokenizer from a version folder.

        Raises:
            ModelFileError: a file is missing or broken.
        """
        self._session = OnnxSession(folder / "model.onnx", Device(None, threads), remedy=remedy)
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:
            raise ModelFileError(f"{folder / TOKENIZER_FILE} is not a tokenizer: {error}", hint=remedy) from error
        self.tokenizer.enable_truncation(max_length=longest_tokens)
        self.tokenizer.no_padding()
        self._output = next(iter(self._session.outputs))
        self._cost = cost

    def one_by_one(self, texts: Sequence[str]) -> Embeddings:
        """Each sentence tokenised and run alone: no padding, and no batch."""
        return np.concatenate([self._run([self.tokenizer.encode(text).ids]) for text in texts])

    def naive(self, texts: Sequence[str]) -> Embeddings:
        """Each hundred in order of arrival, padded to its longest."""
        return np.concatenate([self._run(ids) for ids in self._hundreds(texts)])

    def sorted_and_cut(self, texts: Sequence[str]) -> Embeddings:
        """Each hundred cut into runs as the batch runtime cuts it."""
        return np.concatenate([self._cut(ids) for ids in self._hundreds(texts)])

    def _hundreds(self, texts: Sequence[str]) -> Iterable[list[list[int]]]:
        for first in range(0, len(texts), BATCH_LIMIT):
            yield [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts[first : first + BATCH_LIMIT])]

    def _cut(self, ids: Sequence[Sequence[int]]) -> Embeddings:
        runs = cut([len(row) for row in ids], self._cost, BATCH_LIMIT)
        found = np.concatenate([self._run([ids[place] for place in run.tolist()]) for run in runs])
        ordered = np.empty_like(found)
        ordered[np.concatenate(runs)] = found
        return ordered

    def _run(self, rows: Sequence[Sequence[int]]) -> Embeddings:
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
        ids = np.zeros(mask.shape, dtype=np.int64)
        ids[mask] = np.concatenate(rows)
        feeds = {IDS: ids, MASK: mask.astype(np.int64), TYPES: np.zeros_like(ids)}
        feeds = {name: feeds[name] for name in self._session.inputs}
        return self._session.run([self._output], feeds)[self._output]
