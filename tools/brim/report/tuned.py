"""The sections that ``brim tune`` gives: the choice and why, what was predicted and measured, its behaviour and launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brim.batcher.rule import Reason
from brim.errors import InputError
from brim.measure.accounting import Objective
from brim.report import pictures
from brim.report.choice import Choice, Predicted
from brim.report.curves import rate_text
from brim.report.document import Figure, Section, Table
from brim.report.front import pareto_front
from brim.report.groups import Origin
from brim.report.launches import REQUESTS, SEED, launch_reasons
from brim.report.pareto import pareto_figure
from brim.report.simulation_check import Pair
from brim.report.words import in_a_line, milliseconds, number, objective_text, percent
from brim.units import us_to_ms


def origin(choice: Choice) -> Origin:
    """Of everything in the file. Its command is put together from what the file tells."""
    traffic = choice.traffic.model_dump()
    return Origin(choice.command, in_a_line({**choice.conditions, "traffic": traffic}))


def objective(choice: Choice) -> Objective:
    """The SLO that was tuned for."""
    return Objective(percentile=choice.slo.percentile, latency_us=choice.slo.latency_us)


def chosen_label(choice: Choice) -> str:
    """The chosen setting in words; empty without one."""
    return "" if choice.choice is None else str(choice.choice)


def verdict(choice: Choice) -> str:
    """Choice and reason in sentences."""
    slo = objective_text(objective(choice))
    if choice.choice is None:
        words = [f"No setting was chosen for {choice.service}."]
    else:
        more = [] if choice.choice.in_flight is None else [f"at most {choice.choice.in_flight} requests in flight"]
        words = [f"Chosen for {choice.service}: {', '.join([chosen_label(choice), *more])}."]
    words.append(f"The SLO ({slo}) is {'met' if choice.slo_met else 'not met'}.")
    words.append(choice.why)
    if choice.way_out:
        words.append(choice.way_out)
    return " ".join(words)


def chosen(choice: Choice) -> Section:
    """Why this setting, and the settings that were verified on the server, predicted beside measured."""
    sentences = [choice.why, *([choice.way_out] if choice.way_out else []), *choice.notes]
    sentences += [f"Limit: {choice.limits.why}."] if choice.limits is not None else []
    sentences += [f"{name.capitalize()}: {reason.why}." for name, reason in choice.weighed.items()]
    if choice.candidates is not None:
        looked = choice.candidates
        sentences.append(
            f"{looked.generated:,} settings were generated, {looked.refused:,} of them refused by the linter, "
            f"{looked.simulated:,} simulated and {len(choice.measurements)} measured on the server."
        )
    figures = []
    if choice.measurements:
        head = (
            *("setting", "what it is", "capacity /s", "predicted", "goodput /s", "predicted", "deviation", "spread"),
            *("p50 ms", "p99 ms", "mean batch", "in SLO expected", "in SLO at peak"),
        )
        rows = tuple(
            (
                str(one.setting),
                ", ".join(
                    name
                    for name, applies in (
                        ("the choice", one.is_choice),
                        ("Triton's default", one.is_default),
                        ("as it is now", one.is_current),
                        ("limited by the load generator", one.measured.limited_by_generator),
                    )
                    if applies
                ),
                number(one.measured.capacity_per_s),
                number(one.predicted.capacity_per_s),
                number(one.measured.goodput_per_s),
                number(one.predicted.goodput_per_s),
                percent(one.deviation),
                percent(one.measured.spread),
                milliseconds(one.measured.p50_us),
                milliseconds(one.measured.p99_us),
                number(one.measured.mean_batch),
                percent(one.measured.in_slo_expected),
                percent(one.measured.in_slo_peak),
            )
            for one in choice.measurements
        )
        marked = frozenset(index for index, one in enumerate(choice.measurements) if one.is_choice)
        figures.append(
            Figure(
                "Settings verified on the server",
                *origin(choice),
                table=Table(head, rows, words=2, marked=marked),
                notes=(
                    "Latencies, mean batch and the share in the SLO are measured at the expected rate. Deviation is "
                    "measured / predicted goodput - 1; spread is how much the goodput of the repeats differs.",
                ),
            )
        )
    blocks = (("What changes in the configuration", choice.diff),) if choice.diff.strip() else ()
    return Section("choice", "The choice", tuple(sentences), tuple(figures), blocks=blocks)


def pareto(choice: Choice) -> list[Figure]:
    """The fronts of the settings that were measured and of the best ones that were simulated; none without two."""
    label = chosen_label(choice)
    measured: list[tuple[str, Predicted]] = [(str(one.setting), one.measured) for one in choice.measurements]
    predicted: dict[str, Predicted] = {str(one.setting): one for one in choice.predicted_top}
    predicted |= {str(one.setting): one.predicted for one in choice.measurements}
    at = f"p99 at the expected {rate_text(choice.traffic.rate_per_s)}, ms"
    figures = []
    for name, title, settings in (
        ("measured", "Pareto front: measured on the server", measured),
        ("predicted", "Pareto front: the best of the simulator", list(predicted.items())),
    ):
        places = _places(settings, label)
        if len(places) > 1:
            figures.append(
                pareto_figure(
                    f"pareto-{name}",
                    title,
                    origin(choice),
                    places,
                    capacity=f"capacity inside the SLO, /s ({name})",
                    latency=f"{at} ({name})",
                    limit_us=choice.slo.latency_us,
                )
            )
    return figures


def _places(settings: list[tuple[str, Predicted]], chosen: str) -> list[pictures.Place]:
    known = [
        (label, (figures.capacity_per_s, figures.p99_us))
        for label, figures in settings
        if figures.capacity_per_s is not None and figures.p99_us is not None
    ]
    at = [(capacity, latency) for _, (capacity, latency) in known if capacity is not None and latency is not None]
    front = set(pareto_front(at))
    return [
        pictures.Place(label, *at[index], index in front, label == chosen) for index, (label, _) in enumerate(known)
    ]


def predictions(choice: Choice) -> Section | None:
    """The verified settings as predicted and as measured; None where no figure has both sides."""

    class Shown(NamedTuple):
        title: str
        of: Callable[[Predicted], float | None]

    panels = (
        Shown("Goodput, /s", lambda one: one.goodput_per_s),
        Shown("p99, ms", lambda one: None if one.p99_us is None else us_to_ms(one.p99_us)),
        Shown("Mean batch, rows", lambda one: one.mean_batch),
    )
    found: dict[str, list[Pair]] = {}
    for panel in panels:
        for one in choice.measurements:
            measured, predicted = panel.of(one.measured), panel.of(one.predicted)
            if measured and predicted:
                found.setdefault(panel.title, []).append(
                    Pair(str(one.setting), "", choice.traffic.rate_per_s, measured, predicted)
                )
    if not found:
        return None
    rows = tuple(
        (pair.curve, title, number(pair.measured, 2), number(pair.predicted, 2), percent(pair.error))
        for title, pairs in found.items()
        for pair in pairs
    )
    table = Table(("setting", "figure", "measured", "predicted", "error"), rows, words=2)
    return Section(
        "predictions",
        "The tuning's predictions against what was measured",
        figures=(
            Figure(
                "Predicted against measured: verified settings",
                *origin(choice),
                picture=pictures.predicted_against_measured("predictions", found),
                table=table,
                notes=("Error is (predicted - measured) / measured.",),
            ),
        ),
    )


def behaviour(choice: Choice) -> list[Figure]:
    """The choice from a lone request to high load, as predicted."""
    found = choice.behaviour
    if found is None:
        return []
    rows = [
        (
            name,
            rate_text(load.rate_per_s),
            percent(load.share),
            milliseconds(load.p50_us),
            milliseconds(load.p99_us),
            number(load.mean_batch),
            percent(load.in_slo),
        )
        for name, load in (("low", found.low), ("moderate", found.moderate), ("high", found.high))
        if load is not None
    ]
    notes = ["From the simulator, with the machine that it was fitted to."]
    if found.lone is not None:
        notes.insert(
            0,
            f"A lone request takes {milliseconds(found.lone.latency_us)} ms, "
            f"{milliseconds(found.lone.waits_us)} ms of it waiting for company.",
        )
    head = ("", "load", "of capacity", "p50 ms", "p99 ms", "mean batch", "inside the SLO")
    title = f"The choice at low, moderate and high load: {chosen_label(choice)}"
    return [Figure(title, *origin(choice), table=Table(head, tuple(rows), words=2), notes=tuple(notes))]


MEANS = {
    Reason.FULL: "the batch had the most rows that it may have",
    Reason.PREFERRED: "it had a preferred size",
    Reason.DELAY: "its oldest request had waited for the queue delay",
    Reason.DRAINED: "nothing more was waiting, and the delay is 0",
    Reason.SHAPE: "the next request had another shape",
    Reason.UNBATCHED: "there is no dynamic batching",
}


def launches(choice: Choice) -> tuple[Section | None, list[str]]:
    """Why the choice's batches are launched at each load, simulated; and warnings where that cannot be."""
    try:
        reasons = launch_reasons(choice)
    except InputError as error:
        return None, [f"launch reasons are missing: the simulator refuses what choice.json says: {error.message}"]
    if not reasons:
        return None, []
    conditions = f"{REQUESTS:,} simulated requests a load, {choice.traffic.arrival} arrivals, seed {SEED}, setting "
    machine = "" if choice.machine is None else in_a_line(choice.machine.model_dump(exclude={"points"}))
    figure = launch_figure(
        "launches-choice",
        "Launch reasons of the choice, simulated",
        Origin(
            "brim report, with the machine that choice.json holds", f"{conditions}{chosen_label(choice)}; {machine}"
        ),
        list(reasons.items()),
    )
    return Section(
        "launches", "Why batches are launched", ("Triton does not tell; these are the simulator's.",), (figure,)
    ), []


def launch_figure(name: str, title: str, where: Origin, bars: list[tuple[str, dict[str, int]]]) -> Figure:
    """Bars and counts. Every bar has at least one batch."""
    reasons = list(dict.fromkeys(reason for _, counts in bars for reason in counts))
    rows = tuple(
        (
            label,
            *(
                f"{counts.get(reason, 0)} ({percent(counts.get(reason, 0) / sum(counts.values()))})"
                for reason in reasons
            ),
        )
        for label, counts in bars
    )
    notes = tuple(f"{reason}: {MEANS[Reason(reason)]}." for reason in reasons if reason in set(Reason))
    return Figure(
        title,
        *where,
        picture=pictures.launch_reasons(name, bars),
        table=Table(("load", *reasons), rows),
        notes=notes,
    )
