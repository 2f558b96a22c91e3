"""The section of ``brim bench overload``: what the gateway did with more than the model can answer, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from brim.measure import plot
from brim.report.document import Figure, Picture, Section, Table
from brim.report.groups import MOST_BRIEF
from brim.report.overload_result import COUNTED, Callers, Judged, Load, Overload
from brim.report.pictures import LOOKS
from brim.report.traces import Panel, Trace, drawn_along
from brim.report.words import figure_text, in_a_line, milliseconds, number, objective_text, of_a_benchmark, percent
from brim.units import us_to_ms

GOODPUT_RATIO = 0.95
"""Least goodput from twice the capacity on, over the best of all loads."""
REFUSAL_US = 20_000
"""Longest that a refusal may take at the 99th percentile, from sending."""
PERCENTILES = (50.0, 99.0)
AXIS = "offered load, in units of the capacity"
CLASSES = (
    *("offered", "callers", "sent", "in SLO", *(end.value for end in COUNTED), "other ends"),
    *("answers: p50 ms", "p99 ms", "refusals: p99 ms"),
)
IN_THE_LIST_ONLY = frozenset(["served", "seed", "load_average_before", "load_average_after"])
"""Conditions that are not repeated at each of the many figures."""
FROM_DUE = "Answers are charged from when each request was due, refusals from when it was sent."
NOBODY_NOTICES = "Over HTTP Triton does not notice that a caller has left (server issue 7077)."


def section(found: Overload) -> Section:
    """The verdict, then each part of the benchmark as measured, and the targets of each."""
    figures = [_goodput(found), _latencies(found)]
    if found.mixes:
        figures.append(_classes(found, "Two classes of callers", found.mixes))
    if found.bursts:
        figures.append(_bursts(found))
    if found.leaves:
        figures.append(_leaves(found))
    if found.leaving:
        figures.append(_classes(found, "Callers that leave, or bring a deadline", found.leaving))
    if found.costs:
        figures.append(_costs(found))
    figures += [_accounting(found), *_targets(found)]
    return Section("overload", "Overload", sentences(found), tuple(figures))


def sentences(found: Overload) -> tuple[str, ...]:
    """How many targets are met and which are not, the highest load, and where the driver was the limit."""
    held = [one for one in found.judged if one.verdict is not None]
    verdict = f"Overload: {sum(one.verdict == 'met' for one in held)} of {len(held)} targets are met."
    for word in ("missed", "unclear"):
        named = [f"{one.part}: {one.figure}" for one in held if one.verdict == word]
        verdict += f" {word.capitalize()}: {'; '.join(named)}." if named else ""
    limited = [load for load in (*found.loads, *found.mixes, *found.leaving) if load.limits]
    limits = (f"The load generator was the limit at {one.name}: {'; '.join(one.limits)}." for one in limited)
    return (verdict, _highest(found), *limits)


def _highest(found: Overload) -> str:
    load = max(found.loads, key=lambda one: one.factor)
    callers = _one_kind(load)
    best = f" ({percent(load.goodput_per_s / found.best_per_s)} of the best load's)" if found.best_per_s else ""
    words = (
        f"At {load.factor:g} times the capacity of {number(found.capacity_per_s)}/s, {number(load.goodput_per_s)}/s are "
        f"answered in time{best}, 99 of 100 answers within {milliseconds(callers.p99_us)} ms"
    )
    refused = callers.refusal_us(99)
    return f"{words}." if refused is None else f"{words}, 99 of 100 refusals within {milliseconds(refused)} ms."


def conditions_of(found: Overload) -> dict[str, object]:
    """Of the whole run, by name."""
    case = found.case
    closed = ", ".join(f"{number(rate)}/s with {callers} callers" for callers, rate in found.closed_per_s.items())
    return {
        "served": f"known batch time, {us_to_ms(case.tau0_us):.10g} ms + {us_to_ms(case.alpha_us):.10g} ms a row, "
        f"{case.max_rows} rows at most",
        "SLO under overload": objective_text(found.objective),
        "capacity": f"{number(found.capacity_per_s)}/s, from closed loops: {closed or 'none'}",
        "bound": f"{case.bound} in flight",
        "measured": found.measured_at or "-",
        "seed": found.seed,
        **of_a_benchmark(found.conditions),
    }


def _conditions(found: Overload) -> str:
    """What a figure needs to be understood; the page's own list has the rest."""
    return in_a_line({name: value for name, value in conditions_of(found).items() if name not in IN_THE_LIST_ONLY})


def _figure(
    found: Overload,
    title: str,
    head: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    notes: Sequence[str],
    *,
    words: int = 1,
    picture: Picture | None = None,
) -> Figure:
    """A table that is short enough for a summary is open on the page too: it is what the run was for."""
    table = Table(head, rows, words=words, brief=len(rows) <= MOST_BRIEF)
    return Figure(title, found.typed, _conditions(found), picture, table, tuple(notes), folded=not table.brief)


