"""The run as one HTML page that needs nothing else: the verdict, the conditions, the counts, and the evidence of each check."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from brim.isolation.checks import CHECKS
from brim.isolation.evidence import Evidence
from brim.isolation.judge import HURT, Verdict
from brim.isolation.page_template import TEMPLATE
from brim.isolation.result import Result
from brim.isolation.text import checks as text_checks
from brim.units import US_PER_S, us_to_ms

REPEAT = "; repeat with: "
"""What a failed check's message has before the command (``brim.isolation.suite``)."""
LEAST_WIDTH = 2.0
"""Percent of a bar: nobody who was hurt is too few to be seen."""
LABELS = {verdict: verdict.value.replace("_", " ") for verdict in Verdict}
LEGEND = (
    (Verdict.RIGHT.value, "its own answer"),
    (Verdict.OWN_ERROR.value, "its own error"),
    (Verdict.CANCELLED.value, "went away itself"),
    ("hurt", "hurt: wrong, a neighbour's error, or no answer"),
)
ELSEWHERE = frozenset(["ok", "model", "totals"])
"""What ``about`` holds that the page says in its own words."""
TITLES = {check.id: check.title for check in (*CHECKS, *text_checks.CHECKS)}
_HIDDEN = frozenset(["Cc", "Cf", "Cs", "Co", "Cn"])


def page(about: Mapping[str, object], results: Sequence[Result]) -> str:
    """The whole document. Pure: the same arguments give the same text.

    Args:
        about: the conditions by name; ``model`` is the title, times end in ``_us``, and a mapping becomes one line.
        results: of the checks in the order of the suite; those that failed are shown first.
    """
    checks = [_check(number, result) for number, result in enumerate(results)]
    # A stable sort: within a state the order of the suite stays.
    checks.sort(key=lambda check: ("failed", "ok", "skipped").index(check["state"]))
    return _ENVIRONMENT.from_string(TEMPLATE).render(
        model=about.get("model", "a model"),
        ok=all(result.ok for result in results),
        verdict=verdict(results),
        conditions=[condition(name, value) for name, value in about.items() if name not in ELSEWHERE],
        columns=[{"label": LABELS[one]} for one in Verdict],
        checks=checks,
        legend=LEGEND,
    )


def verdict(results: Sequence[Result]) -> str:
    """The run in one sentence."""
    if not results:
        return "No check was run."
    run = [result for result in results if not result.skipped]
    failed = [result.id for result in results if not result.ok]
    sent = sum(result.sent for result in results)
    hurt = sum(result.hurt for result in results)
    needless = len(results) - len(run)
    aside = f" ({needless} more had nothing to check)" if needless else ""
    if failed:
        names = ", ".join(failed)
        return (
            f"Isolation is broken: {hurt:,} of {sent:,} requests were hurt, "
            f"and {_checks(len(failed))} failed: {names}{aside}."
        )
    return (
        f"Nobody was hurt: {sent:,} requests in {_checks(len(run))}, "
        f"and each got its own answer, its own error, or went away itself{aside}."
    )


def _checks(count: int) -> str:
    return f"{count} check{'' if count == 1 else 's'}"


def _check(number: int, result: Result) -> dict[str, Any]:
    message, _, repeat = result.message.partition(REPEAT)
    return {
        "anchor": f"check-{number}",
        "id": result.id,
        "title": TITLES.get(result.id, ""),
        "state": "skipped" if result.skipped else "ok" if result.ok else "failed",
        "parts": _parts(result),
        "bar_label": ", ".join(f"{getattr(result, one.value)} {LABELS[one]}" for one in Verdict),
        "sent": result.sent,
        "cells": [
            {"count": count, "hurts": one in HURT and count > 0}
            for one in Verdict
            for count in [getattr(result, one.value)]
        ],
        "mean_batch": "-" if result.mean_batch is None else f"{result.mean_batch:.1f}",
        "seconds": f"{result.took_us / US_PER_S:.1f}",
        # The message holds the first faults already.
        "message": message,
        "faults": [fault for fault in result.faults if fault not in message],
        "repeat": repeat,
        "figures": [condition(name, value) for name, value in result.figures.items()],
        "exchanges": [_exchange(one) for one in sorted(result.exchanges, key=lambda one: not one.fault)],
    }


def _parts(result: Result) -> list[dict[str, Any]]:
    """The bar: each kind's share of what was sent, in percent; what is not 0 is at least ``LEAST_WIDTH`` wide."""
    if not result.sent:
        return []
    counts = {
        "right": result.right,
        "own_error": result.own_error,
        "cancelled": result.cancelled,
        "hurt": result.hurt,
    }
    widths = {kind: max(LEAST_WIDTH, 100 * count / result.sent) for kind, count in counts.items() if count}
    scale = 100 / sum(widths.values())
    parts, x = [], 0.0
    for kind, width in widths.items():
        parts.append({"kind": kind, "x": f"{x:.2f}", "width": f"{width * scale:.2f}"})
        x += width * scale
    return parts


def _exchange(one: Evidence) -> dict[str, Any]:
    return {
        "request_id": one.request_id,
        "protocol": one.protocol,
        "sent": one.sent,
        "expected": one.expected,
        "came": one.came,
        "verdict": one.verdict,
        "fault": one.fault,
        "company": one.company.value,
        "neighbours": one.neighbours,
        "neighbour_count": one.neighbour_count,
        "took": f"{us_to_ms(one.took_us):.1f}",
    }


def condition(name: str, value: object) -> tuple[str, str]:
    """A name and its value as people read them; times end in ``_us``, and a mapping becomes one line."""
    label = name.removesuffix("_us").replace("_", " ")
    if name.endswith("_us") and isinstance(value, int | float):
        return label, f"{value / US_PER_S:.2f} s" if value >= US_PER_S else f"{us_to_ms(value):.2f} ms"
    return label, _in_line(value)


def _in_line(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_line(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_in_line(one) for one in value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(value: object) -> object:
    """Text as a page can carry it: what a reader could not see, or what would turn the text round, in its escaped form."""
    if not isinstance(value, str):
        return value
    return "".join(
        one.encode("unicode_escape", "surrogatepass").decode()
        if one not in "\n\t" and unicodedata.category(one) in _HIDDEN
        else one
        for one in value
    )


_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
)
