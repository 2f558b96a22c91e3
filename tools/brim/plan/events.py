"""A fleet request by request: the router that serves places each one, and each replica is the simulator of Triton's batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from brim.batcher.machine import Machine
from brim.batcher.replay import Replay
from brim.batcher.settings import Settings
from brim.plan.fleet import Epoch, Seen
from brim.router.router import Router
from brim.router.view import Replica, Request
from brim.units import US_PER_S

PAGE_US = 200_000
"""Between two pages that the router reads of a replica."""
TENSOR = Request()

Mask = NDArray[np.bool_]
Places = NDArray[np.int64]


class EventFleet:
    """Replicas in places."""

    def __init__(
        self,
        settings: Settings,
        machines: Sequence[Machine],
        most: int,
        bound: float,
        epoch_s: float,
        policy: str,
        objective_us: int,
        *,
        page_us: int = PAGE_US,
        seed: int = 0,
    ) -> None:
        """Nothing is in flight, and every place has the first kind of replica.

        Args:
            settings: of every replica's batcher; requests are bounded here and not there.
            machines: by kind of replica.
            most: places.
            bound: most requests in flight, for each replica that is ready: on whichever they are, further ones are refused, as the
                gateway does (docs/replicas.md).
            epoch_s: length of an epoch.
            policy: of the router.
            objective_us: of the latency.
            page_us: between two pages that the router reads.
            seed: of arrivals and jitter.
        """
        self._bound, self._objective_us, self._page_us = bound, objective_us, page_us
        self._epoch_us = round(epoch_s * US_PER_S)
        self._devices = 1 if machines[0].serialised else settings.instances
        self.kind: Places = np.zeros(most, np.int64)
        self._chance = np.random.default_rng([seed, 0])
        self._router = Router(policy)
        self._places = [
            _Place(settings, machines, partial(self._kind_of, place), self._ended, seed * most + place)
            for place in range(most)
        ]
        self._names = [f"replica-{place:04d}" for place in range(most)]
        self._ready: Mask = np.zeros(most, bool)
        self._now_us, self._paged_us, self._looked_us = 0, -page_us, 0
        self._answered = self._in_slo = 0
        self._latencies_us: list[int] = []

    @property
    def in_flight(self) -> NDArray[np.float64]:
        """Of each place."""
        return np.array([place.in_flight for place in self._places], np.float64)

    def step(self, arrivals: int, ready: Mask) -> Epoch:
        """Move on by an epoch."""
        if (ready != self._ready).any():
            self._router.set_replicas(name for name, takes in zip(self._names, ready, strict=True) if takes)
            self._ready = ready.copy()
        answered, in_slo, refused = self._answered, self._in_slo, 0
        for offset_us in np.sort(self._chance.integers(0, self._epoch_us, arrivals)).tolist():
            refused += not self._send(self._now_us + offset_us)
        self._now_us += self._epoch_us
        self._advance(self._now_us)
        return Epoch(refused, self._answered - answered, self._in_slo - in_slo)

    def lose(self, places: Places) -> tuple[float, float]:
        """What is in flight there is lost; none of it was counted before."""
        lost = 0
        for place in places.tolist():
            lost += self._places[place].in_flight
            self._places[place].start()
        return lost, 0.0

    def look(self, ready: Mask) -> Seen:
        """What there is to see of the ready places since the last look."""
        looks = [self._places[place].look(self._now_us) for place in np.flatnonzero(ready)]
        answered = sum(look.taken for look in looks)
        since_us, self._looked_us = self._now_us - self._looked_us, self._now_us
        if not looks:
            return Seen()
        late_us = np.array([one for look in looks for one in look.latencies_us])
        return Seen(
            waiting=float(sum(look.waiting for look in looks)),
            queue_us=sum(look.queued_us for look in looks) / answered if answered else None,
            first_p90_us=float(np.quantile(late_us, 0.9)) if len(late_us) else None,
            utilisation=float(np.mean([look.computed for look in looks])) / self._devices,
            answered_per_s=answered * US_PER_S / max(1, since_us),
        )

    def latency_us(self, share: float) -> float | None:
        """What so large a part of the answered requests does not exceed; None without any."""
        if not self._latencies_us:
            return None
        return float(np.quantile(np.array(self._latencies_us), share, method="inverted_cdf"))

    def _send(self, now_us: int) -> bool:
        """A request comes: whether it is admitted."""
        self._advance(now_us)
        if now_us - self._paged_us >= self._page_us:
            self._paged_us = now_us
            for place in np.flatnonzero(self._ready).tolist():
                self._router.scrape(self._places[place].page(self._names[place], now_us))
        if sum(place.in_flight for place in self._places) >= self._bound * np.count_nonzero(self._ready):
            return False
        decision = self._router.pick(TENSOR, now_us)
        if decision is None:
            return False
        self._places[self._names.index(decision.name)].send(now_us, decision.number)
        return True

    def _advance(self, until_us: int) -> None:
        for place in self._places:
            place.replay.advance(until_us)

    def _kind_of(self, place: int) -> int:
        return int(self.kind[place])

    def _ended(self, number: int, sent_us: int, ended_us: int) -> None:
        self._router.end(number, ended_us)
        latency_us = ended_us - sent_us
        self._answered += 1
        self._in_slo += latency_us <= self._objective_us
        self._latencies_us.append(latency_us)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one place's pages show since the last look: the part of the time that was computed in is over all devices."""

    waiting: int
    taken: int
    queued_us: int
    computed: float
    latencies_us: list[int]


