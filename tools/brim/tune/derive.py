"""What follows from the objective and the batch time, and need not be searched for: the bound of the queue and the timeout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from brim.gateway.admission import in_flight_bound
from brim.service.schema import BatchTime, Service
from brim.tune.predict import Served
from brim.tune.setting import Setting
from brim.units import ms_to_us

DRIFT = 0.15
"""Batch times that differ by less are one: a second measurement of the same machine changes nothing in the service file."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that the gateway holds, so that Triton's own queue policy, with its stall, stays off.

    Attributes:
        in_flight: most requests in flight that can be answered within the objective.
        timeout_us: longest that a request may take.
    """

    in_flight: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class Derived:
    """What the service file keeps for the gateway.

    Attributes:
        in_flight_bound: most requests in flight.
        batch_time: tau(b) as a line.
        full_batch_us: time between full batches when all instances are busy, from which the bound follows.
    """

    in_flight_bound: int
    batch_time: BatchTime
    full_batch_us: int


def bounds_for(service: Service, served: Served, setting: Setting) -> Bounds:
    """The bounds of a service under a setting.

    The timeout cuts off no request that was let in: those in front of it, its own batch, the one that runs and the delay
    take that long at most; and no less than the objective. Callers that give up earlier set it themselves.
    """
    slo_us = ms_to_us(service.slo.latency_ms)
    full_us = served.full_batch_us(setting)
    in_flight = derived(service, served, setting).in_flight_bound
    batches = in_flight // service.max_batch_size + 1
    timeout_us = max(slo_us, batches * full_us + setting.delay_us + served.overhead_us)
    if service.slo.caller_gives_up_ms is not None:
        timeout_us = ms_to_us(service.slo.caller_gives_up_ms)
    return Bounds(in_flight, timeout_us)


def _in_flight(service: Service, served: Served, setting: Setting, line: BatchTime, full_us: float) -> int:
    """Instances that compute side by side finish so many more batches in a time; no more than of whole instances, since the
    last batch is not shared."""
    part = full_us / (line.tau0_us + line.alpha_us * service.max_batch_size)
    return int(served.parallel(setting)) * in_flight_bound(
        slo_us=ms_to_us(service.slo.latency_ms),
        time=BatchTime(tau0_us=line.tau0_us * part, alpha_us=line.alpha_us * part),
        max_rows=service.max_batch_size,
        overhead_us=served.overhead_us,
    )


def derived(service: Service, served: Served, setting: Setting) -> Derived:
    """What the service file shall say. What it says already stays where it agrees with what was measured: within ``DRIFT``.

    Args:
        service: as it is.
        served: the machine, as measured.
        setting: the choice.
    """
    times = np.array(served.times_us(setting), dtype=np.float64) + served.prepare_us
    full_us = served.full_batch_us(setting)
    line = _line(times)
    known, bound = service.batching.batch_time, service.batching.in_flight_bound
    if known is not None and _agree(known, times):
        line = known
    wanted = _in_flight(service, served, setting, line, full_us)
    if bound is not None:
        least, most = (_in_flight(service, served, setting, line, full_us * part) for part in (1 + DRIFT, 1 - DRIFT))
        wanted = bound if least <= bound <= most else wanted
    return Derived(wanted, line, full_us)


def _line(times: npt.NDArray[np.float64]) -> BatchTime:
    """The line through the times, none of its two parts negative, to three digits."""
    rows = np.arange(1, len(times) + 1)
    centred = rows - rows.mean()
    spread = float(centred @ centred)
    alpha_us = max(0.0, float(centred @ times) / spread) if spread else 0.0
    tau0_us = float(times.mean() - alpha_us * rows.mean())
    if tau0_us < 0:
        tau0_us, alpha_us = 0.0, float(rows @ times) / float(rows @ rows)
    return BatchTime(tau0_us=_three_digits(tau0_us), alpha_us=_three_digits(alpha_us))


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _agree(known: BatchTime, times: npt.NDArray[np.float64]) -> bool:
    """Whether a recorded line still says what full batches take, and nearly what small ones do."""
    line = _line(times)
    full = len(times)
    return all(
        abs((known.tau0_us + known.alpha_us * rows) / (line.tau0_us + line.alpha_us * rows) - 1) <= DRIFT
        for rows in (full, max(1, full // 2))
    )
