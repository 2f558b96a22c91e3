"""What became of requests at the gateway, from Envoy's page for Prometheus (``brim.gateway.counters``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isinf

from brim.gateway.clusters import cluster_name
from brim.gateway.outcomes import DURATION, NONE, REQUESTS, STREAM_REQUESTS, Ended, ended, stream_ended
from brim.live.buckets import grows
from brim.measure.text.server_side import LABEL, LINE, Observed
from brim.units import US_PER_MS, US_PER_S

BUCKETS = f"{DURATION}_bucket"
IN_FLIGHT, CLUSTER = "envoy_cluster_upstream_rq_active", "envoy_cluster_name"
NAMES = frozenset({REQUESTS, STREAM_REQUESTS, BUCKETS, IN_FLIGHT})
CLUSTER_OF_MODEL = cluster_name("")
MISSED = frozenset({Ended.REFUSED, Ended.EXPIRED, Ended.FAILED})
"""What counts against the service. A caller's own error does not, nor that it left."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests of one model that have ended, since the gateway's start or between two looks.

    Attributes:
        counts: (class, outcome, reason) -> requests. The reason is empty where there is none.
        answers: upper bound of a time in seconds -> answers within it. Envoy adds times up now and then (ours every
            second, as ``brim.gateway.counters`` says, others every five), so that they lag behind ``counts``.
        others: requests of which the time is known, and which got no answer through no fault of their callers.
    """

    counts: Mapping[tuple[str, Ended, str], int] = field(default_factory=dict)
    answers: Mapping[float, int] = field(default_factory=dict)
    others: int = 0

    def of(self, outcome: Ended) -> int:
        """Requests that ended like that."""
        return sum(count for (_, found, _), count in self.counts.items() if found is outcome)

    @property
    def timed(self) -> int:
        """Requests that the objective is for and whose time is known, answers and others."""
        return self.answers.get(float("inf"), 0) + self.others

    @property
    def latencies(self) -> Observed:
        """Times of the answers."""
        below, buckets = 0, []
        for bound, upto in sorted(self.answers.items()):
            buckets.append((bound, max(0, upto - below)))
            below = upto
        return Observed(below, None, tuple(buckets))

    def in_time(self, latency_us: int) -> tuple[int, int]:
        """Fewest and most answers within a latency: the same number where it is one of Envoy's bounds."""
        upto = {
            bound if isinf(bound) else round(bound * US_PER_S): self.answers[bound] for bound in sorted(self.answers)
        }
        at_least = [count for bound_us, count in upto.items() if bound_us <= latency_us]
        at_most = [count for bound_us, count in upto.items() if bound_us >= latency_us]
        return (at_least[-1] if at_least else 0), (at_most[0] if at_most else 0)


NONE_ENDED = Tally()


def parse_gateway(lines: Iterable[str]) -> tuple[dict[str, Tally], dict[str, int]]:
    """Since the gateway's start: model -> what ended; model -> in flight now. Other lines are passed over."""
    counts: dict[str, Counter[tuple[str, Ended, str]]] = {}
    answers: dict[str, Counter[float]] = {}
    others: Counter[str] = Counter()
    in_flight: dict[str, int] = {}
    for line in lines:
        if line.partition("{")[0] not in NAMES or (found := LINE.fullmatch(line)) is None:
            continue
        name, labels, value = found[1], dict(LABEL.findall(found[2])), round(float(found[3]))
        if name == IN_FLIGHT:
            model = labels.get(CLUSTER, "")
            if model.startswith(CLUSTER_OF_MODEL):
                in_flight[model.removeprefix(CLUSTER_OF_MODEL)] = value
            continue
        # A request that names no model was refused before it was known for which it is.
        model = labels.get("model", "")
        if model in NONE:
            continue
        if name == BUCKETS:
            outcome, bound = ended(labels)[0], float(labels.get("le", "inf"))
            if outcome is Ended.RIGHT:
                answers.setdefault(model, Counter())[bound * US_PER_MS / US_PER_S] += value
            elif outcome in MISSED and bound == float("inf"):
                others[model] += value
            continue
        how = ended(labels) if name == REQUESTS else _of_stream(labels.get("outcome", ""))
        if how is not None:
            kind = labels.get("class", "")
            counts.setdefault(model, Counter())["" if kind in NONE else kind, *how] += value
    models = counts.keys() | answers.keys() | others.keys()
    return {
        model: Tally(dict(counts.get(model, {})), dict(answers.get(model, {})), others[model]) for model in models
    }, in_flight


def between(before: Tally, after: Tally) -> Tally:
    """What ended in between. Where a count fell the gateway was started anew: all that it has since then."""
    answers = {bound: count - before.answers.get(bound, 0) for bound, count in after.answers.items()}
    fell = (
        after.others < before.others
        or any(after.counts.get(key, 0) < count for key, count in before.counts.items())
        or any(after.answers.get(bound, 0) < count for bound, count in before.answers.items())
        or not grows(answers)
    )
    if fell:
        return after
    counts = {key: count - before.counts.get(key, 0) for key, count in after.counts.items()}
    return Tally(counts, answers, after.others - before.others)


def added(parts: Iterable[Tally]) -> Tally:
    """What ended in several stretches of time."""
    counts: Counter[tuple[str, Ended, str]] = Counter()
    answers: Counter[float] = Counter()
    others = 0
    for part in parts:
        counts.update(part.counts)
        answers.update(part.answers)
        others += part.others
    return Tally(dict(counts), dict(answers), others)


def _of_stream(outcome: str) -> tuple[Ended, str] | None:
    """None of what others count, and of what a newer gateway may have."""
    try:
        return stream_ended(outcome)
    except KeyError:
        return None
