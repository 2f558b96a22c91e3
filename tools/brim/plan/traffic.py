"""Traffic of a fleet: its rate over time, and the replicas that are lost on the way.

The file that ``brim plan --trace FILE`` reads is JSON::

    {"points": [{"at_s": 0, "rate_per_s": 200}, {"at_s": 600, "rate_per_s": 900}],
     "losses": [{"at_s": 300, "replicas": 2}],
     "slow": [{"at_s": 60, "until_s": 120, "replicas": 1, "factor": 4}]}

The rate goes evenly from one point to the next; two points at one time are a jump. The last point ends the trace. ``losses``
and ``slow`` may be absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import InputError
from brim.findings import Finding, Severity

MOST_REPLICAS = 1_000
HIGHEST_RATE = 1_000_000.0
"""Requests a second of a fleet."""
LONGEST_S = 7 * 86_400
MOST_POINTS = 100_000
MOST_LOSSES = 1_000
MOST_SLOW = 4
SLOWEST = 1_000.0
LARGEST_FILE_BYTES = 20_000_000
MOST_FINDINGS = 30
NO_TRACE, BAD_POINT, BAD_LOSS, BAD_SLOW, NO_TRAFFIC = "TRACE001", "TRACE002", "TRACE003", "TRACE004", "TRACE005"
POINT: dict[str, float] = {"at_s": LONGEST_S, "rate_per_s": HIGHEST_RATE}
LOSS: dict[str, float] = {"at_s": LONGEST_S, "replicas": MOST_REPLICAS}
SLOW: dict[str, float] = {"at_s": LONGEST_S, "until_s": LONGEST_S, "replicas": MOST_REPLICAS, "factor": SLOWEST}
"""Keys of the entries, and the largest value of each."""
SHAPE_OF_FILE = '{"points": [{"at_s": 0, "rate_per_s": 200}, {"at_s": 600, "rate_per_s": 900}]}'

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Loss:
    """So many ready replicas end at once; what was in flight on them is lost."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Slow:
    """From ``at_s`` to ``until_s`` so many ready replicas take ``factor`` times as long for everything."""

    at_s: float
    until_s: float
    replicas: int
    factor: float


@dataclass(frozen=True)
class Traffic:
    """The rate over time.

    Attributes:
        name: for people.
        at_s: times of the points, from 0, never decreasing, the last above the first.
        rate_per_s: requests a second of the whole fleet at each.
        losses: in the order of time.
        slow: likewise.
    """

    name: str
    at_s: tuple[float, ...]
    rate_per_s: tuple[float, ...]
    losses: tuple[Loss, ...] = ()
    slow: tuple[Slow, ...] = ()

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.at_s[-1]

    @property
    def peak_per_s(self) -> float:
        """The highest rate."""
        return max(self.rate_per_s)

    @property
    def requests(self) -> float:
        """Requests that are expected in all."""
        return float(_integral(self, np.array([self.duration_s]))[0])

    def expected(self, edges_s: Floats) -> Floats:
        """Mean number of requests between each two successive times."""
        return np.diff(_integral(self, edges_s))

    def arrivals(self, edges_s: Floats, rng: np.random.Generator) -> Counts:
        """How many requests come between each two successive times: a Poisson process of this rate."""
        return rng.poisson(self.expected(edges_s)).astype(np.int64)


def _integral(traffic: Traffic, at_s: Floats) -> Floats:
    """Requests expected from 0 to each time: exact for straight lines between the points."""
    points_s, rates = np.array(traffic.at_s, np.float64), np.array(traffic.rate_per_s, np.float64)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(points_s) * (rates[:-1] + rates[1:]) / 2)])
    place = np.clip(np.searchsorted(points_s, at_s, "right") - 1, 0, len(points_s) - 2)
    begin_s, length_s = points_s[place], points_s[place + 1] - points_s[place]
    into_s = np.clip(at_s - begin_s, 0, length_s)
    rise = np.divide(rates[place + 1] - rates[place], length_s, out=np.zeros_like(length_s), where=length_s > 0)
    integral: Floats = passed[place] + into_s * (rates[place] + rise * into_s / 2)
    return integral


