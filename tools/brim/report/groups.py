"""Curves that are drawn together: one kind of load, where its figures come from, and which settings stand out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brim.measure.accounting import Objective
from brim.report import pictures
from brim.report.curves import Curve, Kind, by_kind
from brim.report.words import command_text, conditions_of, in_a_line

MOST_BRIEF = 40
"""Rows of a table that the Markdown summary still has."""
MOST_OPEN = 14
"""Rows of a table that is not folded on the page."""


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
        tuned: where curves without points come from.
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
