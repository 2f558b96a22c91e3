"""The section of a benchmark that compares two ways of the same work: its ratios and the figures behind them."""

from __future__ import annotations

from statistics import median

from brim.report.bench_result import Comparison
from brim.report.document import Figure, Section, Table
from brim.report.groups import MOST_BRIEF, MOST_OPEN
from brim.report.words import figure_text, in_a_line, of_a_benchmark, percent


def section(found: Comparison) -> Section:
    """Each ratio with its interval and its verdict."""
    command, conditions = f"brim bench {found.benchmark}", in_a_line(of_a_benchmark(found.conditions))
    ratios = tuple(
        (
            one.ratio,
            one.verdict,
            one.target,
            *(figure_text(value) for value in (one.median, one.low, one.high)),
            percent(one.confidence),
            str(one.rounds),
        )
        for one in found.ratios
    )
    head = ("ratio", "verdict", "target", "median", "from", "to", "confidence", "rounds")
    figures = [
        Figure(
            "Ratios over all rounds",
            command,
            conditions,
            table=Table(head, ratios, words=3, brief=len(ratios) <= MOST_BRIEF),
            notes=(
                "The interval holds the median that endless rounds would give, with that confidence (sign test). A target is "
                "met or missed by the whole interval; what lies on both sides of it is unclear.",
            ),
            folded=len(ratios) > MOST_OPEN,
        )
    ]
    if found.figures:
        rows = tuple(
            (name, *(figure_text(pick(values)) for pick in (median, min, max)), str(len(values)))
            for name, values in found.figures.items()
        )
        figures.append(
            Figure(
                "What was measured",
                command,
                conditions,
                table=Table(("figure", "median", "least", "most", "values"), rows, brief=len(rows) <= MOST_BRIEF),
                folded=len(rows) > MOST_OPEN,
            )
        )
    return Section("benchmark", f"Benchmark: {found.benchmark}", (_sentence(found),), tuple(figures))


def _sentence(found: Comparison) -> str:
    told = [
        f"{one.ratio} is {figure_text(one.median)} ({one.target or 'no target'}: {one.verdict})" for one in found.ratios
    ]
    return f"Benchmark {found.benchmark}: {'; '.join(told)}." if told else f"Benchmark {found.benchmark} has no ratio."
