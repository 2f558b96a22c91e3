"""Panels of lines that share their places: along the load, or along time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from brim.measure import plot
from brim.report import pictures
from brim.report.document import Picture
from brim.report.inline_svg import INK, SVG_STYLE, inline_svg

MOST_MARKED = 40
"""Places of a line that are marked; more of them would hide it."""
MARKS: tuple[object, ...] = (":", (0, (6, 2)), (0, (3, 1, 1, 1)))


@dataclass(frozen=True, slots=True)
class Trace:
    """One line: a value at each place, or None where there is none.

    Attributes:
        label: in the legend.
        look: colour, dashes and marker; one of ``brim.report.pictures.LOOKS``.
        values: as many as there are places.
    """

    label: str
    look: tuple[str, object, str]
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes.

    Attributes:
        title: above it.
        unit: of its values.
        traces: at most as many as there are looks.
        mark: label and value of a line across.
        shade: label, begin and end of a stretch that stands back.
        may_be_logarithmic: whether a wide range may be.
    """

    title: str
    unit: str
    traces: Sequence[Trace]
    mark: tuple[str, float] | None = None
    shade: tuple[str, float, float] | None = None
    may_be_logarithmic: bool = False


def drawn_along(
    name: str, places: Sequence[float], panels: Sequence[Panel], *, axis: str, scale: Callable[[Axes], None], shows: str
) -> Picture:
    """Panels side by side.

    Args:
        name: goes before every id.
        places: of every trace, ascending, at least one.
        panels: at least one, at most as many with a mark as there are dashes for marks.
        axis: label of the places.
        scale: sets the limits and ticks of the places on one set of axes.
        shows: the whole in words.
    """
    handles: dict[str, Artist] = {}
    marks = iter(MARKS)
    with plot.style(SVG_STYLE):
        labels = {label for panel in panels for label in _labels(panel)}
        lines = math.ceil(len(labels) / 3) + 2
        drawn = pictures.canvas(pictures.PANELS_HEIGHT_IN + pictures.LEGEND_LINE_IN * lines, name)
        for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            if panel.shade is not None:
                label, begin, end = panel.shade
                axes.axvspan(begin, end, color=pictures.GREY, alpha=0.2, linewidth=0)
                handles[label] = Patch(facecolor=pictures.GREY, alpha=0.2, label=label)
            for trace in panel.traces:
                label = pictures.label_text(trace.label, pictures.LABEL_WIDTH)
                color, dashes, marker = trace.look
                values = [math.nan if value is None else value for value in trace.values]
                shown = marker if len(places) <= MOST_MARKED else ""
                axes.plot(places, values, color=color, linestyle=dashes, marker=shown, markersize=5)
                handles[label] = Line2D([], [], color=color, linestyle=dashes, marker=shown, label=label)
            if panel.mark is not None:
                label, value = panel.mark
                dashes = next(marks)
                axes.axhline(value, color=INK, linestyle=dashes, linewidth=1.3)
                handles[label] = Line2D([], [], color=INK, linestyle=dashes, linewidth=1.3, label=label)
            axes.set_title(panel.title)
            axes.set_ylabel(panel.unit)
            axes.set_xlabel(axis)
            plot.scale_values(
                axes,
                [value for trace in panel.traces for value in trace.values if value is not None],
                [] if panel.mark is None else [panel.mark[1]],
                may_be_logarithmic=panel.may_be_logarithmic,
            )
            scale(axes)
        drawn.legend(handles=list(handles.values()), loc="outside lower center", ncols=3, frameon=False)
        return Picture(inline_svg(drawn, name), shows)


def _labels(panel: Panel) -> list[str]:
    others = [one[0] for one in (panel.mark, panel.shade) if one is not None]
    return [*(trace.label for trace in panel.traces), *others]
