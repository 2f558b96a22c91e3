"""Which of several replicas takes a request: pure functions of what is known, so that every choice can be made again.

Costs are in requests. Equal replicas are told apart by the request's number, so that nothing piles up on the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from brim.router.estimate import sighted, still_waiting
from brim.router.prefix_aware import prefix_aware
from brim.router.spread import rank
from brim.router.view import Candidate, Choice, Reason, Request, Settings

Policy = Callable[[Sequence[Candidate], Request, int, int, Settings], Choice]
"""Candidates in the order of their names, the request, its number (0, 1, 2, ...), the time now in us, what to go by."""


def pick(
    policy: str, candidates: Sequence[Candidate], request: Request, *, number: int, now_us: int, settings: Settings
) -> Choice:
    """Choose. The same arguments always give the same choice.

    Args:
        policy: a key of ``POLICIES``.
        candidates: at least one, in the order of their names.
        request: to be placed.
        number: how many requests were placed before it.
        now_us: the time, on the clock of ``Replica.scraped_us``.
        settings: what to go by.

    Raises:
        ValueError: there is no candidate.
    """
    if not candidates:
        raise ValueError("there is no replica to choose from")
    return POLICIES[policy](candidates, request, number, now_us, settings)


def round_robin(
    candidates: Sequence[Candidate], request: Request, number: int, now_us: int, settings: Settings
) -> Choice:
    """Each in its turn, whatever it has to do."""
    return Choice(number % len(candidates), Reason.TURN)


def least_request(
    candidates: Sequence[Candidate], request: Request, number: int, now_us: int, settings: Settings
) -> Choice:
    """The fewest requests in flight from here. What others send does not show."""
    return _least([float(one.own) for one in candidates], candidates, number, settings)


def queue_depth(
    candidates: Sequence[Candidate], request: Request, number: int, now_us: int, settings: Settings
) -> Choice:
    """For tensor models: in flight from here, and what the replica's own queue was last seen to hold, whoever sent it.

    A slow replica shows twice: more is in flight there, and more of it waits. Of a replica whose page is missing, stale or no
    number, only what is in flight from here counts; as much waits there as with the others.
    """
    seen = [sighted(one.replica, ("waiting",), now_us, settings) for one in candidates]
    queues = [still_waiting(one) if sees else 0.0 for one, sees in zip(candidates, seen, strict=True)]
    usual = sum(queues) / max(1, sum(seen))
    costs = [one.own + (queue if sees else usual) for one, queue, sees in zip(candidates, queues, seen, strict=True)]
    return _least(costs, candidates, number, settings)


POLICIES: Mapping[str, Policy] = {
    "round_robin": round_robin,
    "least_request": least_request,
    "queue_depth": queue_depth,
    "prefix_aware": prefix_aware,
}


def _least(costs: Sequence[float], candidates: Sequence[Candidate], number: int, settings: Settings) -> Choice:
    least = min(costs)
    equal = [index for index, cost in enumerate(costs) if cost == least]
    taken = max(equal, key=lambda index: rank(candidates[index].replica.name, number, settings.seed))
    return Choice(taken, Reason.LEAST)
