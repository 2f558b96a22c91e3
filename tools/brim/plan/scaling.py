"""How many replicas a service needs: from who waits, for how long and for what, never from how busy its GPUs are.

A batching server is busy long before it is full: at a third of its capacity a batch of a third follows the last one without a
gap, and utilisation says 100 %. What tells is what callers see: requests that wait, the time that they wait, the time to the
first token, and the KV cache. Each has a threshold, and the *pressure* on a fleet is the largest of the figures as a part of its
threshold: 1 is the limit, scaling begins below it by as many replicas as are kept warm, batch traffic is shed at ``SHED_AT``, and
at 2 the objective is missed.

As a measure of load the pressure is coarse: callers wait for the batch before theirs, however many replicas there are. So below the
limit what replicas have been seen to carry (``brim.plan.carried``) is held beside it, and the smaller number is enough.

Pure: the same signals and the same memory give the same decision, so it is replayed by the planner, and ``brim.plan.rules``
writes the same arithmetic as Prometheus rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from brim.errors import InputError
from brim.service.schema import Service
from brim.units import US_PER_S, ms_to_us

QUEUE_SHARE = 0.25
"""Mean wait that is the limit, as a part of the objective. Where an objective is just met by full batches, half of it is one
batch's execution and half the longest wait, for the batch before it; the mean wait is half of that."""
TTFT_SHARE = 0.5
"""TTFT p90 that is the limit, as a part of the objective for the first token: new replicas take a while to come."""
KV_LIMIT = 0.8
"""Used part of the KV cache that is the limit: running texts go on growing while new replicas load."""
RELAXED = 0.5
"""Part of the limit at which a fleet that is made smaller may arrive. Between it and the limit the number stays: waiting grows
faster than load, so what is left must not be near the limit."""
STEADY = 0.9
"""Part of what a replica has been seen to carry, to which a fleet that is made smaller may load each: rates scatter."""
MOST_GROWTH = 2.0
"""Of the ready replicas, at one decision. In overload the time that callers wait says that there are too few, not how many."""
MOST_PRESSURE = 1e6
"""A figure can be anything, and its pressure must stay a number."""
SHED_AT = 1.5
"""Pressure at which batch traffic is refused: more replicas are on their way, and the objective is not missed yet."""
LEAST_SPARES = 1
"""The loss of one replica is to be stood without waiting for another to load."""
DOWN_AFTER_US = 300 * US_PER_S
DOWN_EVERY_US = 60 * US_PER_S
DOWN_STEP = 1
UTILISATION_TARGET = 0.8
UTILISATION_TOLERANCE = 0.1
"""Of the ratio to the target, within which nothing is done (Kubernetes' horizontal autoscaler)."""
ROUNDING = 1e-6
"""Taken off before a number of replicas is rounded up: 300 / 7 / 50 * 7 is 6 and not 7."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What one service's replicas can stand. None where a figure says nothing about the service.

    Attributes:
        waiting: requests that wait, a replica: half a batch.
        queue_us: mean time that answered requests have waited.
        ttft_p90_us: nine in ten first tokens come within it.
        kv_usage: used part of the KV cache, 0 to 1.
        relaxed: part of the limit below which there may be fewer.
        steady: part of what a replica was seen to carry, below which there may be fewer.
        most_growth: factor on the ready replicas, at one decision.
        shed_at: pressure at which batch traffic is refused.
    """

    waiting: float
    queue_us: float | None = None
    ttft_p90_us: float | None = None
    kv_usage: float | None = None
    relaxed: float = RELAXED
    steady: float = STEADY
    most_growth: float = MOST_GROWTH
    shed_at: float = SHED_AT

    def __post_init__(self) -> None:
        """Refuse what would never, or always, ask for more.

        Raises:
            InputError: a threshold is not above 0, the order relaxed < 1 <= shed_at is broken, or steady is no part.
        """
        limits = {
            "waiting": self.waiting,
            "queue_us": self.queue_us,
            "ttft_p90_us": self.ttft_p90_us,
            "kv_usage": self.kv_usage,
        }
        faults = [
            f"{name} is {value}: expected above 0"
            for name, value in limits.items()
            if value is not None and not 0 < value < math.inf
        ]
        if not 0 < self.relaxed < 1 <= self.shed_at:
            faults.append(f"relaxed is {self.relaxed}, shed_at {self.shed_at}: expected 0 < relaxed < 1 <= shed_at")
        if not 0 < self.steady <= 1:
            faults.append(f"steady is {self.steady}: expected above 0 and at most 1")
        if not self.most_growth > 1:
            faults.append(f"most_growth is {self.most_growth}: expected above 1")
        if faults:
            raise InputError("\n".join(faults), hint="thresholds_of(service) derives them from the service file")


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many replicas there may be, and how fast there may be fewer.

    Attributes:
        min_replicas: never fewer.
        max_replicas: never more.
        spares: kept warm beyond what is needed; they take traffic like all others.
        down_after_us: a smaller number must have been enough for so long.
        down_step: replicas that go at once.
        down_every_us: time between two such steps.
    """

    min_replicas: int = 1
    max_replicas: int = 8
    spares: int = LEAST_SPARES
    down_after_us: int = DOWN_AFTER_US
    down_step: int = DOWN_STEP
    down_every_us: int = DOWN_EVERY_US

    def __post_init__(self) -> None:
        """Refuse bounds that contradict each other.

        Raises:
            InputError: says which.
        """
        faults = []
        if not 1 <= self.min_replicas <= self.max_replicas:
            faults.append(
                f"min_replicas is {self.min_replicas}, max_replicas {self.max_replicas}: expected 1 <= min <= max"
            )
        if self.spares < 0:
            faults.append(f"spares is {self.spares}: expected 0 or more")
        if self.down_step < 1 or self.down_after_us < 0 or self.down_every_us < 0:
            faults.append("down_step is below 1, or a time is below 0")
        if faults:
            raise InputError("\n".join(faults), hint="one replica that is never taken away is min_replicas 1")


@dataclass(frozen=True, slots=True)
class Signals:
    """What a fleet of one service says of itself. None and NaN: nobody has said.

    Attributes:
        present: replicas that there are to be, starting ones among them.
        ready: replicas that answer.
        reporting: of those, the ones whose figures are in the sums.
        waiting: requests that wait, over all that report.
        queue_us: mean time that the requests answered of late have waited.
        ttft_p90_us: 90th percentile of their time to the first token.
        kv_usage: used part of the KV cache, mean over all that report.
        answered_per_s: requests answered a second, of late. Only when this is 0 may the two times be absent.
        utilisation: of the GPUs, mean, 0 to 1. For ``wanted_by_utilisation`` alone.
        carried_per_s: requests a second that a replica was seen to carry (``brim.plan.carried``).
    """

    present: int
    ready: int
    reporting: int
    waiting: float | None = None
    queue_us: float | None = None
    ttft_p90_us: float | None = None
    kv_usage: float | None = None
    answered_per_s: float | None = None
    utilisation: float | None = None
    carried_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """What the signals of one moment ask for.

    Attributes:
        replicas: within the fleet's bounds.
        pressure: largest figure as a part of its threshold; None when none is known.
        complete: every figure is there. Where one is missing there are never fewer.
        shed_batch: batch traffic is to be refused.
    """

    replicas: int
    pressure: float | None
    complete: bool
    shed_batch: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """What was decided of late.

    Attributes:
        wanted: time and number of past wants, the oldest first, without those that a later one is no smaller than.
        began_at_us: time of the first decision.
        lowered_at_us: when the fleet was last made smaller.
    """

    wanted: tuple[tuple[int, int], ...] = ()
    began_at_us: int | None = None
    lowered_at_us: int | None = None


def thresholds_of(service: Service) -> Thresholds:
    """The thresholds that follow from a service file.

    Half a batch waits when batches are nearly full: as many come during one execution as it carries, and half of them have
    come at its middle. A language model's batch is its seats. Where the gateway lets in less than two batches, half of what it lets
    in executes while the other half waits, so no more ever waits: callers are refused, and the queue does not show them.
    """
    slo = service.slo
    if service.generation is None:
        bound = service.batching.in_flight_bound
        batch = service.max_batch_size if bound is None else min(service.max_batch_size, bound / 2)
        return Thresholds(waiting=max(1.0, batch / 2), queue_us=ms_to_us(slo.latency_ms) * QUEUE_SHARE)
    ttft_us = None if slo.ttft_ms is None else ms_to_us(slo.ttft_ms)
    return Thresholds(
        waiting=max(1.0, service.generation.max_sequences / 2),
        queue_us=None if ttft_us is None else ttft_us * QUEUE_SHARE,
        ttft_p90_us=None if ttft_us is None else ttft_us * TTFT_SHARE,
        kv_usage=KV_LIMIT,
    )


def spares(*, load_time_us: float, growth_per_s2: float, replica_per_s: float) -> int:
    """Replicas to keep warm: what traffic grows by while one more loads, in replicas, and at least ``LEAST_SPARES``.

    Args:
        load_time_us: from the decision to the first answer: the image is there, weights are read, the canary has answered.
        growth_per_s2: requests a second by which the rate grows each second, at its steepest.
        replica_per_s: requests a second that one replica answers within the objective.

    Raises:
        InputError: a negative or infinite figure, or a replica that answers nothing.
    """
    figures = {"load_time_us": load_time_us, "growth_per_s2": growth_per_s2}
    faults = [f"{name} is {value}: expected 0 or more" for name, value in figures.items() if not 0 <= value < math.inf]
    if not 0 < replica_per_s < math.inf:
        faults.append(f"replica_per_s is {replica_per_s}: expected above 0")
    if faults:
        raise InputError("\n".join(faults), hint="measure a replica with `brim measure NAME`, and time its start")
    return max(LEAST_SPARES, _up(growth_per_s2 * load_time_us / US_PER_S / replica_per_s))


def wanted(signals: Signals, thresholds: Thresholds, fleet: Fleet) -> Want:
    """How many replicas this moment asks for: as many as stand the load, at least one, and as many warm as the fleet says.

    What is seen may ask for more; what is missing forbids fewer. So a fleet that says nothing keeps its number.
    """
    pressure, complete = pressure_of(signals, thresholds)
    if pressure is None:
        return Want(_bounded(signals.present, fleet), None, False, False)
    needed, relaxed = (
        signals.ready * min(pressure, thresholds.most_growth),
        signals.ready * pressure / thresholds.relaxed,
    )
    answered, carried = _known(signals.answered_per_s), _known(signals.carried_per_s)
    if carried and answered is not None and complete and pressure < 1:
        load = answered / carried
        needed, relaxed = min(needed, load), min(relaxed, load / thresholds.steady)
    more, enough = (max(1, _up(replicas)) + fleet.spares for replicas in (needed, relaxed))
    replicas = max(more, min(signals.present, enough) if complete else signals.present)
    return Want(_bounded(replicas, fleet), pressure, complete, pressure >= thresholds.shed_at)


def pressure_of(signals: Signals, thresholds: Thresholds) -> tuple[float | None, bool]:
    """The largest figure as a part of its threshold, None when none is known; and whether every figure is there."""
    figures, complete = _figures(signals, thresholds)
    return (min(max(figures), MOST_PRESSURE) if figures else None), complete


def wanted_by_utilisation(signals: Signals, fleet: Fleet, target: float = UTILISATION_TARGET) -> Want:
    """What scaling on GPU utilisation asks for, as Kubernetes' horizontal autoscaler does. To compare with, not to use.

    It cannot tell full from busy: at 100 % it asks for a quarter more, whether twice or twenty times as much has come.
    """
    known = _known(signals.utilisation)
    if known is None or signals.ready == 0:
        return Want(_bounded(signals.present, fleet), None, False, False)
    ratio = min(known / target, MOST_PRESSURE)
    near = abs(ratio - 1) <= UTILISATION_TOLERANCE
    replicas = signals.present if near else _up(signals.ready * ratio)
    return Want(_bounded(replicas, fleet), ratio, True, False)


def paced(want: Want, present: int, fleet: Fleet, memory: Memory, now_us: int) -> tuple[int, Memory]:
    """The number to set, and what to remember: more at once, fewer slowly.

    Fewer only when nothing more was wanted for ``down_after_us``, and then ``down_step`` every ``down_every_us``.
    A fleet outside its bounds is brought inside at once.
    """
    since_us = now_us - fleet.down_after_us
    kept = tuple(entry for entry in memory.wanted if entry[0] > since_us and entry[1] > want.replicas)
    began_at_us = now_us if memory.began_at_us is None else memory.began_at_us
    memory = replace(memory, wanted=(*kept, (now_us, want.replicas)), began_at_us=began_at_us)
    inside = _bounded(present, fleet)
    if inside != present:
        return max(inside, want.replicas), memory
    highest = memory.wanted[0][1]
    lowered_at_us = memory.lowered_at_us
    lately = lowered_at_us is not None and now_us - lowered_at_us < fleet.down_every_us
    if highest >= present or began_at_us > since_us or lately:
        return max(want.replicas, present), memory
    return max(highest, present - fleet.down_step), replace(memory, lowered_at_us=now_us)


def _figures(signals: Signals, thresholds: Thresholds) -> tuple[list[float], bool]:
    """Every known figure as a part of its threshold, and whether none is missing."""
    waiting = _known(signals.waiting)
    figures = []
    complete = 0 < signals.ready <= signals.reporting and waiting is not None
    if waiting is not None and signals.reporting > 0:
        figures.append(waiting / signals.reporting / thresholds.waiting)
    none_answered = _known(signals.answered_per_s) == 0
    for value, limit, may_be_absent in (
        (signals.queue_us, thresholds.queue_us, none_answered),
        (signals.ttft_p90_us, thresholds.ttft_p90_us, none_answered),
        (signals.kv_usage, thresholds.kv_usage, False),
    ):
        known = _known(value)
        if limit is not None and known is not None:
            figures.append(known / limit)
        elif limit is not None and not may_be_absent:
            complete = False
    return figures, complete


def _known(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < math.inf else None


def _up(replicas: float) -> int:
    return max(0, math.ceil(replicas - ROUNDING))


def _bounded(replicas: int, fleet: Fleet) -> int:
    return min(max(replicas, fleet.min_replicas), fleet.max_replicas)
