"""How far two answers are apart, element by element."""

from __future__ import annotations

import numpy as np

from brim_export.session import Array


def is_float(values: Array) -> bool:
    """Whether ``values`` are floating-point: compared within a tolerance, everything else exactly."""
    return bool(np.issubdtype(values.dtype, np.floating))


def deviation(found: Array, wanted: Array) -> Array:
    """Absolute difference by element, FP64. Two NaN, or two equal infinities, are 0 apart; NaN or Inf and anything else Inf.

    Other types than numbers are 0 apart when equal, else Inf. Both arrays have the same shape.
    """
    if not np.issubdtype(wanted.dtype, np.number):
        return np.where(found == wanted, 0.0, np.inf)
    left, right = found.astype(np.float64), wanted.astype(np.float64)
    same = (found == wanted) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left - right)
    apart = np.where(np.isnan(apart), np.inf, apart)
    if not is_float(wanted):
        apart = np.maximum(apart, 1.0)
    return np.where(same, 0.0, apart)


def magnitude(values: Array) -> float:
    """The largest finite absolute value; 0 when there is none."""
    sizes = np.abs(values.astype(np.float64))
    finite = sizes[np.isfinite(sizes)]
    return float(finite.max()) if finite.size else 0.0