def read_traffic(path: Path) -> Traffic:
    """Read a trace file.

    Raises:
        InputError: it is no such file; every fault of it at once.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    found, findings = parse_traffic(data, str(path))
    if found is None:
        raise InputError(
            "\n".join(finding.render() for finding in findings), hint=f"the file looks like {SHAPE_OF_FILE}"
        )
    return found


def parse_traffic(data: bytes, file: str) -> tuple[Traffic | None, list[Finding]]:
    """The trace of a file's content, or everything that is wrong with it; ``MOST_FINDINGS`` findings at most."""

    def refused(code: str, *faults: str) -> tuple[None, list[Finding]]:
        return None, [Finding(code, Severity.ERROR, file, 0, 0, fault) for fault in faults[:MOST_FINDINGS]]

    if len(data) > LARGEST_FILE_BYTES:
        return refused(NO_TRACE, f"the file is larger than {LARGEST_FILE_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return refused(NO_TRACE, f"the file is no JSON: {error}")
    if not isinstance(document, dict):
        return refused(NO_TRACE, "the file holds no JSON object")
    lists: dict[str, list[dict[str, float]]] = {}
    findings: list[Finding] = []
    for name, least, most, code, limits in (
        ("points", 2, MOST_POINTS, BAD_POINT, POINT),
        ("losses", 0, MOST_LOSSES, BAD_LOSS, LOSS),
        ("slow", 0, MOST_SLOW, BAD_SLOW, SLOW),
    ):
        entries = document.get(name, [])
        if not isinstance(entries, list) or not least <= len(entries) <= most:
            findings += refused(NO_TRACE, f'"{name}" is no list of {least} to {most} entries')[1]
            continue
        lists[name], faults = _read(entries, name, limits)
        findings += refused(code, *faults, *_order_faults(lists[name], name))[1]
    points = lists.get("points", [])
    if points and not findings:
        end_s = points[-1]["at_s"]
        if points[0]["at_s"] != 0 or end_s == 0:
            begin_s = points[0]["at_s"]
            findings += refused(
                BAD_POINT, f"points go from {begin_s:g} s to {end_s:g} s; from 0 to a later time is expected"
            )[1]
        if not any(point["rate_per_s"] for point in points):
            findings += refused(NO_TRAFFIC, "every rate is 0: there is no traffic to plan for")[1]
        for name, code in (("losses", BAD_LOSS), ("slow", BAD_SLOW)):
            findings += refused(code, *_event_faults(lists[name], name, end_s))[1]
    if findings:
        return None, findings[:MOST_FINDINGS]
    return Traffic(
        Path(file).stem,
        tuple(point["at_s"] for point in points),
        tuple(point["rate_per_s"] for point in points),
        tuple(Loss(loss["at_s"], int(loss["replicas"])) for loss in lists["losses"]),
        tuple(Slow(one["at_s"], one["until_s"], int(one["replicas"]), one["factor"]) for one in lists["slow"]),
    ), []


def _read(entries: list[Any], where: str, limits: dict[str, float]) -> tuple[list[dict[str, float]], list[str]]:
    """The entries without fault, and the faults of the others."""
    read, faults = [], []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            faults.append(f"{where}[{place}] is {_shown(entry)}; an object is expected")
            continue
        wrong = [
            f"{where}[{place}].{name} is {_shown(entry[name]) if name in entry else 'missing'};"
            f" a number from 0 to {most:g} is expected"
            for name, most in limits.items()
            if not _in_range(entry.get(name), most)
        ]
        faults += wrong
        if not wrong:
            read.append({name: float(entry[name]) for name in limits})
    return read, faults


def _in_range(value: object, most: float) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= most
    )


def _order_faults(entries: list[dict[str, float]], where: str) -> Iterator[str]:
    for place in range(1, len(entries)):
        before_s, at_s = entries[place - 1]["at_s"], entries[place]["at_s"]
        if at_s < before_s:
            yield f"{where}: at_s {at_s:g} comes after {before_s:g}; times ascend"


def _event_faults(entries: list[dict[str, float]], where: str, end_s: float) -> Iterator[str]:
    for place, entry in enumerate(entries):
        if entry["at_s"] >= end_s:
            yield f"{where}[{place}].at_s is {entry['at_s']:g}; the trace ends at {end_s:g}"
        if entry["replicas"] < 1 or entry["replicas"] % 1:
            yield f"{where}[{place}].replicas is {entry['replicas']:g}; a whole number of 1 or more is expected"
        if entry.get("factor", 1) < 1:
            yield f"{where}[{place}].factor is {entry['factor']:g}; 1 or more is expected"
        if "until_s" in entry and entry["until_s"] <= entry["at_s"]:
            yield f"{where}[{place}].until_s is {entry['until_s']:g}; a time after {entry['at_s']:g} is expected"


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
