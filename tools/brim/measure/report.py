"""Reading perf_analyzer's own words: the CSV report, the lines on its console, and the request export.

Formats as written by release 2.60.0 (``-f``, ``--verbose-csv``, ``-v``, ``--profile-export-file``). CSV times are whole
microseconds under headings without a unit; a heading that names another unit is converted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brim.errors import CouldNotTell

US_PER_UNIT = {"ns": 1e-3, "us": 1.0, "usec": 1.0, "ms": 1e3, "msec": 1e3, "s": 1e6, "sec": 1e6}
SPLIT = {
    "client send": "client_send",
    "network+server send/recv": "network",
    "server queue": "server_queue",
    "server compute input": "server_compute_input",
    "server compute infer": "server_compute_infer",
    "server compute output": "server_compute_output",
    "client recv": "client_recv",
}
"""Columns with the mean share of a request's life, in the order in which it is lived."""
VALUE_COLUMNS = ("concurrency", "request rate")
NEVER_STABLE = "Failed to obtain stable measurement"


class UnreadableReport(CouldNotTell):
    """perf_analyzer wrote something that is not the format known here."""

    code = "unreadable_report"

    def __init__(self, message: str) -> None:
        """The way out is the same for each of them."""
        super().__init__(
            message, hint="the raw output is kept in the run folder; `brim doctor` names the version in use"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the report.

    Attributes:
        value: concurrency or request rate.
        throughput: inferences a second.
        latency_us: percentile -> client latency.
        split_us: mean share of a request's life at the client, in the network and in the server; keys of ``SPLIT``.
    """

    value: float
    throughput: float
    latency_us: dict[int, int]
    split_us: dict[str, int]


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement window as printed under ``-v``: throughput, and the watched percentile's latency."""

    throughput: float
    percentile: int
    latency_us: int


@dataclass(frozen=True, slots=True)
class Console:
    """What the console says beyond the report.

    Attributes:
        windows: every window, in order.
        stable: False when perf_analyzer gave up waiting for windows that agree.
        sent_rate: requests a second really sent, when it fell behind in rate mode.
        delayed_ratio: share of requests sent late, when it fell behind in rate mode.
        overhead_ratio: share of time in which the generator's threads were busy, in rate mode.
    """

    windows: tuple[Window, ...]
    stable: bool
    sent_rate: float | None
    delayed_ratio: float | None
    overhead_ratio: float | None


def parse_csv(text: str) -> list[Figures]:
    """Every row of a report, ordered by value: the file's own order (by throughput) and its column order do not matter.

    Raises:
        UnreadableReport: a needed column is missing or holds no number.
    """
    reader = csv.reader(io.StringIO(text.strip()))
    headings = [_heading(name) for name in next(reader, [])]
    names = [name for name, _ in headings]
    value_column = next((name for name in VALUE_COLUMNS if name in names), None)
    if value_column is None or "inferences/second" not in names:
        raise UnreadableReport(
            f"the report has columns {', '.join(names) or 'none'}; Concurrency or Request Rate, and Inferences/Second, "
            "were expected"
        )
    rows = []
    for cells in reader:
        if not any(cells):
            continue
        if len(cells) < len(headings):
            raise UnreadableReport(f"the report's row {','.join(cells)} has fewer cells than the heading")
        by_name = {name: (cell, unit) for (name, unit), cell in zip(headings, cells, strict=False)}
        rows.append(_figures(by_name, value_column))
    return sorted(rows, key=lambda row: row.value)


def parse_console(text: str) -> Console:
    """The windows and remarks on perf_analyzer's console (stdout and stderr together)."""
    windows = tuple(
        Window(float(found["throughput"]), int(found["percentile"]), _to_us(found["latency"], found["unit"]))
        for found in re.finditer(
            r"Pass \[\d+\] throughput: (?P<throughput>[\d.e+-]+) infer/sec\. "
            r"p(?P<percentile>\d+) latency: (?P<latency>[\d.e+]+) (?P<unit>\w+)",
            text,
        )
    )
    return Console(
        windows=windows,
        stable=NEVER_STABLE not in text,
        sent_rate=_number(r"Avg send request rate: ([\d.e+]+) infer/sec", text),
        delayed_ratio=_percent(r"([\d.e+-]+)% of the requests were delayed", text),
        overhead_ratio=_percent(r"Avg client overhead: ([\d.e+-]+)%", text),
    )


def parse_request_latencies(text: str) -> list[int]:
    """Client latency in microseconds of every exported request, from its sending to its last response.

    Raises:
        UnreadableReport: the export has another form.
    """
    try:
        return [
            round((max(request["response_timestamps"]) - request["timestamp"]) / 1_000)
            for experiment in json.loads(text)["experiments"]
            for request in experiment["requests"]
            if request["response_timestamps"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableReport(f"the request export has another form than expected: {error!r}") from error


def percentiles_us(latencies_us: Iterable[int], wanted: Sequence[float]) -> dict[float, int]:
    """Nearest-rank percentiles (0 < p <= 100): the smallest value with at least p percent of all at or below it."""
    ordered = sorted(latencies_us)
    return {p: ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] for p in wanted} if ordered else {}


def explanation(text: str) -> str:
    """What perf_analyzer itself says went wrong, without its usage text and repeats."""
    before_usage = text.split("==== SYNOPSIS ====")[0]
    # On a bad argument the usage comes first and the reason last.
    lines = [*before_usage.splitlines(), *(text.splitlines()[-3:] if "==== SYNOPSIS ====" in text else [])]
    telling = [line.strip() for line in lines if re.match(r"\s*(error|failed|thread \[|no valid|cannot)", line, re.I)]
    return "; ".join(dict.fromkeys(telling)) or " ".join(text.split())[-300:]


def _heading(name: str) -> tuple[str, str]:
    """A heading's name in lower case, and its unit: microseconds where it names none."""
    found = re.fullmatch(r"(.*?)\s*[(\[](\w+)[)\]]", name.strip())
    if found and found[2].lower() in US_PER_UNIT:
        return found[1].lower(), found[2].lower()
    return name.strip().lower(), "us"


def _figures(cells: dict[str, tuple[str, str]], value_column: str) -> Figures:
    try:
        latency_us = {
            int(found[1]): _to_us(cell, unit)
            for name, (cell, unit) in cells.items()
            if (found := re.fullmatch(r"p(\d+) latency", name))
        }
        return Figures(
            value=float(cells[value_column][0]),
            throughput=float(cells["inferences/second"][0]),
            latency_us=latency_us,
            split_us={key: _to_us(*cells[name]) for name, key in SPLIT.items() if name in cells},
        )
    except ValueError as error:
        raise UnreadableReport(f"the report holds no number where one belongs: {error}") from error


def _to_us(value: str, unit: str) -> int:
    if unit.lower() not in US_PER_UNIT:
        raise UnreadableReport(f"{value} {unit}: {', '.join(US_PER_UNIT)} are the units known here")
    return round(float(value) * US_PER_UNIT[unit.lower()])


def _number(pattern: str, text: str) -> float | None:
    found = re.findall(pattern, text)
    return float(found[-1]) if found else None


def _percent(pattern: str, text: str) -> float | None:
    number = _number(pattern, text)
    return None if number is None else number / 100
