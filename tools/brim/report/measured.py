"""The sections that measured curves give: latency, goodput and batches against load, and the commands behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from brim.limits import BATCH_LIMIT
from brim.measure.accounting import Objective
from brim.measure.asked import CLOSED
from brim.measure.open_point import OpenPoint
from brim.report import pictures
from brim.report.curves import Kind, Load
from brim.report.document import Figure, Section, Table
from brim.report.groups import MOST_BRIEF, MOST_OPEN, Group
from brim.report.words import (
    between,
    command_text,
    milliseconds,
    number,
    objective_text,
    percent,
    remarks,
)

MOST_SIZES = 3
"""Curves of a kind whose batch sizes are drawn."""
FROM_SENDING = (
    "In an open loop perf_analyzer counts latency from sending, so a request that it sent late is not charged for that."
)
FROM_SCHEDULE = (
    "Latency is of answers, and counted from when each request was due, so callers are charged for every wait. What was not "
    "answered has none; the goodput below counts it."
)


def latency(found: Sequence[Group]) -> Section:
    """p50 and p99 against load, with the SLO's line."""
    return Section(
        "latency",
        "Latency against load",
        tuple(_latency_sentence(group) for group in found),
        tuple(
            Figure(
                f"Latency: {group.kind}",
                *group.origin,
                picture=pictures.against_load(
                    f"latency-{group.name}", group.shown, group.grey, pictures.latency_panels(group.objective)
                ),
                **_table(
                    group,
                    ("load", "answers/s", *(f"p{one} ms" for one in pictures.latency_percentiles(group.objective))),
                    partial(_latency_cells, group),
                ),
                notes=_latency_notes(group),
            )
            for group in found
        ),
    )


def _latency_notes(group: Group) -> tuple[str, ...]:
    points = group.main.points
    if any(isinstance(point, OpenPoint) for point in points):
        return (FROM_SCHEDULE,)
    return (FROM_SENDING,) if points and group.kind.arrivals != CLOSED else ()


def _latency_cells(group: Group, load: Load) -> tuple[str, ...]:
    return (
        group.kind.load_text(load.value),
        number(load.throughput),
        *(milliseconds(load.latency_us.get(one)) for one in pictures.latency_percentiles(group.objective)),
    )


def _goodput_cells(kind: Kind, objective: Objective, load: Load) -> tuple[str, ...]:
    rate = load.goodput(objective)
    least, most = load.in_time(objective.latency_us)
    return (
        kind.load_text(load.value),
        number(load.throughput),
        "-" if rate is None else between(*rate),
        percent(least) if least == most else f"{percent(least)} to {percent(most)}",
        load.verdict(objective, open_loop=kind.arrivals != CLOSED),
    )


def _batch_cells(kind: Kind, load: Load) -> tuple[str, ...]:
    return (
        kind.load_text(load.value),
        number(load.mean_batch),
        number(None if load.mean_batch is None else load.mean_batch / BATCH_LIMIT, 2),
        str(max(load.sizes, default="-")),
        number(load.duty, 2),
        str(sum(load.sizes.values())),
    )


def _latency_sentence(group: Group) -> str:
    best = group.main.capacity(group.objective)
    if group.objective is None:
        if best is None:
            return f"{group.kind}: no throughput could be had."
        return (
            f"{group.kind}: the most is {number(best.throughput)} answers/s, with {group.main.label}, at a p99 of "
            f"{milliseconds(best.latency_us.get('99'))} ms. No SLO is known, so none of it is judged."
        )
    if best is None:
        meeting = [curve for curve in group.curves if curve.capacity(group.objective) is not None]
        others = f"; {len(meeting)} other settings do at some load" if meeting else ", nor is one of any other setting"
        return (
            f"{group.kind}: no measured load of {group.main.label} is known to meet the SLO "
            f"({objective_text(group.objective)}){others}."
        )
    return (
        f"{group.kind}: {group.main.label} meets the SLO ({objective_text(group.objective)}) up to "
        f"{group.kind.load_text(best.value)}, with {number(best.throughput)} answers/s at a p99 of "
        f"{milliseconds(best.latency_us.get('99'))} ms."
    )


