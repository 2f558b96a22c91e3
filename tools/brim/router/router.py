"""A policy with its memory: what was scraped, what is in flight, who holds which prompts. No clock and no network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brim.router.in_flight import InFlight
from brim.router.policy import pick
from brim.router.prefix_index import PrefixIndexes
from brim.router.spread import draw
from brim.router.view import Candidate, Choice, Replica, Request, Settings


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice, with everything that it was made from.

    Attributes:
        number: of the request, from 0; ``Router.end`` takes it.
        now_us: when.
        policy: which.
        request: as it was placed.
        candidates: what was known of each replica that was looked at.
        choice: the one taken, and why.
    """

    number: int
    now_us: int
    policy: str
    request: Request
    candidates: tuple[Candidate, ...]
    choice: Choice

    @property
    def name(self) -> str:
        """Of the replica."""
        return self.candidates[self.choice.index].replica.name


class Router:
    """Places requests on replicas. For one thread.

    Call ``scrape`` with every page, ``pick`` for every request, and ``end`` when one has ended, however it did.
    """

    def __init__(self, policy: str, names: Iterable[str] = (), settings: Settings | None = None) -> None:
        """Replicas of which no page was seen.

        Args:
            policy: a key of ``brim.router.policy.POLICIES``.
            names: of the replicas.
            settings: what to go by.
        """
        self.policy = policy
        self.settings = settings or Settings()
        self._replicas = {name: Replica(name) for name in sorted(names)}
        self._in_flight = InFlight(self.settings.settle_us)
        self._prefixes = PrefixIndexes(self.settings.block_tokens)
        self._number = 0
        self._unfit: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the replicas."""
        return tuple(self._replicas)

    def set_replicas(self, names: Iterable[str]) -> None:
        """These are the replicas from now on. One that stays keeps what is known of it."""
        wanted = sorted(set(names))
        for gone in self._replicas.keys() - set(wanted):
            self._in_flight.forget(gone)
            self._prefixes.forget(gone)
        self._replicas = {name: self._replicas.get(name, Replica(name)) for name in wanted}

    def set_unfit(self, names: Iterable[str]) -> None:
        """These get no requests for now. What is known of them stays."""
        self._unfit = frozenset(names)

    def scrape(self, replica: Replica) -> bool:
        """Take in a page. Whether it shows that the replica has started anew, so that its prefixes are forgotten.

        Of a replica that is not known, or a page older than the last, nothing is taken.
        """
        before = self._replicas.get(replica.name)
        if before is None or replica.scraped_us is None or (before.scraped_us or 0) > replica.scraped_us:
            return False
        self._replicas[replica.name] = replica
        self._in_flight.scrape(replica.name, replica.scraped_us)
        return self._prefixes.scrape(replica)

    def pick(self, request: Request, now_us: int) -> Decision | None:
        """Place a request; None when there is no replica that takes any."""
        number = self._number
        candidates = self._candidates(request, number)
        if not candidates:
            return None
        choice = pick(self.policy, candidates, request, number=number, now_us=now_us, settings=self.settings)
        decision = Decision(number, now_us, self.policy, request, candidates, choice)
        self._number += 1
        self._in_flight.send(
            number, decision.name, tokens=request.prompt_tokens, priority=request.priority, now_us=now_us
        )
        if request.blocks:
            self._prefixes.touch(decision.name, request.blocks)
        return decision

    def next_best(self, decision: Decision) -> str | None:
        """The replica that would have been taken if there were not the one that was, for a retry; None without another one."""
        others = [one for one in decision.candidates if one.replica.name != decision.name]
        if not others:
            return None
        choice = pick(
            decision.policy,
            others,
            decision.request,
            number=decision.number,
            now_us=decision.now_us,
            settings=self.settings,
        )
        return others[choice.index].replica.name

    def end(self, number: int, now_us: int) -> None:
        """A request has ended."""
        self._in_flight.end(number, now_us)

    def in_flight(self, name: str) -> int:
        """Requests from here that have not ended."""
        return self._in_flight.of(name, 0).own

    def prefix_blocks(self, name: str) -> int:
        """Blocks of prompts that a replica is thought to hold."""
        return self._prefixes.blocks(name)

    def _candidates(self, request: Request, number: int) -> tuple[Candidate, ...]:
        replicas = [one for name, one in self._replicas.items() if name not in self._unfit]
        matches = [self._prefixes.match(one.name, request.blocks) if request.blocks else 0 for one in replicas]
        settings = self.settings
        looked_at = set(draw(len(replicas), settings.choices, number=number, seed=settings.seed))
        return tuple(
            self._candidate(replica, request, match)
            for index, (replica, match) in enumerate(zip(replicas, matches, strict=True))
            if match or index in looked_at
        )

    def _candidate(self, replica: Replica, request: Request, matched_blocks: int) -> Candidate:
        counted = self._in_flight.of(replica.name, request.priority)
        return Candidate(
            replica,
            own=counted.own,
            unseen=counted.unseen,
            unseen_behind=counted.unseen_behind,
            unseen_tokens=counted.unseen_tokens,
            ended=counted.ended,
            matched_blocks=matched_blocks,
        )
