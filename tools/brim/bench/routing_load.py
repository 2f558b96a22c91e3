"""Prompts that share beginnings, sent to real replicas: each at its time, whether or not others have been answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from statistics import mean

import numpy as np

from brim.bench.routing import PREFIXES, Traffic, draw
from brim.bench.routing_fleet import Prompted
from brim.bench.routing_place import Place
from brim.engine.metrics import PREFIX_ASKED, PREFIX_HIT
from brim.engine.traffic import Call
from brim.errors import CouldNotTell, ServerFailed
from brim.gateway.hosts import hosts
from brim.measure.text.events import EventCallers
from brim.measure.text.prompts import Prompts, WordCount
from brim.measure.text.server_side import Difference
from brim.measure.text.stream import Ask, Heard, clock_us
from brim.units import US_PER_S

WORD = WordCount()
"""A word is a token: those that prompts are made of stand whole in a vocabulary of English text, or nearly."""
LOOK_S = 0.1
"""Between two looks at what is outstanding on each replica."""
WARM_AT_ONCE = 8


@dataclass(slots=True)
class Seen:
    """What became of one policy's traffic in one round.

    Attributes:
        due_us: when each request was to be sent, on the clock of ``Heard``.
        heard: what its caller heard.
        hit_tokens: prompt tokens that were found in a cache, as the engines counted.
        asked_tokens: of all prompts.
        outstanding: at each look that found some: the requests on each replica.
    """

    due_us: list[int] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    hit_tokens: int = 0
    asked_tokens: int = 0
    outstanding: list[list[int]] = field(default_factory=list)

    @property
    def failed(self) -> list[Heard]:
        """Requests whose text is not complete."""
        return [one for one in self.heard if not one.complete]

    @property
    def ttft_us(self) -> list[int]:
        """Of complete texts, from when each was due to its first token."""
        return [
            one.first_us - due
            for due, one in zip(self.due_us, self.heard, strict=True)
            if one.complete and one.first_us is not None
        ]

    @property
    def imbalance(self) -> float:
        """The most outstanding requests of a replica over the mean of all, the mean over all looks.

        It also tells how many there are: of one request it is the number of replicas, wherever it is. So who answers sooner
        looks less even.
        """
        return mean(max(loads) * len(loads) / sum(loads) for loads in self.outstanding)

    @property
    def over_even(self) -> float:
        """The most of a replica over the fewest that the most could be: 1 where no other placement is more even."""
        return mean(max(loads) / ceil(sum(loads) / len(loads)) for loads in self.outstanding)

    @property
    def tokens_per_s(self) -> float:
        """Of the texts, from the first request that was due to the last end."""
        wall_us = max(one.ended_us for one in self.heard) - min(self.due_us)
        return sum(one.output_tokens for one in self.heard) * US_PER_S / wall_us


class Load:
    """Traffic for one policy after the other. A round has the same requests for each."""

    def __init__(self, place: Place, traffic: Traffic, seed: int) -> None:
        """Nothing is sent yet.

        Args:
            place: what is asked.
            traffic: of one round.
            seed: of beginnings, arrivals and lengths.
        """
        self._place, self._traffic, self._seed = place, traffic, seed

    def warm(self, policy: str) -> None:
        """Ask for one token of every beginning, once.

        Raises:
            CouldNotTell: a request failed.
        """
        traffic = self._traffic
        order = np.random.default_rng([self._seed, PREFIXES]).permutation(PREFIXES).tolist()
        once = [Prompted(0, prefix, traffic.shared_tokens, traffic.own_tokens, 1) for prefix in order]
        heard = asyncio.run(self._closed(policy, once))
        failed = next((one.error for one in heard if not one.complete), None)
        if failed is not None:
            raise CouldNotTell(f"a request to {policy} failed: {failed}", hint="see the servers' logs")

    def round(self, policy: str, number: int) -> Seen:
        """One round's requests through the policy's gateway."""
        before = self._place.pages(policy)
        seen = asyncio.run(self._open(policy, draw(self._traffic, self._seed + number), f"round {number}"))
        for one in map(Difference, before, self._place.pages(policy)):
            seen.hit_tokens += one.counted(PREFIX_HIT) or 0
            seen.asked_tokens += one.counted(PREFIX_ASKED) or 0
        return seen

    def _callers(self, policy: str) -> EventCallers:
        return EventCallers(self._place.gateways[policy].endpoint.http, policy)

    def _ask(self, one: Prompted, number: int, name: str) -> Ask:
        prompts = Prompts(WORD, f"{self._seed}.{name}", one.shared_tokens, f"{self._seed}.{one.prefix}")
        call = Call(one.shared_tokens + one.own_tokens, one.output_tokens, one.output_tokens)
        return Ask(
            prompts.prompt(call, number), {"temperature": 0, "ignore_eos": True, "max_tokens": one.output_tokens}
        )

    async def _closed(self, policy: str, prompted: Sequence[Prompted]) -> list[Heard]:
        left = list(enumerate(prompted))
        heard = []
        async with self._callers(policy) as callers:

            async def go_on() -> None:
                while left:
                    number, one = left.pop()
                    heard.append(await callers.ask(self._ask(one, number, "warm")))

            await asyncio.gather(*(go_on() for _ in range(WARM_AT_ONCE)))
        return heard

    async def _open(self, policy: str, prompted: Sequence[Prompted], name: str) -> Seen:
        asks = [self._ask(one, number, name) for number, one in enumerate(prompted)]
        seen = Seen()
        async with self._callers(policy) as callers:
            looking = asyncio.create_task(self._look(policy, seen))
            began_us = clock_us()
            calls = []
            for one, ask in zip(prompted, asks, strict=True):
                seen.due_us.append(began_us + one.at_us)
                await asyncio.sleep(max(0, seen.due_us[-1] - clock_us()) / US_PER_S)
                calls.append(asyncio.create_task(callers.ask(ask)))
            seen.heard = list(await asyncio.gather(*calls))
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
        return seen

    async def _look(self, policy: str, seen: Seen) -> None:
        gateway = self._place.gateways[policy]
        addresses = [replica.server.endpoint.http for replica in self._place.fleet.replicas]
        while True:
            with suppress(ServerFailed):
                known = await asyncio.to_thread(hosts, gateway.admin)
                loads = [known[address].under_way for address in addresses if address in known]
                if any(loads):
                    seen.outstanding.append(loads)
            await asyncio.sleep(LOOK_S)
