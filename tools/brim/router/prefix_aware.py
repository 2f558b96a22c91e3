"""For token models: outstanding and waiting requests, free KV cache, and who holds the beginning of the prompt.

Sources of the parts: queue, KV cache and prefix as scores (the endpoint picker of the Gateway API Inference Extension), and
a bound on how much more than the mean a replica may have (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded
Loads, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.engine.kv_cache import blocks_for
from brim.router.estimate import has_kv_for, kv_free, outstanding, sighted, told, waiting
from brim.router.spread import rank
from brim.router.view import Candidate, Choice, Reason, Request, Settings


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A candidate's costs in requests, without what its prefix is worth."""

    outstanding: float
    extra: float
    saturated: bool
    match: float


def prefix_aware(
    candidates: Sequence[Candidate], request: Request, number: int, now_us: int, settings: Settings
) -> Choice:
    """The least cost: ``Settings`` says what costs how much.

    Saturated replicas are left out while others are there. Of a replica whose page is missing, stale or no number, nothing
    counts but what is in flight from here; what waits there and its KV cache then cost as much as with the others.
    """
    weighed = _weigh(candidates, request, now_us, settings)
    pool = [index for index, one in enumerate(weighed) if not one.saturated] or list(range(len(weighed)))
    cap = _cap(weighed, settings)
    warm = {index for index in pool if weighed[index].match and weighed[index].outstanding + 1 <= cap}
    costs = {
        index: weighed[index].outstanding
        + weighed[index].extra
        - (settings.prefix_weight * weighed[index].match if index in warm else 0.0)
        for index in pool
    }
    least = min(costs.values())
    near = [index for index in pool if costs[index] <= least + settings.indifference]
    # Of those that are as good as each other, one that holds the prefix.
    among = [index for index in near if index in warm] or near
    key = _key(request, number, settings)
    taken = max(among, key=lambda index: rank(candidates[index].replica.name, key, settings.seed))
    return Choice(taken, _why(taken, warm, weighed, pool))


def _cap(weighed: Sequence[_Weighed], settings: Settings) -> float:
    """Outstanding requests, the new one included, up to which a replica is taken for what it holds.

    Not rounded up, as in the paper: of two or three requests a replica that would allow one more than the factor says, which is
    half of them.
    """
    mean = (sum(one.outstanding for one in weighed) + 1) / len(weighed)
    return max(float(settings.free_load), settings.load_factor * mean)


def _why(taken: int, warm: set[int], weighed: Sequence[_Weighed], pool: Sequence[int]) -> Reason:
    holders = {index for index, one in enumerate(weighed) if one.match}
    if taken in warm:
        return Reason.WARM
    if not holders or taken in holders:
        return Reason.LEAST
    if warm:
        return Reason.WARM_OUTWEIGHED
    return Reason.WARM_OVER_CAP if holders & set(pool) else Reason.WARM_SATURATED


def _weigh(candidates: Sequence[Candidate], request: Request, now_us: int, settings: Settings) -> list[_Weighed]:
    names = told(candidates, ("waiting", "running", "kv_free"))
    seen = [sighted(one.replica, names, now_us, settings) for one in candidates]
    if any(seen):
        extras = [_extra(one, settings) if sees else 0.0 for one, sees in zip(candidates, seen, strict=True)]
        usual = sum(extras) / sum(seen)
        extras = [extra if sees else usual for extra, sees in zip(extras, seen, strict=True)]
    else:
        # Where nothing is known of anybody, a burst waits like one that pages have not shown yet.
        extras = [settings.waiting_weight * one.own for one in candidates]
    return [
        _Weighed(
            outstanding=outstanding(one) if sees else float(one.own),
            extra=extra,
            saturated=sees and _saturated(one, request, settings),
            match=_match(one, request, settings),
        )
        for one, sees, extra in zip(candidates, seen, extras, strict=True)
    ]


def _extra(one: Candidate, settings: Settings) -> float:
    free = kv_free(one)
    return settings.waiting_weight * waiting(one) + settings.kv_weight * (0.0 if free is None else 1 - free)


def _saturated(one: Candidate, request: Request, settings: Settings) -> bool:
    free = kv_free(one)
    return (
        waiting(one) >= settings.saturated_waiting
        or (free is not None and free < settings.saturated_kv_free)
        or not has_kv_for(one, request.prompt_tokens - one.matched_blocks * settings.block_tokens)
    )


def _match(one: Candidate, request: Request, settings: Settings) -> float:
    """Part of the prompt, 0..1; 0 when it is too short to count."""
    tokens = one.matched_blocks * settings.block_tokens
    return 0.0 if tokens < max(1, settings.least_match_tokens) else min(1.0, tokens / max(1, request.prompt_tokens))


def _key(request: Request, number: int, settings: Settings) -> int:
    """Alike for prompts that begin alike for as long as a match has to be; a shorter prompt has one for itself."""
    needed = blocks_for(max(1, settings.least_match_tokens), settings.block_tokens)
    return request.blocks[needed - 1] if len(request.blocks) >= needed else number
