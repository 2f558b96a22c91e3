"""The router of each model, and one for whatever names no model that a page has shown.

The replicas are the same for all: each runs every model. What one model has to do says little about another, so each is
routed by its own queue, and prefixes are of one model only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from brim.router.metrics_page import ALL, MOST_MODELS
from brim.router.router import Decision, Router
from brim.router.view import Replica, Request, Settings

TENSORS, TOKENS = "queue_depth", "prefix_aware"
"""The policy of a model, by whether its page says what only a token model's does; and of what is not known."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A request under way.

    Attributes:
        pool: model whose router placed it, or ``ALL``.
        decision: where, and why.
    """

    pool: str
    decision: Decision


class Pools:
    """Routers by model. For one thread."""

    def __init__(self, settings: Settings | None = None, policies: Mapping[str, str] | None = None) -> None:
        """No replica.

        Args:
            settings: what every policy goes by.
            policies: model -> key of ``brim.router.policy.POLICIES``, instead of what suits its page.
        """
        self.settings = settings or Settings()
        self._policies = dict(policies or {})
        self._names: tuple[str, ...] = ()
        self._routers = {ALL: self._router(ALL, TOKENS)}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the replicas that requests may go to."""
        return self._names

    @property
    def models(self) -> tuple[str, ...]:
        """Those with a router of their own, and ``ALL``."""
        return tuple(self._routers)

    def router(self, model: str) -> Router:
        """Of a model, or the one for what is not known."""
        return self._routers.get(model, self._routers[ALL])

    def set_replicas(self, names: Iterable[str]) -> None:
        """These are the replicas from now on."""
        self._names = tuple(sorted(set(names)))
        for router in self._routers.values():
            router.set_replicas(self._names)

    def set_unfit(self, unfit: Mapping[str, Iterable[str]]) -> None:
        """By model, and ``ALL`` for every model: replicas that get no requests for now."""
        everywhere = set(unfit.get(ALL, ()))
        for model, router in self._routers.items():
            router.set_unfit(everywhere.union(unfit.get(model, ())))

    def scrape(self, views: Mapping[str, Replica]) -> int:
        """Take in a page, as ``read_page`` gives it. How many routers saw by it that the replica has started anew."""
        anew = 0
        for model, replica in views.items():
            if model not in self._routers and len(self._routers) < MOST_MODELS:
                self._routers[model] = self._router(model, TENSORS if replica.kv_free is None else TOKENS)
            if model in self._routers:
                anew += self._routers[model].scrape(replica)
        return anew

    def pick(self, model: str, request: Request, now_us: int) -> Placed | None:
        """Place a request; None when there is no replica that takes any."""
        pool = model if model in self._routers else ALL
        decision = self._routers[pool].pick(request, now_us)
        return None if decision is None else Placed(pool, decision)

    def end(self, placed: Placed, now_us: int) -> None:
        """It has ended."""
        self._routers[placed.pool].end(placed.decision.number, now_us)

    def _router(self, model: str, usual: str) -> Router:
        return Router(self._policies.get(model, usual), self._names, self.settings)
