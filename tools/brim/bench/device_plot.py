"""tau(b) as measured and as fitted, with what it makes of the rows a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brim.measure import plot
from brim.measure.batch_time import BatchTime
from brim.units import US_PER_S, us_to_ms

HEIGHT_IN = 3.6
COLORS = (plot.BLUE, plot.VERMILION)


def draw(curves: Mapping[str, BatchTime], path: Path, *, title: str) -> Path:
    """Draw it into one SVG or PNG file, by the file's ending.

    Args:
        curves: at most two, by where the tensors were.
        path: the file; an earlier one is replaced.
        title: above everything.

    Raises:
        InputError: the ending is neither.
    """
    with plot.style():
        drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
        drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
        drawn.suptitle(title, fontsize=12, parse_math=False)
        times, rates = drawn.subplots(1, 2)
        for color, (way, curve) in zip(COLORS, curves.items(), strict=False):
            _draw(times, rates, curve, color, f"tensors on the {way}")
        times.set(title="time of a batch, ms", xlabel="rows", xlim=(0, None), ylim=(0, None))
        rates.set(title="rows a second", xlabel="rows", xlim=(0, None), ylim=(0, None))
        times.legend(frameon=False)
        return plot.save(drawn, path, title=title)


def _draw(times: Axes, rates: Axes, curve: BatchTime, color: str, label: str) -> None:
    rows = np.array([point.rows for point in curve.points])
    measured_us = np.array([point.measured_us for point in curve.points])
    fitted_us = np.array([curve.time_us(int(size)) for size in rows])
    times.plot(rows, [us_to_ms(time_us) for time_us in measured_us], ".", color=color, label=label)
    times.plot(rows, [us_to_ms(time_us) for time_us in fitted_us], "-", color=color, linewidth=1)
    rates.plot(rows, rows * US_PER_S / np.maximum(measured_us, 1e-9), ".", color=color)