class _Place:
    """A replica and its clients' memory of what they sent there."""

    def __init__(
        self,
        settings: Settings,
        machines: Sequence[Machine],
        kind: Callable[[], int],
        ended: Callable[[int, int, int], None],
        seed: int,
    ) -> None:
        self._settings, self._machines, self._kind, self._told = settings, machines, kind, ended
        self._seeds = np.random.SeedSequence(seed)
        self._looked_us = 0
        self.start()

    def start(self) -> None:
        """Anew, with nothing in flight."""
        jitter, chance = (np.random.default_rng(child) for child in self._seeds.spawn(2))
        executions = [machine.execution(self._settings.max_rows, jitter) for machine in self._machines]

        def execute(rows: int, taken_us: int) -> tuple[int, int]:
            return executions[self._kind()](rows, taken_us)

        self.replay = Replay(self._settings, self._machines[0], None, execute, chance, on_end=self._ended)
        self._sent: list[tuple[int, int]] = []
        self._batches = self._requests = 0
        self._latencies_us: list[int] = []

    @property
    def in_flight(self) -> int:
        """Requests sent that have not ended."""
        return self.replay.record.in_flight

    def send(self, at_us: int, number: int) -> None:
        """A request, by the router's number."""
        self.replay.send(at_us)
        self._sent.append((at_us, number))

    def page(self, name: str, now_us: int) -> Replica:
        """Its metrics page."""
        waiting = self.replay.waiting
        return Replica(name, waiting=waiting, running=self.in_flight - waiting, scraped_us=now_us)

    def look(self, now_us: int) -> _Look:
        """What has come since the last look. Batches hold requests in the order of sending."""
        batches = self.replay.record.taken_since(self._batches)
        taken = queued_us = computed_us = 0
        for taken_us, compute_us, requests in batches:
            sent = self._sent[self._requests + taken : self._requests + taken + requests]
            queued_us += sum(taken_us - sent_us for sent_us, _ in sent)
            taken += requests
            computed_us += compute_us
        found = _Look(
            self.replay.waiting, taken, queued_us, computed_us / max(1, now_us - self._looked_us), self._latencies_us
        )
        self._batches += len(batches)
        self._requests += taken
        self._latencies_us, self._looked_us = [], now_us
        return found

    def _ended(self, index: int, at_us: int) -> None:
        sent_us, number = self._sent[index]
        self._latencies_us.append(at_us - sent_us)
        self._told(number, sent_us, at_us)
