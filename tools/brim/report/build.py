"""A run folder's contents as a report. Pure: the same documents give the same report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brim.isolation.page import condition
from brim.measure.accounting import Objective
from brim.measure.point import FILE_NAME as POINTS_FILE
from brim.measure.schedule import CHANGING
from brim.report import (
    benchmarked,
    checked,
    gaps,
    loaded,
    measured,
    overloaded,
    pareto,
    precisions,
    soaked,
    stages,
    text_tuned,
    texts,
    timelines,
    tuned,
)
from brim.report.curves import OPEN, Curve, of_open_points, of_points, of_runs
from brim.report.document import Report, Section
from brim.report.groups import Group, Origin
from brim.report.groups import groups as groups_of
from brim.report.run_folder import Documents
from brim.report.simulation_check import disagreements
from brim.report.words import conditions_of, in_a_line, objective_text, of_a_benchmark


def build_report(documents: Documents, objective: Objective | None, *, source: str) -> Report:
    """The whole report.

    Args:
        documents: what the run folder holds.
        objective: the SLO that figures are held against; None when none is known.
        source: where that comes from, in words.
    """
    choice = documents.choice
    sweeps = of_points(documents.points, documents.settings)
    chosen = () if choice is None or choice.choice is None else (tuned.chosen_label(choice), choice.choice.in_a_sweep)
    curves = [*sweeps, *of_open_points(documents.open_points, objective), *_tuning_curves(documents)]
    missing = gaps.gaps(sweeps, documents.settings, documents.asked, documents.failures)
    groups = groups_of(curves, objective=objective, chosen=chosen, tuned=_tuning_origin(documents))
    sections: list[Section] = []
    warnings = _warnings(documents, missing)
    if choice is not None:
        sections.append(tuned.chosen(choice))
    if documents.text_choice is not None:
        sections.append(text_tuned.section(documents.text_choice))
    if groups:
        sections.append(measured.latency(groups))
        if objective is not None:
            sections.append(measured.goodput(groups))
        sections.append(measured.batches(groups))
    if choice is not None:
        launches, faults = tuned.launches(choice)
        warnings += faults
        sections += [launches] if launches else []
    if documents.text_points:
        sections.append(texts.section(documents.text_points, documents.stream_checks))
    if (time := timelines.section(documents.open_points)) is not None:
        sections.append(time)
    sections += _pareto(documents, groups)
    sections += _loads(documents, groups)
    if choice is not None and (predictions := tuned.predictions(choice)) is not None:
        sections.append(predictions)
    if documents.simulation is not None:
        sections.append(checked.simulation(documents.simulation))
    if documents.load_test is not None:
        sections.append(loaded.section(documents.load_test))
    if documents.isolation is not None:
        sections.append(checked.isolation(documents.isolation, has_page=documents.isolation_page))
    if documents.overload is not None:
        sections.append(overloaded.section(documents.overload))
    if documents.comparison is not None:
        sections.append(benchmarked.section(documents.comparison))
    if documents.precisions is not None:
        sections.append(precisions.section(documents.precisions))
    if documents.soak is not None or documents.samples:
        sections.append(soaked.section(documents.soak, documents.samples))
    if (lacking := gaps.section(missing, documents.asked.model if documents.asked else "NAME")) is not None:
        sections.append(lacking)
    if (commands := measured.commands(groups)) is not None:
        sections.append(commands)
    return Report(
        title=f"Report of {documents.name}",
        verdict=_verdict(documents, sections),
        good=_good(documents),
        warnings=tuple(warnings),
        conditions=tuple(_conditions(documents, objective, source)),
        sections=tuple(sections),
    )


def _tuning_curves(documents: Documents) -> list[Curve]:
    choice, stopped = documents.choice, documents.interrupted
    kept = documents.runs or (stopped.runs if stopped else ())
    tuning = choice or stopped
    return of_runs(
        kept or [run for one in (choice.measurements if choice else ()) for run in one.runs],
        model="" if tuning is None else tuning.service,
        protocol="" if tuning is None else tuning.protocol,
        arrival=OPEN if choice is None else choice.traffic.arrival,
        percentile=99.0 if choice is None else choice.slo.percentile,
    )


def _tuning_origin(documents: Documents) -> Origin:
    if documents.choice is not None:
        return tuned.origin(documents.choice)
    if documents.interrupted is not None:
        return Origin(documents.interrupted.command, in_a_line(documents.interrupted.conditions))
    return Origin(f"brim tune, as {POINTS_FILE} tells", "not noted: the tuning was ended before it wrote choice.json")


def _pareto(documents: Documents, groups: Sequence[Group]) -> list[Section]:
    """One section of the sweep's fronts and the tuning's."""
    own = pareto.section([group for group in groups if group.main.points])
    figures = () if documents.choice is None else tuple(tuned.pareto(documents.choice))
    if own is None and not figures:
        return []
    base = own or Section("pareto", "Settings: capacity against p99")
    return [replace(base, figures=(*figures, *base.figures))]


def _loads(documents: Documents, groups: Sequence[Group]) -> list[Section]:
    figures = () if documents.choice is None else tuple(tuned.behaviour(documents.choice))
    if not groups and not figures:
        return []
    base = stages.section(groups)
    return [replace(base, figures=(*figures, *base.figures))]


def _warnings(documents: Documents, missing: Sequence[gaps.Gap]) -> list[str]:
    found = [gaps.warning(missing, documents.asked)] if missing else []
    if documents.torn:
        found.append(
            f"Partial: {', '.join(documents.torn)} was cut short, as happens when the measuring process ends at once; it is "
            "left out."
        )
    if documents.choice is None and (documents.runs or documents.interrupted is not None):
        found.append("This tuning is partial: it was stopped, so there are runs at most, and no choice.")
    if documents.simulation is not None:
        found += disagreements(documents.simulation)
    found += soaked.disagreements(documents.soak, documents.samples)
    points = (*documents.every_point, *documents.text_points)
    unsure = sum(not point.stable for point in documents.points)
    unsure += sum(not point.stable and point.arrivals not in CHANGING for point in documents.open_points)
    unsure += sum(not point.stable for point in documents.text_points)
    bound = sum(point.generator_bound for point in points)
    of_all = f"of {len(points)} points"
    found += [f"{unsure} {of_all} come from windows that did not agree."] if unsure else []
    found += [f"At {bound} {of_all} the load generator, not the server, set the figure."] if bound else []
    return found


def _verdict(documents: Documents, sections: Sequence[Section]) -> str:
    if documents.choice is not None:
        return tuned.verdict(documents.choice)
    said = [
        sentence
        for section in sections
        if section.id
        in (
            "text-choice",
            "latency",
            "text",
            "simulation",
            "loadtest",
            "isolation",
            "overload",
            "benchmark",
            "precision",
            "soak",
        )
        for sentence in section.sentences
    ]
    return " ".join(said) or "Nothing was measured."


def _good(documents: Documents) -> bool | None:
    answers = [one.slo_met for one in (documents.choice, documents.text_choice) if one] + [
        one.ok for one in (documents.isolation,) if one
    ]
    judged = (documents.load_test, documents.overload, documents.comparison, documents.precisions, documents.soak)
    answers += [one.ok for one in judged if one is not None and one.ok is not None]
    return all(answers) if answers else None


def _conditions(documents: Documents, objective: Objective | None, source: str) -> list[tuple[str, str]]:
    slo = "none is known" if objective is None else objective_text(objective)
    found: list[tuple[str, str]] = [("SLO", f"{slo} ({source})")]
    if documents.text_points:
        of_texts = [("SLO of texts", one) for one in dict.fromkeys(map(texts.objective_of, documents.text_points))]
        found = of_texts if objective is None else [*found, *of_texts]
    parts: list[Mapping[str, object]] = []
    if documents.every_point:
        parts.append(conditions_of(documents.every_point))
    if documents.text_points:
        parts.append(conditions_of(documents.text_points))
    if documents.choice is not None:
        parts.append({"service": documents.choice.service, "traffic": documents.choice.traffic.model_dump()})
        parts.append(documents.choice.conditions)
    if documents.interrupted is not None:
        parts.append({"service": documents.interrupted.service, **documents.interrupted.conditions})
    if documents.load_test is not None:
        parts.append(documents.load_test.conditions)
    if documents.overload is not None:
        parts.append(overloaded.conditions_of(documents.overload))
    if documents.comparison is not None:
        parts.append(of_a_benchmark(documents.comparison.conditions))
    if documents.precisions is not None:
        parts.append(of_a_benchmark(documents.precisions.conditions))
    if documents.soak is not None:
        parts.append(soaked.conditions_of(documents.soak))
    for part in parts:
        found += [condition(name, value) for name, value in part.items()]
    return list(dict.fromkeys(found))
