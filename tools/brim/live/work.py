"""What a model did on one server between two looks, in a form that adds up over time and over servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from brim.engine.metrics import ENDS, RUNNING
from brim.live.buckets import grows
from brim.live.seen import COUNTERS, GAUGES, HISTOGRAMS, PENDING, SeenServer
from brim.measure.batch_stats import (
    NOTHING,
    Counters,
    CountersWentBackwards,
    UnreadableStatistics,
    counted,
    parse_every_model,
    parse_failures,
    total,
)
from brim.measure.text.server_side import Difference, Reading, gauge, names_of, parse_page

EMPTY = Reading({}, {})


@dataclass(frozen=True, slots=True)
class Known:
    """One model on one server, since its start and now.

    Attributes:
        taken_us: when it was looked at.
        versions: version -> its totals.
        instances: of each version.
        failures: reason -> failed requests; None without a metrics page.
        waiting: requests that wait for a batch, or for a seat; None where nobody says.
        text: a language model's own figures; None of others.
    """

    taken_us: int
    versions: Mapping[str, Counters]
    instances: int
    failures: Mapping[str, int] | None
    waiting: int | None
    text: Reading | None


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in a stretch of time.

    Attributes:
        wall_us: its length.
        capacity_us: the same times the instances that there were.
        counters: Triton's.
        failures: reason -> failed requests; None without a metrics page.
        text: what a language model's counters and histograms grew by; None of others.
        restarted: whether counters began anew in it; what came before, since the look before, is not known then.
    """

    wall_us: int
    capacity_us: int
    counters: Counters
    failures: Mapping[str, int] | None
    text: Reading | None
    restarted: bool = False

    @property
    def of_text(self) -> Difference | None:
        """The text figures as ``brim.measure.text.server_side`` reads them."""
        return None if self.text is None else Difference(EMPTY, self.text)


def known(server: SeenServer) -> dict[str, Known]:
    """Every model that a server has loaded.

    Raises:
        UnreadableStatistics: its statistics or its metrics page have another form than Triton's.
    """
    page = None if server.page is None else "\n".join(server.page)
    try:
        return {
            model: _known(server, model, versions, page)
            for model, versions in sorted(parse_every_model(server.statistics).items())
        }
    except (ValueError, OverflowError) as error:
        raise UnreadableStatistics(
            f"the metrics page has another form than Triton's: {error}", hint="is it the right address?"
        ) from error


def _known(server: SeenServer, model: str, versions: Mapping[str, Counters], page: str | None) -> Known:
    if page is None:
        return Known(server.taken_us, versions, server.instances.get(model, 1), None, None, None)
    reading = parse_page(page, model)
    is_text = gauge(reading, RUNNING) is not None
    waiting = gauge(reading, GAUGES[0]) if is_text else reading.values.get((PENDING, ""))
    return Known(
        server.taken_us,
        versions,
        server.instances.get(model, 1),
        parse_failures(page, model),
        None if waiting is None else round(waiting),
        reading if is_text else None,
    )


def between(before: Known, after: Known) -> Work:
    """What was done between two looks at one server. A counter that fell began anew: what it has since then counts."""
    parts, restarted = [], False
    for version, counters in after.versions.items():
        try:
            parts.append(counted(version, before.versions.get(version, NOTHING), counters))
        except CountersWentBackwards:
            parts.append(counters)
            restarted = True
    wall_us = max(0, after.taken_us - before.taken_us)
    text, text_restarted = _grown(before.text, after.text)
    return Work(
        wall_us,
        wall_us * after.instances * max(1, len(after.versions)),
        total(parts),
        _failed(before.failures, after.failures),
        text,
        restarted or text_restarted,
    )


def loaded_since(after: Known, wall_us: int) -> Work:
    """What a model did that was not there at the look before, on a server that was."""
    nothing = Known(after.taken_us - wall_us, {}, after.instances, {}, None, EMPTY)
    return between(nothing, after)


def one_after_the_other(parts: Iterable[Work]) -> Work:
    """What one server did in all of these stretches."""
    works = list(parts)
    return _added(works, sum(work.wall_us for work in works))


def side_by_side(parts: Iterable[Work]) -> Work:
    """What several servers did at the same time."""
    works = list(parts)
    return _added(works, max((work.wall_us for work in works), default=0))


def _added(works: list[Work], wall_us: int) -> Work:
    failures = [work.failures for work in works if work.failures is not None]
    texts = [work.text for work in works if work.text is not None]
    return Work(
        wall_us,
        sum(work.capacity_us for work in works),
        total(work.counters for work in works),
        _sum(failures) if failures else None,
        _summed(texts) if texts else None,
        any(work.restarted for work in works),
    )


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    return dict(found)


def _failed(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, int] | None:
    if before is None or after is None:
        # Without a page before, it is not known since when these are.
        return None
    if any(after.get(reason, 0) < count for reason, count in before.items()):
        return dict(after)
    return {reason: count - before.get(reason, 0) for reason, count in after.items()}


def _grown(before: Reading | None, after: Reading | None) -> tuple[Reading | None, bool]:
    """What counters and histograms grew by, and whether they began anew. Gauges are left out."""
    if before is None or after is None:
        return None, False
    of_histograms = [name for family in HISTOGRAMS for name in names_of(family)]
    names = {name for family in COUNTERS for name in names_of(family)}
    names |= {f"{name}{end}" for name in of_histograms for end in ("_sum", "_count")}
    since_start = Reading(
        {key: value for key, value in after.values.items() if key[0] in names},
        {name: after.buckets[name] for name in of_histograms if name in after.buckets},
    )
    grown = Reading(
        {key: value - before.values.get(key, 0.0) for key, value in since_start.values.items()},
        {
            name: {bound: count - before.buckets.get(name, {}).get(bound, 0.0) for bound, count in bounds.items()}
            for name, bounds in since_start.buckets.items()
        },
    )
    fell = any(value < 0 for value in grown.values.values())
    if fell or not all(_is_whole(grown, name) for name in grown.buckets):
        return since_start, True
    return grown, False


def _is_whole(grown: Reading, name: str) -> bool:
    """Whether a histogram's buckets grew together, and with its count."""
    upto = grown.buckets[name]
    return grows(upto) and max(upto.values(), default=0.0) == grown.values.get((f"{name}_count", ""), 0.0)


def _summed(texts: Iterable[Reading]) -> Reading:
    values: dict[tuple[str, str], float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for text in texts:
        for key, value in text.values.items():
            values[key] = values.get(key, 0.0) + value
        for name, bounds in text.buckets.items():
            mine = buckets.setdefault(name, {})
            for bound, count in bounds.items():
                mine[bound] = mine.get(bound, 0.0) + count
    return Reading(values, buckets)


def ended_by_end(work: Work) -> dict[str, int]:
    """How a language model's requests ended; empty of others."""
    return {} if work.of_text is None else work.of_text.by_label(ENDS)
