"""tau(b): how long a batch of b rows takes.

The file of measured points (``brim simulate --tau FILE``) is JSON::

    {"points": [{"rows": 1, "time_us": 5200}, {"rows": 100, "time_us": 15100, "stderr_us": 40, "runs": 200}]}

``rows`` is the batch size, ``time_us`` the mean time of such a batch; ``stderr_us`` (the standard error of that mean) and
``runs`` (how many batches it is the mean of) are optional and weigh the points. Other keys are left alone.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from brim.errors import InputError
from brim.findings import Finding, Severity
from brim.limits import BATCH_LIMIT
from brim.units import US_PER_S

LONGEST_US = 3600 * US_PER_S
"""Longest batch that can be simulated."""
LARGEST_FILE_BYTES = 1_000_000
MOST_FINDINGS = 30
CHUNK = 4096
"""Random factors that are drawn at a time."""

NO_POINTS, BAD_POINT, BAD_VALUE, TWICE = "TAU001", "TAU002", "TAU003", "TAU004"


class BatchTime(Protocol):
    """The mean time of a batch."""

    def time_us(self, rows: int) -> int:
        """Time of a batch of ``rows`` rows, 1 at least; at least 1 and never less for more rows."""


@dataclass(frozen=True, slots=True)
class AffineBatchTime:
    """tau(b) = tau0 + alpha * b.

    Attributes:
        tau0_us: what every batch costs, 0 or more.
        alpha_us: what every row costs on top, 0 or more; a fraction of a microsecond counts.
    """

    tau0_us: float
    alpha_us: float

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            InputError: a value is negative, not finite or too large, or both are 0.
        """
        faults = [
            f"{name} is {value}; a time of 0 to {LONGEST_US} us is expected"
            for name, value in (("tau0_us", self.tau0_us), ("alpha_us", self.alpha_us))
            if not 0 <= value <= LONGEST_US
        ]
        if not faults and self.tau0_us == self.alpha_us == 0:
            faults = ["tau0_us and alpha_us are both 0: a batch takes some time"]
        if faults:
            raise InputError("; ".join(faults), hint="tau(b) = tau0 + alpha * b, both in microseconds")

    def time_us(self, rows: int) -> int:
        """Rounded to the nearest microsecond, 1 at least."""
        return max(1, round(self.tau0_us + self.alpha_us * rows))


@dataclass(frozen=True, slots=True)
class Point:
    """A measured batch size.

    Attributes:
        rows: the batch size.
        time_us: mean time of such a batch.
        stderr_us: standard error of that mean; None when it is not known.
        runs: batches that it is the mean of; None when it is not known.
    """

    rows: int
    time_us: float
    stderr_us: float | None = None
    runs: int | None = None


class MeasuredBatchTime:
    """Piecewise linear through measured points, and monotone.

    Where a larger batch was measured as faster than a smaller one, the two are noise about one value: neighbours are
    pooled to their weighted mean until times rise with rows (isotonic regression, pool adjacent violators). Weights are
    ``runs`` when every point has them, else 1 / ``stderr_us`` squared when every point has that, else equal. Below the
    first point its time holds; beyond the last one the line through the last two goes on.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        """Take at least one point, each batch size once, in any order.

        Raises:
            InputError: there is no point, or a batch size comes twice.
        """
        self.points = tuple(sorted(points, key=lambda point: point.rows))
        self._rows = [point.rows for point in self.points]
        if not self.points or len(set(self._rows)) < len(self._rows):
            raise InputError(
                f"batch sizes measured: {self._rows}; at least one is needed, and each once",
                hint='{"points": [{"rows": 1, "time_us": 5200}, {"rows": 100, "time_us": 15100}]}',
            )
        self._times = pool_adjacent_violators([point.time_us for point in self.points], _weights(self.points))

    def time_us(self, rows: int) -> int:
        """Interpolated and rounded to the nearest microsecond, 1 at least."""
        place = bisect_left(self._rows, rows)
        if place == 0 or len(self._rows) == 1:
            return max(1, round(self._times[0]))
        place = min(place, len(self._rows) - 1)
        (left, right), (low, high) = self._rows[place - 1 : place + 1], self._times[place - 1 : place + 1]
        return max(1, round(low + (high - low) * (rows - left) / (right - left)))


@dataclass(frozen=True, slots=True)
class SlowedBatchTime:
    """Another tau, so many times as long.

    Attributes:
        of: the other.
        factor: 1 or more.
    """

    of: BatchTime
    factor: float

    def time_us(self, rows: int) -> int:
        """Rounded to the nearest microsecond."""
        return round(self.of.time_us(rows) * self.factor)


def _weights(points: Sequence[Point]) -> list[float]:
    if all(point.runs for point in points):
        return [float(point.runs or 0) for point in points]
    if all(point.stderr_us for point in points):
        return [1 / (point.stderr_us or 1) ** 2 for point in points]
    return [1.0] * len(points)


def pool_adjacent_violators(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest sequence, by weighted squares, that never falls.

    Neighbours that fall are replaced by their weighted mean until none do (Ayer et al. 1955, The Annals of Mathematical
    Statistics 26(4)).
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            earlier, its_weight, its_count = pools.pop()
            value = (earlier * its_weight + value * weight) / (its_weight + weight)
            weight, count = its_weight + weight, its_count + count
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]


def read_batch_time(path: Path) -> MeasuredBatchTime:
    """Read a file of measured points.

    Raises:
        InputError: it is no such file; every fault of it at once.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    points, findings = parse_batch_time(data, str(path))
    if findings:
        raise InputError(
            "\n".join(finding.render() for finding in findings),
            hint='the file looks like {"points": [{"rows": 1, "time_us": 5200}, {"rows": 100, "time_us": 15100}]}',
        )
    return MeasuredBatchTime(points)


