"""A replica as it probably is now: its page as last scraped, corrected by what this router has done since."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from brim.engine.kv_cache import blocks_for
from brim.router.view import Candidate, Replica, Settings


def told(candidates: Sequence[Candidate], names: Sequence[str]) -> tuple[str, ...]:
    """Those of the attributes of ``Replica`` that at least one page says: what no page has is missed on none."""
    return tuple(name for name in names if any(_is_amount(getattr(one.replica, name)) for one in candidates))


def sighted(replica: Replica, names: Sequence[str], now_us: int, settings: Settings) -> bool:
    """Whether its page is recent and says all of this. Otherwise only what is in flight from here counts."""
    return (
        bool(names)
        and replica.scraped_us is not None
        and now_us - replica.scraped_us <= settings.stale_us
        and all(_is_amount(getattr(replica, name)) for name in names)
        and (replica.kv_free is None or replica.kv_free <= 1)
    )


def _is_amount(value: float | None) -> bool:
    return value is not None and isfinite(value) and value >= 0


def still_waiting(one: Candidate) -> float:
    """Of those that waited when the page was asked for: each that has ended since has made room for one."""
    return max(0.0, (one.replica.waiting or 0.0) - one.ended)


def waiting(one: Candidate) -> float:
    """In front of the request: one that is less important and came a moment ago lets it pass."""
    return still_waiting(one) + one.unseen - one.unseen_behind


def outstanding(one: Candidate) -> float:
    """Requests there, whoever sent them."""
    replica = one.replica
    return max(0.0, (replica.waiting or 0.0) + (replica.running or 0.0) - one.ended) + one.unseen


def kv_free(one: Candidate) -> float | None:
    """Part of the KV cache, 0..1, less the prompts that were sent since; None where the page does not say."""
    replica = one.replica
    if replica.kv_free is None or not replica.kv_blocks or not replica.kv_block_tokens:
        return replica.kv_free
    return max(0.0, replica.kv_free - blocks_for(one.unseen_tokens, replica.kv_block_tokens) / replica.kv_blocks)


def has_kv_for(one: Candidate, prompt_tokens: int) -> bool:
    """Whether so many tokens fit into the KV cache as it is; True where the page does not say."""
    free, replica = kv_free(one), one.replica
    if free is None or not replica.kv_blocks or not replica.kv_block_tokens:
        return True
    return blocks_for(prompt_tokens, replica.kv_block_tokens) <= free * replica.kv_blocks
