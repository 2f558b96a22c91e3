"""Choosing among measured points: the most throughput, or the least latency, of those that meet the limits; or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from brim.errors import InputError
from brim.units import us_to_ms

Of = TypeVar("Of")


class Aim(StrEnum):
    """What is wanted most, within the limits."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Point(Generic[Of]):
    """Something that was measured.

    Attributes:
        of: what: a concurrency, a setting.
        throughput_per_s: answers a second.
        latency_us: at the percentile of the objective.
    """

    of: Of
    throughput_per_s: float
    latency_us: int


@dataclass(frozen=True, slots=True)
class Choice(Generic[Of]):
    """The chosen point, or None with the one that came closest; and why."""

    point: Point[Of] | None
    closest: Point[Of]
    why: str


def choose(
    points: Sequence[Point[Of]],
    *,
    limit_us: int,
    least_per_s: float = 0.0,
    aim: Aim = Aim.THROUGHPUT,
    tie: float = 0.0,
    latency_tie: float = 0.0,
) -> Choice[Of]:
    """The best point within the limits; a value that equals its limit is within. The order of the points breaks no more
    than exact ties, so give the simplest first.

    Args:
        points: in any order.
        limit_us: most latency.
        least_per_s: least throughput.
        aim: what is wanted most. Where that ties, the other one decides.
        tie: throughputs that differ by no more than this part of the best count as equal.
        latency_tie: the same for latencies.

    Raises:
        InputError: there is no point.
    """
    if not points:
        raise InputError("no measured point to choose from", hint="measure one at least")
    fast = [point for point in points if point.latency_us <= limit_us]
    fit = [point for point in fast if point.throughput_per_s >= least_per_s]
    if not fast:
        closest = _fastest(points, latency_tie)[0]
        why = (
            f"none of {len(points)} points is within {us_to_ms(limit_us):g} ms; the closest takes "
            f"{us_to_ms(closest.latency_us):g} ms ({closest.of})"
        )
        return Choice(None, closest, why)
    if not fit:
        closest = max(fast, key=lambda point: point.throughput_per_s)
        why = (
            f"none of the {len(fast)} points within {us_to_ms(limit_us):g} ms gives {least_per_s:g} a second; the closest "
            f"gives {closest.throughput_per_s:g} ({closest.of})"
        )
        return Choice(None, closest, why)
    wanted = _fastest(_most(fit, tie), latency_tie) if aim is Aim.THROUGHPUT else _most(_fastest(fit, latency_tie), tie)
    best = wanted[0]
    why = (
        f"{best.throughput_per_s:.6g} a second at {us_to_ms(best.latency_us):g} ms ({best.of}), the best of {len(fit)} points "
        f"within {us_to_ms(limit_us):g} ms"
    )
    return Choice(best, best, why)


def _most(points: Sequence[Point[Of]], tie: float) -> list[Point[Of]]:
    best = max(point.throughput_per_s for point in points)
    return [point for point in points if point.throughput_per_s >= best * (1 - tie)]


def _fastest(points: Sequence[Point[Of]], tie: float) -> list[Point[Of]]:
    best = min(point.latency_us for point in points)
    return [point for point in points if point.latency_us <= best * (1 + tie)]
