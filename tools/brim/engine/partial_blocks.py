"""Which sequences may begin together where the engine's prefix cache also finds blocks that are not full.

openvino-genai's cache finds a partly filled last block by the tokens in it, and hands it to every sequence that begins with
them. While it runs a prompt it never copies such a block (``_schedule_prompt_phase_dynamic_split_fuse`` and
``BlockManager::allocate_tokens`` at 2026.3 and on the main branch; decoding does copy, in ``append_slots``). So:

- Two prompts that run in one step, both longer than the same cached tail, write into one block: both come out wrong, and
  words of one show in the other. Tried on 2026.4.1: wrong in 18 of 18 pairs, and right in all of them a step apart.
- A prompt that the engine itself cuts in the middle of a block leaves that block findable as if it were full.

A block that is full, or whose owner decodes, is shared without harm, and so is a tail by prompts that end with it: they write
what is there, and copy when they decode. So it is enough that nobody begins beside an unsettled
sequence, one that has been added and whose prompt has not been run to its end, with which it would share such a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Decoding = tuple[Sequence[int], Sequence[int]]
"""The prompt of a decoding sequence, and its text: one token at least, the last of which is not run yet."""
Tail = tuple[int, tuple[int, ...]]
"""A partly filled last block: the hash of the full blocks before it (0 for none), and the tokens in it."""


@dataclass(slots=True)
class _Unsettled:
    tails: frozenset[Tail]
    first_block: int | None
    cut: bool = False


class PartialBlocks:
    """The partly filled blocks that the engine may have, and the sequences that may be about to write into them.

    What is known of the engine's blocks is too much rather than too little, and knowing one too many makes somebody begin a
    step later. The engine forgets first the block that was handed out first (``brim.engine.fake``). So once a sequence has
    ended, its last block outlives those that end later only where these have a block that nobody had before, or are among
    the others of that moment: at most twice as many sequences as there are blocks. Of a sequence that was dropped two tails
    are possible.
    """

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        """The cache is empty.

        Args:
            total_blocks: of the engine; 0 when nothing is found again, and then everybody may begin.
            block_tokens: tokens a block.
        """
        self._most, self._block_tokens = 5 * total_blocks, block_tokens
        self._tails: OrderedDict[Tail, None] = OrderedDict()
        self._by_blocks: dict[int, set[Tail]] = {}
        self._unsettled: dict[int, _Unsettled] = {}

    def __len__(self) -> int:
        """Tails that are known."""
        return len(self._tails)

    def may_begin(self, tokens: Sequence[int], hashes: Sequence[int], decoding: Iterable[Decoding]) -> bool:
        """Whether a sequence may be added for the next step.

        Args:
            tokens: all that it would be added with.
            hashes: of their full blocks, as ``block_hashes`` makes them.
            decoding: every decoding sequence.
        """
        if not self._unsettled:
            return True
        first = hashes[0] if hashes else None
        if any(other.cut and first is not None and other.first_block == first for other in self._unsettled.values()):
            return False
        tails = self._taken(tokens, hashes, decoding)
        return not any(tails & other.tails for other in self._unsettled.values())

    def begins(self, sequence: int, tokens: Sequence[int], hashes: Sequence[int], decoding: Iterable[Decoding]) -> None:
        """A sequence has been added. Arguments as for ``may_begin``."""
        if not self._most:
            return
        tails = self._taken(tokens, hashes, decoding)
        for tail in tails & self._tails.keys():
            self._tails.move_to_end(tail)
        self._unsettled[sequence] = _Unsettled(tails, hashes[0] if hashes else None)

    def stepped(self, produced: Collection[int]) -> None:
        """A step is over, in which these sequences produced something: their prompts are run. The others' are cut."""
        for sequence in produced:
            self._unsettled.pop(sequence, None)
        for other in self._unsettled.values():
            other.cut = True

    def is_cut(self, sequence: int) -> bool:
        """Whether the engine holds a part of a prompt that ends anywhere: dropped now, it would leave a block half filled."""
        other = self._unsettled.get(sequence)
        return other is not None and other.cut

    def ends(self, tokens: Sequence[int], hashes: Sequence[int]) -> None:
        """A sequence ends, or may, with these tokens run.

        Args:
            tokens: of prompt and text.
            hashes: of their full blocks.
        """
        if not self._most or not len(tokens) % self._block_tokens:
            return
        tail = (hashes[-1] if hashes else 0, tuple(tokens[len(hashes) * self._block_tokens :]))
        self._tails[tail] = None
        self._tails.move_to_end(tail)
        self._by_blocks.setdefault(tail[0], set()).add(tail)
        while len(self._tails) > self._most:
            tail, _ = self._tails.popitem(last=False)
            known = self._by_blocks[tail[0]]
            known.remove(tail)
            if not known:
                del self._by_blocks[tail[0]]

    def _taken(self, tokens: Sequence[int], hashes: Sequence[int], decoding: Iterable[Decoding]) -> frozenset[Tail]:
        """Tails with which the sequence begins, and which it would write on."""
        size, prompt = self._block_tokens, tuple(tokens)
        found: set[Tail] = set()
        for number, before in enumerate((0, *hashes)):
            start = number * size
            for tail in self._by_blocks.get(before, ()):
                end = start + len(tail[1])
                if end < len(prompt) and prompt[start:end] == tail[1]:
                    found.add(tail)
        for own, text in decoding:
            end = len(own) + len(text) - 1
            if not end % size or end >= len(prompt):
                continue
            if prompt[: len(own)] == tuple(own) and prompt[len(own) : end] == tuple(text[:-1]):
                full = end // size
                found.add((hashes[full - 1] if full else 0, prompt[full * size : end]))
        return frozenset(found)
