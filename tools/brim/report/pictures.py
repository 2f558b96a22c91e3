"""The drawings of a report, in the style of ``brim.measure.plot``. Pure: the same figures give the same text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from brim.isolation.page import shown as visible
from brim.measure import plot
from brim.measure.accounting import Objective
from brim.measure.asked import CLOSED
from brim.report.curves import Curve, Load
from brim.report.document import Picture
from brim.report.inline_svg import INK, SVG_STYLE, inline_svg
from brim.report.simulation_check import Pair
from brim.units import us_to_ms

WIDTH_IN = 10.0
PANELS_HEIGHT_IN = 3.4
LEGEND_LINE_IN = 0.22
GREY = "#9A9A9A"
LOOKS: tuple[tuple[str, object, str], ...] = (
    (plot.BLUE, "-", "o"),
    (plot.VERMILION, "--", "s"),
    (plot.GREEN, "-.", "^"),
    (plot.PURPLE, ":", "D"),
    ("#E69F00", (0, (5, 1)), "v"),
    ("#56B4E9", (0, (3, 1, 1, 1)), "P"),
)
"""Colour, dashes and marker: told apart without colour too."""
HATCHES = ("", "//", "..", "xx", "--", "++")
"""The same for areas; one a launch reason, of which there are as many."""
BANDS = (0.2, 0.1)
NEAR_DIAGONAL = 1.3
"""Room of a scatter beyond its points, as a factor."""
LABEL_WIDTH = 44
LABEL_LINES = 4
NAME_WIDTH = 26
RING = {**plot.RING, "markersize": 9, "markeredgewidth": 0.9}
"""Smaller than where a picture has one curve only."""
MOST_NAMES = 8
"""Places of a Pareto picture that have their setting beside them; the table has all."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes over load.

    Attributes:
        title: above it.
        unit: of its values.
        of: a load's value, or None.
        between: a load's lowest and highest value where it is only known to lie between, or None.
        mark: a value that is drawn as a dotted line.
        may_be_logarithmic: whether a wide range may be.
    """

    title: str
    unit: str
    of: Callable[[Load], float | None]
    between: Callable[[Load], tuple[float, float] | None] | None = None
    mark: float | None = None
    may_be_logarithmic: bool = False


def label_text(words: str, width: int) -> str:
    """Words from a file as a drawing can carry them: a few lines, and nothing that XML or a legend leaves out."""
    lines = textwrap.wrap(str(visible(words)), width, max_lines=LABEL_LINES, placeholder=" ...")
    # A legend passes over labels that begin with an underscore.
    return "\n".join(lines).replace("_", " _", 1) if lines and lines[0].startswith("_") else "\n".join(lines)


def canvas(height_in: float, name: str) -> Figure:
    """An empty figure of a page's width; ``name`` goes before every id."""
    drawn = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
    drawn.set_gid(name)
    return drawn


def latency_percentiles(objective: Objective | None) -> list[str]:
    """50, 99 and the SLO's own percentile, as ``Load.latency_us`` names them."""
    own = [] if objective is None else [objective.percentile]
    return [f"{one:g}" for one in sorted({50.0, 99.0, *own})]


def latency_panels(objective: Objective | None) -> list[Panel]:
    """One a percentile, each with the SLO's line."""
    mark = None if objective is None else us_to_ms(objective.latency_us)

    def of(percentile: str) -> Callable[[Load], float | None]:
        return lambda load: None if (us := load.latency_us.get(percentile)) is None else us_to_ms(us)

    return [
        Panel(f"p{one}", "ms", of(one), mark=mark, may_be_logarithmic=True) for one in latency_percentiles(objective)
    ]


def goodput_panels(objective: Objective) -> list[Panel]:
    """Throughput, and what of it is inside the SLO: between two bounds."""
    return [
        Panel("Throughput", "inferences/s", lambda load: load.throughput),
        Panel(
            f"Goodput: inside {us_to_ms(objective.latency_us):.10g} ms",
            "inferences/s",
            lambda load: None if (found := load.goodput(objective)) is None else found[0],
            between=lambda load: load.goodput(objective),
        ),
    ]


