"""How much of a model's traffic is let in, and how long it may take: from the objective and the batch time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.service.schema import Service
from brim.units import ms_to_us


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on the requests of one model.

    Attributes:
        in_flight: most at once, over both protocols; further ones are refused at once with 429. None: no bound.
        timeout_us: longest that one may take; then its caller gets 504 and the server is told. None: no bound.
    """

    in_flight: int | None = None
    timeout_us: int | None = None


def in_flight_bound(*, slo_us: int, full_batch_us: int, max_rows: int, overhead_us: int = 0) -> int:
    """Most requests of one row that can be in flight so that the last one admitted is answered in time.

    Batches of ``max_rows`` follow each other without a gap when so many wait. The n-th request is in the
    ceil(n / max_rows)-th of them, and the first may just have begun, so n requests are answered within
    ceil(n / max_rows) batch times. At least one full batch is let in: less could never fill one, and an objective
    below the batch time is missed whatever the bound is.

    Args:
        slo_us: what an answer may take.
        full_batch_us: what a batch of ``max_rows`` takes, tau(max_rows).
        max_rows: rows of a full batch.
        overhead_us: of the slo, what is spent outside of waiting and batches.
    """
    return max_rows * max(1, (slo_us - overhead_us) // full_batch_us)


def admissions(services: Sequence[Service], full_batch_us: Mapping[str, int] | None = None) -> dict[str, Admission]:
    """The bounds of every service: a timeout where its callers give up, a bound where its batch time is known."""
    times = full_batch_us or {}
    return {service.name: _admission(service, times.get(service.name)) for service in services}


def _admission(service: Service, full_batch_us: int | None) -> Admission:
    gives_up = service.slo.caller_gives_up_ms
    bound = None
    if full_batch_us is not None:
        slo_us = ms_to_us(service.slo.latency_ms)
        bound = in_flight_bound(slo_us=slo_us, full_batch_us=full_batch_us, max_rows=service.max_batch_size)
    return Admission(bound, None if gives_up is None else ms_to_us(gives_up))
