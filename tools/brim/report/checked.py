"""The sections of files that check something: the simulator against measurements, and isolation."""

from __future__ import annotations

from brim.isolation.checks import CHECKS
from brim.isolation.judge import Verdict
from brim.isolation.record import PAGE_NAME
from brim.report import pictures
from brim.report.document import Figure, Section, Table
from brim.report.groups import MOST_OPEN, Origin
from brim.report.isolation_result import Isolation
from brim.report.simulation_check import FIGURES, CheckedPoint, Pair, SimulationCheck, median_error, pairs
from brim.report.tuned import launch_figure
from brim.report.words import command_text, in_a_line, milliseconds, number, percent
from brim.units import US_PER_S, us_to_ms

TITLES = {"p50": "p50, ms", "p99": "p99, ms", "mean_batch": "Mean batch, rows"}
MOST_BARS = 12
MOST_BRIEF = 60
CHECK_TITLES = {check.id: check.title for check in CHECKS}


def simulation(check: SimulationCheck) -> Section:
    """Scatter and table of predicted against measured, and the median errors."""
    origin = Origin(command_text(check.command), in_a_line(check.conditions))
    shown: dict[str, list[Pair]] = {}
    for name, field in FIGURES.items():
        found = [_in_unit(pair, name) for pair in pairs(check, field)]
        if any(pair.predicted > 0 for pair in found):
            shown[TITLES[name]] = [pair for pair in found if pair.predicted > 0]
    medians = {name: median_error(check, name) for name in FIGURES}
    known = [f"{percent(error)} for {name.replace('_', ' ')}" for name, error in medians.items() if error is not None]
    sentence = (
        f"Over {len(check.points)} points the median error is {', '.join(known)}."
        if known
        else "No point has both sides."
    )
    figures = []
    if check.points:
        table = Table(
            (
                "curve",
                "setting",
                "load",
                *(f"{name} {what}" for name in ("p50 ms", "p99 ms", "batch") for what in _SIDES),
            ),
            tuple(_row(point) for point in check.points),
            words=2,
            brief=len(check.points) <= MOST_BRIEF,
        )
        figures.append(
            Figure(
                "Predicted against measured",
                *origin,
                picture=pictures.predicted_against_measured("simulation", shown) if shown else None,
                table=table,
                notes=("Error is (predicted - measured) / measured.",),
                folded=len(check.points) > MOST_OPEN,
            )
        )
    figures += _launches(check, origin)
    return Section("simulation", "The simulator against measurements", (sentence,), tuple(figures))


_SIDES = ("measured", "predicted", "error")


def _in_unit(pair: Pair, name: str) -> Pair:
    if name == "mean_batch":
        return pair
    return pair._replace(measured=us_to_ms(pair.measured), predicted=us_to_ms(pair.predicted))


def _row(point: CheckedPoint) -> tuple[str, ...]:
    cells = []
    for name, field in FIGURES.items():
        measured, predicted = getattr(point.measured, field), getattr(point.predicted, field)
        show = number if name == "mean_batch" else milliseconds
        error = (predicted - measured) / measured if measured and predicted is not None else None
        cells += [show(measured), show(predicted), percent(error)]
    return (point.curve, point.setting, f"{point.load:.10g}", *cells)


def _launches(check: SimulationCheck, origin: Origin) -> list[Figure]:
    bars = [
        (
            f"{point.curve}, {point.setting}, {point.load:.10g}",
            {why: n for why, n in point.predicted.launches.items() if n > 0},
        )
        for point in check.points
    ]
    known = [(label, counts) for label, counts in bars if counts]
    if not known:
        return []
    return [launch_figure("launches-simulation", "Launch reasons, simulated", origin, known[:MOST_BARS])]


def isolation(found: Isolation, *, has_page: bool) -> Section:
    """Whether anybody was hurt, check by check."""
    hurt = sum(check.hurt for check in found.checks)
    sent = sum(check.sent for check in found.checks)
    failed = [check.id for check in found.checks if not check.ok]
    sentence = (
        f"Isolation of {found.model} holds: {sent:,} requests, nobody was hurt."
        if found.ok and not failed
        else f"Isolation of {found.model} is broken: {hurt:,} of {sent:,} requests were hurt; failed: {', '.join(failed)}."
    )
    head = ("check", "state", *(verdict.value.replace("_", " ") for verdict in Verdict), "sent", "mean batch")
    rows = tuple(
        (
            check.id,
            "skipped" if check.skipped else "ok" if check.ok else "failed",
            *(str(getattr(check, verdict.value)) for verdict in Verdict),
            str(check.sent),
            number(check.mean_batch),
        )
        for check in found.checks
    )
    conditions = in_a_line(
        {
            "model": found.model,
            "requests": found.requests,
            "callers": found.callers,
            "seed": found.seed,
            "tolerance": found.tolerance,
            "took": f"{found.took_us / US_PER_S:.1f} s",
        }
    )
    figure = Figure(
        "Requests by check and verdict",
        found.command,
        conditions,
        table=Table(head, rows, words=2),
        notes=tuple(f"{check.id}: {CHECK_TITLES[check.id]}" for check in found.checks if check.id in CHECK_TITLES),
    )
    links = (("Every check with its evidence", PAGE_NAME),) if has_page else ()
    return Section("isolation", "Isolation", (sentence,), (figure,), links=links)