def goodput(found: Sequence[Group]) -> Section:
    """Answers inside the SLO a second. All groups have an objective."""
    figures = []
    for group in found:
        objective = group.objective
        assert objective is not None, "goodput is of an SLO"
        counted = all(load.counted_goodput for curve in group.curves for load in curve.loads)
        note = (
            "Counted request by request; a range is the lowest and the highest of the rounds."
            if counted
            else "perf_analyzer gives percentiles, not a count, so goodput lies between two bounds: a percentile inside the "
            "SLO puts at least its share there, one outside at most."
        )
        figures.append(
            Figure(
                f"Goodput: {group.kind}",
                *group.origin,
                picture=pictures.against_load(
                    f"goodput-{group.name}", group.shown, group.grey, pictures.goodput_panels(objective)
                ),
                **_table(
                    group,
                    ("load", "answers/s", "goodput /s", "inside the SLO", "meets it"),
                    partial(_goodput_cells, group.kind, objective),
                ),
                notes=(note,),
            )
        )
    return Section("goodput", "Goodput", figures=tuple(figures))


def batches(found: Sequence[Group]) -> Section:
    """Mean batch, fill and duty against load, and how often each size ran."""
    figures = []
    for group in found:
        figures.append(
            Figure(
                f"Batches, fill and duty: {group.kind}",
                *group.origin,
                picture=pictures.against_load(
                    f"batches-{group.name}", group.shown, group.grey, pictures.batch_panels()
                ),
                **_table(
                    group,
                    ("load", "mean batch", "fill", "largest", "duty", "executions"),
                    partial(_batch_cells, group.kind),
                ),
                notes=("Fill is mean batch / 100. Duty is the busy time of the instances / wall time.",),
            )
        )
        figures += _sizes(group)
    return Section("batches", "Batches, fill and duty", figures=tuple(figures))


def _sizes(group: Group) -> list[Figure]:
    found = []
    for index, curve in enumerate(group.shown[:MOST_SIZES], start=1):
        if not any(load.sizes for load in curve.loads):
            continue
        command = command_text(curve.points[0].provenance.command) if curve.points else group.origin.command
        is_cut = index == 1 and len(group.curves) > MOST_SIZES
        notes = (
            (f"Drawn for {MOST_SIZES} of the {len(group.curves)} settings: those named first above.",) if is_cut else ()
        )
        found.append(
            Figure(
                f"Batch sizes: {curve.label} ({group.kind})",
                command,
                group.origin.conditions,
                picture=pictures.batch_sizes(f"sizes-{group.name}-{index}", curve),
                notes=notes,
            )
        )
    return found


class _TableParts(TypedDict):
    table: Table
    folded: bool


def _table(group: Group, head: tuple[str, ...], cells: Callable[[Load], tuple[str, ...]]) -> _TableParts:
    """One row a setting and load, with remarks where any load has one. The first cell is the load."""
    entries = [(curve, load) for curve in (*group.shown, *group.grey) for load in curve.loads]
    remarked = any(remarks(load) for _, load in entries)
    rows = tuple(_row(curve.label, cells(load), remarks(load) if remarked else None) for curve, load in entries)
    marked = frozenset(index for index, (curve, _) in enumerate(entries) if curve.label == group.chosen)
    whole = _row("setting", head, "remarks" if remarked else None)
    table = Table(whole, rows, words=3 if remarked else 2, marked=marked, brief=len(rows) <= MOST_BRIEF)
    return {"table": table, "folded": len(rows) > MOST_OPEN}


def _row(label: str, cells: tuple[str, ...], remark: str | None) -> tuple[str, ...]:
    """Words first: the setting, the load, and the remark where there is such a column."""
    load, *figures = cells
    return (label, load, *(() if remark is None else (remark,)), *figures)


def commands(found: Sequence[Group]) -> Section | None:
    """Every measurement with its own command; None where no group has any."""
    figures = []
    for group in found:
        rows = tuple(
            (
                curve.label,
                group.kind.load_text(point.value),
                point.provenance.started_at,
                command_text(point.provenance.command),
            )
            for curve in group.curves
            for point in curve.points
        )
        if rows:
            table = Table(("setting", "load", "started", "command"), rows, words=4, brief=False)
            figures.append(Figure(f"Commands: {group.kind}", *group.origin, table=table, folded=True))
    title = "Every measurement's own command"
    return Section("commands", title, figures=tuple(figures)) if figures else None
