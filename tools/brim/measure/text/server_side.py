"""What the server counted during a run: two readings of its metrics page, their difference, and looks in between.

Names are those of ``brim.engine.metrics``; where a server has none of ours (Triton's vLLM backend), those that both have.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

from brim.engine.lifecycle import End
from brim.engine.metrics import (
    ENDS,
    KV_USAGE,
    PREEMPTIONS,
    PREFIX_ASKED,
    PREFIX_HIT,
    REFUSALS,
    RUNNING,
    STEP_TIME,
    STEP_TOKENS,
    WAITING,
    Family,
    Kind,
)
from brim.measure.batch_stats import CountersWentBackwards
from brim.units import US_PER_S

PAGE_TIMEOUT_S = 10.0
LARGEST_PAGE = 16 * 1024**2
LINE = re.compile(r"([a-zA-Z_:][\w:]*)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SHARED_PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's numbers on the page at one moment, its processes added up.

    Attributes:
        values: of counters and gauges, and ``NAME_sum`` and ``NAME_count`` of histograms -> value, by name and the value of
            the family's own label.
        buckets: histogram -> upper bound -> observations up to it.
    """

    values: Mapping[tuple[str, str], float]
    buckets: Mapping[str, Mapping[float, float]]


def parse_page(text: str, model: str) -> Reading:
    """The page in Prometheus' text format."""
    values: dict[tuple[str, str], float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for found in map(LINE.fullmatch, text.splitlines()):
        if found is None:
            continue
        name, labels = found[1], dict(LABEL.findall(found[2]))
        if labels.get("model") != model:
            continue
        value = float(found[3])
        if "le" in labels:
            bounds = buckets.setdefault(name.removesuffix("_bucket"), {})
            bound = float(labels["le"])
            bounds[bound] = bounds.get(bound, 0.0) + value
        else:
            key = (name, labels.get("reason") or labels.get("end") or "")
            values[key] = values.get(key, 0.0) + value
    return Reading(values, buckets)


def read_page(address: str, model: str) -> Reading | None:
    """What the page at ``host:port`` says now; None when there is none."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PAGE_TIMEOUT_S) as page:
            return parse_page(page.read(LARGEST_PAGE).decode(errors="replace"), model)
    except (OSError, HTTPException, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Observed:
    """What a histogram got between two readings.

    Attributes:
        count: observations.
        mean_us: exact; None without any.
        buckets: upper bound in seconds -> observations in the bucket below it, in order.
    """

    count: int
    mean_us: float | None
    buckets: tuple[tuple[float, int], ...]

    def percentile_us(self, percent: float) -> int | None:
        """Upper bound of the bucket that holds the nearest rank; None without any, or above the last bound."""
        rank, seen = max(1.0, self.count * percent / 100), 0
        for bound, here in self.buckets:
            seen += here
            if here and seen >= rank:
                return None if bound == float("inf") else round(bound * US_PER_S)
        return None


@dataclass(slots=True)
class Looks:
    """Gauges that were looked at while the load ran."""

    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    kv_usage: list[float] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        """One more look."""
        for values, family in ((self.running, RUNNING), (self.waiting, WAITING), (self.kv_usage, KV_USAGE)):
            value = gauge(reading, family)
            if value is not None:
                values.append(value)


def is_idle(reading: Reading) -> bool:
    """Whether nothing runs and nothing waits, as far as the page says."""
    return not gauge(reading, RUNNING) and not gauge(reading, WAITING)


def gauge(reading: Reading, family: Family) -> float | None:
    """The value of a gauge, or of a counter, at this moment; None when the page has it under neither name."""
    return next((reading.values[name, ""] for name in names_of(family) if (name, "") in reading.values), None)


def texts_ended(reading: Reading) -> int | None:
    """Whole texts since the model's start; None when the page does not count them."""
    known = [reading.values.get((ENDS.name, end.value)) for end in (End.STOP, End.LENGTH)]
    return None if known == [None, None] else round(sum(value or 0.0 for value in known))


@dataclass(frozen=True, slots=True)
class Difference:
    """What happened between two readings of one server."""

    before: Reading
    after: Reading

    def counted(self, family: Family, label: str = "") -> int | None:
        """Of a counter; None when the page has it under neither name.

        Raises:
            CountersWentBackwards: the model was started anew in between.
        """
        for name in names_of(family):
            if (name, label) in self.after.values:
                return round(self._grown(name, label))
        return None

    def by_label(self, family: Family) -> dict[str, int]:
        """Of a counter with a label: its value -> count, those that happened."""
        name = family.name
        grown = {label: round(self._grown(name, label)) for one, label in self.after.values if one == name}
        return {label: count for label, count in grown.items() if count}

    def observed(self, family: Family) -> Observed | None:
        """Of a histogram of seconds; None when the page has it under neither name."""
        assert family.kind is Kind.HISTOGRAM
        for name in names_of(family):
            if (f"{name}_count", "") not in self.after.values:
                continue
            count, total = round(self._grown(f"{name}_count")), self._grown(f"{name}_sum")
            before, below, buckets = self.before.buckets.get(name, {}), 0, []
            for bound, value in sorted(self.after.buckets.get(name, {}).items()):
                upto = round(value - before.get(bound, 0.0))
                buckets.append((bound, upto - below))
                below = upto
            return Observed(count, total * US_PER_S / count if count else None, tuple(buckets))
        return None

    def _grown(self, name: str, label: str = "") -> float:
        grown = self.after.values.get((name, label), 0.0) - self.before.values.get((name, label), 0.0)
        if grown < -1e-9:
            raise CountersWentBackwards(
                f"{name} went back by {-grown:g} during the run",
                hint="the model was started anew: see the server's log, and measure again",
            )
        return max(0.0, grown)


@dataclass(frozen=True, slots=True)
class ServerSide:
    """One run, as the server counted it.

    Attributes:
        change: between the readings before and after.
        looks: in between.
        wall_us: from the first request until the last one had ended.
    """

    change: Difference
    looks: Looks
    wall_us: int

    @property
    def duty(self) -> float | None:
        """Share of the time in a step."""
        steps = self.change.observed(STEP_TIME)
        return None if steps is None else (steps.mean_us or 0.0) * steps.count / self.wall_us

    @property
    def mean_running(self) -> float | None:
        """Mean of the looks; None without one."""
        return _mean(self.looks.running)

    def figures(self) -> dict[str, object]:
        """What a point keeps beside duty and mean running sequences; None for what the page does not say."""
        change, steps = self.change, self.change.observed(STEP_TIME)
        step_tokens = change.observed(STEP_TOKENS)
        return {
            "prefix_asked_tokens": change.counted(PREFIX_ASKED),
            "prefix_hit_tokens": change.counted(PREFIX_HIT),
            "preemptions": change.counted(PREEMPTIONS),
            "refusals": change.by_label(REFUSALS),
            "ends": change.by_label(ENDS),
            "steps": None if steps is None else steps.count,
            "step_us": _spread(steps),
            "step_tokens": None
            if step_tokens is None or step_tokens.mean_us is None
            else step_tokens.mean_us / US_PER_S,
            "waiting": _mean(self.looks.waiting),
            "most_running": max(self.looks.running, default=None),
            "most_waiting": max(self.looks.waiting, default=None),
            "kv_usage": _mean(self.looks.kv_usage),
            "most_kv_usage": max(self.looks.kv_usage, default=None),
            "looks": len(self.looks.running),
        }


def _spread(observed: Observed | None) -> dict[str, int]:
    if observed is None or observed.mean_us is None:
        return {}
    bounds = {f"{p:g}": us for p in (50, 99) if (us := observed.percentile_us(p)) is not None}
    return {"mean": round(observed.mean_us), **bounds}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def names_of(family: Family) -> list[str]:
    """Ours, and the one that vLLM's own metrics have."""
    return [family.name, *(name for name, _ in family.aliases if name.startswith(SHARED_PREFIX))]
