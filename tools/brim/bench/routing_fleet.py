"""Several simulated replicas of a token model behind a router: the scheduler that serves, over engines whose steps take as
long as a model of them says, and pages that the router sees only now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import mean

from brim.engine import metrics as m
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling, Step
from brim.engine.fake import EOS, FakeEngine
from brim.engine.kv_cache import block_hashes
from brim.engine.lifecycle import Delta, End, Ended, Event, Request
from brim.engine.scheduler import Scheduler
from brim.engine.simulated import Seen
from brim.engine.step_time import StepTime
from brim.router import view
from brim.router.router import Router

TEXT_TOKEN = 1
FIRST_SHARED_TOKEN, FIRST_OWN_TOKEN = 1_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Prompted:
    """A request that will be made.

    Attributes:
        at_us: when.
        prefix: number of the beginning that it shares with others.
        shared_tokens: of that beginning.
        own_tokens: of its prompt, behind it.
        output_tokens: of its text.
    """

    at_us: int
    prefix: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas, all alike.

    Attributes:
        replicas: how many.
        limits: of each engine.
        policy: of each scheduler.
        step_time: how long steps take.
        scrape_us: pause between two pages.
    """

    replicas: int
    limits: EngineLimits
    policy: Policy
    step_time: StepTime
    scrape_us: int


@dataclass(frozen=True, slots=True)
class Routed:
    """What became of a traffic.

    Attributes:
        seen: of each request, in order.
        hit_tokens: prompt tokens that were found in a cache.
        asked_tokens: of all prompts that got a seat.
        wall_us: from 0 to the last end.
        imbalance: the most outstanding requests of a replica over the mean of all, the mean over all arrivals.
        shares: requests by replica.
    """

    seen: Sequence[Seen]
    hit_tokens: int
    asked_tokens: int
    wall_us: int
    imbalance: float
    shares: dict[str, int]

    @property
    def complete(self) -> list[Seen]:
        """Those whose text is complete."""
        return [one for one in self.seen if one.end in (End.STOP, End.LENGTH)]


class _Replica:
    def __init__(self, name: str, fleet: Fleet, prompted: Sequence[Prompted]) -> None:
        def next_token(tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
            return EOS if len(tokens) - prompt_tokens >= prompted[sampling.seed].output_tokens else TEXT_TOKEN

        self.name, self.now_us = name, 0
        self.engine = FakeEngine(fleet.limits, fleet.step_time.time_us, next_token)
        self.scheduler = Scheduler(self.engine, fleet.policy, lambda: self.now_us)
        self.step: Step | None = None

    def page(self) -> view.Replica:
        value = self.scheduler.metrics.value
        return view.Replica(
            self.name,
            waiting=value(m.WAITING),
            running=value(m.RUNNING),
            kv_free=1 - value(m.KV_USAGE),
            kv_blocks=self.engine.limits.total_blocks,
            kv_block_tokens=self.engine.limits.block_tokens,
            scraped_us=self.now_us,
            incarnation=self.name,
        )


def route(prompted: Sequence[Prompted], fleet: Fleet, policy: str, settings: view.Settings) -> Routed:
    """Send every request at its time to where the policy says, and run all engines until the last text has ended."""
    return _Run(prompted, fleet, Router(policy, map(str, range(fleet.replicas)), settings)).run()


class _Run:
    def __init__(self, prompted: Sequence[Prompted], fleet: Fleet, router: Router) -> None:
        self._prompted, self._fleet, self._router = prompted, fleet, router
        self._replicas = {name: _Replica(name, fleet, prompted) for name in router.names}
        self._seen = [Seen(one.at_us) for one in prompted]
        self._numbers: dict[int, int] = {}
        self._imbalances: list[float] = []
        self._shares = dict.fromkeys(router.names, 0)
        self._left = len(prompted)
        # Time, order of what happens at one time, and what: the number of a request, or a replica whose step ends.
        self._due: list[tuple[int, int, int, str]] = []

    def run(self) -> Routed:
        for index, one in enumerate(self._prompted):
            heappush(self._due, (one.at_us, 1, index, ""))
        scraped_us = now_us = 0
        while self._left and self._due:
            now_us, _, index, name = heappop(self._due)
            while scraped_us <= now_us:
                self._scrape(scraped_us)
                scraped_us += self._fleet.scrape_us
            if name:
                self._collect(self._replicas[name], now_us)
            else:
                self._send(index, now_us)
        schedulers = [one.scheduler.metrics for one in self._replicas.values()]
        return Routed(
            self._seen,
            hit_tokens=round(sum(one.value(m.PREFIX_HIT) for one in schedulers)),
            asked_tokens=round(sum(one.value(m.PREFIX_ASKED) for one in schedulers)),
            wall_us=now_us,
            imbalance=mean(self._imbalances),
            shares=self._shares,
        )

    def _scrape(self, now_us: int) -> None:
        for replica in self._replicas.values():
            replica.now_us = max(replica.now_us, now_us)
            self._router.scrape(replica.page())

    def _send(self, index: int, now_us: int) -> None:
        one = self._prompted[index]
        tokens = (FIRST_SHARED_TOKEN + one.prefix,) * one.shared_tokens + (FIRST_OWN_TOKEN + index,) * one.own_tokens
        blocks = tuple(block_hashes(tokens, self._router.settings.block_tokens))
        decision = self._router.pick(view.Request(len(tokens), blocks), now_us)
        assert decision is not None, "the replicas of a simulation are there"
        self._numbers[index] = decision.number
        self._shares[decision.name] += 1
        loads = [self._router.in_flight(name) for name in self._replicas]
        self._imbalances.append(max(loads) / mean(loads))
        replica = self._replicas[decision.name]
        replica.now_us = now_us
        sampling = Sampling(one.output_tokens + 1, temperature=0, seed=index)
        self._hear(replica.scheduler.submit(Request(str(index), tokens, sampling)), now_us)
        if replica.step is None:
            self._step(replica, now_us)

    def _step(self, replica: _Replica, now_us: int) -> None:
        if replica.scheduler.has_work:
            self._hear(replica.scheduler.feed(), now_us)
            replica.step = replica.engine.step()
            heappush(self._due, (now_us + replica.step.took_us, 0, 0, replica.name))

    def _collect(self, replica: _Replica, now_us: int) -> None:
        step, replica.step = replica.step, None
        assert step is not None, "a step ends once"
        replica.now_us = now_us
        self._hear(replica.scheduler.collect(step), now_us)
        self._step(replica, now_us)

    def _hear(self, events: Sequence[Event], now_us: int) -> None:
        for event in events:
            seen = self._seen[int(event.request_id)]
            if isinstance(event, Delta):
                seen.take(len(event.tokens), now_us)
            elif isinstance(event, Ended):
                seen.end, seen.reason = event.end, event.reason
                self._left -= 1
                self._router.end(self._numbers[int(event.request_id)], now_us)
