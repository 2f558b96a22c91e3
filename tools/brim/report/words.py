"""Figures as a report shows them, and which words go with them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from brim.isolation.page import condition
from brim.measure.accounting import Objective
from brim.measure.open_point import OpenPoint
from brim.measure.point import Point
from brim.measure.text.point import TextPoint
from brim.report.curves import Load
from brim.units import us_to_ms


def number(value: float | None, digits: int = 1) -> str:
    """With so many digits behind the point; a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def milliseconds(us: float | None) -> str:
    """Microseconds as milliseconds; a dash for None."""
    return "-" if us is None else f"{us_to_ms(us):,.2f}"


def figure_text(value: float | None) -> str:
    """Any figure, with four digits at least and no fraction from a thousand on; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def percent(ratio: float | None) -> str:
    """A ratio in percent; a dash for None."""
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def between(low: float, high: float, digits: int = 1) -> str:
    """Two bounds, or one number where they are the same."""
    first, last = number(low, digits), number(high, digits)
    return first if first == last else f"{first} to {last}"


def objective_text(objective: Objective) -> str:
    """The SLO in words."""
    return f"p{objective.percentile:g} within {us_to_ms(objective.latency_us):.10g} ms"


def remarks(load: Load) -> str:
    """What to know of a load's figures; empty when there is nothing."""
    found = [
        words
        for words, applies in (
            ("windows did not agree", not load.stable),
            ("the load generator set the figure", load.generator_bound),
            ("others used the model too", not load.settled),
            (load.note, bool(load.note)),
        )
        if applies
    ]
    return "; ".join(found)


def conditions_of(points: Sequence[Point | OpenPoint | TextPoint]) -> dict[str, str]:
    """Under what points were measured, by name: each distinct value once, numbers and times as a range."""
    sources = [point.provenance for point in points]

    def each(values: Sequence[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    loads = [source.load_average for source in sources]
    times = sorted(source.started_at for source in sources)
    return {
        "server": each([source.server for source in sources]),
        "load generator": each([source.generator for source in sources]),
        "cores": each([str(source.usable_cores) for source in sources]) + ", shared by server and generator",
        "load average before": between(min(loads), max(loads), 2),
        "measured": times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}",
        "brim": each([source.brim for source in sources]),
    }


def of_a_benchmark(conditions: Mapping[str, object]) -> dict[str, object]:
    """The conditions that a benchmark notes, by name: averages with two digits, and whose the other cores were."""
    names = {"other_cores": "cores that others used"}
    return {
        names.get(name, name): f"{value:.2f}" if isinstance(value, float) else value
        for name, value in conditions.items()
    }


def in_a_line(conditions: Mapping[str, object]) -> str:
    """Conditions in one line."""
    pairs = (condition(name, value) for name, value in conditions.items())
    return "; ".join(f"{name} {value}" for name, value in pairs) or "none were noted"


def command_text(command: str | Sequence[str]) -> str:
    """A command as it is typed."""
    return command if isinstance(command, str) else shlex.join(command)
