"""One simulation at a glance: latency and queue over time, the distribution of latencies, and the batches by launch reason."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from brim.batcher.result import REASONS, End, Result
from brim.measure import plot
from brim.units import US_PER_S, us_to_ms

HEIGHT_IN = 6.4
BINS = 60
"""Points of a curve over time."""
PERCENTILES = ((50.0, plot.BLUE, "-"), (99.0, plot.VERMILION, "--"))
REASON_COLORS = (plot.BLUE, plot.VERMILION, plot.GREEN, plot.PURPLE, "#E69F00", "#56B4E9", "#9A9A9A")

Integers = NDArray[np.int64]


def draw(result: Result, path: Path, *, title: str) -> Path:
    """Draw it into one SVG or PNG file, by the file's ending. The same result gives the same bytes.

    Args:
        result: a simulation with one request at least.
        path: the file; an earlier one is replaced.
        title: above everything.

    Raises:
        InputError: the ending is neither.
    """
    with plot.style():
        return plot.save(figure(result, title=title), path, title=title)


def figure(result: Result, *, title: str) -> Figure:
    """The figure that ``draw`` writes."""
    drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
    drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
    drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
    over_time, distribution, queue, batches = drawn.subplots(2, 2).flat
    _latency_over_time(over_time, result)
    _distribution(distribution, result)
    _queue(queue, result)
    _batches(batches, result)
    return drawn


def waiting_over_time(result: Result, at_us: Integers) -> Integers:
    """How many requests had been sent and had not ended, at each of these times (a request that is refused never waits)."""
    kept = result.ends != End.REFUSED
    sent, ended = np.sort(result.sent_us[kept]), np.sort(result.ended_us[kept])
    under_way: Integers = np.searchsorted(sent, at_us, "right") - np.searchsorted(ended, at_us, "right")
    return under_way


def _span_us(result: Result) -> tuple[int, int]:
    begin = int(result.sent_us.min())
    return begin, begin + result.wall_us


def _latency_over_time(axes: Axes, result: Result) -> None:
    answered = result.ends == End.ANSWERED
    sent, latency_us = result.sent_us[answered], result.latency_us
    begin, end = _span_us(result)
    edges = np.linspace(begin, end, BINS + 1)
    places = np.clip(np.searchsorted(edges, sent, "right") - 1, 0, BINS - 1)
    shown: list[float] = []
    for percentile, color, dashes in PERCENTILES:
        values = [
            us_to_ms(float(np.percentile(latency_us[places == index], percentile, method="inverted_cdf")))
            if (places == index).any()
            else math.nan
            for index in range(BINS)
        ]
        shown += [value for value in values if math.isfinite(value)]
        at_s = (edges[:-1] - begin) / US_PER_S
        axes.plot(at_s, values, color=color, linestyle=dashes, label=f"p{percentile:g}", gid=f"time.p{percentile:g}")
    axes.set_title("Latency of answers, by when they were sent")
    axes.set_ylabel("ms")
    axes.set_xlabel("seconds")
    plot.scale_values(axes, shown, may_be_logarithmic=True)
    axes.legend(frameon=False)


def _distribution(axes: Axes, result: Result) -> None:
    latencies = np.sort(result.latency_us)
    axes.set_title("Share of the answers within a latency")
    axes.set_xlabel("ms")
    axes.set_ylim(0, 1.02)
    if not len(latencies):
        axes.text(0.5, 0.4, "nothing was answered", transform=axes.transAxes, ha="center", color=plot.BLACK)
        return
    ranks = np.unique(np.linspace(0, len(latencies) - 1, min(len(latencies), 400)).round().astype(np.int64))
    values = latencies[ranks] / 1_000
    axes.step(values, (ranks + 1) / len(latencies), color=plot.BLUE, where="post", gid="distribution")
    for percentile, color, dashes in PERCENTILES:
        at_ms = us_to_ms(float(np.percentile(latencies, percentile, method="inverted_cdf")))
        axes.axvline(at_ms, color=color, linestyle=dashes, linewidth=1, label=f"p{percentile:g}: {at_ms:.4g} ms")
    mean_ms = us_to_ms(float(latencies.mean()))
    axes.axvline(mean_ms, color=plot.BLACK, linestyle=":", linewidth=1, label=f"mean: {mean_ms:.4g} ms")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right")


def _queue(axes: Axes, result: Result) -> None:
    begin, end = _span_us(result)
    at_us = np.linspace(begin, end, 5 * BINS).round().astype(np.int64)
    under_way = waiting_over_time(result, at_us)
    axes.step((at_us - begin) / US_PER_S, under_way, color=plot.PURPLE, where="post", gid="queue")
    axes.set_title("Requests under way: queued or executed")
    axes.set_ylabel("requests")
    axes.set_xlabel("seconds")
    plot.scale_values(axes, [float(value) for value in under_way])
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _batches(axes: Axes, result: Result) -> None:
    axes.set_title(f"Batch sizes by launch reason: {len(result.batches)} batches")
    axes.set_xlabel("rows in a batch")
    axes.set_ylabel("batches")
    rows, reasons = result.batches.rows, result.batches.reasons
    if not len(rows):
        axes.text(0.5, 0.4, "no batch", transform=axes.transAxes, ha="center", color=plot.BLACK)
        return
    sizes = np.arange(1, int(rows.max()) + 1)
    below = np.zeros(len(sizes))
    for index, (reason, color) in enumerate(zip(REASONS, REASON_COLORS, strict=False)):
        counts = np.bincount(rows[reasons == index], minlength=len(sizes) + 1)[1:]
        if counts.any():
            axes.bar(sizes, counts, width=0.9, bottom=below, color=color, label=reason.value)
            below = below + counts
    axes.set_xlim(0, max(10, len(sizes)) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.legend(frameon=False)
