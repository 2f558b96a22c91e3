"""The points of one plan at a glance: latency, throughput, batches and duty against load, and the batch sizes of each load."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpecFromSubplotSpec, SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.measure.plan import Mode
from brim.measure.point import Point
from brim.units import us_to_ms

FORMATS = (".svg", ".png")
PNG_DPI = 110
WIDTH_IN = 10.0
CURVES_HEIGHT_IN = 5.6
SIZES_HEIGHT_IN = 1.9
SURROUND_IN = 1.1
"""Height of the title and the legend."""
WIDE_RANGE = 20
"""Values whose largest is so many times the smallest are drawn on a logarithmic axis."""
FEW_DECADES = 500
"""Below so wide a range there is room for ticks at 2 and 5 too."""
PLACE_DIGITS = 6
"""Of a place in a figure, 0..1."""
LABEL_WIDTH = 0.019
"""Width of one digit of a tick label as a share of its axis, with room to spare."""
# Told apart by people who do not see all colours (Okabe and Ito's set), and by line style on grey paper.
BLUE, VERMILION, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#222222"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "svg.fonttype": "path",
    "svg.hashsalt": "brim",
}
MARKER: dict[str, Any] = {
    "marker": "o",
    "markersize": 6,
    "markeredgewidth": 1.5,
    "linestyle": "none",
    "zorder": 3,
    # Whole also at the frame; the layout cannot place what is not clipped and has no point.
    "clip_on": False,
    "in_layout": False,
}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white"}
RING: dict[str, Any] = {"color": BLACK, "markersize": 13, "markerfacecolor": "none", "markeredgewidth": 1.2}
KINDS: tuple[tuple[str, Callable[[Point], bool], dict[str, Any]], ...] = (
    ("stable", lambda point: point.stable, {}),
    ("unstable", lambda point: not point.stable, HOLLOW),
    ("generator", lambda point: point.generator_bound, RING),
)
# gids become ids in the file: `latency.p99` is a curve, `latency.p99.unstable` its hollow points.


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of every point, and how it is drawn. None stands for a figure that could not be had."""

    label: str
    of: Callable[[Point], float | None]
    color: str
    dashes: str


def draw(
    points: Sequence[Point], path: Path, *, title: str, slo_latency_us: int | None, percentile: float = 99
) -> Path:
    """Draw the points into one self-contained SVG or PNG file, whole or not at all. The same points give the same bytes.

    Args:
        points: of one plan, in any order.
        path: the file; an earlier one is replaced.
        title: above everything.
        slo_latency_us: what ``percentile`` of the answers must meet; None draws no line.
        percentile: 0..100; drawn beside 50 and 99 where the points have it.

    Raises:
        InputError: no point, or points of both modes.
    """
    with style():
        return save(
            figure(points, title=title, slo_latency_us=slo_latency_us, percentile=percentile), path, title=title
        )


def save(drawn: Figure, path: Path, *, title: str) -> Path:
    """Write a figure, in the format of the file's ending, whole or not at all. The same figure gives the same bytes.

    Args:
        drawn: under ``style``.
        path: the file; an earlier one is replaced.
        title: kept in the file.

    Raises:
        InputError: the ending is not one of ``FORMATS``.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: a picture's name ends in {' or '.join(FORMATS)}", hint=f"such as {path.with_suffix(FORMATS[0])}"
        )
    settle(drawn)
    written = io.BytesIO()
    # A PNG has no date of its own.
    metadata = {"Title": title, **({"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})}
    drawn.savefig(written, format=path.suffix.lower().removeprefix("."), metadata=metadata, dpi=PNG_DPI)
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(written.getvalue())
    beside.replace(path)
    return path


@contextmanager
def style(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """This module's style, with changes, for as long as the block lasts, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, **(changes or {})})
        yield


