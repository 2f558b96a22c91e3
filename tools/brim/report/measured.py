"""The sections that measured curves give: latency, goodput, batches, the front of settings, and low to high load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict

from brim.limits import BATCH_LIMIT
from brim.measure.accounting import Objective
from brim.measure.sweep import CLOSED
from brim.report import pictures
from brim.report.curves import Curve, Kind, Load, by_kind
from brim.report.document import Figure, Section, Table
from brim.report.front import pareto_front
from brim.report.words import (
    between,
    command_text,
    conditions_of,
    in_a_line,
    milliseconds,
    number,
    objective_text,
    percent,
    remarks,
)

MOST_SIZES = 3
"""Curves of a kind whose batch sizes are drawn."""
MOST_BRIEF = 40
"""Rows of a table that the Markdown summary still has."""
MOST_OPEN = 14
"""Rows of a table that is not folded on the page."""
OPEN_LOOP_NOTE = (
    "In an open loop perf_analyzer counts latency from sending, so a request that it sent late is not charged for that."
)


class Origin(NamedTuple):
    """Where the figures of one kind of load come from."""

    command: str
    conditions: str


@dataclass(frozen=True, slots=True)
class Group:
    """Curves that are drawn together.

    Attributes:
        name: short; goes into ids.
        kind: of load.
        curves: all of them.
        shown: those in colour: the choice and the best ones.
        origin: for every figure.
        objective: the SLO, where one is known.
        chosen: label of the chosen setting; empty where it is not among the curves.
    """

    name: str
    kind: Kind
    curves: tuple[Curve, ...]
    shown: tuple[Curve, ...]
    origin: Origin
    objective: Objective | None
    chosen: str

    @property
    def grey(self) -> tuple[Curve, ...]:
        """The others."""
        return tuple(curve for curve in self.curves if curve not in self.shown)

    @property
    def main(self) -> Curve:
        """The choice where it was measured, else the one with the most capacity."""
        return self.shown[0]


def groups(
    curves: Sequence[Curve], *, objective: Objective | None, chosen: Collection[str], tuned: Origin | None = None
) -> list[Group]:
    """Curves by kind of load.

    Args:
        curves: of a run folder.
        objective: the SLO, where one is known.
        chosen: labels of the chosen setting, in each kind of words; empty without one.
        tuned: where curves without perf_analyzer's points come from.
    """
    found = []
    for index, (kind, members) in enumerate(by_kind(curves).items(), start=1):
        points = [point for curve in members for point in curve.points]
        if points:
            count = f"{len(points)}, the command is the first one's" if len(points) > 1 else "1"
            conditions = in_a_line({"measurements": count, **conditions_of(points)})
            origin = Origin(command_text(points[0].provenance.command), conditions)
        else:
            assert tuned is not None, "curves without points are a tuning's"
            origin = tuned
        label = next((curve.label for curve in members if curve.label in chosen), "")
        shown = _best(members, objective, label)
        found.append(Group(f"load{index}", kind, tuple(members), shown, origin, objective, label))
    return found


def _best(curves: Sequence[Curve], objective: Objective | None, chosen: str) -> tuple[Curve, ...]:
    """The choice, then those with the most capacity; as many as there are looks."""

    def order(curve: Curve) -> tuple[bool, float]:
        best = curve.capacity(objective)
        return curve.label != chosen, -(best.throughput or 0.0) if best else 0.0

    return tuple(sorted(curves, key=order)[: len(pictures.LOOKS)])


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
                notes=(OPEN_LOOP_NOTE,) if group.kind.arrivals != CLOSED and group.main.points else (),
            )
            for group in found
        ),
    )


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


class Compared(NamedTuple):
    """Settings of one kind of load, and the load at which their latencies are compared."""

    load: float
    places: list[pictures.Place]


def compared(group: Group) -> Compared | None:
    """Each setting's capacity, and its p99 at the middle one of the loads that all were measured at.

    Settings without capacity are left out; None when there are not two, or no load that all of them have.
    """
    have = [(curve, best) for curve in group.curves if (best := curve.capacity(group.objective)) is not None]
    if len(have) < 2:
        return None
    by_load = [
        {load.value: load.latency_us["99"] for load in curve.loads if "99" in load.latency_us} for curve, _ in have
    ]
    common = sorted(set.intersection(*(set(one) for one in by_load)))
    if not common:
        return None
    load = common[(len(common) - 1) // 2]
    at = [(best.throughput or 0.0, one[load]) for (_, best), one in zip(have, by_load, strict=True)]
    front = set(pareto_front(at))
    return Compared(
        load,
        [
            pictures.Place(curve.label, *at[index], index in front, curve.label == group.chosen)
            for index, (curve, _) in enumerate(have)
        ],
    )


def pareto(found: Sequence[Group]) -> Section | None:
    """Settings by capacity and p99; None when nowhere are there two to compare."""
    figures, sentences = [], []
    for group in found:
        settings = compared(group)
        if settings is None:
            continue
        at = group.kind.load_text(settings.load)
        capacity = "most answers/s" + ("" if group.objective is None else " inside the SLO")
        figures.append(
            pareto_figure(
                f"pareto-{group.name}",
                f"Pareto front: {group.kind}",
                group.origin,
                settings.places,
                capacity=capacity,
                latency=f"p99 at {at}, ms",
                limit_us=None if group.objective is None else group.objective.latency_us,
            )
        )
        sentences.append(f"{group.kind}: {_front_sentence(settings.places, at)}")
    return Section("pareto", "Settings: capacity against p99", tuple(sentences), tuple(figures)) if figures else None


def pareto_figure(
    name: str,
    title: str,
    origin: Origin,
    places: Sequence[pictures.Place],
    *,
    capacity: str,
    latency: str,
    limit_us: float | None,
) -> Figure:
    """Picture and table of settings, those of the front first."""
    order = sorted(places, key=lambda place: (not place.in_front, -place.capacity, place.latency_us))
    return Figure(
        title,
        *origin,
        picture=pictures.pareto(name, places, capacity=capacity, latency=latency, limit_us=limit_us),
        table=Table(
            ("setting", "front", "choice", capacity, latency),
            tuple(
                (
                    place.label,
                    "yes" if place.in_front else "",
                    "the choice" if place.chosen else "",
                    number(place.capacity),
                    milliseconds(place.latency_us),
                )
                for place in order
            ),
            words=3,
            marked=frozenset(index for index, place in enumerate(order) if place.chosen),
            brief=len(order) <= MOST_BRIEF,
        ),
        notes=(
            "A setting is in the front when no other has at least its capacity and at most its p99, and is better in one.",
        ),
        folded=len(order) > MOST_OPEN,
    )


def _front_sentence(places: Sequence[pictures.Place], at: str) -> str:
    front = [place for place in places if place.in_front]
    most = max(front, key=lambda place: (place.capacity, -place.latency_us))
    fastest = min(front, key=lambda place: (place.latency_us, -place.capacity))
    chosen = next((place for place in places if place.chosen), None)
    words = f"the most is carried by {most.label}: {number(most.capacity)}/s, p99 {milliseconds(most.latency_us)} ms at {at}"
    if fastest is not most:
        words += (
            f"; the lowest p99 there is {milliseconds(fastest.latency_us)} ms, of {fastest.label}, "
            f"which carries {number(fastest.capacity)}/s"
        )
    if chosen is not None:
        words += f". The choice, {chosen.label}, is {'' if chosen.in_front else 'not '}in the front"
    return words + "."


def loads(found: Sequence[Group]) -> Section:
    """The main curve of each group at low, moderate and high load, and beyond."""
    figures, sentences = [], []
    for group in found:
        stages = _stages(group)
        rows = tuple(
            (
                name,
                group.kind.load_text(load.value),
                number(load.throughput),
                milliseconds(load.latency_us.get("50")),
                milliseconds(load.latency_us.get("99")),
                number(load.mean_batch),
                number(load.duty, 2),
            )
            for name, load in stages
        )
        head = ("", "load", "answers/s", "p50 ms", "p99 ms", "mean batch", "duty")
        figures.append(
            Figure(
                f"Low to high load: {group.main.label} ({group.kind})",
                *group.origin,
                table=Table(head, rows, words=2),
                notes=(
                    "Low is the least load measured, high the one of the most answers"
                    + ("" if group.objective is None else " inside the SLO")
                    + ", moderate the one nearest to half of those, beyond the largest load measured.",
                ),
            )
        )
        told = " ".join(_stage_sentence(name, load, group) for name, load in stages)
        sentences.append(f"{group.kind}, {group.main.label}. {told}")
    return Section("loads", "Low, moderate and high load", tuple(sentences), tuple(figures))


def _stages(group: Group) -> list[tuple[str, Load]]:
    every = group.main.loads
    best = group.main.capacity(group.objective)
    found = [("low", every[0])]
    if best is not None:
        half = (best.throughput or 0.0) / 2
        inner = [load for load in every if every[0].value < load.value < best.value and load.throughput is not None]
        if inner:
            found.append(("moderate", min(inner, key=lambda load: abs((load.throughput or 0.0) - half))))
        if best.value > every[0].value:
            found.append(("high", best))
    if every[-1].value > found[-1][1].value:
        found.append(("beyond", every[-1]))
    return found


def _stage_sentence(name: str, load: Load, group: Group) -> str:
    at = {"beyond": "Beyond it"}.get(name, f"At {name} load")
    words = (
        f"{at} ({group.kind.load_text(load.value)}) half of the callers wait {milliseconds(load.latency_us.get('50'))} ms "
        f"or less, 99 of 100 {milliseconds(load.latency_us.get('99'))} ms or less; a batch has {number(load.mean_batch)} rows"
    )
    if load.duty is not None:
        words += f" and the instances are busy {percent(min(1.0, load.duty))} of the time"
    said = remarks(load)
    return words + (f" ({said})." if said else ".")


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
    """Every measurement with its own command; None where no group is perf_analyzer's."""
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
