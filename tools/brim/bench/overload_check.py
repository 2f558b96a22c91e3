"""What was measured under overload, held against the targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from brim.bench.comparison import QUIET_CORES
from brim.bench.conditions import Conditions
from brim.bench.overload_burst import Burst
from brim.bench.overload_case import BATCH, INTERACTIVE, Case
from brim.bench.overload_cost import Cost
from brim.bench.overload_leave import Leave
from brim.bench.overload_load import PERCENTILE, Load
from brim.bench.verdict import ExitCode, Spread, Target, Verdict, exit_code, spread_of
from brim.bench.verdict import judge as judge_rounds
from brim.measure.accounting import Outcome
from brim.measure.plan import Protocol
from brim.units import us_to_ms

GOODPUT_RATIO = 0.95
"""Least goodput under overload over the best of all loads."""
OVERLOAD = 2.0
"""From this factor on, goodput has to hold."""
REFUSAL_US = 20_000
"""Longest that a refusal may take at the 99th percentile, from sending."""
HEALTH_RATIO = 1.5
"""Longest that a burst's refusals may take over as many answers of the health page."""
_COST_FIGURES = ("direct_p50_us", "gateway_p50_us", "direct_per_s", "gateway_per_s")
COUNTED = (Outcome.ANSWERED, Outcome.REFUSED, Outcome.EXPIRED, Outcome.CANCELLED)
"""The ends that a request may come to; any other one is a fault."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure.

    Attributes:
        part: of the benchmark.
        figure: its name, with the unit.
        value: measured; None when it could not be.
        target: in words; empty for a figure without one.
        verdict: None without a target.
        note: what else is to be said of it.
    """

    part: str
    figure: str
    value: float | None
    target: str = ""
    verdict: Verdict | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the envelope."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was measured.

    Attributes:
        case: what was served.
        closed_per_s: callers of a closed loop -> rows a second.
        capacity_per_s: the rate that factors stand for.
        loads: callers of one kind, by rising factor.
        mixes: half interactive, half batch.
        leaving: callers of which some disconnect or bring a deadline; for the accounting.
        bursts: one a round.
        leaves: gRPC, and HTTP for comparison.
        costs: rounds with and without the gateway.
    """

    case: Case
    closed_per_s: Mapping[int, float]
    capacity_per_s: float
    loads: tuple[Load, ...]
    mixes: tuple[Load, ...] = ()
    leaving: tuple[Load, ...] = ()
    bursts: tuple[Burst, ...] = ()
    leaves: tuple[Leave, ...] = ()
    costs: tuple[Cost, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json``."""
        case = self.case
        return {
            "case": {
                "tau0_us": case.time.tau0_us,
                "alpha_us": case.time.alpha_us,
                "max_rows": case.max_rows,
                "slo_us": case.slo_us,
                "bound": case.bound,
                "admitted": _bounds(case),
            },
            "closed_per_s": dict(self.closed_per_s),
            "capacity_per_s": self.capacity_per_s,
            "loads": [load.as_json() for load in self.loads],
            "mixes": [load.as_json() for load in self.mixes],
            "leaving": [load.as_json() for load in self.leaving],
            "bursts": [burst.as_json() for burst in self.bursts],
            "leaves": [leave.as_json() for leave in self.leaves],
            "costs": [cost.as_json() for cost in self.costs],
        }


def _bounds(case: Case) -> dict[str, Any]:
    return {name: admission.for_lua(1) for name, admission in case.admitted().items()}


