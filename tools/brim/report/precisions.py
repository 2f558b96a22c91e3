"""The section of ``brim bench precision``: which precisions may be served, what they cost and what they give."""

from __future__ import annotations

from statistics import median

from brim.report.document import Figure, Section, Table
from brim.report.precision_result import OnePrecision, Precisions
from brim.report.words import figure_text, in_a_line, of_a_benchmark, percent

BASE = "fp32"
_LONGEST_REASON = 300


def section(found: Precisions) -> Section:
    """A line a precision with accuracy and refusals, and a line for each of its speeds."""
    conditions = in_a_line(of_a_benchmark(found.conditions))
    served = tuple(
        (
            one.precision,
            "no" if one.refusals else "yes",
            f"{one.graph_bytes / 1e6:.2f}",
            ", ".join(f"{name} {value:.4f}" for name, value in one.accuracy.items()) or "-",
            "; ".join(reason[:_LONGEST_REASON] for reason in one.refusals) or "-",
        )
        for one in found.precisions
    )
    speeds = tuple(
        (
            one.precision,
            speed.verdict if one.precision != BASE else "-",
            str(speed.batch),
            figure_text(median(speed.rows_per_s)),
            *(figure_text(value) for value in (speed.ratio.median, speed.ratio.low, speed.ratio.high)),
            percent(speed.ratio.confidence),
            str(speed.ratio.rounds),
        )
        for one in found.precisions
        for speed in one.speeds
    )
    sizes = "".join(f", {axis} {size}" for axis, size in found.sizes.items())
    figures = (
        Figure(
            "Precisions, and what the export's gates say of them",
            found.command,
            conditions,
            table=Table(("precision", "may be served", "MB", "accuracy", "why not"), served, words=5),
            notes=("A precision is refused where a row's answer changes with its neighbours, or accuracy is lost.",),
        ),
        Figure(
            "Rows a second against FP32",
            found.command,
            conditions,
            table=Table(
                ("precision", "verdict", "batch", "rows/s", "x fp32", "from", "to", "confidence", "rounds"),
                speeds,
                words=2,
            ),
            notes=(
                f"ONNX Runtime on the CPU, {found.threads} threads{sizes}. Ratios are of the same round; an interval with 1 "
                "inside, and a machine that others used meanwhile, make a verdict unclear.",
            ),
        ),
    )
    return Section("precision", f"Precision: {found.service}", (_sentence(found),), figures)


def _sentence(found: Precisions) -> str:
    told = "; ".join(_told(one) for one in found.precisions if one.precision != BASE)
    return f"{found.service} serves {found.chosen}. {told}." if told else f"{found.service} serves {found.chosen}."


def _told(one: OnePrecision) -> str:
    if one.refusals:
        return f"{one.precision} is refused"
    ratios = ", ".join(f"{speed.ratio.median:.2f} at {speed.batch} rows ({speed.verdict})" for speed in one.speeds)
    return f"{one.precision} runs at {ratios} of FP32's rate"
