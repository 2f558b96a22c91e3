"""Who has a seat, who waits for one, and in which order: classes, ageing, and what of it batch requests may keep."""

from __future__ import annotations

from collections.abc import Collection

from brim.engine.admission import BATCH, INTERACTIVE, SPARED_FOR_US, Policy
from brim.engine.engine import EngineLimits
from brim.engine.entry import Entry, Leaving
from brim.engine.kv_cache import BlockLedger
from brim.engine.lifecycle import RequestClass


class Room:
    """Seats, and places to wait for one.

    Attributes:
        waiting: those without a seat, in the order in which they came.
        seated: those with one, in the order in which they got it.
        leaving: sequences that are on their way out of the engine; their seats are not free yet.
        aged: numbers of waiting requests that go first for having waited long, as ``find_aged`` found them.
    """

    def __init__(self, policy: Policy, limits: EngineLimits, ledger: BlockLedger) -> None:
        """Nobody is here.

        Args:
            policy: the operator's decisions.
            limits: the engine's.
            ledger: who was promised which blocks; read only.
        """
        self._policy, self._limits, self._ledger = policy, limits, ledger
        self.waiting: list[Entry] = []
        self.seated: list[Entry] = []
        self.leaving: dict[int, Leaving] = {}
        self.aged: set[int] = set()
        self._share_held = False
        self._interactive_us = -SPARED_FOR_US

    def clear(self) -> None:
        """Everybody goes."""
        self.waiting.clear()
        self.seated.clear()
        self.leaving.clear()

    def came(self, kind: RequestClass, now_us: int) -> None:
        """A request was submitted, whatever became of it."""
        if kind is INTERACTIVE:
            self._interactive_us = now_us

    def free_seats(self) -> int:
        """Seats that nobody has."""
        return max(0, self._policy.max_sequences - len(self.seated) - len(self.leaving))

    def is_full(self, kind: RequestClass) -> bool:
        """Whether the room has no place for one more of this class. Those for whom a seat is free do not count as waiting."""
        policy, free = self._policy, self.free_seats()
        if len(self.waiting) >= policy.max_waiting + free:
            return True
        return kind is BATCH and sum(e.request.kind is BATCH for e in self.waiting) >= policy.max_waiting_batch + free

    def is_kept(self, entry: Entry) -> bool:
        """Whether a batch request, once it has a seat, keeps it against interactive ones."""
        if entry.request.kind is INTERACTIVE:
            return False
        return not self._policy.preempts or entry.by_age or entry.preemptions >= self._policy.max_preemptions

    def spare_seats(self, entry: Entry, now_us: int) -> int:
        """Seats that are not for this request, be they free."""
        if entry.request.kind is INTERACTIVE or entry.number in self.aged:
            return 0
        return self._policy.spare_seats if now_us - self._interactive_us < SPARED_FOR_US else 0

    def share_left(self) -> tuple[int, int]:
        """Seats and blocks that are left of what batch requests may keep."""
        kept = [e for e in self.seated if self.is_kept(e)]
        blocks = sum(self._ledger.held(e.number) for e in kept)
        return self._policy.kept_seats - len(kept), self._policy.kept_blocks(self._limits) - blocks

    def share_is_taken(self, entry: Entry) -> bool:
        """Whether a request that nobody could take the seat from again has to wait for others like it.

        One that is larger than the whole share is kept alone.
        """
        if not self.is_kept(entry):
            return False
        seats, blocks = self.share_left()
        alone = seats == self._policy.kept_seats
        return self._share_held or seats < 1 or (blocks < self._ledger.need(entry.request.most_tokens) and not alone)

    def find_aged(self, now_us: int) -> None:
        """Who goes first for having waited long: of the batch class as many as may be kept, and nobody past the oldest."""
        self.aged, self._share_held = set(), False
        seats, blocks = self.share_left()
        alone = seats == self._policy.kept_seats
        for entry in sorted(self.waiting, key=lambda e: e.number):
            kind = entry.request.kind
            if now_us - entry.arrived_us < self._policy.ageing_us[kind]:
                continue
            if kind is BATCH:
                seats -= 1
                blocks -= self._ledger.need(entry.request.most_tokens)
                self._share_held = self._share_held or seats < 0 or (blocks < 0 and not alone)
                if self._share_held:
                    continue
                alone = False
            self.aged.add(entry.number)

    def rank(self, entry: Entry) -> tuple[int, int, int]:
        """Order: the aged by age; then by class, and within one the shortest expected prefill, and then the oldest.

        Age counts while waiting only: once seated, ``Policy.long_share`` sees to it that a prefill goes on.
        """
        kind = entry.request.kind
        if entry.seated_us is None and entry.number in self.aged:
            return -1, 0, entry.number
        return kind, entry.remaining_tokens, entry.number

    def victims(self, blocks: int, seats: int, planned: Collection[str]) -> list[Entry]:
        """Running batch requests whose going frees so much, or none. First those that lose nothing, then the youngest.

        Those that were given something in this very step (``planned``, by id) keep it.
        """
        able = [
            e for e in self.seated if e.request.kind is BATCH and not self.is_kept(e) and e.request.id not in planned
        ]
        able.sort(
            key=lambda e: (not e.request.sampling.continues_from_text and bool(e.text), -(e.seated_us or 0), -e.number)
        )
        chosen: list[Entry] = []
        for victim in able:
            if blocks <= 0 and seats <= 0:
                break
            chosen.append(victim)
            blocks -= self._ledger.held(victim.number)
            seats -= 1
        return chosen if blocks <= 0 and seats <= 0 else []
