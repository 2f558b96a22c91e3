"""What a caller gets back. Every request gets exactly one of these, and its text shows the caller's own facts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from brim.runtime.contract import Array


class Reason(StrEnum):
    """Why a request was refused. The values are stable: clients may compare them."""

    MISSING_INPUT = "missing_input"
    UNKNOWN_INPUT = "unknown_input"
    NO_ROWS = "no_rows"
    TOO_MANY_ROWS = "too_many_rows"
    ROWS_DIFFER = "rows_differ"
    RANK = "rank"
    SHAPE = "shape"
    LENGTHS_DIFFER = "lengths_differ"
    DTYPE = "dtype"
    NON_FINITE = "non_finite"
    OUT_OF_RANGE = "out_of_range"
    BOOL_VALUE = "bool_value"
    TOO_LARGE = "too_large"
    TOO_MANY_BYTES = "too_many_bytes"
    NOT_UTF8 = "not_utf8"
    UNPREPARED = "unprepared"


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's outputs for this request, by name, each shaped ``[rows of the request, ...]``."""

    outputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is at fault. ``message`` names the input, what came and what was expected."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        """``[reason] message``: what the caller reads."""
        return f"[{self.reason.value}] {self.message}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The model is at fault. What it said went to the server's log under ``incident``; the caller sees only that id."""

    incident: str

    def __str__(self) -> str:
        """What the caller reads."""
        return f"the model failed on this request (incident {self.incident}); the server's log has the details"


@dataclass(frozen=True, slots=True)
class Outage(Failure):
    """No request can be answered now. ``message`` says what is missing, in words that fit every caller."""

    message: str

    def __str__(self) -> str:
        """What the caller reads."""
        return f"{self.message} (incident {self.incident}); the server's log has the details"


Outcome: TypeAlias = Answer | Refusal | Failure
