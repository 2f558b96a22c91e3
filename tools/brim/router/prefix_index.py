"""Which replica was given which beginnings of prompts: what its engine still has of them, probably.

Blocks are hashed by ``brim.engine.kv_cache.block_hashes``, over token ids or over bytes: both are sequences of small numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from brim.engine.kv_cache import PrefixIndex
from brim.router.view import Replica

MOST_BLOCKS = 1 << 15
"""Of a replica that does not say how many KV blocks it has."""


class PrefixIndexes:
    """One index a replica, which forgets first what was used least recently, and everything when the replica starts anew."""

    def __init__(self, block_tokens: int) -> None:
        """Empty. ``block_tokens``: tokens that one hashed block stands for."""
        self._block_tokens = block_tokens
        self._indexes: dict[str, PrefixIndex] = {}
        self._lives: dict[str, tuple[str, float | None]] = {}

    def blocks(self, name: str) -> int:
        """Blocks that a replica is thought to have."""
        return len(self._indexes.get(name, ()))

    def match(self, name: str, blocks: Sequence[int]) -> int:
        """Leading blocks that a replica was given before."""
        index = self._indexes.get(name)
        return index.cached_blocks(blocks) if index is not None else 0

    def touch(self, name: str, blocks: Sequence[int]) -> None:
        """A replica is given a prompt that begins with them."""
        self._indexes.setdefault(name, PrefixIndex(MOST_BLOCKS)).touch(blocks)

    def scrape(self, replica: Replica) -> bool:
        """Take over the size of its KV cache, and forget all of it when it has started anew. Whether it has.

        It has when its incarnation is another one, or when a counter that only grows has become less.
        """
        incarnation, counted = self._lives.get(replica.name, ("", None))
        anew = bool(incarnation and replica.incarnation and incarnation != replica.incarnation) or (
            counted is not None and replica.counted is not None and replica.counted < counted
        )
        if anew:
            self.forget(replica.name)
        self._lives[replica.name] = (
            replica.incarnation or incarnation,
            replica.counted if replica.counted is not None else counted,
        )
        if replica.kv_blocks and replica.kv_block_tokens:
            most = max(1, replica.kv_blocks * replica.kv_block_tokens // self._block_tokens)
            self._indexes.setdefault(replica.name, PrefixIndex(most)).most_blocks = most
        return anew

    def forget(self, name: str) -> None:
        """Nothing is known of a replica."""
        self._indexes.pop(name, None)
        self._lives.pop(name, None)
