"""Who sends what, and when: every request of a run, drawn from a seed before anything is sent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from brim.measure.accounting import LATE_US, Objective
from brim.measure.arrivals import Profile, Stretch, duration_us, offsets
from brim.measure.openloop import SLO_PER_LATE
from brim.measure.plan import Distribution
from brim.service.schema import Service
from brim.units import US_PER_S, ms_to_us
from brim_loadtest.shapes import MISBEHAVED_RATIO, Behaviour, Travel

DEFAULT_CLASS = "default"
"""Of the callers of a service that has no classes."""
GRACE_US = 500_000
"""A gateway answers 504 when its callers give up; one who has heard nothing by then leaves so much later."""
SLOW_BODY_US = 1_000_000
"""What a slow caller takes to send its body."""
LEAVES_WITHIN = 0.1
"""Of the objective: callers that come in order to leave do so at a random time before this, so that they still wait."""
LONGEST_TIMELINE = 3_600
"""Entries of the timeline; a longer run has longer ones than a second."""
DRAWN_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class Caller:
    """A class of callers.

    Attributes:
        name: of the class, sent as ``x-brim-class``; None where the service has no classes.
        share: part of the traffic.
        objective: what its requests are held against.
        deadline_us: what a request tells the server that it may take; None where the class has no deadline.
    """

    name: str | None
    share: float
    objective: Objective
    deadline_us: int | None = None

    @property
    def label(self) -> str:
        """Its name in results."""
        return self.name or DEFAULT_CLASS

    @property
    def late_us(self) -> int:
        """From when on a request of it counts as sent late (``brim.measure.openloop``)."""
        return max(LATE_US, self.objective.latency_us // SLO_PER_LATE)


def callers_of(service: Service) -> tuple[Caller, ...]:
    """The classes of a service. The deadline of a class is its objective, where it has one; else the service's is."""
    slo = service.slo
    if not service.callers:
        return (Caller(None, 1.0, Objective(slo.percentile, ms_to_us(slo.latency_ms))),)
    return tuple(
        Caller(
            one.name,
            one.share,
            Objective(slo.percentile, max(1, ms_to_us(one.deadline_ms or slo.latency_ms))),
            None if one.deadline_ms is None else max(1, ms_to_us(one.deadline_ms)),
        )
        for one in service.callers
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request that is due.

    Attributes:
        number: from the beginning of the run, over all workers.
        due_us: when it is due, from the beginning.
        caller: which class.
        row: which of the rows it carries.
        tenant: on whose behalf, from 1; 0 for nobody's.
        over_grpc: how it travels.
        behaviour: of its caller.
        leaves_us: after how long a caller that is leaving goes, from when it has sent its request.
    """

    number: int
    due_us: int
    caller: int
    row: int
    tenant: int
    over_grpc: bool
    behaviour: Behaviour
    leaves_us: int

    @property
    def clock_us(self) -> int:
        """From when its latency counts: a slow caller waits for nobody until its last byte was due."""
        return self.due_us + (SLOW_BODY_US if self.behaviour is Behaviour.SLOW else 0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a run sends.

    Attributes:
        profile: the rate over time.
        callers: classes; their shares add up to 1.
        distribution: how arrivals scatter.
        travel: how requests travel.
        misbehaviour: of ``MISBEHAVED_RATIO`` of the callers; ``PLAIN`` for none.
        rows: how many different rows there are to send.
        tenants: on whose behalf requests are sent; 0 for nobody's.
        seed: for every random choice.
    """

    profile: Profile
    callers: tuple[Caller, ...]
    distribution: Distribution = Distribution.POISSON
    travel: Travel = Travel.BOTH
    misbehaviour: Behaviour = Behaviour.PLAIN
    rows: int = 1
    tenants: int = 0
    seed: int = 0

    @property
    def duration_us(self) -> int:
        """Length of the run."""
        return duration_us(self.profile)

    @property
    def entry_s(self) -> int:
        """Seconds of one entry of the timeline."""
        return max(1, math.ceil(self.duration_us / US_PER_S / LONGEST_TIMELINE))

    def arrivals(self, worker: int = 0, workers: int = 1) -> Iterator[Arrival]:
        """Every request of one worker, in the order in which they are due. Worker k of n has arrivals k, k + n, k + 2n ..."""
        draw = np.random.default_rng([self.seed, 2])
        upto = np.cumsum([caller.share for caller in self.callers])
        due = enumerate(offsets(self.profile, self.distribution, seed=self.seed))
        while True:
            # Every worker draws for all arrivals, so that a run does not depend on how many share it.
            chance = draw.random((DRAWN_AT_ONCE, 6))
            whose = np.minimum(np.searchsorted(upto, chance[:, 0] * upto[-1], side="right"), len(upto) - 1)
            for drawn in range(DRAWN_AT_ONCE):
                found = next(due, None)
                if found is None:
                    return
                number, due_us = found
                if number % workers == worker:
                    yield self._arrival(number, due_us, int(whose[drawn]), chance[drawn].tolist())

    def _arrival(self, number: int, due_us: int, caller: int, chance: list[float]) -> Arrival:
        _, row, tenant, travel, behaves, leaves = chance
        misbehaves = self.misbehaviour is not Behaviour.PLAIN and behaves < MISBEHAVED_RATIO
        behaviour = self.misbehaviour if misbehaves else Behaviour.PLAIN
        # The gRPC library sends a message whole, so who sends slowly comes over HTTP.
        over_grpc = self.travel is Travel.GRPC or (self.travel is Travel.BOTH and travel < 0.5)
        return Arrival(
            number,
            due_us,
            caller,
            int(row * self.rows),
            1 + int(tenant * self.tenants) if self.tenants else 0,
            over_grpc and behaviour is not Behaviour.SLOW,
            behaviour,
            int(leaves * LEAVES_WITHIN * self.callers[caller].objective.latency_us),
        )

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary of what JSON has."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """What ``as_json`` gave."""
        return cls(
            profile=tuple(Stretch(**one) for one in document["profile"]),
            callers=tuple(Caller(**{**one, "objective": Objective(**one["objective"])}) for one in document["callers"]),
            distribution=Distribution(document["distribution"]),
            travel=Travel(document["travel"]),
            misbehaviour=Behaviour(document["misbehaviour"]),
            **{name: int(document[name]) for name in ("rows", "tenants", "seed")},
        )
