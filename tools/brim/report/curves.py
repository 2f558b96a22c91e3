"""Measured loads put together to curves: one setting under one kind of load, and what each curve says about the SLO."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from brim.measure.accounting import Objective, Outcome
from brim.measure.asked import CLOSED
from brim.measure.open_point import Counts, OpenPoint, Segment
from brim.measure.plan import Distribution, Mode
from brim.measure.point import Point
from brim.measure.saturation import KEPT_UP
from brim.measure.schedule import CHANGING, Arrivals
from brim.measure.sweep import Settings
from brim.report.choice import Setting, TuneRun
from brim.units import US_PER_S

DISTRIBUTION = re.compile(r"--request-distribution=(\w+)")
CHANCE = 3.0
"""Standard deviations of the number of random arrivals that are put down to chance."""
RATE_DIGITS = 1
"""A tuning climbs in even shares, whose many digits say nothing."""
LEAST_RATE = 10**-RATE_DIGITS
OPEN = "open"
"""The arrivals of an open loop of which nothing more is known."""


def rate_text(rate_per_s: float) -> str:
    """A rate in words, without digits that say nothing."""
    return f"{round(rate_per_s, RATE_DIGITS):.10g}/s"


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be the same for two curves to be drawn in one picture.

    Attributes:
        model: name of the model.
        protocol: ``grpc`` or ``http``.
        arrivals: ``closed``, ``brim.measure.schedule.Arrivals``, what tuning calls its traffic, or ``open`` where nobody says.
        plan: what else tells plans apart (``brim.measure.plan.Plan.fingerprint``); empty where there is nothing.
    """

    model: str
    protocol: str
    arrivals: str
    plan: str

    def __str__(self) -> str:
        """For people."""
        loop = {CLOSED: "closed loop", OPEN: "open loop"}.get(self.arrivals, f"open loop, {self.arrivals} arrivals")
        return ", ".join(part for part in (self.model, self.protocol, loop) if part)

    def load_text(self, load: float) -> str:
        """A load in words."""
        if self.arrivals == CLOSED:
            return f"{load:.10g} caller{'' if load == 1 else 's'}"
        return rate_text(load)


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured at one load of a curve. Times are microseconds; None stands for what could not be had.

    Attributes:
        value: callers, or asked requests a second.
        throughput: answers a second.
        latency_us: percentile -> latency.
        mean_batch: rows.
        duty: busy time of the instances / wall time.
        inferences: rows answered, which tells how long it was measured.
        sizes: batch size -> executions.
        stable: whether the windows, or the rounds, agreed.
        generator_bound: whether the load generator set the figures.
        settled: whether nobody else used the model meanwhile.
        in_slo: share of what was offered that was inside the SLO, where it was counted; else it follows from percentiles.
        counted_goodput: lowest and highest of the rounds in which it was counted.
        note: what else to know of it, in words.
        point: of perf_analyzer or the open-loop driver, where it comes from one.
    """

    value: float
    throughput: float | None
    latency_us: Mapping[str, float]
    mean_batch: float | None
    duty: float | None
    inferences: int
    sizes: Mapping[int, int]
    stable: bool
    generator_bound: bool
    settled: bool
    in_slo: float | None = None
    counted_goodput: tuple[float, float] | None = None
    note: str = ""
    point: Point | OpenPoint | None = None

    def in_time(self, latency_us: float) -> tuple[float, float]:
        """The share inside a latency, at least and at most.

        Where it was not counted a percentile within the limit puts at least its share inside, and one beyond it leaves at
        most its share there.
        """
        if self.in_slo is not None:
            return self.in_slo, self.in_slo
        shares = {float(percentile) / 100: us for percentile, us in self.latency_us.items()}
        least = max((share for share, us in shares.items() if us <= latency_us), default=0.0)
        most = min((share for share, us in shares.items() if us > latency_us), default=1.0)
        return min(least, most), most

    def goodput(self, objective: Objective) -> tuple[float, float] | None:
        """Answers inside the SLO a second, at least and at most; None without a throughput."""
        if self.counted_goodput is not None:
            return self.counted_goodput
        if self.throughput is None:
            return None
        least, most = self.in_time(objective.latency_us)
        return self.throughput * least, self.throughput * most

    def meets(self, objective: Objective, *, open_loop: bool) -> bool:
        """Whether it is known to meet the objective: enough answers in time, and an open loop's rate answered.

        Where it was counted the share is of everything offered, so what was not answered is in it already.
        """
        return self._kept_up(open_loop) and self.in_time(objective.latency_us)[0] >= objective.percentile / 100

    def verdict(self, objective: Objective, *, open_loop: bool) -> str:
        """``yes``, ``no``, or ``not known`` where percentiles do not tell, or the generator may be what missed it."""
        if self.meets(objective, open_loop=open_loop):
            return "yes"
        if self.generator_bound:
            return "not known"
        may = self._kept_up(open_loop) and self._may_meet(objective)
        return "not known" if may else "no"

    def _kept_up(self, open_loop: bool) -> bool:
        """Whether the asked rate was answered, or falls short by no more than a short run does by chance."""
        if self.in_slo is not None or not open_loop:
            return True
        if not self.throughput:
            return False
        seconds = max(self.inferences, 1) / self.throughput
        by_chance = CHANCE * math.sqrt(self.value / seconds)
        return self.throughput >= min(KEPT_UP * self.value, self.value - by_chance)

    def _may_meet(self, objective: Objective) -> bool:
        """Whether no percentile that was measured speaks against it: the one at which it is judged, or a lower one."""
        if self.in_slo is not None:
            return False
        judged = [us for name, us in self.latency_us.items() if float(name) <= objective.percentile]
        return all(us <= objective.latency_us for us in judged)


@dataclass(frozen=True, slots=True)
class Curve:
    """Loads of one setting, ascending, each once.

    Attributes:
        kind: of load.
        digest: tells the configuration apart from others of the same kind; empty where nothing does.
        label: the setting in words.
        loads: at least one.
    """

    kind: Kind
    digest: str
    label: str
    loads: tuple[Load, ...] = field(repr=False)

    @property
    def points(self) -> list[Point | OpenPoint]:
        """Of the loads, each once: several loads may come from one run."""
        return list({id(load.point): load.point for load in self.loads if load.point is not None}.values())

    def capacity(self, objective: Objective | None) -> Load | None:
        """The load of the highest throughput of those that meet the objective; of all without one; None without any."""
        met = [
            load
            for load in self.loads
            if load.throughput is not None
            and (objective is None or load.meets(objective, open_loop=self.kind.arrivals != CLOSED))
        ]
        return max(met, key=lambda load: load.throughput or 0.0, default=None)


def of_points(points: Iterable[Point], settings: Mapping[str, Settings]) -> list[Curve]:
    """Curves of ``brim sweep`` or ``brim measure``, in the order in which their first points were measured.

    Args:
        points: in the order of the file; a later one of the same key replaces an earlier one.
        settings: by the digest of the configuration.
    """
    latest = {point.key: point for point in points}
    found: dict[tuple[Kind, str], dict[float, Point]] = {}
    for point in latest.values():
        plan, digest = key_parts(point.key)
        found.setdefault((Kind(point.model, point.protocol, arrivals(point), plan), digest), {})[point.value] = point

    def label(digest: str) -> str:
        if digest in settings:
            return str(settings[digest])
        others = sum(1 for _, other in found if other != digest)
        return f"configuration {digest}" if others and digest else "as it stands"

    return [
        Curve(kind, digest, label(digest), tuple(_of_point(members[value]) for value in sorted(members)))
        for (kind, digest), members in found.items()
    ]


def of_runs(runs: Iterable[TuneRun], *, model: str, protocol: str, arrival: str, percentile: float) -> list[Curve]:
    """Curves of ``brim tune``: the rounds at one rate are one load, with the median of their figures.

    Args:
        runs: in any order.
        model, protocol, arrival: of all of them.
        percentile: the one that ``TuneRun.latency_us`` is of.
    """
    found: dict[Setting, dict[float, list[TuneRun]]] = {}
    for run in runs:
        rate = max(round(run.rate_per_s, RATE_DIGITS), LEAST_RATE)
        found.setdefault(run.setting, {}).setdefault(rate, []).append(run)
    kind = Kind(model, protocol, arrival, "tune")
    return [
        Curve(
            kind, str(setting), str(setting), tuple(_of_rounds(rate, rates[rate], percentile) for rate in sorted(rates))
        )
        for setting, rates in found.items()
    ]


def of_open_points(points: Iterable[OpenPoint], objective: Objective | None) -> list[Curve]:
    """Curves of the open-loop driver, in the order in which their first points were measured.

    A run is one load at its mean rate, except that each step of ``steps`` is a load of its own.

    Args:
        points: in the order of the file; a later one of the same key replaces an earlier one.
        objective: the SLO; goodput was counted for the run's own, and is only known where that is the same.
    """
    found: dict[tuple[Kind, str], dict[float, Load]] = {}
    for point in {point.key: point for point in points}.values():
        plan, digest = key_parts(point.key)
        loads = found.setdefault((Kind(point.model, point.protocol, point.arrivals.value, plan), digest), {})
        for load in _of_run(point, objective):
            before = loads.get(load.value)
            # Of two steps at one rate the one that made callers wait longer counts.
            if before is None or before.point is not point or _waited_us(load) >= _waited_us(before):
                loads[load.value] = load
    others = {digest for _, digest in found}
    return [
        Curve(
            kind,
            digest,
            f"configuration {digest}" if len(others) > 1 else "as it stands",
            tuple(loads[value] for value in sorted(loads)),
        )
        for (kind, digest), loads in found.items()
        if loads
    ]


def _waited_us(load: Load) -> float:
    return load.latency_us.get("99", 0.0)


def _of_run(point: OpenPoint, objective: Objective | None) -> list[Load]:
    slo = point.slo
    is_counted = objective is not None and slo is not None and slo.latency_us == objective.latency_us
    if point.arrivals is Arrivals.STEPS:
        return [_of_step(point, step, is_counted) for step in point.segments if step.offered]
    return [
        Load(
            value=point.rate,
            throughput=point.throughput,
            latency_us=point.latency_us,
            mean_batch=point.mean_batch,
            duty=point.duty,
            inferences=point.inferences,
            sizes=point.executions_by_size,
            stable=point.stable or point.arrivals in CHANGING,
            generator_bound=point.generator_bound,
            settled=point.settled,
            in_slo=point.goodput_ratio if is_counted else None,
            counted_goodput=(point.goodput, point.goodput) if is_counted and point.goodput is not None else None,
            note=_unanswered(point),
            point=point,
        )
    ]


def _unanswered(of: Counts) -> str:
    """What became of requests that were not answered."""
    kinds = {outcome.value: getattr(of, outcome.value) for outcome in Outcome if outcome is not Outcome.ANSWERED}
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items() if count)


def _of_step(point: OpenPoint, step: Segment, is_counted: bool) -> Load:
    seconds = step.duration_us / US_PER_S
    goodput = step.in_slo / seconds
    known = {"50": step.p50_us, "99": step.p99_us}
    return Load(
        value=step.rate,
        throughput=step.answered / seconds,
        latency_us={name: us for name, us in known.items() if us is not None},
        mean_batch=None,
        duty=None,
        inferences=step.answered,
        sizes={},
        stable=True,
        generator_bound=point.generator_bound,
        settled=point.settled,
        in_slo=step.in_slo / step.offered if is_counted else None,
        counted_goodput=(goodput, goodput) if is_counted else None,
        note=_unanswered(step),
        point=point,
    )


def _of_point(point: Point) -> Load:
    return Load(
        value=point.value,
        throughput=point.throughput,
        latency_us=point.latency_us,
        mean_batch=point.mean_batch,
        duty=point.duty,
        inferences=point.inferences,
        sizes=point.executions_by_size,
        stable=point.stable,
        generator_bound=point.generator_bound,
        settled=point.settled,
        note="; ".join([*([f"{point.failed} failed"] if point.failed else []), *([point.note] if point.note else [])]),
        point=point,
    )


def _of_rounds(rate: float, rounds: Sequence[TuneRun], percentile: float) -> Load:
    def middle(of: Callable[[TuneRun], float | None]) -> float | None:
        known = [value for value in map(of, rounds) if value is not None]
        return median(known) if known else None

    latency = {"50": middle(lambda run: run.p50_us), "99": middle(lambda run: run.p99_us)}
    latency.setdefault(f"{percentile:g}", middle(lambda run: run.latency_us))
    sizes: Counter[int] = Counter()
    for run in rounds:
        sizes.update(run.executions_by_size)
    goodputs = [run.goodput_per_s for run in rounds]
    return Load(
        value=rate,
        throughput=middle(lambda run: run.answered * US_PER_S / run.duration_us),
        latency_us={name: us for name, us in latency.items() if us is not None},
        mean_batch=middle(lambda run: run.mean_batch),
        duty=middle(lambda run: run.duty),
        inferences=sum(run.answered for run in rounds),
        sizes=dict(sorted(sizes.items())),
        stable=True,
        generator_bound=any(run.limits for run in rounds),
        settled=True,
        in_slo=middle(lambda run: run.in_slo / run.offered if run.offered else None),
        counted_goodput=(min(goodputs), max(goodputs)),
    )


def key_parts(key: str) -> tuple[str, str]:
    """Plan and configuration from a point's key ``MODEL/PROTOCOL/MODE=LOAD/PLAN/CONFIGURATION``; empty in another one."""
    parts = key.split("/")
    return (parts[3], parts[4]) if len(parts) == 5 else ("", "")


def arrivals(point: Point) -> str:
    """How the point's requests came: a closed loop, or the spacing that its command asked for."""
    if point.mode is Mode.CONCURRENCY:
        return CLOSED
    asked = [found[1] for word in point.provenance.command if (found := DISTRIBUTION.fullmatch(word))]
    return next((one.value for one in Distribution if one.value in asked), OPEN)


def by_kind(found: Sequence[Curve]) -> dict[Kind, list[Curve]]:
    """Curves that are drawn together, in the order in which they came."""
    groups: dict[Kind, list[Curve]] = {}
    for curve in found:
        groups.setdefault(curve.kind, []).append(curve)
    return groups
