"""The section that tells one setting from low to high load, and beyond what it can carry."""

from __future__ import annotations

from collections.abc import Sequence

from brim.report.curves import Load
from brim.report.document import Figure, Section, Table
from brim.report.groups import Group
from brim.report.words import milliseconds, number, percent, remarks


def section(found: Sequence[Group]) -> Section:
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
