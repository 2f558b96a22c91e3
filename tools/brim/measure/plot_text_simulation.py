"""A simulated token model at a glance: distributions of TTFT and TPOT, texts that run over time, and how long steps take."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from brim.engine.simulated import Simulated
from brim.measure import plot
from brim.units import US_PER_S, us_to_ms

HEIGHT_IN = 6.4
MOST_POINTS = 400
"""Of a curve."""
WAYS = ((plot.BLUE, "-"), (plot.VERMILION, "--"))
"""Every step, whole requests."""


def draw(
    found: Simulated,
    path: Path,
    *,
    static: Simulated | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    title: str,
) -> Path:
    """Draw it into one SVG or PNG file, by the file's ending. The same result gives the same bytes.

    Args:
        found: batched before every step.
        path: the file; an earlier one is replaced.
        static: the same traffic in batches of whole requests.
        ttft_ms, tpot_ms: the objective, drawn as lines.
        title: above everything.

    Raises:
        InputError: the ending is neither.
    """
    with plot.style():
        drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
        drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
        drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
        first, each, running, steps = drawn.subplots(2, 2).flat
        ways = {"every step": found} | ({} if static is None else {"whole requests": static})
        _distribution(first, {name: way.ttft_us for name, way in ways.items()}, "first token", ttft_ms, "ttft")
        _distribution(each, {name: way.tpot_us for name, way in ways.items()}, "each further token", tpot_ms, "tpot")
        _running(running, ways)
        _steps(steps, ways)
        return plot.save(drawn, path, title=title)


def _distribution(axes: Axes, ways: dict[str, NDArray[Any]], what: str, objective_ms: float | None, name: str) -> None:
    axes.set_title(f"Share of the texts within a time to {what}")
    axes.set_xlabel("ms")
    axes.set_ylim(0, 1.02)
    for (way, values_us), (color, dashes) in zip(ways.items(), WAYS, strict=False):
        ascending = np.sort(values_us) / 1_000
        if not len(ascending):
            continue
        ranks = _spread(len(ascending))
        p50, p99 = (float(np.percentile(ascending, percent, method="inverted_cdf")) for percent in (50, 99))
        label = f"{way}: p50 {p50:.4g}, p99 {p99:.4g} ms"
        axes.step(
            ascending[ranks], (ranks + 1) / len(ascending), color=color, linestyle=dashes, where="post", label=label,
            gid=f"{name}.{way.replace(' ', '_')}",
        )  # fmt: skip
    if objective_ms is not None:
        axes.axvline(
            objective_ms, color=plot.BLACK, linestyle=":", linewidth=1, label=f"objective: {objective_ms:g} ms"
        )
    axes.set_xlim(left=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")
    else:
        axes.text(0.5, 0.4, "no text was completed", transform=axes.transAxes, ha="center", color=plot.BLACK)


def _running(axes: Axes, ways: dict[str, Simulated]) -> None:
    axes.set_title("Texts that got a token in a step, over time")
    axes.set_xlabel("seconds of steps")
    axes.set_ylabel("texts")
    for (way, of), (color, dashes) in zip(ways.items(), WAYS, strict=False):
        if len(of.step_us):
            chosen = _spread(len(of.step_us))
            ended_s = np.cumsum(np.array(of.step_us, np.int64))[chosen] / US_PER_S
            decoding = np.array([of.shapes[place].decoding for place in chosen.tolist()])
            axes.plot(
                ended_s, decoding, color=color, linestyle=dashes, linewidth=0.9, label=way, gid=f"running.{way[:5]}"
            )
    axes.set_ylim(bottom=0)


def _steps(axes: Axes, ways: dict[str, Simulated]) -> None:
    axes.set_title("Share of the steps within a time")
    axes.set_xlabel("ms")
    axes.set_ylim(0, 1.02)
    for (way, of), (color, dashes) in zip(ways.items(), WAYS, strict=False):
        if len(of.step_us):
            ascending = np.sort(np.array(of.step_us, np.int64))
            ranks = _spread(len(ascending))
            values_ms = [us_to_ms(float(value)) for value in ascending[ranks]]
            axes.step(
                values_ms, (ranks + 1) / len(ascending), color=color, linestyle=dashes, where="post", label=way,
                gid=f"steps.{way[:5]}",
            )  # fmt: skip
    axes.set_xlim(left=0)


def _spread(count: int) -> NDArray[np.int64]:
    """Places of so many values of which a curve shows ``MOST_POINTS`` at most, first and last among them."""
    places: NDArray[np.int64] = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
    return places
