"""The settings that no other one beats in both respects."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(places: Sequence[tuple[float, float]]) -> list[int]:
    """Which of these nobody dominates, the highest capacity first.

    One dominates another when it has at least its capacity and at most its latency, and is better in one of them. Equal
    ones do not dominate each other, so ties stay together: all in the front or none.

    Args:
        places: capacity (more is better) and latency (less is better).

    Returns:
        Indices into ``places``; ties in the order of ``places``.
    """
    order = sorted(range(len(places)), key=lambda index: (-places[index][0], places[index][1], index))
    front: list[int] = []
    for index in order:
        # Whoever comes later in this order has no more capacity, so only less latency keeps it in the front.
        if not front or places[index][1] < places[front[-1]][1] or places[index] == places[front[-1]]:
            front.append(index)
    return front