def parse_batch_time(data: bytes, file: str) -> tuple[list[Point], list[Finding]]:
    """The points of a file's content, and everything that is wrong with it; ``MOST_FINDINGS`` findings at most."""

    def finding(code: str, message: str) -> Finding:
        return Finding(code, Severity.ERROR, file, 0, 0, message)

    if len(data) > LARGEST_FILE_BYTES:
        return [], [finding(NO_POINTS, f"the file is larger than {LARGEST_FILE_BYTES} bytes")]
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return [], [finding(NO_POINTS, f"the file is no JSON: {error}")]
    entries = document.get("points") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        return [], [finding(NO_POINTS, '"points" is no list, or an empty one; measured batch sizes are expected')]
    points: list[Point] = []
    findings: list[Finding] = []
    for place, entry in enumerate(entries):
        where = f"points[{place}]"
        if not isinstance(entry, dict):
            findings.append(finding(BAD_POINT, f"{where} is {_shown(entry)}; an object is expected"))
            continue
        faults = list(_faults(entry, where))
        findings += [finding(BAD_VALUE, fault) for fault in faults]
        if faults:
            continue
        point = Point(entry["rows"], entry["time_us"], entry.get("stderr_us"), entry.get("runs"))
        if point.rows in {earlier.rows for earlier in points}:
            findings.append(finding(TWICE, f"{where}.rows is {point.rows}, as in an earlier point"))
            continue
        points.append(point)
    return points, findings[:MOST_FINDINGS]


def _faults(entry: dict[str, Any], where: str) -> Iterator[str]:
    for name, required, whole, least, most in (
        ("rows", True, True, 1, BATCH_LIMIT),
        ("time_us", True, False, 0, LONGEST_US),
        ("stderr_us", False, False, 0, LONGEST_US),
        ("runs", False, True, 1, None),
    ):
        value = entry.get(name)
        expected = "a whole number" if whole else "a number"
        expected += f" of at least {least}" if most is None else f" from {least} to {most}"
        if value is None:
            if required:
                yield f"{where}.{name} is missing; {expected} is expected"
        elif (
            isinstance(value, bool)
            or not isinstance(value, int if whole else int | float)
            or not math.isfinite(value)
            or value < least
            or (most is not None and value > most)
            or (name == "time_us" and value == 0)
        ):
            yield f"{where}.{name} is {_shown(value)}; {expected} is expected"


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def time_table(batch_time: BatchTime, max_rows: int) -> list[int]:
    """tau(b) for b = 0..max_rows; entry 0 has no meaning."""
    return [0, *(batch_time.time_us(rows) for rows in range(1, max_rows + 1))]


def jitter_factors(sigma: float, rng: np.random.Generator) -> Iterator[float]:
    """Endless lognormal factors of mean 1 for the times of successive batches.

    Args:
        sigma: standard deviation of the logarithm, above 0.
        rng: the only source of chance.
    """
    while True:
        yield from rng.lognormal(-sigma * sigma / 2, sigma, CHUNK).tolist()