@dataclass(frozen=True, slots=True)
class OverloadCheck:
    """The whole answer."""

    found: Found
    conditions: Conditions
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> list[Judged]:
        """Every figure."""
        return list(judged(self.found, others=self.conditions.other_cores > QUIET_CORES))

    @property
    def exit_code(self) -> ExitCode:
        """The answer as an exit code."""
        return exit_code(one.verdict for one in self.judged if one.verdict is not None)

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json`` and the envelope."""
        return {
            "benchmark": "overload",
            **self.details,
            "judged": [one.as_json() for one in self.judged],
            "conditions": self.conditions.as_json(),
            **self.found.as_json(),
        }


def judged(found: Found, *, others: bool) -> Iterator[Judged]:
    """Every figure with its verdict.

    Args:
        found: what was measured.
        others: whether other programs used so much of the machine that a miss may be theirs. What is counted exactly is
            no matter of speed, and is judged all the same.
    """
    judge = _Judge(others)
    yield from _one_kind(found, judge)
    yield from _two_classes(found, judge)
    yield from _bursts(found, judge)
    yield from _leaving(found, judge)
    yield from _costs(found)


@dataclass(frozen=True, slots=True)
class _Judge:
    others: bool

    def __call__(
        self,
        part: str,
        figure: str,
        value: float | None,
        *,
        least: float = -math.inf,
        most: float = math.inf,
        doubts: Sequence[str] = (),
        note: str = "",
    ) -> Judged:
        """A matter of speed: with a driver at its limit nothing is told, on a busy machine no miss."""
        verdict = Verdict.UNCLEAR
        if value is not None and not doubts:
            inside = least <= value <= most
            verdict = Verdict.MET if inside else Verdict.UNCLEAR if self.others else Verdict.MISSED
        return Judged(
            part, figure, value, _words(least, most), verdict, "; ".join([*doubts, *([note] if note else [])])
        )

    @staticmethod
    def exactly(part: str, figure: str, value: float, *, most: float, faults: Sequence[str] = ()) -> Judged:
        """A matter of counting: it holds, or it does not."""
        verdict = Verdict.MET if value <= most and not faults else Verdict.MISSED
        return Judged(part, figure, value, _words(-math.inf, most), verdict, "; ".join(faults))


def _words(least: float, most: float) -> str:
    return " and ".join(
        [f">= {least:g}"] * (least > -math.inf) + [f"<= {most:g}"] * (most < math.inf),
    )


def accounting_faults(load: Load) -> list[str]:
    """What does not agree between the driver, the gateway and the model; empty when every request is accounted for.

    The driver sees how each request ended, the gateway counts each by itself, and the model its rows. A request that is
    answered in the moment in which its caller leaves is a leaver to the one and an answer to the other.
    """
    faults = []
    wrong = {end.value: load.count(end) for end in Outcome if end not in COUNTED and end is not Outcome.NOT_SENT}
    faults += [f"{count} {end}" for end, count in wrong.items() if count]
    ended = sum(load.count(end) for end in COUNTED)
    if ended != load.sent:
        faults.append(f"{load.sent} sent, {ended} ended")
    if load.gateway.total != load.sent:
        faults.append(f"{load.sent} sent, {load.gateway.total} by the gateway")
    left = load.count(Outcome.CANCELLED)
    for end in (Outcome.ANSWERED, Outcome.REFUSED, Outcome.EXPIRED):
        driver, gateway = load.count(end), load.gateway.of(end)
        if not driver <= gateway <= driver + left:
            faults.append(f"{driver} {end.value}, {gateway} by the gateway")
    answered, expired = load.count(Outcome.ANSWERED), load.count(Outcome.EXPIRED)
    # Over HTTP Triton executes whom nobody waits for any more, too (server#7077).
    if not answered <= load.executed <= answered + left + expired:
        faults.append(f"{answered} answered, {load.executed} rows executed")
    return faults


def _counts(load: Load) -> str:
    return ", ".join(f"{load.count(end)} {end.value}" for end in COUNTED if load.count(end))


def _one_kind(found: Found, judge: _Judge) -> Iterator[Judged]:
    part, slo_us = "one kind of callers", found.case.slo_us
    best = max((load.goodput_per_s for load in found.loads), default=0.0)
    for load in found.loads:
        account = load.accounts[INTERACTIVE]
        if load.factor >= OVERLOAD and best:
            ratio = load.goodput_per_s / best
            yield judge(
                part, f"goodput at {load.name} / best", ratio, least=GOODPUT_RATIO, doubts=load.limits,
                note=f"{load.goodput_per_s:.0f}/s of {best:.0f}/s",
            )  # fmt: skip
        yield judge(
            part, f"accepted p99 at {load.name}, ms", _ms(account.since_due.percentile_us(PERCENTILE)),
            most=us_to_ms(slo_us), doubts=load.limits,
        )  # fmt: skip
        if account.counts[Outcome.REFUSED]:
            due_us = account.until_refused.percentile_us(PERCENTILE) or 0
            noticed_late = load.lag_us > REFUSAL_US / 2
            yield judge(
                part,
                f"refusal p99 at {load.name}, ms from sending",
                _ms(account.refused_since_sent.percentile_us(PERCENTILE)),
                most=us_to_ms(REFUSAL_US),
                doubts=[
                    *load.limits,
                    *([f"the driver noticed answers {us_to_ms(load.lag_us):.1f} ms late"] * noticed_late),
                ],
                note=f"{us_to_ms(due_us):.1f} ms from when it was due",
            )
        yield judge.exactly(part, f"most in flight at {load.name}", load.most_in_flight, most=found.case.bound)
        yield _accounted(part, load, judge)


def _accounted(part: str, load: Load, judge: _Judge) -> Judged:
    faults = accounting_faults(load)
    one = judge.exactly(part, f"not accounted for at {load.name}", len(faults), most=0, faults=faults)
    return one if faults else replace(one, note=f"{load.sent} sent = {_counts(load)}")


def _two_classes(found: Found, judge: _Judge) -> Iterator[Judged]:
    part = "interactive and batch"
    for load in found.mixes:
        interactive = load.accounts[INTERACTIVE]
        refused = {name: load.gateway.of(Outcome.REFUSED, name) for name in (INTERACTIVE, BATCH)}
        if load.factor >= OVERLOAD:
            sent = interactive.offered - interactive.counts[Outcome.NOT_SENT]
            ratio = interactive.counts[Outcome.ANSWERED] / sent if sent else None
            yield judge(
                part, f"interactive answered at {load.name}, ratio", ratio, least=1.0, doubts=load.limits,
                note=f"{sent - interactive.counts[Outcome.ANSWERED]} of {sent} were not",
            )  # fmt: skip
            share = refused[BATCH] / sum(refused.values()) if any(refused.values()) else None
            yield judge(
                part, f"refusals of batch at {load.name} / all", share, least=1.0, doubts=load.limits,
                note=f"{refused[BATCH]} of {sum(refused.values())}",
            )  # fmt: skip
        else:
            yield judge(part, f"refused at {load.name}", sum(refused.values()), most=0, doubts=load.limits)
        p99 = _ms(interactive.since_due.percentile_us(PERCENTILE))
        yield judge(
            part, f"interactive p99 at {load.name}, ms", p99, most=us_to_ms(found.case.slo_us), doubts=load.limits
        )
        yield judge.exactly(part, f"most in flight at {load.name}", load.most_in_flight, most=found.case.bound)
        yield _accounted(part, load, judge)


def _bursts(found: Found, judge: _Judge) -> Iterator[Judged]:
    bursts, bound = found.bursts, found.case.bound
    if not bursts:
        return
    part = f"{bursts[0].requests} at once"
    yield judge(part, "answered in time, least", min(burst.in_slo for burst in bursts), least=bound)
    yield judge(
        part, "answered late, most", max(burst.answered - burst.in_slo for burst in bursts), most=0,
        note=f"the last answer after {us_to_ms(max(burst.last_answer_us for burst in bursts)):.0f} ms at most",
    )  # fmt: skip
    lost = max(burst.requests - burst.answered - burst.refused for burst in bursts)
    unlike = max(abs(burst.executed - 2 - burst.answered) for burst in bursts)
    faults = [f"{lost} neither answered nor refused"] * bool(lost) + [f"executed off by {unlike}"] * bool(unlike)
    yield judge.exactly(part, "not accounted for", lost, most=0, faults=faults)
    yield judge.exactly(part, "most in flight", max(burst.most_in_flight for burst in bursts), most=bound)
    ratios = [burst.last_refusal_us / burst.health_us for burst in bursts if burst.last_refusal_us is not None]
    if ratios:
        spread = spread_of(ratios)
        target = Target("", most=HEALTH_RATIO)
        verdict = _of_rounds(judge, target, spread)
        yield Judged(
            part, "all refusals / as many health answers", spread.median, str(target), verdict, _interval(spread)
        )
    yield judge(
        part, "a lone request right after, ms", _ms(max(burst.lone_after_us for burst in bursts)),
        most=us_to_ms(found.case.full_batch_us), note=f"{us_to_ms(max(burst.lone_before_us for burst in bursts)):.0f} ms before",
    )  # fmt: skip


def _of_rounds(judge_one: _Judge, target: Target, spread: Spread) -> Verdict:
    verdict = judge_rounds(target, spread)
    return Verdict.UNCLEAR if verdict is Verdict.MISSED and judge_one.others else verdict


def _interval(spread: Spread) -> str:
    return f"{spread.low:.3g} to {spread.high:.3g} ({spread.confidence:.0%}, {spread.rounds} rounds)"


def _leaving(found: Found, judge: _Judge) -> Iterator[Judged]:
    part = "callers that disconnect"
    for leave in found.leaves:
        name = f"{leave.leavers} over {leave.protocol.value}"
        if not leave.queued:
            yield judge(part, f"{name}", None, doubts=["they did not get there while the batch before them ran"])
            continue
        note = f"places free after {us_to_ms(leave.freed_us):.0f} ms"
        if leave.protocol is Protocol.GRPC:
            yield judge.exactly(part, f"{name}: executed", leave.executed_for_nobody, most=0)
            refused = judge.exactly(part, f"{name}: new callers refused", leave.newcomers_refused, most=0)
            yield replace(refused, note=note)
        else:
            yield Judged(
                part, f"{name}: executed", leave.executed_for_nobody, note="Triton does not notice (server#7077)"
            )
            yield Judged(part, f"{name}: new callers refused", leave.newcomers_refused, note=note)
        yield judge.exactly(part, f"{name}: most in flight", leave.most_in_flight, most=found.case.bound)
        yield judge.exactly(part, f"{name}: let in above the bound", 1 - leave.refused_at_bound, most=0)
    for load in found.leaving:
        yield _accounted(part, load, judge)


def _costs(found: Found) -> Iterator[Judged]:
    part = "cost of the gateway"
    for protocol in Protocol:
        costs = [cost for cost in found.costs if cost.protocol is protocol]
        if not costs:
            continue
        added, kept = spread_of([cost.added_us for cost in costs]), spread_of([cost.kept_ratio for cost in costs])
        middle = {name: median(getattr(cost, name) for cost in costs) for name in _COST_FIGURES}
        yield Judged(
            part, f"added p50 over {protocol.value}, us", added.median,
            note=f"{_interval(added)}; {middle['direct_p50_us']:.0f} without, {middle['gateway_p50_us']:.0f} with",
        )  # fmt: skip
        yield Judged(
            part, f"throughput over {protocol.value}, with / without", kept.median,
            note=f"{_interval(kept)}; {middle['direct_per_s']:.0f}/s without, {middle['gateway_per_s']:.0f}/s with",
        )  # fmt: skip


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None else us_to_ms(value_us)