def settle(drawn: Figure) -> None:
    """Lay the figure out, once and for all.

    The solver behind the layout adds up in an order that changes from call to call, so places differ in their last bits,
    and with them the ids that matplotlib derives from them.
    """
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    for axes in drawn.axes:
        left, bottom, width, height = (round(one, PLACE_DIGITS) for one in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def figure(points: Sequence[Point], *, title: str, slo_latency_us: int | None, percentile: float) -> Figure:
    """The figure that ``draw`` writes, with the same arguments and errors."""
    modes = {point.mode for point in points}
    if len(modes) != 1:
        found = "points of both modes" if modes else "no point"
        raise InputError(f"{found}: a picture shows the points of one mode", hint="draw each plan by itself")
    points = sorted(points, key=lambda point: point.value)
    columns = _columns(len(points))
    rows = math.ceil(len(points) / columns)
    sizes_height = rows * SIZES_HEIGHT_IN
    drawn = Figure(figsize=(WIDTH_IN, SURROUND_IN + CURVES_HEIGHT_IN + sizes_height), facecolor="white")
    drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
    drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
    grid = drawn.add_gridspec(2, 1, height_ratios=(CURVES_HEIGHT_IN, sizes_height))
    _draw_curves(drawn, grid[0], points, modes.pop(), slo_latency_us, percentile)
    _draw_sizes(drawn, grid[1], points, rows, columns)
    drawn.legend(
        handles=_legend(points, slo_latency_us, percentile), loc="outside lower center", ncols=3, frameon=False
    )
    return drawn


def _columns(count: int) -> int:
    return 2 if count in (2, 4) else min(count, 3)


def _latencies(points: Sequence[Point], percentile: float) -> list[Series]:
    """50 and 99, and the objective's own percentile where a point has it."""
    styles = {50.0: (BLUE, "-"), 99.0: (VERMILION, "--")}
    if percentile not in styles and any(f"{percentile:g}" in point.latency_us for point in points):
        styles[percentile] = (PURPLE, "-.")

    def of(p: float) -> Callable[[Point], float | None]:
        return lambda point: None if (us := point.latency_us.get(f"{p:g}")) is None else us_to_ms(us)

    return [Series(f"p{p:g}", of(p), *styles[p]) for p in sorted(styles)]


def _draw_curves(
    drawn: Figure,
    place: SubplotSpec,
    points: Sequence[Point],
    mode: Mode,
    slo_latency_us: int | None,
    percentile: float,
) -> None:
    grid = GridSpecFromSubplotSpec(2, 2, place)
    latency, throughput, batch, duty = (drawn.add_subplot(grid[cell]) for cell in range(4))
    shown = _draw_panel(latency, "latency", "Latency", "ms", points, _latencies(points, percentile))
    objective = [] if slo_latency_us is None else [us_to_ms(slo_latency_us)]
    for slo_ms in objective:
        latency.axhline(slo_ms, color=BLACK, linestyle=":", linewidth=1.5, gid="latency.objective")
    scale_values(latency, shown, objective, may_be_logarithmic=True)
    of_throughput = Series("throughput", lambda point: point.throughput, BLUE, "-")
    shown = _draw_panel(throughput, "throughput", "Throughput", "inferences/s", points, [of_throughput])
    scale_values(throughput, shown)
    of_batch = Series("batch", lambda point: point.mean_batch, GREEN, "-")
    shown = _draw_panel(batch, "batch", "Mean batch", "rows", points, [of_batch])
    scale_values(batch, shown)
    fill = batch.secondary_yaxis("right", functions=(_rows_to_fill, _fill_to_rows))
    fill.set_ylabel(f"fill, of {BATCH_LIMIT} rows")
    of_duty = Series("duty", lambda point: point.duty, BLUE, "-")
    shown = _draw_panel(duty, "duty", "Duty of the instances", "busy share", points, [of_duty])
    scale_values(duty, shown, [1.0])
    for axes in (latency, throughput, batch, duty):
        scale_loads(axes, [point.value for point in points])
        axes.set_xlabel("callers" if mode is Mode.CONCURRENCY else "asked rate, requests/s")


def _rows_to_fill(rows: Any) -> Any:
    return rows / BATCH_LIMIT


def _fill_to_rows(fill: Any) -> Any:
    return fill * BATCH_LIMIT


def _draw_panel(
    axes: Axes, gid: str, title: str, unit: str, points: Sequence[Point], curves: Sequence[Series]
) -> list[float]:
    """Curves with their points: filled, hollow where windows did not agree, ringed where the generator set the figure.

    A figure that could not be had is a gap in its curve. Returns the values that are shown.
    """
    axes.set_title(title)
    axes.set_ylabel(unit)
    loads = [point.value for point in points]
    shown = []
    for curve in curves:
        values = [math.nan if (value := curve.of(point)) is None else value for point in points]
        shown += [value for value in values if math.isfinite(value)]
        name = f"{gid}.{curve.label}"
        axes.plot(loads, values, color=curve.color, linestyle=curve.dashes, linewidth=1.5, gid=name)
        for kind, belongs, look in KINDS:
            chosen = [index for index, point in enumerate(points) if belongs(point)]
            at, there = [loads[index] for index in chosen], [values[index] for index in chosen]
            axes.plot(at, there, gid=f"{name}.{kind}", **{"color": curve.color, **MARKER, **look})
    return shown


def scale_values(
    axes: Axes, shown: Sequence[float], marks: Sequence[float] = (), *, may_be_logarithmic: bool = False
) -> None:
    """From zero, or logarithmic over a wide range. ``marks`` are to be in sight as well as what is shown."""
    if not shown:
        axes.text(0.5, 0.4, "no figure could be had", transform=axes.transAxes, ha="center", color=BLACK)
    low, high = min([*shown, *marks], default=0.0), max([*shown, *marks], default=0.0)
    if may_be_logarithmic and low > 0 and high / low >= WIDE_RANGE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, high * 1.6)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < FEW_DECADES else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.15 * high if high > 0 else 1)


