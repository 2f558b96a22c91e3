"""How a run went from its beginning to its end: load and answers, and how long they took, moment by moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.lines import Line2D

from brim.measure import plot
from brim.measure.open_point import OpenPoint
from brim.measure.schedule import Arrivals
from brim.report import pictures
from brim.report.document import Figure, Picture, Section, Table
from brim.report.groups import MOST_BRIEF, MOST_OPEN
from brim.report.inline_svg import INK, SVG_STYLE, inline_svg
from brim.report.words import command_text, conditions_of, in_a_line, milliseconds, number
from brim.units import US_PER_S, us_to_ms

STEADY = frozenset([Arrivals.POISSON, Arrivals.CONSTANT])
MOST_RUNS = 8
"""Runs that are drawn over time."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A part of a run: what was due in it, and what became of that. Rates are a second; None where nobody says.

    Attributes:
        begin_s: from the beginning of the run.
        length_s: of the part.
        offered: requests that were due.
        answered: of those.
        in_slo: answered within the SLO.
        refused: of those.
        p50_us: of answers.
        p99_us: of answers.
    """

    begin_s: float
    length_s: float
    offered: int
    answered: int
    in_slo: int
    refused: int
    p50_us: float | None
    p99_us: float | None

    def per_s(self, count: int) -> float:
        """A count as a rate."""
        return count / self.length_s


def section(points: Sequence[OpenPoint]) -> Section | None:
    """Runs of the open-loop driver whose load changes, over time; None without any."""
    changing = list({point.key: point for point in points if point.arrivals not in STEADY}.values())
    if not changing:
        return None
    figures = [_of_run(f"time{number}", point) for number, point in enumerate(changing[:MOST_RUNS], start=1)]
    more = len(changing) - len(figures)
    sentences = (f"{more} more runs whose load changes are not drawn.",) if more else ()
    return Section("time", "Over the run", sentences, tuple(figures))


def _of_run(name: str, point: OpenPoint) -> Figure:
    moments = [
        Moment(
            segment.begin_us / US_PER_S,
            segment.duration_us / US_PER_S,
            segment.offered,
            segment.answered,
            segment.in_slo,
            segment.refused,
            segment.p50_us,
            segment.p99_us,
        )
        for segment in point.segments
    ]
    rates = ", ".join(f"{rate:.10g}" for rate in point.rates)
    asked = f"{point.arrivals.value} {rates}/s" if point.rates else point.arrivals.value
    return figure(
        name,
        f"{point.model}, {point.protocol}: {asked}",
        command_text(point.provenance.command),
        in_a_line(conditions_of([point])),
        moments,
        None if point.slo is None else point.slo.latency_us,
    )


def figure(
    name: str, title: str, command: str, conditions: str, moments: Sequence[Moment], limit_us: float | None
) -> Figure:
    """Picture and table of the moments, of which there is at least one.

    Args:
        name: goes before every id.
        title: of the figure.
        command: what was run.
        conditions: under which.
        moments: ascending.
        limit_us: the SLO's latency.
    """
    head = ("from", "offered /s", "answered /s", "in SLO /s", "refused", "p50 ms", "p99 ms")
    rows = tuple(
        (
            f"{one.begin_s:.6g} s",
            *(number(one.per_s(count)) for count in (one.offered, one.answered, one.in_slo)),
            str(one.refused),
            milliseconds(one.p50_us),
            milliseconds(one.p99_us),
        )
        for one in moments
    )
    return Figure(
        title,
        command,
        conditions,
        picture=_picture(name, moments, limit_us),
        table=Table(head, rows, brief=len(rows) <= MOST_BRIEF),
        notes=("A request belongs to the moment at which it was due. Latencies are of answers.",),
        folded=len(rows) > MOST_OPEN,
    )


def _picture(name: str, moments: Sequence[Moment], limit_us: float | None) -> Picture:
    at_s = [one.begin_s + one.length_s / 2 for one in moments]
    marks = [] if limit_us is None else [us_to_ms(limit_us)]
    refused = any(one.refused for one in moments)
    with plot.style(SVG_STYLE):
        drawn = pictures.canvas(pictures.PANELS_HEIGHT_IN + 3 * pictures.LEGEND_LINE_IN, name)
        latency, load = drawn.subplots(1, 2, squeeze=False)[0]
        shown: list[float] = []
        for label, (color, dashes, marker), values in (
            ("p50", pictures.LOOKS[0], [one.p50_us for one in moments]),
            ("p99", pictures.LOOKS[1], [one.p99_us for one in moments]),
        ):
            ms = [math.nan if us is None else us_to_ms(us) for us in values]
            shown += [value for value in ms if math.isfinite(value)]
            latency.plot(at_s, ms, color=color, linestyle=dashes, marker=marker, markersize=4, label=label)
        for mark in marks:
            latency.axhline(mark, color=INK, linestyle=":", linewidth=1.5)
        latency.set_title("Latency of answers")
        latency.set_ylabel("ms")
        plot.scale_values(latency, shown, marks, may_be_logarithmic=True)
        rates = [
            ("offered", pictures.LOOKS[3], [one.per_s(one.offered) for one in moments]),
            ("answered", pictures.LOOKS[2], [one.per_s(one.answered) for one in moments]),
            ("answered within the SLO", pictures.LOOKS[4], [one.per_s(one.in_slo) for one in moments]),
        ]
        if refused:
            rates.append(("refused", pictures.LOOKS[5], [one.per_s(one.refused) for one in moments]))
        for label, (color, dashes, marker), per_s in rates:
            load.plot(at_s, per_s, color=color, linestyle=dashes, marker=marker, markersize=4, label=label)
        load.set_title("Load and answers")
        load.set_ylabel("requests/s")
        plot.scale_values(load, [value for _, _, per_s in rates for value in per_s])
        for axes in (latency, load):
            axes.set_xlabel("seconds from the beginning")
            axes.set_xlim(moments[0].begin_s, moments[-1].begin_s + moments[-1].length_s)
        handles = [*latency.get_legend_handles_labels()[0], *load.get_legend_handles_labels()[0]]
        if marks:
            handles.append(Line2D([], [], color=INK, linestyle=":", label="the SLO's latency"))
        drawn.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        return Picture(inline_svg(drawn, name), f"Latency and load over time, {len(moments)} moments")
