"""A language model's points as tables for people, and what a row cannot say."""

from __future__ import annotations

from collections.abc import Sequence

from brim.measure.text.perf_stream import StreamCheck
from brim.measure.text.point import UNANSWERED, TextPoint
from brim.units import us_to_ms

COLUMNS = {
    "load": 16,
    "texts/s": 8,
    "tokens/s": 9,
    "TTFT p50": 9,
    "p99 ms": 9,
    "TPOT p50": 9,
    "p99 ms ": 9,
    "ITL p99": 9,
    "in SLO": 7,
    "running": 7,
    "duty": 5,
    "unanswered": 10,
    "limited by": 14,
}
PARTS = {
    "load": 16,
    "client's": 9,
    "sent late": 9,
    "way, parsing": 12,
    "queue": 9,
    "prefill": 9,
    "delivery": 9,
    "server's": 9,
}
"""Mean milliseconds of the time to the first token."""


def _line(cells: Sequence[str], columns: dict[str, int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, columns.values(), strict=True))


def text_row(point: TextPoint | None = None) -> str:
    """A point's row, or the titles: shown as soon as the point has ended, so none can wait for the widest."""
    return _line(list(COLUMNS) if point is None else _cells(point), COLUMNS)


def _cells(point: TextPoint) -> list[str]:
    return [
        point.load_text,
        f"{point.throughput:.2f}",
        f"{point.output_tokens_per_s:.1f}",
        *(_ms(point.ttft_us.get(one)) for one in ("50", "99")),
        *(_ms(point.tpot_us.get(one)) for one in ("50", "99")),
        _ms(point.itl_us.get("99")),
        "-" if point.goodput_ratio is None else f"{100 * point.goodput_ratio:.1f} %",
        "-" if point.mean_batch is None else f"{point.mean_batch:.1f}",
        "-" if point.duty is None else f"{point.duty:.2f}",
        str(sum(getattr(point, kind) for kind in UNANSWERED)),
        "generator" if point.generator_bound else "server or load",
    ]


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us_to_ms(us):.1f}"


def parts_table(points: Sequence[TextPoint]) -> list[str]:
    """Where the time to the first token goes; empty without a server's side of it."""
    known = [point for point in points if point.ttft_parts_us["server"] is not None]
    if not known:
        return []
    names = ("client", "sent_late", "turnaround", "queue", "prefill", "delivery", "server")
    rows = [[point.load_text, *(_ms(point.ttft_parts_us[name]) for name in names)] for point in known]
    return ["", "time to first token, mean ms", *(_line(row, PARTS) for row in ([*PARTS], *rows))]


def check_table(checks: Sequence[StreamCheck]) -> list[str]:
    """The same loads by perf_analyzer; empty without any."""
    if not checks:
        return []
    columns = {
        "perf_analyzer": 16,
        "tokens/s": 9,
        "TTFT p50": 9,
        "p99 ms": 9,
        "TPOT p50": 9,
        "p99 ms ": 9,
        "e2e p50": 9,
    }
    rows = [
        [
            f"{check.value:g} callers",
            f"{check.output_tokens_per_s:.1f}",
            *(_ms(check.ttft_us.get(one)) for one in ("50", "99")),
            *(_ms(check.tpot_us.get(one)) for one in ("50", "99")),
            _ms(check.e2e_us.get("50")),
        ]
        for check in checks
    ]
    return ["", *(_line(row, columns) for row in ([*columns], *rows))]


def remarks(point: TextPoint) -> list[str]:
    """What a row cannot say: the SLO's verdict, the unanswered, the server's side, and what the driver did to the figures."""
    found = [_verdict(point)]
    kinds = [f"{getattr(point, kind)} {kind.replace('_', ' ')}" for kind in UNANSWERED if getattr(point, kind)]
    if kinds:
        reasons = ", ".join(f"{reason} {count}" for reason, count in point.refused_by.items())
        found.append(f"not answered: {', '.join(kinds)}" + (f" (refused: {reasons})" if reasons else ""))
    found += [f"{count} times: {message}" for message, count in point.messages.items()]
    if point.asked_tokens and abs(point.input_tokens / point.asked_tokens - 1) > 0.02:
        found.append(
            f"prompts had {point.input_tokens} tokens, {point.asked_tokens} were wanted: words count otherwise here"
        )
    if point.late:
        sent = _ms(point.ttft_since_sent_us.get("99"))
        found.append(f"{point.late} requests left late; counted from sending, TTFT p99 would be {sent} ms")
    found += [f"the driver is the limit: {limit}" for limit in point.limits]
    if point.server is None:
        found.append("no metrics page was read: the server's side, running sequences and duty are not known")
    elif not point.settled:
        found.append("other requests were under way: they are in the server's side")
    return found


def _verdict(point: TextPoint) -> str:
    slo = point.slo
    if slo is None:
        return "no goodput: the service file has neither slo.ttft_ms nor slo.tpot_ms"
    verdict = {True: "met", False: "missed", None: "could not tell"}[point.slo_met]
    counts = f"{point.in_slo} of {point.offered} requests, goodput {point.goodput:.2f}/s"
    return f"SLO {slo.in_words}: {verdict}, {counts}"