def scale_loads(axes: Axes, loads: Sequence[float]) -> None:
    """The loads themselves as ticks, as many as there is room for; logarithmic over a wide range."""
    low, high = min(loads), max(loads)
    wide = high / low >= WIDE_RANGE
    # A point's ring must not touch the frame, and a single load stands in the middle.
    room = 0.06
    position = math.log if wide else float
    span = (position(high) - position(low)) or 0.5 * low
    start, end = position(low) - room * span, position(high) + room * span
    if wide:
        axes.set_xscale("log")
        axes.set_xlim(math.exp(start), math.exp(end))
    else:
        axes.set_xlim(start, end)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(loads, lambda load: (position(load) - start) / (end - start))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda load, _: f"{load:.10g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _ticks(loads: Sequence[float], position: Callable[[float], float]) -> list[float]:
    """Ascending loads whose labels do not touch, the largest always among them.

    Args:
        loads: ascending.
        position: a load's place on its axis, 0..1.
    """
    kept: list[float] = []
    for load in reversed(loads):
        if not kept or position(kept[-1]) - position(load) > (_width(kept[-1]) + _width(load)) / 2:
            kept.append(load)
    return kept[::-1]


def _width(load: float) -> float:
    return LABEL_WIDTH * (len(f"{load:.10g}") + 1)


def _draw_sizes(drawn: Figure, place: SubplotSpec, points: Sequence[Point], rows: int, columns: int) -> None:
    """How often each batch size ran: one small panel a load, all with the same sizes along them."""
    largest = max((size for point in points for size in point.executions_by_size), default=1)
    grid = GridSpecFromSubplotSpec(rows, columns, place)
    for index, point in enumerate(points):
        axes = drawn.add_subplot(grid[index // columns, index % columns])
        axes.set_title(_load_text(point), fontsize=9)
        sizes = sorted(point.executions_by_size)
        if sizes:
            counts = [point.executions_by_size[size] for size in sizes]
            bars = axes.bar(sizes, counts, width=0.9, color=GREEN, edgecolor=GREEN, linewidth=0.5)
            for size, bar in zip(sizes, bars, strict=True):
                bar.set_gid(f"sizes.{index}.{size}")
        else:
            axes.text(0.5, 0.4, "no execution", transform=axes.transAxes, ha="center", color=BLACK)
            axes.set_ylim(0, 1)
        axes.set_xlim(0, max(10, largest) + 1)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("rows in a batch")
        if index % columns == 0:
            axes.set_ylabel("executions")


def _load_text(point: Point) -> str:
    rate_or_callers = f"{point.value:.10g}" + {None: "/s", 1: " caller"}.get(point.concurrency, " callers")
    return f"{rate_or_callers}: {point.executions} execution" + ("s" if point.executions != 1 else "")


def _legend(points: Sequence[Point], slo_latency_us: int | None, percentile: float) -> list[Line2D]:
    handles = [
        Line2D([], [], color=curve.color, linestyle=curve.dashes, label=f"latency {curve.label}")
        for curve in _latencies(points, percentile)
    ]
    if slo_latency_us is not None:
        objective = f"objective: p{percentile:g} within {us_to_ms(slo_latency_us):.10g} ms"
        handles.append(Line2D([], [], color=BLACK, linestyle=":", label=objective))
    return [
        *handles,
        Line2D([], [], color=BLACK, **MARKER, **HOLLOW, label="hollow: windows did not agree"),
        Line2D([], [], **MARKER | RING, label="ringed: the load generator set the figure"),
    ]
