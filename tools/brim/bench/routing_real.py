"""Prompts that share beginnings, over real replicas: the picker that knows them beside those that do not, in one run.

Each policy's caches are warmed with the same prompts, and from then on only its own traffic comes to them. Rounds follow each
other with the policies in changing order; a round has the same requests at the same moments for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.routing import BALANCE_MARGIN, BESIDE, PICKED, PREFIXES, Traffic
from brim.bench.routing_load import Load, Seen
from brim.bench.routing_place import POLICIES, Case, Place
from brim.bench.verdict import Target
from brim.errors import CouldNotTell, InputError
from brim.measure.histogram import nearest_rank
from brim.paths import Project
from brim.service.schema import Service
from brim.units import us_to_ms

NAME = "routing"
PERCENTILES = (50, 99)
FAILED = Target("requests without a complete text", most=0)
BALANCE = Target(f"most outstanding over the fewest possible: {PICKED} / least_request", most=BALANCE_MARGIN)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of every policy.
        traffic: of one round.
    """

    rounds: int = 5
    traffic: Traffic = Traffic(  # noqa: RUF009 - frozen
        requests=18, rate_per_s=1.5, shared_tokens=256, own_tokens=24, output_tokens=8
    )


DEFAULT_EFFORT = Effort()


def routing_real(
    project: Project,
    service: Service,
    case: Case = Case(),  # noqa: B008 - frozen
    effort: Effort = DEFAULT_EFFORT,
    *,
    folder: Path,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measure all of it.

    Args:
        project: where the model repository lies.
        service: an exported language model.
        case: how it is served.
        effort: how long to look.
        folder: run folder, which gets the servers' logs.
        seed: of prompts and arrivals.
        on_progress: told what is happening, a short sentence each.

    Raises:
        InputError: the service is no language model.
        ServerFailed: a server or a gateway did not start, or ended.
        CouldNotTell: a copy does not answer, or no text of a round is complete.
    """
    if service.generation is None:
        raise InputError(
            f"{service.name} is no language model",
            hint="`brim bench routing --real` wants one, such as text_generation",
        )
    watch = Watch()
    figures: dict[str, list[float]] = {}
    whole: dict[str, list[int]] = {policy: [] for policy in POLICIES}
    with Place(project, service, case, log_folder=folder / "logs", on_progress=on_progress) as place:
        load = Load(place, effort.traffic, seed)
        for policy in POLICIES:
            on_progress(f"{PREFIXES} beginnings once, by {policy}")
            load.warm(policy)
        orders = list(permutations(POLICIES))
        for number in range(effort.rounds):
            for policy in orders[number % len(orders)]:
                seen = load.round(policy, number)
                whole[policy] += seen.ttft_us
                for name, value in figures_of(policy, seen).items():
                    figures.setdefault(name, []).append(value)
            last = ", ".join(f"{policy} {figures[f'{policy}_ttft_p50_ms'][-1]:.0f} ms" for policy in POLICIES)
            on_progress(f"round {number + 1} of {effort.rounds}: TTFT p50 {last}")
            watch.note()
    conditions = watch.stop()
    return Comparison(
        NAME,
        tuple(judged(target, values, conditions) for target, values in ratios_of(figures).items()),
        figures,
        conditions,
        {
            "findings": [_over_all(policy, ttft_us) for policy, ttft_us in whole.items()],
            "case": asdict(case),
            "effort": asdict(effort),
            "prefixes": PREFIXES,
            "service": service.name,
            "seed": seed,
        },
    )


def figures_of(policy: str, seen: Seen) -> dict[str, float]:
    """One round's figures.

    Raises:
        CouldNotTell: no text is complete, or nothing was looked at.
    """
    if not seen.ttft_us or not seen.asked_tokens or not seen.outstanding:
        why = seen.failed[0].error if seen.failed else "nothing was counted"
        raise CouldNotTell(f"{policy} completed no text of a round: {why}", hint="see the servers' logs")
    times = {f"ttft_p{percent}_ms": us_to_ms(percentile(seen.ttft_us, percent)) for percent in PERCENTILES}
    found = {
        **times,
        "hit_ratio": seen.hit_tokens / seen.asked_tokens,
        "tokens_per_s": seen.tokens_per_s,
        "imbalance": seen.imbalance,
        "over_even": seen.over_even,
        "failed": float(len(seen.failed)),
    }
    return {f"{policy}_{name}": value for name, value in found.items()}


def ratios_of(figures: dict[str, list[float]]) -> dict[Target, list[float]]:
    """What is judged, round by round."""
    found = {
        Target(f"TTFT p{percent}: {PICKED} / {policy}", most=1.0): _paired(
            figures, f"ttft_p{percent}_ms", PICKED, policy
        )
        for policy in BESIDE
        for percent in PERCENTILES
    }
    found[BALANCE] = _paired(figures, "over_even", PICKED, "least_request")
    found[FAILED] = [sum(counts) for counts in zip(*(figures[f"{policy}_failed"] for policy in POLICIES), strict=True)]
    return found


def percentile(values: Sequence[int], percent: float) -> int:
    """By nearest rank."""
    return sorted(values)[nearest_rank(percent, len(values)) - 1]


def _paired(figures: dict[str, list[float]], name: str, ours: str, theirs: str) -> list[float]:
    return [one / other for one, other in zip(figures[f"{ours}_{name}"], figures[f"{theirs}_{name}"], strict=True)]


def _over_all(policy: str, ttft_us: Sequence[int]) -> str:
    times = ", ".join(f"p{percent} {us_to_ms(percentile(ttft_us, percent)):.0f} ms" for percent in PERCENTILES)
    return f"{policy}: TTFT over all {len(ttft_us)} requests {times}"
