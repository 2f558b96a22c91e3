"""How much of a model's traffic is let in, of which class, and how long it may take: from the objective and the batch time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from brim.config.generate import Profile
from brim.service.schema import BatchTime, Service, TenantRate
from brim.units import US_PER_MS, ms_to_us

SCATTER = 3
"""Of a number that arrives, how many times its root is allowed for."""
DEFAULT_CLASS = "default"
"""Of the callers of a service that has no classes."""


@dataclass(frozen=True, slots=True)
class ClassBounds:
    """Bounds on the requests of one class of callers.

    Attributes:
        name: of the class, which callers send as ``x-brim-class``.
        priority: 1 is the most important; a request that names no class belongs to the one of its KServe priority.
        in_flight: requests of **all** classes in flight at which one of this class is refused. None: no bound.
        timeout_us: longest that one may take. None: no bound but the model's.
    """

    name: str = DEFAULT_CLASS
    priority: int = 1
    in_flight: int | None = None
    timeout_us: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on the requests of one model.

    Attributes:
        in_flight: most at once, over both protocols; further ones are refused at once with 429. None: no bound.
        timeout_us: longest that one may take; then its caller gets 504 and the server is told. None: no bound.
        max_rows: of a full batch.
        batch_time: what a batch takes, for requests whose own deadline cannot be met. None: they are let in.
        classes: the most important first; empty when all callers are equal.
        tenant_rate: what each tenant may send. None: no bound.
        pieces: the model gives several answers to a request, and is done with it when it says so.
        tells: the model's host is told a request's class and deadline, as its parameters.
        objectives_us: what answers may take, of each class that has an objective: bounds of the gateway's histogram of times.
    """

    in_flight: int | None = None
    timeout_us: int | None = None
    max_rows: int = 1
    batch_time: BatchTime | None = None
    classes: tuple[ClassBounds, ...] = ()
    tenant_rate: TenantRate | None = None
    pieces: bool = False
    tells: bool = False
    objectives_us: tuple[int, ...] = ()

    def for_lua(self, threads: int) -> dict[str, Any]:
        """An entry of ``ADMITTED`` as ``admission.lua`` reads it. Each of Envoy's workers counts for itself, its part."""
        classes = self.classes or (ClassBounds(in_flight=self.in_flight),)
        time = self.batch_time
        if time is not None and time.tau0_us + time.alpha_us <= 0:
            time = None
        return {
            "rows": self.max_rows,
            "tau0_ms": time and time.tau0_us / US_PER_MS,
            "alpha_ms": time and time.alpha_us / US_PER_MS,
            "pieces": self.pieces,
            "tells": self.tells,
            "has_classes": bool(self.classes),
            "class_names": ", ".join(one.name for one in classes),
            "classes": [
                {
                    "name": one.name,
                    "priority": one.priority,
                    "in_flight": one.in_flight and max(1, one.in_flight // threads),
                    "timeout_ms": one.timeout_us and one.timeout_us / US_PER_MS,
                }
                for one in classes
            ],
        }


def in_flight_bound(*, slo_us: float, time: BatchTime, max_rows: int, overhead_us: float = 0) -> int:
    """Most requests of one row that can be in flight so that the last one admitted is answered in time.

    Batches of ``max_rows`` follow each other without a gap when so many wait, and the n-th request is in the
    ceil(n / max_rows)-th of them. An idle server executes the first request alone, and perhaps the next few, which come a
    moment later, in a small batch before the full ones. So whole batches fit as often as the objective, less tau(1) and
    another tau0, has room for them.

    Where there is room for none, n are let in so that the same and tau(n) are in time. An objective that not even two rows meet
    in this way is missed whatever the bound is; then it is one full batch, so that at least nothing is idle.

    Args:
        slo_us: what an answer may take.
        time: what a batch takes.
        max_rows: rows of a full batch.
        overhead_us: of the slo, what is spent outside of waiting and batches.
    """
    room_us = slo_us - overhead_us - 2 * time.tau0_us - time.alpha_us
    full_us = time.tau0_us + time.alpha_us * max_rows
    if full_us <= 0:
        return max_rows
    whole = int(room_us / full_us)
    if whole >= 1:
        return max_rows * whole
    part = int((room_us - time.tau0_us) / time.alpha_us) if time.alpha_us > 0 else 0
    return part if part >= 2 else max_rows


def class_bound(bound: int, max_rows: int, level: int) -> int:
    """Requests in flight, of all classes, at which a class is refused that has ``level`` more important ones above it.

    A full batch is kept for each of those: as many requests of theirs may come while one is executed, and then none of them
    finds the door shut by less important ones. Arrivals scatter: three times the root of their number is kept as well
    (measured with Poisson arrivals at 0.9 of what full batches of 100 give: without it some of 3,500 were refused in four
    runs of five, with 20 more in none). Where the bound is too small for that, half of it is kept for each.
    """
    return max(1, bound - level * (max_rows + SCATTER * isqrt(max_rows)), bound >> level)


def admissions(services: Sequence[Service], profile: Profile = Profile.DEFAULT) -> dict[str, Admission]:
    """The bounds of every service, as far as its file has what they are derived from.

    A language model's own host bounds what runs and waits, and sheds: it is only told what a caller says to the gateway.
    Triton's vLLM backend takes a parameter that it does not know for a sampling option, so it is told nothing.
    """
    return {service.name: _admission(service, profile) for service in services}


def _admission(service: Service, profile: Profile) -> Admission:
    gives_up = service.slo.caller_gives_up_ms
    bound = service.batching.in_flight_bound
    priorities = sorted({caller.priority for caller in service.callers})
    return Admission(
        in_flight=bound,
        timeout_us=None if gives_up is None else ms_to_us(gives_up),
        max_rows=max(1, service.max_batch_size),
        batch_time=service.batching.batch_time,
        classes=tuple(
            ClassBounds(
                name=caller.name,
                priority=caller.priority,
                in_flight=bound and class_bound(bound, service.max_batch_size, priorities.index(caller.priority)),
                timeout_us=None if caller.deadline_ms is None else ms_to_us(caller.deadline_ms),
            )
            for caller in sorted(service.callers, key=lambda caller: caller.priority)
        ),
        tenant_rate=service.tenant_rate,
        pieces=service.generation is not None,
        tells=service.generation is not None and profile is Profile.DEFAULT,
        objectives_us=tuple(sorted(set(objectives_us(service).values()))),
    )


def objectives_us(service: Service) -> dict[str, int]:
    """Class of callers -> what an answer to it may take: the service's objective, or the class's own deadline."""
    latency_us = ms_to_us(service.slo.latency_ms)
    if not service.callers:
        return {DEFAULT_CLASS: latency_us}
    return {
        caller.name: latency_us if caller.deadline_ms is None else ms_to_us(caller.deadline_ms)
        for caller in sorted(service.callers, key=lambda caller: caller.priority)
    }


def first_classes(service: Service) -> list[str]:
    """Classes that are refused last: all of the highest priority."""
    if not service.callers:
        return [DEFAULT_CLASS]
    highest = min(caller.priority for caller in service.callers)
    return [caller.name for caller in service.callers if caller.priority == highest]