def batch_panels() -> list[Panel]:
    """Mean batch and duty."""
    return [
        Panel("Mean batch (100 rows is fill 1)", "rows", lambda load: load.mean_batch),
        Panel("Duty of the instances", "busy share", lambda load: load.duty, mark=1.0),
    ]


def against_load(name: str, shown: Sequence[Curve], grey: Sequence[Curve], panels: Sequence[Panel]) -> Picture:
    """Panels side by side: one line a curve.

    Args:
        name: goes before every id.
        shown: with colour and a legend, at most ``len(LOOKS)``.
        grey: all others.
        panels: at least one.
    """
    labels = [label_text(curve.label, LABEL_WIDTH) for curve in shown]
    lines = sum(1 + label.count("\n") for label in labels) / 2 + 3
    with plot.style(SVG_STYLE):
        drawn = canvas(PANELS_HEIGHT_IN + LEGEND_LINE_IN * lines, name)
        for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            values = [value for curve in grey for value in _line(axes, curve, panel, GREY, "-", "", 0.8)]
            for curve, (color, dashes, marker) in zip(shown, LOOKS, strict=False):
                values += _line(axes, curve, panel, color, dashes, marker, 1.5)
            marks = [] if panel.mark is None else [panel.mark]
            for mark in marks:
                axes.axhline(mark, color=INK, linestyle=":", linewidth=1.5)
            axes.set_title(panel.title)
            axes.set_ylabel(panel.unit)
            axes.set_xlabel("callers" if shown[0].kind.arrivals == CLOSED else "asked rate, requests/s")
            plot.scale_values(axes, values, marks, may_be_logarithmic=panel.may_be_logarithmic)
            plot.scale_loads(axes, sorted({load.value for curve in (*shown, *grey) for load in curve.loads}))
        handles: list[Artist] = [
            Line2D([], [], color=color, linestyle=dashes, marker=marker, label=label)
            for label, (color, dashes, marker) in zip(labels, LOOKS, strict=False)
        ]
        if grey:
            handles.append(Line2D([], [], color=GREY, linewidth=0.8, label=f"{len(grey)} other settings"))
        if any(panel.mark is not None and panel.unit == "ms" for panel in panels):
            handles.append(Line2D([], [], color=INK, linestyle=":", label="the SLO's latency"))
        if any(panel.between is not None for panel in panels):
            handles.append(Patch(facecolor=GREY, alpha=0.3, label="between its bounds"))
        loads = [load for curve in (*shown, *grey) for load in curve.loads]
        if not all(load.stable for load in loads):
            handles.append(
                Line2D([], [], color=INK, **plot.MARKER, **plot.HOLLOW, label="hollow: windows did not agree")
            )
        if any(load.generator_bound for load in loads):
            handles.append(Line2D([], [], **plot.MARKER | RING, label="ringed: the load generator set the figure"))
        drawn.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        titles = " and ".join(panel.title for panel in panels)
        return Picture(inline_svg(drawn, name), f"{titles} against load, {len(shown) + len(grey)} settings")


def batch_sizes(name: str, curve: Curve) -> Picture:
    """How often each batch size ran, one small panel a load."""
    loads = [load for load in curve.loads if load.sizes]
    columns = 2 if len(loads) in (2, 4) else min(3, len(loads))
    rows = math.ceil(len(loads) / columns)
    with plot.style(SVG_STYLE):
        drawn = canvas(0.2 + plot.SIZES_HEIGHT_IN * rows, name)
        grid = drawn.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index >= len(loads):
                axes.set_axis_off()
                continue
            load = loads[index]
            axes.bar(list(load.sizes), list(load.sizes.values()), width=0.9, color=plot.GREEN)
            axes.set_title(f"{curve.kind.load_text(load.value)}: {sum(load.sizes.values())} executions", fontsize=9)
            axes.set_xlim(0, max(10, *(size for one in loads for size in one.sizes)) + 1)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("rows in a batch")
            if index % columns == 0:
                axes.set_ylabel("executions")
        return Picture(inline_svg(drawn, name), f"Batch sizes of {curve.label} at {len(loads)} loads")