def _drawn(found: Overload, name: str, panels: Sequence[Panel]) -> Picture:
    """Panels along the offered load, whose traces have a value for each load of ``_ascending``."""
    factors = [load.factor for load in _ascending(found)]
    titles = " and ".join(panel.title for panel in panels)
    scale = partial(plot.scale_loads, loads=sorted(set(factors)))
    shows = f"{titles} at {len(factors)} offered loads"
    return drawn_along(name, factors, panels, axis=AXIS, scale=scale, shows=shows)


def _ascending(found: Overload) -> list[Load]:
    return sorted(found.loads, key=lambda load: load.factor)


def _one_kind(load: Load) -> Callers:
    return next(iter(load.groups.values()))


def _goodput(found: Overload) -> Figure:
    loads, best = _ascending(found), found.best_per_s
    head = (
        *("offered", "sent", "goodput /s", "of the best", "answered /s", "in SLO"),
        *(end.value for end in COUNTED),
        "most in flight",
    )
    rows = tuple(
        (
            load.name,
            str(load.sent),
            number(load.goodput_per_s),
            percent(load.goodput_per_s / best if best else None),
            number(load.answered_per_s),
            str(sum(one.in_slo for one in load.groups.values())),
            *(str(load.count(end)) for end in COUNTED),
            str(load.most_in_flight),
        )
        for load in loads
    )
    panels = [
        Panel(
            "Goodput and answers",
            "requests/s",
            [
                Trace("answered in time: goodput", LOOKS[0], [load.goodput_per_s for load in loads]),
                Trace("answered, late ones too", LOOKS[4], [load.answered_per_s for load in loads]),
            ],
            mark=(f"{GOODPUT_RATIO:g} of the best goodput: the target from 2 on", GOODPUT_RATIO * best),
        ),
        Panel(
            "Most requests in flight at once",
            "requests",
            [
                Trace("in flight behind the gateway", LOOKS[2], [load.most_in_flight for load in loads]),
                Trace("of them waiting for a batch", LOOKS[3], [load.most_waiting for load in loads]),
            ],
            mark=("the gateway's bound", found.case.bound),
        ),
    ]
    notes = (
        "Goodput is answers within the SLO over the time from the first request to the last answer; answered counts late "
        "answers too.",
    )
    return _figure(
        found,
        "Goodput and answers against offered load",
        head,
        rows,
        notes,
        picture=_drawn(found, "overload-goodput", panels),
    )


def _latencies(found: Overload) -> Figure:
    loads = _ascending(found)
    callers = [_one_kind(load) for load in loads]
    head = (
        *("offered", "answers", "p50 ms", "p99 ms"),
        *("refusals", "p50 ms until refused", "p99 ms until refused", "p99 ms since due"),
    )
    rows = tuple(
        (
            load.name,
            str(one.answered),
            milliseconds(one.p50_us),
            milliseconds(one.p99_us),
            str(one.refused),
            *(milliseconds(one.refusal_us(percentile)) for percentile in PERCENTILES),
            milliseconds(one.reject_p99_us),
        )
        for load, one in zip(loads, callers, strict=True)
    )

    def ms(values: Sequence[int | None]) -> list[float | None]:
        return [None if value is None else us_to_ms(value) for value in values]

    panels = [
        Panel(
            "Latency of answers",
            "ms since due",
            [
                Trace("answers, p50", LOOKS[0], ms([one.p50_us for one in callers])),
                Trace("answers, p99", LOOKS[1], ms([one.p99_us for one in callers])),
            ],
            mark=("the SLO's latency", us_to_ms(found.case.slo_us)),
        ),
        Panel(
            "Latency of refusals",
            "ms since sent",
            [
                Trace("refusals, p50", LOOKS[2], ms([one.refusal_us(50) for one in callers])),
                Trace("refusals, p99", LOOKS[3], ms([one.refusal_us(99) for one in callers])),
            ],
            mark=("the target of refusals, p99", us_to_ms(REFUSAL_US)),
        ),
    ]
    notes = (FROM_DUE, "The difference of the last two columns is the load generator's: it sent late.")
    return _figure(
        found,
        "Latency of answers and of refusals",
        head,
        rows,
        notes,
        picture=_drawn(found, "overload-latency", panels),
    )


def _classes(found: Overload, title: str, loads: Sequence[Load]) -> Figure:
    rows = tuple(
        (
            load.name,
            name,
            str(one.sent),
            str(one.in_slo),
            *(str(getattr(one, end.value)) for end in COUNTED),
            str(one.failed + one.timed_out),
            milliseconds(one.p50_us),
            milliseconds(one.p99_us),
            milliseconds(one.refusal_us(99)),
        )
        for load in loads
        for name, one in load.groups.items()
    )
    return _figure(found, title, CLASSES, rows, (FROM_DUE,), words=2)


