"""The KV cache as the policy sees it: blocks promised to requests, and prefixes that the engine probably still has.

Blocks are promised for a request's whole life, prompt and longest text, before it begins. So the engine never runs out of
them in the middle of a text: it would then preempt of its own accord, and where even that frees nothing, openvino-genai
ends every running sequence as out of memory.

Such promises can be kept to the last block: openvino-genai 2026.4 with 8 blocks ran pairs of texts that needed 4 each, one
that needed 8, two with one prompt between them, and all of them again over a cache full of old prefixes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import takewhile


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_tokens)


class BlockLedger:
    """Who was promised how many blocks. What is promised never exceeds what there is."""

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        """Nothing promised."""
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self._promised: dict[Hashable, int] = {}
        self._used = 0

    @property
    def used_blocks(self) -> int:
        """Blocks promised."""
        return self._used

    @property
    def free_blocks(self) -> int:
        """Blocks promised to nobody."""
        return self.total_blocks - self._used

    def need(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return blocks_for(tokens, self.block_tokens)

    def held(self, owner: Hashable) -> int:
        """Blocks promised to one owner."""
        return self._promised.get(owner, 0)

    def promise(self, owner: Hashable, blocks: int) -> None:
        """Promise blocks to an owner who has none.

        Raises:
            ValueError: it has some, or there are not so many.
        """
        if owner in self._promised or not 0 < blocks <= self.free_blocks:
            raise ValueError(
                f"{blocks} blocks for {owner!r}, who holds {self.held(owner)}; {self.free_blocks} are free"
            )
        self._promised[owner] = blocks
        self._used += blocks

    def release(self, owner: Hashable) -> None:
        """Take an owner's blocks back.

        Raises:
            KeyError: it has none.
        """
        self._used -= self._promised.pop(owner)


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[int]:
    """One hash a full block; each covers everything before it too, so equal hashes mean equal prefixes.

    They serve estimates only: a collision makes a prefill look shorter than it is, and never touches a text.
    """
    hashes: list[int] = []
    before = 0
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = hash((before, *tokens[end - block_tokens : end]))
        hashes.append(before)
    return hashes


class PrefixIndex:
    """Blocks that the engine was given last, by content: so much of a prompt it need not compute again, probably.

    Bounded by the engine's own number of blocks and, like openvino-genai's cache, forgetting first what was least recently
    handed out (``brim.engine.fake`` says more). The engine may have let go of what is listed here; then a step takes longer
    than planned, and nothing else happens.
    """

    def __init__(self, most_blocks: int) -> None:
        """Empty."""
        self.most_blocks = most_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks listed."""
        return len(self._blocks)

    def cached_blocks(self, hashes: Sequence[int]) -> int:
        """Leading blocks that are listed."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, hashes))

    def touch(self, hashes: Sequence[int]) -> None:
        """These blocks have been handed out now; the first of them are forgotten first."""
        for block in hashes:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.most_blocks:
            self._blocks.popitem(last=False)
