"""What turns a request into the model's inputs, when they do not map one to one: the interface of the setting ``adapter``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brim.runtime.batch import PreparedRow
from brim.runtime.contract import Contract, Request
from brim.runtime.outcome import Refusal
from brim.runtime.record import ExportRecord


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a preparation is constructed with.

    Attributes:
        folder: the version folder of the model, where its files lie.
        contract: what callers send and get.
        graph_inputs: names that the rows must have.
        longest_tokens: where a text is cut, unless the model ends earlier.
        record: what the export found out about the graph.
        remedy: the hint for an error about the model's files.
    """

    folder: Path
    contract: Contract
    graph_inputs: tuple[str, ...]
    longest_tokens: int
    record: ExportRecord
    remedy: str


class Preparation(Protocol):
    """A class named by the setting ``adapter`` is called with ``Surroundings`` and gives one of these."""

    @property
    def pads(self) -> Mapping[str, float]:
        """Graph inputs whose first row axis is padded, with the padding value of each."""
        ...

    def __call__(self, requests: Sequence[Request]) -> Sequence[Sequence[PreparedRow] | Refusal]:
        """For each request its rows, ``{graph input: array without the batch axis}``, or its refusal.

        What this raises for several requests is tried again one request at a time.
        """
        ...
