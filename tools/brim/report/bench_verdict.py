"""What a benchmark says of its targets, one by one and as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Verdict = Literal["met", "missed", "unclear"]


def verdict_of(verdicts: Sequence[Verdict]) -> bool | None:
    """Of the whole: one missed target makes it a no; else one unclear makes it unclear, as does none at all."""
    if "missed" in verdicts:
        return False
    return None if "unclear" in verdicts or not verdicts else True