@dataclass(frozen=True, slots=True)
class Place:
    """One setting among the others.

    Attributes:
        label: in words.
        capacity: a second.
        latency_us: at the load that all are compared at.
        in_front: whether no other beats it in both.
        chosen: whether it is the choice.
    """

    label: str
    capacity: float
    latency_us: float
    in_front: bool
    chosen: bool


def pareto(name: str, places: Sequence[Place], *, capacity: str, latency: str, limit_us: float | None) -> Picture:
    """Settings by capacity and latency: the front joined, the choice ringed.

    Args:
        name: goes before every id.
        places: at least one.
        capacity: label of the axis to the right.
        latency: label of the axis upwards.
        limit_us: latency of the SLO, drawn where it is not far above everything.
    """
    with plot.style(SVG_STYLE):
        drawn = canvas(4.6, name)
        axes = drawn.subplots()
        front = sorted((place for place in places if place.in_front), key=lambda place: place.capacity)
        behind = [place for place in places if not place.in_front]
        axes.plot(*_xy(behind), "o", color=GREY, markersize=5, label="beaten by another")
        axes.plot(*_xy(front), "-o", color=plot.BLUE, markersize=7, label="Pareto front")
        star = {**plot.RING, "marker": "*", "markersize": 20, "linestyle": "none"}
        axes.plot(*_xy([place for place in places if place.chosen]), label="the choice", **star)
        values = [us_to_ms(place.latency_us) for place in places]
        marks = [us_to_ms(limit_us)] if limit_us is not None and us_to_ms(limit_us) < 3 * max(values) else []
        for mark in marks:
            axes.axhline(mark, color=INK, linestyle=":", linewidth=1.5, label="the SLO's latency")
        plot.scale_values(axes, values, marks, may_be_logarithmic=True)
        low, high = min(place.capacity for place in places), max(place.capacity for place in places)
        room = 0.08 * (high - low or high or 1)
        axes.set_xlim(max(0.0, low - room), high + 2 * room)
        named = [place for place in places if place.in_front or place.chosen]
        for place in named[:MOST_NAMES]:
            axes.annotate(
                label_text(place.label, NAME_WIDTH),
                (place.capacity, us_to_ms(place.latency_us)),
                xytext=(11, -6),
                textcoords="offset points",
                fontsize=7.5,
                va="top",
            )
        axes.set_xlabel(label_text(capacity, LABEL_WIDTH))
        axes.set_ylabel(label_text(latency, LABEL_WIDTH))
        drawn.legend(loc="outside lower center", ncols=4, frameon=False)
        return Picture(
            inline_svg(drawn, name), f"Capacity against latency of {len(places)} settings, {len(front)} in the front"
        )


def predicted_against_measured(name: str, panels: Mapping[str, Sequence[Pair]]) -> Picture:
    """One scatter a figure, both axes logarithmic, with the diagonal and bands of 10 and 20 %.

    Args:
        name: goes before every id.
        panels: title with unit -> the pairs; at least one panel, each with at least one pair.
    """
    curves = list(dict.fromkeys(pair.curve for pairs in panels.values() for pair in pairs))
    lines = (len(curves) + 3) / 2
    with plot.style(SVG_STYLE):
        drawn = canvas(PANELS_HEIGHT_IN + LEGEND_LINE_IN * lines, name)
        for axes, (title, pairs) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            _scatter(axes, title, pairs, curves)
        handles: list[Artist] = [
            Line2D([], [], color=color, linestyle="none", marker=marker, label=label_text(curve, LABEL_WIDTH))
            for curve, (color, marker) in _markers(curves).items()
        ]
        handles.append(Line2D([], [], color=INK, linewidth=1, label="predicted = measured"))
        handles += [Patch(facecolor=GREY, alpha=_shade(band), label=f"within {band:.0%}") for band in BANDS[::-1]]
        drawn.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        count = sum(len(pairs) for pairs in panels.values())
        return Picture(inline_svg(drawn, name), f"Predicted against measured, {count} pairs: {', '.join(panels)}")


