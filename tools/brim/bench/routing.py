"""Prompts that share beginnings, over several replicas: what the routing policies make of them, on simulated engines.

The traffic is the same for each, and so is everything but the policy. What it stands for: as many agents or documents as
there are beginnings, each of which comes again and again with something new behind it, and more of them than one replica's KV
cache holds. Each replica can keep some of them, if it is always the same ones that come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brim.bench.routing_fleet import Fleet, Prompted, Routed, route
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits
from brim.engine.step_time import StepTime
from brim.router.view import Settings
from brim.units import US_PER_S

PICKED, BESIDE = "prefix_aware", ("least_request", "round_robin")
BALANCE_MARGIN = 1.05
"""How much less even than with ``least_request`` the picked policy may be."""
PREFIXES, REPLICAS = 64, 3
FLEET = Fleet(
    replicas=REPLICAS,
    limits=EngineLimits(
        total_blocks=1_200,
        block_tokens=16,
        step_tokens=512,
        context_tokens=2_048,
        vocabulary=1 << 31,
        prefix_cache=True,
    ),
    policy=Policy(max_sequences=16, max_waiting=1_000, max_waiting_batch=1_000, chunk_tokens=256),
    step_time=StepTime(base_us=9_000, sequence_us=300, context_us=0.9, prefill_us=40, pair_us=0.004, crowd_us=0),
    scrape_us=100_000,
)
"""About a small model on a small GPU. A cache holds a third of the beginnings and what sixteen texts need besides."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent.

    Attributes:
        requests: how many.
        rate_per_s: mean of their Poisson process.
        shared_tokens: of each beginning.
        own_tokens: of a prompt behind it.
        output_tokens: of a text, on average; geometrically distributed.
        zipf: how much more popular some beginnings are than others: the n-th comes 1 / n^zipf times as often as the first.
    """

    requests: int = 1_500
    rate_per_s: float = 45
    shared_tokens: int = 512
    own_tokens: int = 64
    output_tokens: int = 24
    zipf: float = 0.8


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's answer.

    Attributes:
        policy: which.
        hit_ratio: part of the prompts' tokens that were found in a cache.
        ttft_p50_us: time to first token.
        ttft_p99_us: likewise.
        tokens_per_s: of the texts, over the whole run.
        imbalance: the most outstanding requests of a replica over the mean of all, the mean over all arrivals.
        largest_share: of the requests, at one replica.
        complete: texts that are.
    """

    policy: str
    hit_ratio: float
    ttft_p50_us: int
    ttft_p99_us: int
    tokens_per_s: float
    imbalance: float
    largest_share: float
    complete: int


def draw(traffic: Traffic, seed: int) -> list[Prompted]:
    """The requests, in order."""
    rng = np.random.default_rng(seed)
    at_us = np.cumsum(rng.exponential(US_PER_S / traffic.rate_per_s, traffic.requests)).astype(int)
    popularity = 1 / np.arange(1, PREFIXES + 1) ** traffic.zipf
    prefixes = rng.choice(PREFIXES, traffic.requests, p=popularity / popularity.sum())
    outputs = rng.geometric(1 / traffic.output_tokens, traffic.requests).clip(1, 8 * traffic.output_tokens)
    return [
        Prompted(int(at), int(prefix), traffic.shared_tokens, traffic.own_tokens, int(output))
        for at, prefix, output in zip(at_us, prefixes, outputs, strict=True)
    ]


def compare(traffic: Traffic, *, seed: int, fleet: Fleet = FLEET) -> list[Line]:
    """Every policy with the same traffic."""
    prompted = draw(traffic, seed)
    settings = Settings(seed=seed, block_tokens=fleet.limits.block_tokens)
    return [_line(policy, route(prompted, fleet, policy, settings)) for policy in (PICKED, *BESIDE)]


def misses(lines: Sequence[Line]) -> list[str]:
    """What the picked policy should have done better; empty when nothing."""
    by_policy = {line.policy: line for line in lines}
    picked = by_policy[PICKED]
    found = [
        f"{name} of {PICKED} is {getattr(picked, name) / US_PER_S:.3f} s, of {policy} {getattr(by_policy[policy], name) / US_PER_S:.3f} s"
        for policy in BESIDE
        for name in ("ttft_p50_us", "ttft_p99_us")
        if getattr(picked, name) >= getattr(by_policy[policy], name)
    ]
    least = by_policy["least_request"]
    if picked.imbalance > BALANCE_MARGIN * least.imbalance:
        found.append(f"the imbalance of {PICKED} is {picked.imbalance:.3f}, of {least.policy} {least.imbalance:.3f}")
    return found


def as_json(lines: Sequence[Line], traffic: Traffic, seed: int) -> dict[str, Any]:
    """For the answer and its file."""
    return {
        "lines": [asdict(line) for line in lines],
        "traffic": {**asdict(traffic), "prefixes": PREFIXES, "replicas": REPLICAS},
        "seed": seed,
        "misses": misses(lines),
    }


def _line(policy: str, routed: Routed) -> Line:
    complete = routed.complete
    ttft_us = np.array([one.first_us - one.sent_us for one in complete])
    p50_us, p99_us = (int(np.percentile(ttft_us, percent, method="inverted_cdf")) for percent in (50, 99))
    return Line(
        policy,
        hit_ratio=routed.hit_tokens / routed.asked_tokens,
        ttft_p50_us=p50_us,
        ttft_p99_us=p99_us,
        tokens_per_s=sum(one.tokens for one in complete) * US_PER_S / routed.wall_us,
        imbalance=routed.imbalance,
        largest_share=max(routed.shares.values()) / sum(routed.shares.values()),
        complete=len(complete),
    )
