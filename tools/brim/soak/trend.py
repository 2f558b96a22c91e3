"""A trend in a series that has steps and spikes: the median of all slopes between two points (Theil and Sen)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MOST_POINTS = 300
"""Longer series are cut into so many parts, each of which stands for the median of its points."""


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Rise of the values a unit of ``at``; 0 for fewer than two points. Half of the points may be anything."""
    xs, ys = np.asarray(at, float), np.asarray(values, float)
    if len(xs) > MOST_POINTS:
        parts = np.array_split(np.arange(len(xs)), MOST_POINTS)
        xs, ys = (np.array([np.median(series[part]) for part in parts]) for series in (xs, ys))
    first, second = np.triu_indices(len(xs), k=1)
    apart = xs[second] - xs[first]
    rises = (ys[second] - ys[first])[apart > 0] / apart[apart > 0]
    return float(np.median(rises)) if len(rises) else 0.0
