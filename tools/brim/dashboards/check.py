"""The linter of dashboards: queries, units, words and variables. All findings at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import promql_parser as promql

from brim.dashboards.board import WINDOW, Board, Panel, Query, Shape, Unit
from brim.dashboards.known import Series
from brim.engine.metrics import Kind
from brim.findings import Finding, Severity

DEFINED = frozenset(("model", "datasource"))
BUILT_IN = frozenset(("__rate_interval",))
CHOSEN = "chosen-by-the-reader"
"""Put in the place of the chosen models, to see where they are asked for."""
QUOTED = re.compile(r'"[^"]*"')
IN_BRACKETS = re.compile(r"\[([^\]]*)\]")
RATES = frozenset(("rate", "increase", "irate"))
MOST_QUERIES = 8
VARIABLE = re.compile(r"\$\{?(\w+)\}?")
IN_LEGEND = re.compile(r"\{\{(\w+)\}\}")
UNITS = {re.compile(r"_us(_|:|$)"): Unit.MICROSECONDS, re.compile(r"_seconds(_|$)"): Unit.SECONDS}


def check(boards: Sequence[Board], known: Mapping[str, Series]) -> list[Finding]:
    """What is wrong with the boards; ``known`` are the series that exist."""
    found = list(_of_all(boards))
    for board in boards:
        titles = Counter(panel.title for panel in board.panels)
        found += [
            _finding("DSH010", board, title, "two panels have this title") for title, n in titles.items() if n > 1
        ]
        if board.models_of not in known:
            found.append(
                _finding("DSH002", board, "variable model", f"{board.models_of} is no series that anybody gives")
            )
        for panel in board.panels:
            found += [_finding(code, board, panel.title, *words) for code, *words in _of_panel(panel, known)]
    return found


def with_values(expression: str, *, model: str = ".*", window: str = "1m") -> str:
    """A query as Prometheus gets it, with a value for each variable."""
    return expression.replace(WINDOW, window).replace("$model", model)


def _of_all(boards: Sequence[Board]) -> Iterator[Finding]:
    for name, count in Counter(board.name for board in boards).items():
        if count > 1:
            yield Finding("DSH010", Severity.ERROR, name, 0, 0, f"{count} dashboards have this name", "name each apart")


Words = tuple[str, ...]
"""Code, message and, where there is one, hint."""


def _of_panel(panel: Panel, known: Mapping[str, Series]) -> Iterator[Words]:
    for what in ("title", "description"):
        if not getattr(panel, what).strip():
            yield "DSH008", f"it has no {what}", "say what it tells and what it hides"
    if not 1 <= len(panel.queries) <= MOST_QUERIES:
        yield "DSH011", f"it has {len(panel.queries)} queries, expected 1 to {MOST_QUERIES}"
    for query in panel.queries:
        yield from _of_query(query, panel, known)


def _of_query(query: Query, panel: Panel, known: Mapping[str, Series]) -> Iterator[Words]:
    text = query.expression
    unknown = {name for name in VARIABLE.findall(text) if name not in DEFINED | BUILT_IN}
    for name in sorted(unknown):
        yield "DSH009", f"{text}: the variable ${name} is defined nowhere", f"defined are {sorted(DEFINED)}"
    if not query.legend.strip():
        yield "DSH011", f"{text}: no legend, so its series could not be told apart"
    try:
        tree = promql.parse(with_values(text, model=CHOSEN))
    except ValueError as error:
        yield "DSH001", f"{text}: {error}", "Prometheus would not take it either"
        return
    selectors = list(_selectors(tree))
    for name, used in selectors:
        yield from _of_selector(text, name, used, known)
    labels = _labels_of(tree, known)
    for name in sorted(set(IN_LEGEND.findall(query.legend)) - labels):
        yield (
            "DSH003",
            f"{text}: the legend asks for {name}, which its series do not have",
            f"they have {sorted(labels)}",
        )
    for node, _ in _walk(tree):
        if type(node).__name__ == "VectorSelector" and "model" in _known_labels(node.name or "", known):
            asked = [one for one in node.matchers.matchers if one.name == "model"]
            if not any(one.op == promql.MatchOp.Re and one.value == CHOSEN for one in asked):
                yield (
                    "DSH009",
                    f"{text}: {node.name} has a model, and the reader's choice is not asked for",
                    'add model=~"$model"',
                )
    for window in IN_BRACKETS.findall(QUOTED.sub("", text)):
        if window != WINDOW:
            yield "DSH005", f"{text}: a window of {window}, whatever the interval of scrapes", f"write {WINDOW}"
    yield from _of_shape(text, tree, panel, known)


def _of_selector(text: str, name: str, used: set[str], known: Mapping[str, Series]) -> Iterator[Words]:
    if name not in known:
        yield (
            "DSH002",
            f"{text}: {name or 'a selector without a name'} is no series that anybody gives",
            "docs/metrics.md has them",
        )
        return
    for label in sorted(used - known[name].labels):
        yield "DSH003", f"{text}: {name} has no label {label}", f"it has {sorted(known[name].labels)}"


def _of_shape(text: str, tree: Any, panel: Panel, known: Mapping[str, Series]) -> Iterator[Words]:
    for node, above in _walk(tree):
        kind = type(node).__name__
        if kind == "VectorSelector" and node.name in known:
            rated = any(type(one).__name__ == "Call" and one.func.name in RATES for one in above)
            counts = known[node.name].kind is not Kind.GAUGE
            if counts and not rated:
                yield (
                    "DSH004",
                    f"{text}: {node.name} only grows, so what it is now says nothing",
                    f"rate({node.name}[{WINDOW}])",
                )
            if rated and not counts:
                yield "DSH004", f"{text}: {node.name} is no counter, and has no rate", "ask for it as it is"
        if kind == "Call" and node.func.name == "histogram_quantile" and not _sums_by_bound(node.args[1]):
            yield (
                "DSH006",
                f"{text}: a quantile of buckets that are not summed by (le)",
                "histogram_quantile(q, sum by (le) (rate(...)))",
            )
        if kind == "BinaryExpr" and str(node.op) == "/" and not _guarded(node.rhs):
            yield "DSH007", f"{text}: a division without a guard gives NaN where nothing happened", "a / (b > 0)"
    for ending, unit in UNITS.items():
        if panel.unit is not unit and any(ending.search(name) for name, _ in _selectors(tree)):
            yield (
                "DSH012",
                f"{text}: is in {unit}, and the panel says {panel.unit}",
                "the names of series end with their unit",
            )
    if panel.shape is Shape.HEATMAP and not re.search(r"_bucket\b", text):
        yield "DSH006", f"{text}: a heatmap needs the buckets of a histogram"


def _sums_by_bound(node: Any) -> bool:
    if type(node).__name__ == "ParenExpr":
        return _sums_by_bound(node.expr)
    if type(node).__name__ != "AggregateExpr" or str(node.op) != "sum" or node.modifier is None:
        return False
    return node.modifier.type == promql.AggModifierType.By and "le" in node.modifier.labels


def _guarded(node: Any) -> bool:
    """A number other than 0, or a comparison that leaves nothing but what is above 0."""
    kind = type(node).__name__
    if kind == "ParenExpr":
        return _guarded(node.expr)
    if kind == "NumberLiteral":
        return bool(node.val)
    if kind != "BinaryExpr" or str(node.op) != ">" or type(node.rhs).__name__ != "NumberLiteral":
        return False
    return node.rhs.val >= 0 and not (node.modifier is not None and node.modifier.return_bool)


def _children(node: Any) -> list[Any]:
    match type(node).__name__:
        case "AggregateExpr" | "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            return [node.expr]
        case "BinaryExpr":
            return [node.lhs, node.rhs]
        case "Call":
            return list(node.args)
        case "MatrixSelector":
            return [node.vector_selector]
    return []


def _walk(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    yield node, above
    for child in _children(node):
        yield from _walk(child, (*above, node))


def _selectors(tree: Any) -> Iterator[tuple[str, set[str]]]:
    """Each selector's name, with the labels that it, and what sums over it, ask for."""
    for node, above in _walk(tree):
        if type(node).__name__ != "VectorSelector":
            continue
        used = {matcher.name for matcher in node.matchers.matchers}
        for one in above:
            if type(one).__name__ == "AggregateExpr" and one.modifier is not None:
                used |= set(one.modifier.labels)
        yield node.name or "", used


def _known_labels(name: str, known: Mapping[str, Series]) -> frozenset[str]:
    return known[name].labels if name in known else frozenset()


def _labels_of(node: Any, known: Mapping[str, Series]) -> set[str]:
    """Labels that the answer may have."""
    match type(node).__name__:
        case "VectorSelector":
            return set(_known_labels(node.name or "", known))
        case "AggregateExpr":
            kept = set(node.modifier.labels) if node.modifier is not None else set()
            return kept & _labels_of(node.expr, known)
        case "BinaryExpr":
            left = _labels_of(node.lhs, known)
            return left | _labels_of(node.rhs, known) if str(node.op) == "or" else left or _labels_of(node.rhs, known)
    return {label for child in _children(node) for label in _labels_of(child, known)}


def _finding(code: str, board: Board, panel: str, message: str, hint: str = "") -> Finding:
    return Finding(code, Severity.ERROR, f"{board.name}: {panel}", 0, 0, message, hint)
