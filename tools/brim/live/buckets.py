"""What a histogram's buckets have to be: each holds all that the one below it holds."""

from __future__ import annotations

from collections.abc import Mapping


def grows(upto: Mapping[float, float]) -> bool:
    """Whether counts by upper bound can be those of one histogram. Differences across a restart need not be."""
    counts = [upto[bound] for bound in sorted(upto)]
    return counts == sorted(counts) and (not counts or counts[0] >= 0)
