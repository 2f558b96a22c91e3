"""A language model's points at a glance: percentiles against load, and the distributions behind them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from brim.errors import InputError
from brim.measure import plot
from brim.measure.histogram import Latencies
from brim.measure.plan import Mode
from brim.measure.text.point import TextPoint, TokenSlo
from brim.units import us_to_ms

HEIGHT_IN = 8.4
TIMES = (("ttft", "Time to first token"), ("tpot", "Time per output token"), ("itl", "Inter-token latency"))
PERCENTILES = (("50", plot.BLUE, "-"), ("90", plot.GREEN, "-."), ("99", plot.VERMILION, "--"))
SHADES = (plot.BLUE, plot.VERMILION, plot.GREEN, plot.PURPLE, "#E69F00", "#56B4E9")
DASHES: tuple[object, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
RANKS = (*(percent / 2 for percent in range(1, 200)), 99.9, 100.0)
"""Percentiles that a distribution is drawn through."""


def draw(points: Sequence[TextPoint], path: Path, *, title: str) -> Path:
    """Draw the points into one SVG or PNG file, by the file's ending. The same points give the same bytes.

    Args:
        points: of one plan, in any order.
        path: the file; an earlier one is replaced.
        title: above everything.

    Raises:
        InputError: the ending is neither, there is no point, or points of both loops.
    """
    with plot.style():
        return plot.save(figure(points, title=title), path, title=title)


def figure(points: Sequence[TextPoint], *, title: str) -> Figure:
    """The figure that ``draw`` writes, with the same arguments and errors."""
    if len({point.mode for point in points}) != 1:
        raise InputError(
            "points of both loops" if points else "no point", hint="a picture shows the points of one kind of load"
        )
    points = sorted(points, key=lambda point: point.value)
    drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
    drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
    drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
    grid = drawn.subplots(3, 3, squeeze=False)
    slo = points[0].slo
    for column, (name, words) in enumerate(TIMES):
        against_load(grid[0][column], points, name, words, limit_ms(slo, name))
        distribution(grid[1][column], points[: len(SHADES)], name, words)
    tokens, answers, running = grid[2]
    _line(tokens, points, "Tokens heard", "tokens/s", [("", [one.output_tokens_per_s for one in points])])
    rates: list[tuple[str, list[float | None]]] = [
        ("answered", [one.throughput for one in points]),
        ("in SLO", [one.goodput for one in points]),
    ]
    _line(answers, points, "Texts", "texts/s", rates)
    _line(running, points, "Running sequences", "mean", [("", [one.mean_batch for one in points])])
    drawn.legend(handles=_legend(points, slo), loc="outside lower center", ncols=4, frameon=False)
    return drawn


def limit_ms(slo: TokenSlo | None, name: str) -> float | None:
    """The SLO's limit of a time, in milliseconds; None where nobody bounds it."""
    us = {"ttft": slo.ttft_us, "tpot": slo.tpot_us}.get(name) if slo is not None else None
    return None if us is None else us_to_ms(us)


def against_load(axes: Axes, points: Sequence[TextPoint], name: str, title: str, mark: float | None) -> None:
    """Percentiles of one time against load, with the SLO's line."""
    values = [
        (f"p{percent}", color, dashes, [_ms(getattr(point, f"{name}_us").get(percent)) for point in points])
        for percent, color, dashes in PERCENTILES
    ]
    loads = [point.value for point in points]
    for label, color, dashes, ms in values:
        axes.plot(loads, ms, color=color, linestyle=dashes, gid=f"{name}.{label}")
        for point, value in zip(points, ms, strict=True):
            look = {} if point.stable else plot.HOLLOW
            axes.plot([point.value], [value], **{"color": color, **plot.MARKER, **look})
            if point.generator_bound:
                axes.plot([point.value], [value], **{**plot.MARKER, **plot.RING})
    marks = [] if mark is None else [mark]
    for one in marks:
        axes.axhline(one, color=plot.BLACK, linestyle=":", linewidth=1.5, gid=f"{name}.objective")
    shown = [value for _, _, _, ms in values for value in ms if math.isfinite(value)]
    plot.scale_values(axes, shown, marks, may_be_logarithmic=True)
    _loads(axes, points, title, "ms")


def distribution(axes: Axes, points: Sequence[TextPoint], name: str, title: str) -> None:
    """Share of the values within a time, one curve a load."""
    axes.set_title(f"{title}: share within")
    axes.set_xlabel("ms")
    axes.set_ylim(0, 1.02)
    lowest, highest = math.inf, 0.0
    for point, color, dashes in zip(points, SHADES, DASHES, strict=False):
        latencies = Latencies.from_json(point.histograms[name])
        ms = [us_to_ms(us) for rank in RANKS if (us := latencies.percentile_us(rank)) is not None]
        if ms:
            axes.step(
                ms,
                [rank / 100 for rank in RANKS],
                color=color,
                linestyle=dashes,
                where="post",
                gid=f"{name}.{point.value:g}",
            )
            lowest, highest = min(lowest, ms[0]), max(highest, ms[-1])
    if not highest:
        axes.text(0.5, 0.4, "no figure could be had", transform=axes.transAxes, ha="center", color=plot.BLACK)
    elif lowest > 0 and highest / lowest >= plot.WIDE_RANGE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(left=0)


def _line(
    axes: Axes, points: Sequence[TextPoint], title: str, unit: str, curves: Sequence[tuple[str, Sequence[float | None]]]
) -> None:
    loads = [point.value for point in points]
    shown: list[float] = []
    for (label, values), color, dashes in zip(curves, (plot.BLUE, plot.GREEN), ("-", "--"), strict=False):
        known = [math.nan if value is None else value for value in values]
        shown += [value for value in known if math.isfinite(value)]
        axes.plot(loads, known, color=color, linestyle=dashes, marker="o", markersize=4, label=label or None)
    plot.scale_values(axes, shown)
    if len(curves) > 1:
        axes.legend(frameon=False)
    _loads(axes, points, title, unit)


def _loads(axes: Axes, points: Sequence[TextPoint], title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.set_xlabel("callers" if points[0].mode is Mode.CONCURRENCY else "asked rate, requests/s")
    plot.scale_loads(axes, sorted({point.value for point in points}))


def _ms(us: int | None) -> float:
    return math.nan if us is None else us_to_ms(us)


def _legend(points: Sequence[TextPoint], slo: TokenSlo | None) -> list[Line2D]:
    handles = [Line2D([], [], color=color, linestyle=dashes, label=f"p{one}") for one, color, dashes in PERCENTILES]
    if slo is not None:
        handles.append(Line2D([], [], color=plot.BLACK, linestyle=":", label=f"the SLO's limit of p{slo.percentile:g}"))
    if not all(point.stable for point in points):
        handles.append(Line2D([], [], color=plot.BLACK, **plot.MARKER, **plot.HOLLOW, label="hollow: not stable"))
    if any(point.generator_bound for point in points):
        handles.append(Line2D([], [], **plot.MARKER | plot.RING, label="ringed: the load generator set the figure"))
    handles += [
        Line2D([], [], color=color, linestyle=dashes, label=f"shares: {point.load_text}")
        for point, color, dashes in zip(points, SHADES, DASHES, strict=False)
    ]
    return handles
