"""The section that ``brim tune`` gives for a language model."""

from __future__ import annotations

from brim.report.document import Figure, Section, Table
from brim.report.text_choice import TextChoice
from brim.report.words import in_a_line, milliseconds, number, percent

HEAD = (
    *("setting", "what it is", "goodput /s", "predicted", "in SLO", "predicted"),
    *("TTFT p99 ms", "predicted", "TPOT p99 ms", "predicted", "tokens/s", "predicted", "spread"),
)


def section(found: TextChoice) -> Section:
    """The choice, why, and the settings that were measured beside what the simulator said of them."""
    words = [f"No setting was chosen for {found.service}."]
    if found.choice is not None:
        words = [f"Chosen for {found.service}: {found.choice}."]
    words += [f"The SLO is {'met' if found.slo_met else 'not met'}.", found.why]
    rows = tuple(
        (
            str(one.setting),
            ", ".join(
                name for name, applies in (("the choice", one.is_choice), ("as it is now", one.is_default)) if applies
            ),
            *(number(figures.goodput_per_s) for figures in (one.measured, one.predicted)),
            *(percent(figures.in_slo) for figures in (one.measured, one.predicted)),
            *(milliseconds(figures.ttft_p99_us) for figures in (one.measured, one.predicted)),
            *(milliseconds(figures.tpot_p99_us) for figures in (one.measured, one.predicted)),
            *(number(figures.tokens_per_s) for figures in (one.measured, one.predicted)),
            percent(one.spread),
        )
        for one in found.measurements
    )
    marked = frozenset(index for index, one in enumerate(found.measurements) if one.is_choice)
    figures: tuple[Figure, ...] = ()
    if rows:
        conditions = in_a_line({**found.conditions, "slo": found.slo, "traffic": found.traffic})
        figures = (
            Figure(
                "Settings measured on the engine",
                found.command,
                conditions,
                table=Table(HEAD, rows, words=2, marked=marked),
                notes=("Each figure is measured beside predicted, at the expected rate.",),
            ),
        )
    return Section("text-choice", "The choice for a language model", tuple(words), figures)
