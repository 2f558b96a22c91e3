"""The section of a language model under load: what callers waited for, what became of them, and what the server says of it."""

from __future__ import annotations

from collections.abc import Sequence

from brim.measure import plot
from brim.measure.plan import Mode
from brim.measure.text.perf_stream import StreamCheck
from brim.measure.text.plot import figure as drawing_of
from brim.measure.text.point import UNANSWERED, TextPoint
from brim.report.document import Figure, Picture, Section, Table
from brim.report.groups import MOST_OPEN, Origin
from brim.report.inline_svg import SVG_STYLE, inline_svg
from brim.report.words import command_text, conditions_of, in_a_line, milliseconds, number, percent

PARTS = (
    ("client's", "client"),
    ("sent late", "sent_late"),
    ("way and parsing", "turnaround"),
    ("queue", "queue"),
    ("prefill", "prefill"),
    ("delivery", "delivery"),
    ("server's", "server"),
)


def section(points: Sequence[TextPoint], checks: Sequence[StreamCheck]) -> Section:
    """Everything about the points, of which there is at least one."""
    figures = []
    for mode, name in ((Mode.CONCURRENCY, "closed"), (Mode.RATE, "open")):
        of_mode = list({point.key: point for point in points if point.mode is mode}.values())
        mixes = dict.fromkeys((point.model, point.mix, point.arrivals) for point in of_mode)
        for index, key in enumerate(mixes, start=1):
            members = [point for point in of_mode if (point.model, point.mix, point.arrivals) == key]
            figures += _of_curve(f"text-{name}-{index}", sorted(members, key=lambda point: point.value))
    if checks:
        figures.append(_checks(checks))
    return Section("text", "Text generation", tuple(_sentence(point) for point in points), tuple(figures))


def objective_of(point: TextPoint) -> str:
    """What a point was held against, in words."""
    return "none: nothing bounds TTFT or TPOT" if point.slo is None else point.slo.in_words


def _sentence(point: TextPoint) -> str:
    told = f"{point.model} at {point.load_text}: {number(point.output_tokens_per_s)} tokens/s"
    if point.slo is None:
        return f"{told}."
    verdict = {True: "met", False: "missed", None: "could not tell"}[point.slo_met]
    return f"{told}; {objective_of(point)}: {verdict}, {percent(point.goodput_ratio)} of the requests."


def _of_curve(name: str, points: Sequence[TextPoint]) -> list[Figure]:
    origin = Origin(command_text(points[0].provenance.command), in_a_line(conditions_of(points)))
    title = f"{points[0].model}, {points[0].mix}, {points[0].arrivals}"
    with plot.style(SVG_STYLE):
        drawn = drawing_of(points, title=title)
        drawn.set_gid(name)
        picture = Picture(inline_svg(drawn, name), f"Token times against load, {len(points)} loads")
    found = [
        Figure(f"Token times: {title}", *origin, picture=picture, table=_times(points), folded=len(points) > MOST_OPEN),
        Figure(f"What became of the requests: {title}", *origin, table=_outcomes(points)),
    ]
    known = [point for point in points if point.server is not None]
    if known:
        found += [
            Figure(
                f"Where the time to the first token goes: {title}",
                *origin,
                table=_parts(known),
                notes=(
                    "Mean milliseconds. The client's time is from when a request was due; the server's from submission to the "
                    "end of the step of the first token. Way and parsing is the time of requests that are refused while they "
                    "are read; delivery is what is left.",
                ),
            ),
            Figure(f"The server's side: {title}", *origin, table=_server(known)),
        ]
    return found


def _times(points: Sequence[TextPoint]) -> Table:
    head = ("load", "texts/s", "tokens/s", "goodput/s")
    names = ("ttft", "tpot", "itl", "e2e")
    columns = [(name, one) for name in names for one in ("50", "90", "99")]
    rows = tuple(
        (
            point.load_text,
            number(point.throughput, 2),
            number(point.output_tokens_per_s),
            number(point.goodput, 2),
            *(milliseconds(getattr(point, f"{name}_us").get(one)) for name, one in columns),
        )
        for point in points
    )
    return Table(
        (*head, *(f"{'end to end' if name == 'e2e' else name.upper()} p{one} ms" for name, one in columns)), rows
    )


def _outcomes(points: Sequence[TextPoint]) -> Table:
    head = ("load", "whose", "offered", "answered", "in SLO", *(kind.replace("_", " ") for kind in UNANSWERED))
    rows = []
    for point in points:
        for name, counts in (("all", point), *point.classes.items()):
            kinds = (str(getattr(counts, kind)) for kind in UNANSWERED)
            refused_by = ", ".join(f"{reason} {count}" for reason, count in counts.refused_by.items())
            rows.append(
                (
                    point.load_text,
                    name,
                    *map(str, (counts.offered, counts.answered, counts.in_slo)),
                    *kinds,
                    refused_by or "-",
                    milliseconds(counts.ttft_us.get("99")),
                )
            )
    return Table((*head, "refused by", "TTFT p99 ms"), tuple(rows), words=2)


def _parts(points: Sequence[TextPoint]) -> Table:
    rows = tuple((point.load_text, *(milliseconds(point.ttft_parts_us[key]) for _, key in PARTS)) for point in points)
    return Table(("load", *(name for name, _ in PARTS)), rows)


def _server(points: Sequence[TextPoint]) -> Table:
    head = ("load", "duty", "running", "fill", "waiting", "step ms", "tokens a step", "KV used", "most KV used")
    rows = []
    for point in points:
        server = point.server or {}
        asked, hit = server.get("prefix_asked_tokens"), server.get("prefix_hit_tokens")
        rows.append(
            (
                point.load_text,
                number(point.duty, 2),
                number(point.mean_batch),
                number(point.fill, 2),
                number(server.get("waiting")),
                milliseconds(server.get("step_us", {}).get("mean")),
                number(server.get("step_tokens")),
                percent(server.get("kv_usage")),
                percent(server.get("most_kv_usage")),
                "-" if not asked or hit is None else percent(hit / asked),
                "-" if server.get("preemptions") is None else str(server["preemptions"]),
            )
        )
    return Table((*head, "prefix hits", "preemptions"), tuple(rows))


def _checks(checks: Sequence[StreamCheck]) -> Figure:
    rows = tuple(
        (
            f"{check.value:g} callers",
            str(check.requests),
            number(check.responses_per_request),
            number(check.output_tokens_per_s),
            *(milliseconds(check.ttft_us.get(one)) for one in ("50", "99")),
            *(milliseconds(check.tpot_us.get(one)) for one in ("50", "99")),
            milliseconds(check.e2e_us.get("50")),
            milliseconds(check.reported_p50_us),
        )
        for check in checks
    )
    head = ("load", "texts", "responses each", "tokens/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms")
    return Figure(
        "The same loads by perf_analyzer's streaming callers",
        command_text(checks[0].command),
        f"perf_analyzer {checks[0].perf_analyzer}",
        table=Table((*head, "end to end p50 ms", "its own p50 ms"), rows),
        notes=(
            "Times are taken from its export by the same definitions. Its own latency is that of the last response.",
        ),
    )
