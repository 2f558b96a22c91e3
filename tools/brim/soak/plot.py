"""A run at a glance: throughput, memory, and what was open, over time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brim.measure import plot
from brim.soak.sample import GATEWAY, SERVER, STUBS, Sample
from brim.soak.verdict import LEAST_RATIO, WARM_UP_RATIO, Verdict
from brim.units import US_PER_S

HEIGHT_IN = 8.4
MIB = 1 << 20
ROOM = 1.2
COLORS = {SERVER: plot.BLUE, STUBS: plot.VERMILION, GATEWAY: plot.GREEN}
DASHES = {SERVER: "-", STUBS: "--", GATEWAY: "-."}


def draw(samples: Sequence[Sample], verdict: Verdict, path: Path, *, title: str) -> Path:
    """Draw it into one SVG or PNG file, by the file's ending. The same run gives the same bytes.

    Args:
        samples: one at least, in order.
        verdict: on them.
        path: the file; an earlier one is replaced.
        title: above everything.

    Raises:
        InputError: the ending is neither.
    """
    with plot.style():
        return plot.save(figure(samples, verdict, title=title), path, title=title)


def figure(samples: Sequence[Sample], verdict: Verdict, *, title: str) -> Figure:
    """The figure that ``draw`` writes."""
    drawn = Figure(figsize=(plot.WIDTH_IN, HEIGHT_IN), facecolor="white")
    drawn.set_layout_engine("constrained", h_pad=0.06, w_pad=0.12)
    drawn.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=12, parse_math=False)
    throughput, memory, files = drawn.subplots(3, 1, sharex=True)
    at_s = [sample.at_us / US_PER_S for sample in samples]
    _throughput(throughput, at_s, samples, verdict)
    _memory(memory, at_s, samples)
    _open(files, at_s, samples)
    files.set_xlabel("seconds")
    return drawn


def _throughput(axes: Axes, at_s: Sequence[float], samples: Sequence[Sample], verdict: Verdict) -> None:
    axes.set_title("Right answers a second")
    axes.plot(at_s, [sample.throughput for sample in samples], color=plot.BLUE, gid="throughput")
    needed = LEAST_RATIO * verdict.first
    label = f"{LEAST_RATIO} of the first window's {verdict.first:.1f}"
    axes.axhline(needed, color=plot.BLACK, linestyle=":", linewidth=1, label=label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")


def _memory(axes: Axes, at_s: Sequence[float], samples: Sequence[Sample]) -> None:
    axes.set_title("Memory; shaded: the warm-up, in which growth is not looked at")
    axes.set_ylabel("MiB")
    for name, color in COLORS.items():
        held = [sample.resources.rss.get(name, 0) / MIB for sample in samples]
        axes.plot(at_s, held, color=color, linestyle=DASHES[name], label=name, gid=f"rss.{name}")
    shared = [sample.resources.shm_bytes / MIB for sample in samples]
    axes.plot(at_s, shared, color=plot.PURPLE, linestyle=":", label="shared memory", gid="shm")
    axes.axvspan(0, WARM_UP_RATIO * at_s[-1], color="#eeeeee", zorder=0)
    _with_room_above(axes)


def _open(axes: Axes, at_s: Sequence[float], samples: Sequence[Sample]) -> None:
    axes.set_title("Open files of each program, and most requests under way")
    for name, color in COLORS.items():
        held = [sample.resources.fds.get(name, 0) for sample in samples]
        axes.plot(at_s, held, color=color, linestyle=DASHES[name], label=name, gid=f"fds.{name}")
    under_way = [sample.most_in_flight for sample in samples]
    axes.plot(at_s, under_way, color=plot.PURPLE, linestyle=":", label="under way", gid="in_flight")
    _with_room_above(axes)


def _with_room_above(axes: Axes) -> None:
    """For the legend, so that it covers no curve."""
    _, highest = axes.get_ylim()
    axes.set_ylim(0, highest * ROOM)
    axes.legend(frameon=False, ncols=4, loc="upper right")