def _bursts(found: Overload) -> Figure:
    head = (
        *("round", "sent at once", "answered", "in SLO", "refused", "rows executed", "most in flight"),
        *("last answer ms", "last refusal ms", "last health answer ms", "refusals / health"),
        *("a lone request before, ms", "right after, ms"),
    )
    rows = tuple(
        (
            str(number_),
            *(str(count) for count in (one.requests, one.answered, one.in_slo, one.refused)),
            *(str(count) for count in (one.executed, one.most_in_flight)),
            *(milliseconds(us) for us in (one.last_answer_us, one.last_refusal_us, one.health_us)),
            number(None if one.last_refusal_us is None else one.last_refusal_us / one.health_us, 2),
            *(milliseconds(us) for us in (one.lone_before_us, one.lone_after_us)),
        )
        for number_, one in enumerate(found.bursts, start=1)
    )
    notes = ("The rows of the two lone requests are among those executed.",)
    return _figure(found, "Bursts onto an idle server", head, rows, notes)


def _leaves(found: Overload) -> Figure:
    head = (
        *("protocol", "left while a batch ran", "callers that left", "executed for nobody", "cancelled"),
        *("places free after, ms", "new callers", "of them refused", "most in flight"),
    )
    rows = tuple(
        (
            one.protocol,
            "yes" if one.queued else "no: tells nothing",
            *(str(count) for count in (one.leavers, one.executed_for_nobody, one.cancelled)),
            milliseconds(one.freed_us),
            *(str(count) for count in (one.newcomers, one.newcomers_refused, one.most_in_flight)),
        )
        for one in found.leaves
    )
    return _figure(found, "Callers that disconnect in the queue", head, rows, (NOBODY_NOTICES,), words=2)


def _costs(found: Overload) -> Figure:
    head = (
        *("protocol", "p50 without, us", "p50 with, us", "added, us"),
        *("answers/s without", "answers/s with", "with / without"),
    )
    rows = tuple(
        (
            one.protocol,
            *(str(us) for us in (one.direct_p50_us, one.gateway_p50_us, one.gateway_p50_us - one.direct_p50_us)),
            *(number(per_s) for per_s in (one.direct_per_s, one.gateway_per_s)),
            number(one.gateway_per_s / one.direct_per_s, 3),
        )
        for one in sorted(found.costs, key=lambda one: one.protocol)
    )
    notes = (
        "The latency is a lone caller's, the throughput that of many; a row is one round. Nothing is judged here.",
    )
    return _figure(found, "Cost of the gateway", head, rows, notes)


def _accounting(found: Overload) -> Figure:
    first, *others = COUNTED
    head = (
        *("offered", "callers", "adds up", "sent", f"= {first.value}", *(f"+ {end.value}" for end in others)),
        *("the same ends by the gateway", "rows executed"),
    )
    rows = tuple(
        (
            load.name,
            ", ".join(load.groups),
            _adds_up(load),
            str(load.sent),
            *(str(load.count(end)) for end in COUNTED),
            " + ".join(str(load.counted(end)) for end in COUNTED),
            str(load.executed),
        )
        for load in (*found.loads, *found.mixes, *found.leaving)
    )
    notes = (
        "sent = answered + refused + expired + cancelled, by the driver; the gateway and the model count by themselves. A caller "
        "that leaves in the moment of its answer is a leaver to the driver and an answer to the gateway.",
    )
    return _figure(found, "Every request accounted for", head, rows, notes, words=3)


def _adds_up(load: Load) -> str:
    by_gateway = sum(load.gateway.values())
    wrong = [f"{load.unlike} with other ends"] if load.unlike else []
    wrong += [f"{by_gateway} by the gateway"] if by_gateway != load.sent else []
    return f"no: {', '.join(wrong)}" if wrong else "yes"


def _targets(found: Overload) -> list[Figure]:
    parts: dict[str, list[Judged]] = {}
    for one in found.judged:
        parts.setdefault(one.part, []).append(one)
    others = found.conditions.get("other_cores")
    used = f" (here {others:.2f} cores)" if isinstance(others, int | float) else ""
    notes = (
        "Counts hold or they do not. A miss of speed is unclear where the load generator was at its limit, and on a machine "
        f"that others used{used}.",
    )
    head = ("figure", "verdict", "target", "remark", "measured")
    return [
        _figure(
            found,
            f"{'Targets' if any(one.verdict for one in judged) else 'Without a target'}: {part}",
            head,
            tuple(
                (one.figure, one.verdict or "-", one.target or "none", one.note or "-", figure_text(one.value))
                for one in judged
            ),
            notes if any(one.verdict for one in judged) else (),
            words=4,
        )
        for part, judged in parts.items()
    ]
