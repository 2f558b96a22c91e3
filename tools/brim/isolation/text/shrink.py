"""From a plan that fails to a small one that still does, for a statement that somebody can repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brim.isolation.text.call import Call

MOST_TRIES = 12
SHOWN = 3
"""Calls that a statement writes out."""


def smallest_failing(
    calls: Sequence[Call], fails: Callable[[Sequence[Call]], bool], *, most_tries: int = MOST_TRIES
) -> list[Call] | None:
    """Leave out parts, ever smaller ones, as long as the rest still fails (delta debugging).

    Args:
        calls: a plan that has failed once.
        fails: runs a plan, and says whether anybody was hurt.
        most_tries: runs in all.

    Returns:
        The smallest plan that failed again; None where not even the whole one did.
    """
    kept = list(calls)
    if not fails(kept):
        return None
    tries, parts = 1, 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            if tries == most_tries:
                return kept
            tries += 1
            rest = kept[:start] + kept[start + size :]
            if rest and fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                return kept
            parts = min(len(kept), parts * 2)
    return kept


def statement(kept: Sequence[Call] | None, tried: int) -> str:
    """The outcome in one sentence."""
    if kept is None:
        return f"the {tried} calls that were on their way together do not fail again by themselves: a matter of timing"
    shown = " || ".join(call.statement() for call in kept[:SHOWN])
    more = f" || and {len(kept) - SHOWN} more" if len(kept) > SHOWN else ""
    return f"it fails again with {len(kept)} of these {tried} calls: {shown}{more}"
