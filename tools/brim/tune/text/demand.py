"""What a language model has to stand: its objective, its traffic, and how long prompts and texts are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brim.engine.lifecycle import RequestClass
from brim.engine.simulated import Simulated
from brim.engine.traffic import Call
from brim.errors import InputError
from brim.measure.text.lengths import Mix
from brim.service.schema import Service
from brim.tune.demand import Demand as Arrivals
from brim.tune.demand import demand_of as arrivals_of
from brim.units import ms_to_us


@dataclass(frozen=True, slots=True)
class Demand:
    """Objective and traffic.

    Attributes:
        ttft_us, tpot_us: of the objective; infinity where the service says nothing of one.
        percentile: of the first class's requests that must meet it, in percent.
        batch_deadline_us: after which the answer of a later class is of no use; infinity without one.
        batch_share: of the classes after the first.
        arrivals: when requests come.
        mix: lengths of prompts and texts.
        context_tokens: most tokens of both together.
    """

    ttft_us: float
    tpot_us: float
    percentile: float
    batch_deadline_us: float
    batch_share: float
    arrivals: Arrivals
    mix: Mix
    context_tokens: int

    @property
    def rate_per_s(self) -> float:
        """Expected requests a second."""
        return self.arrivals.rate_per_s

    def traffic(self, count: int, seed: int) -> tuple[list[Call], list[int]]:
        """So many calls of this kind, and when they are sent."""
        rng = np.random.default_rng([seed, 1])
        calls = self.mix.draw(count, rng, context_tokens=self.context_tokens, batch_share=self.batch_share)
        return calls, [int(at_us) for at_us in self.arrivals.arrivals_us(self.rate_per_s, count, seed)]


def demand_of(service: Service, mix: Mix) -> Demand:
    """What the service file says, with lengths that it does not say.

    Raises:
        InputError: it has no objective for a language model.
    """
    slo = service.slo
    if slo.ttft_ms is None and slo.tpot_ms is None:
        raise InputError(
            f"{service.name} has no objective to tune for", hint="give slo.ttft_ms and slo.tpot_ms in its service file"
        )
    assert service.generation is not None
    ranked = sorted(service.callers, key=lambda caller: caller.priority)
    deadlines_ms = [caller.deadline_ms for caller in ranked[1:]]
    known_ms = [at_ms for at_ms in deadlines_ms if at_ms is not None]
    return Demand(
        ttft_us=math.inf if slo.ttft_ms is None else ms_to_us(slo.ttft_ms),
        tpot_us=math.inf if slo.tpot_ms is None else ms_to_us(slo.tpot_ms),
        percentile=slo.percentile,
        batch_deadline_us=ms_to_us(min(known_ms)) if known_ms else math.inf,
        batch_share=sum(caller.share for caller in ranked[1:]),
        arrivals=arrivals_of(service),
        mix=mix,
        context_tokens=service.generation.context_tokens,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """What callers got, simulated or measured.

    Attributes:
        goodput_per_s: of the offered rate, what was of use: texts of the first class within the objective, those of later
            ones within their deadline.
        in_slo: share of the first class within the objective.
        ttft_p50_us, ttft_p99_us, tpot_p50_us, tpot_p99_us: of complete texts of the first class; None without any.
        refused: share of all.
        tokens_per_s: of all texts.
    """

    goodput_per_s: float
    in_slo: float
    ttft_p50_us: float | None
    ttft_p99_us: float | None
    tpot_p50_us: float | None
    tpot_p99_us: float | None
    refused: float
    tokens_per_s: float


def figures(found: Simulated, calls: Sequence[Call], demand: Demand) -> Figures:
    """The figures of an open loop of calls, none of which is missing."""
    first = np.array([call.kind is RequestClass.INTERACTIVE for call in calls])
    within = found.in_time(demand.ttft_us, demand.tpot_us)
    late = found.last_us - found.sent_us > demand.batch_deadline_us
    useful = np.where(first, within, found.complete & ~late)
    complete = found.complete & first
    ttft = found.first_us[complete] - found.sent_us[complete]
    several = complete & (found.tokens > 1)
    tpot = (found.last_us[several] - found.first_us[several]) / (found.tokens[several] - 1)
    ttft_p50, ttft_p99, tpot_p50, tpot_p99 = (
        float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else None
        for values in (ttft, tpot)
        for percent in (50, 99)
    )
    return Figures(
        goodput_per_s=float(useful.mean()) * demand.rate_per_s,
        in_slo=float(within[first].mean()) if first.any() else 1.0,
        ttft_p50_us=ttft_p50,
        ttft_p99_us=ttft_p99,
        tpot_p50_us=tpot_p50,
        tpot_p99_us=tpot_p99,
        refused=sum(found.reasons.values()) / len(calls),
        tokens_per_s=found.tokens_per_s,
    )
