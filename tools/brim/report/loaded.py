"""The section of a load test: what each class of callers got, successes and refusals kept apart, and how it went."""

from __future__ import annotations

from brim.measure.accounting import Objective
from brim.report import timelines
from brim.report.document import Figure, Section, Table
from brim.report.groups import MOST_OPEN
from brim.report.load_test import ENDS, ClassResult, LoadTest
from brim.report.timelines import Moment
from brim.report.words import in_a_line, milliseconds, objective_text, percent


def section(test: LoadTest) -> Section:
    """Verdict, outcomes by class, latencies by class, and the timeline where the file has one."""
    conditions = in_a_line(test.conditions)
    figures = [_outcomes(test, conditions), _latencies(test, conditions)]
    if test.timeline:
        moments = [
            Moment(
                one.second,
                float(test.entry_s),
                one.offered,
                one.answered,
                one.in_slo,
                one.refused,
                one.p50_us,
                one.p99_us,
            )
            for one in test.timeline
        ]
        limit_us = test.objective.latency_us
        figures.append(timelines.figure("loadtest", "Second by second", test.typed, conditions, moments, limit_us))
    return Section("loadtest", "Load test", sentences(test), tuple(figures))


def sentences(test: LoadTest) -> tuple[str, ...]:
    """The verdict, its own words where it has some, then each class."""
    word = {True: "was passed", False: "was not passed", None: "could not be judged"}[test.ok]
    verdict = f"The load test {word} (SLO: {objective_text(test.objective)})."
    own = (test.said,) if test.said.strip() else ()
    limits = tuple(f"The load generator was the limit: {limit}." for limit in test.limits if limit not in test.said)
    return (verdict, *own, *limits, *(_sentence(name, one) for name, one in test.classes.items()))


def _slo(test: LoadTest, one: ClassResult) -> Objective:
    """The class's own, or the test's."""
    whole = test.objective
    latency_us = whole.latency_us if one.latency_us is None else one.latency_us
    return Objective(whole.percentile if one.percentile is None else one.percentile, latency_us)


def _sentence(name: str, one: ClassResult) -> str:
    if not one.offered:
        return f"{name}: nothing was offered."
    words = (
        f"{name}: {one.in_slo:,} of {one.offered:,} offered requests ({percent(one.in_slo / one.offered)}) were answered "
        f"inside the SLO; answers took {milliseconds(one.p50_us)} ms or less for half, {milliseconds(one.p99_us)} ms or less "
        "for 99 of 100"
    )
    if one.refused:
        words += f"; {one.refused:,} were refused, 99 of 100 of them within {milliseconds(one.reject_p99_us)} ms"
    return words + "."


def _outcomes(test: LoadTest, conditions: str) -> Figure:
    head = ("class", "SLO", "its verdict", "offered", "in SLO", *ENDS, "no end yet", "in SLO of offered")
    met = {True: "met", False: "missed", None: "-"}
    rows = tuple(
        (
            name,
            objective_text(_slo(test, one)),
            met[one.met],
            str(one.offered),
            str(one.in_slo),
            *(str(getattr(one, end)) for end in ENDS),
            str(one.unended),
            percent(one.in_slo / one.offered if one.offered else None),
        )
        for name, one in test.classes.items()
    )
    return Figure(
        "What became of the requests, by class",
        test.typed,
        conditions,
        table=Table(head, rows, words=3),
        notes=("Only an answer in time counts for the SLO; it is judged over everything that was offered.",),
        folded=len(rows) > MOST_OPEN,
    )


def _latencies(test: LoadTest, conditions: str) -> Figure:
    head = ("class", "answers", "p50 ms", "p99 ms", "refusals", "p99 ms until refused")
    rows = tuple(
        (
            name,
            str(one.answered),
            milliseconds(one.p50_us),
            milliseconds(one.p99_us),
            str(one.refused),
            milliseconds(one.reject_p99_us),
        )
        for name, one in test.classes.items()
    )
    return Figure(
        "How long it took, by class",
        test.typed,
        conditions,
        table=Table(head, rows),
        notes=(
            "Latencies of answers and of refusals are kept apart: a refusal is quick, so it would make the answers look "
            "faster the more of them there are.",
        ),
        folded=len(rows) > MOST_OPEN,
    )
