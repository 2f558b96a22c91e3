"""The section that compares settings: how much each carries, and how long its callers wait at one load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brim.report import pictures
from brim.report.document import Figure, Section, Table
from brim.report.front import pareto_front
from brim.report.groups import MOST_BRIEF, MOST_OPEN, Group, Origin
from brim.report.words import milliseconds, number


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


def section(found: Sequence[Group]) -> Section | None:
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
