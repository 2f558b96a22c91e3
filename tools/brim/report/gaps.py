"""Loads of a sweep that have no measurement: which, and why, as far as its files tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.measure.asked import FILE_NAME, Asked
from brim.measure.sweep import Settings
from brim.report.curves import Curve, Kind, by_kind
from brim.report.document import Figure, Section, Table
from brim.report.groups import MOST_BRIEF, MOST_OPEN
from brim.report.run_folder import FailedLoad

NOT_REACHED = "not reached: the sweep was stopped before it"
UNKNOWN = "other settings have it"


@dataclass(frozen=True, slots=True)
class Gap:
    """One load of one setting that was not measured."""

    label: str
    kind: Kind
    load: float
    why: str


def gaps(
    found: Sequence[Curve],
    settings: Mapping[str, Settings],
    asked: Asked | None = None,
    failures: Sequence[FailedLoad] = (),
) -> list[Gap]:
    """What was asked for and is not there; where nobody recorded that, what some settings have and others lack.

    Args:
        found: curves of the sweep's points.
        settings: of the sweep, by the digest of the configuration.
        asked: what was asked for.
        failures: what could not be measured; a later one of the same load replaces an earlier one.
    """
    return _inferred(found, settings) if asked is None else _recorded(found, settings, asked, failures)


def _recorded(
    found: Sequence[Curve], settings: Mapping[str, Settings], asked: Asked, failures: Sequence[FailedLoad]
) -> list[Gap]:
    have = {
        (settings[curve.digest], curve.kind.arrivals, load.value)
        for curve in found
        if curve.digest in settings and curve.kind.model == asked.model
        for load in curve.loads
    }
    why = {(one.settings, one.load): one.message for one in failures}
    missing = []
    for one, arrivals, load in asked.points:
        if (one, arrivals, load) not in have:
            failed = why.get((one, f"{arrivals} {load:g}")) or why.get((one, ""))
            kind = Kind(asked.model, asked.protocol, arrivals, "")
            missing.append(Gap(str(one), kind, load, NOT_REACHED if failed is None else f"failed: {failed}"))
    return missing


def _inferred(found: Sequence[Curve], settings: Mapping[str, Settings]) -> list[Gap]:
    """Every setting of a sweep is measured under the same loads, so a load that one has and another lacks is missing there."""
    missing = []
    for kind, group in by_kind(found).items():
        wanted = sorted({load.value for curve in group for load in curve.loads})
        have = {curve.digest: {load.value for load in curve.loads} for curve in group}
        for digest, one in settings.items():
            missing += [Gap(str(one), kind, load, UNKNOWN) for load in wanted if load not in have.get(digest, set())]
    return missing


def section(missing: Sequence[Gap], model: str) -> Section | None:
    """Every missing load as a row; None without any. ``model`` is for the command that goes on."""
    if not missing:
        return None
    rows = tuple((gap.label, str(gap.kind), gap.kind.load_text(gap.load), gap.why) for gap in missing)
    figure = Figure(
        "Loads that have no measurement",
        f"brim sweep {model} --out RUN, with the options that began it",
        f"what was asked for is in {FILE_NAME}, recorded before the sweep began",
        table=Table(("setting", "kind of load", "load", "why"), rows, words=4, brief=len(rows) <= MOST_BRIEF),
        notes=("No curve above has these: a line between its neighbours is no measurement.",),
        folded=len(rows) > MOST_OPEN,
    )
    return Section("missing", "Asked for, and not measured", (), (figure,))


def warning(missing: Sequence[Gap], asked: Asked | None) -> str:
    """What is missing in a sentence or two. ``missing`` is not empty."""
    by_curve: dict[tuple[str, Kind], list[float]] = {}
    for gap in missing:
        by_curve.setdefault((gap.label, gap.kind), []).append(gap.load)
    listed = "; ".join(
        f"{label}: {', '.join(kind.load_text(load) for load in loads)} ({kind})"
        for (label, kind), loads in by_curve.items()
    )
    goes_on = "The same `brim sweep` command with the same --out goes on."
    if asked is None:
        return (
            "This sweep is partial: it was stopped, or some of it could not be measured. Missing are "
            f"{listed}. {goes_on} Settings that it had not begun are not known here."
        )
    failed = sum(gap.why != NOT_REACHED for gap in missing)
    return (
        f"This sweep is partial: {len(missing)} of {len(asked.points)} loads that were asked for have no measurement, "
        f"{failed} of them since they could not be measured, {len(missing) - failed} since the sweep was stopped before. "
        f"Missing are {listed}. {goes_on}"
    )
