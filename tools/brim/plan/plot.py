"""Policies at a glance: what came, replicas and the kept part of the objective over time, and what each costs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brim.measure import plot
from brim.plan.compare import Policy
from brim.plan.outcome import Outcome
from brim.plan.traffic import Traffic

HEIGHT_IN = 7.0
COLORS = (plot.BLUE, plot.VERMILION, plot.GREEN, plot.PURPLE, "#E69F00", "#56B4E9", "#9A9A9A", plot.BLACK)
DASHES = ("-", "--", "-.", ":")
MOST_LINES = 8
"""Policies that are drawn over time; all of them stand in the last panel."""


def draw(outcomes: Sequence[tuple[Policy, Outcome]], traffic: Traffic, path: Path, *, title: str) -> Path:
    """Draw it into one SVG or PNG file, by the file's ending. The same outcomes give the same bytes.

    Args:
        outcomes: at least one.
        traffic: what came.
        path: the file; an earlier one is replaced.
        title: above everything.

    Raises:
        InputError: the ending is neither.
    """
    with plot.style():
        drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
        drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
        drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
        offered, replicas, kept, cost = drawn.subplots(2, 2).flat
        offered.plot(traffic.at_s, traffic.rate_per_s, color=plot.BLACK, gid="rate")
        _label(offered, "Requests that come", "requests a second")
        for place, (policy, outcome) in enumerate(outcomes[:MOST_LINES]):
            color, dashes = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
            lines = outcome.over_time()
            replicas.step(
                lines["at_s"], lines["paid"], where="post", color=color, linestyle=dashes, label=str(policy),
                gid=f"replicas.{place}",
            )  # fmt: skip
            kept.plot(lines["at_s"], lines["slo_attainment"], color=color, linestyle=dashes, gid=f"kept.{place}")
        _label(replicas, "Replicas that are paid for", "replicas")
        _label(kept, "Part of the requests that keep the objective", "")
        kept.set_ylim(0, 1.02)
        kept.axhline(outcomes[0][1].share, color=plot.BLACK, linestyle=":", linewidth=1)
        _cost(cost, outcomes)
        drawn.legend(*replicas.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        return plot.save(drawn, path, title=title)


def _label(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("seconds")
    axes.set_ylabel(unit)
    if unit:
        axes.set_ylim(bottom=0)


def _cost(axes: Axes, outcomes: Sequence[tuple[Policy, Outcome]]) -> None:
    axes.set_title("What it costs, and what it keeps")
    axes.set_xlabel("replica-hours")
    axes.set_ylabel("missed requests, of all")
    for place, (_, outcome) in enumerate(outcomes):
        axes.plot(
            outcome.replica_seconds / 3600, 1 - outcome.slo_attainment, marker="o", linestyle="none",
            color=COLORS[place % len(COLORS)], markerfacecolor=None if outcome.slo_met else "white", gid=f"cost.{place}",
        )  # fmt: skip
    axes.axhline(1 - outcomes[0][1].share, color=plot.BLACK, linestyle=":", linewidth=1, label="allowed")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