def launch_reasons(name: str, bars: Sequence[tuple[str, Mapping[str, int]]]) -> Picture:
    """One bar a load, divided by why batches were launched.

    Args:
        name: goes before every id.
        bars: label, and launch reason -> batches; at least one, each with at least one batch.
    """
    reasons = list(dict.fromkeys(reason for _, counts in bars for reason, count in counts.items() if count))
    with plot.style(SVG_STYLE):
        drawn = canvas(1.3 + 0.34 * len(bars), name)
        axes = drawn.subplots()
        for row, (_, counts) in enumerate(bars):
            start, total = 0.0, sum(counts.values())
            for reason, (color, _, _), hatch in zip(reasons, LOOKS, HATCHES, strict=False):
                share = counts.get(reason, 0) / total
                if share:
                    axes.barh(row, share, left=start, color=color, edgecolor="#FFFFFF", hatch=hatch, height=0.7)
                start += share
        axes.set_yticks(range(len(bars)), [label_text(label, LABEL_WIDTH) for label, _ in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of the batches")
        handles = [
            Patch(facecolor=color, edgecolor="#FFFFFF", hatch=hatch, label=label_text(reason, LABEL_WIDTH))
            for reason, (color, _, _), hatch in zip(reasons, LOOKS, HATCHES, strict=False)
        ]
        drawn.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
        return Picture(inline_svg(drawn, name), f"Launch reasons of {len(bars)} loads: {', '.join(reasons)}")


def _line(
    axes: Axes, curve: Curve, panel: Panel, color: str, dashes: object, marker: str, width: float
) -> Iterable[float]:
    """One curve in one panel; the values that are shown."""
    loads = [load.value for load in curve.loads]
    values = [math.nan if (value := panel.of(load)) is None else value for load in curve.loads]
    shown = [value for value in values if math.isfinite(value)]
    if panel.between is not None:
        bounds = [panel.between(load) or (math.nan, math.nan) for load in curve.loads]
        lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
        axes.fill_between(loads, lows, highs, color=color, alpha=0.15, linewidth=0)
        # A band of one load has no width.
        axes.vlines(loads, lows, highs, color=color, linewidth=2, alpha=0.4)
        shown += [high for high in highs if math.isfinite(high)]
    axes.plot(loads, values, color=color, linestyle=dashes, linewidth=width, marker=marker, markersize=5)
    for load, value in zip(curve.loads, values, strict=True):
        if not load.stable:
            axes.plot([load.value], [value], marker=marker, color=color, markersize=5, **plot.HOLLOW)
        if load.generator_bound:
            axes.plot([load.value], [value], **plot.MARKER | RING)
    return shown


def _xy(places: Sequence[Place]) -> tuple[list[float], list[float]]:
    return [place.capacity for place in places], [us_to_ms(place.latency_us) for place in places]


def _markers(curves: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each curve; beyond the looks there are, both change at different times."""
    return {
        curve: (LOOKS[index % len(LOOKS)][0], LOOKS[(index + index // len(LOOKS)) % len(LOOKS)][2])
        for index, curve in enumerate(curves)
    }


def _shade(band: float) -> float:
    return 0.35 if band == min(BANDS) else 0.18


def _scatter(axes: Axes, title: str, pairs: Sequence[Pair], curves: Sequence[str]) -> None:
    both = [value for pair in pairs for value in (pair.measured, pair.predicted) if value > 0]
    low, high = min(both) / NEAR_DIAGONAL, max(both) * NEAR_DIAGONAL
    for band in BANDS:
        edges = [low, high]
        lower, upper = ([(1 + sign * band) * edge for edge in edges] for sign in (-1, 1))
        axes.fill_between(edges, lower, upper, color=GREY, alpha=_shade(band), linewidth=0)
    axes.plot([low, high], [low, high], color=INK, linewidth=1)
    for curve, (color, marker) in _markers(curves).items():
        mine = [pair for pair in pairs if pair.curve == curve]
        axes.plot(
            [pair.measured for pair in mine],
            [pair.predicted for pair in mine],
            marker,
            color=color,
            markersize=4.5,
            alpha=0.8,
        )
    for axis, set_scale, set_limits in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        set_scale("log")
        set_limits(low, high)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < plot.FEW_DECADES / 5 else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
        axis.set_minor_locator(NullLocator())
    axes.set_aspect("equal")
    axes.set_title(title)
    axes.set_xlabel("measured")
    axes.set_ylabel("predicted")
