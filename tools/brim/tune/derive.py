"""What follows from the objective and the batch time, and need not be searched for: the bound of the queue and the timeout."""

from __future__ import annotations

from dataclasses import dataclass

from brim.gateway.admission import in_flight_bound
from brim.service.schema import Service
from brim.tune.predict import Served
from brim.tune.setting import Setting
from brim.units import ms_to_us


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that the gateway holds, so that Triton's own queue policy, with its stall, stays off.

    Attributes:
        in_flight: most requests in flight that can be answered within the objective.
        timeout_us: longest that a request may take.
    """

    in_flight: int
    timeout_us: int


def bounds_for(service: Service, served: Served, setting: Setting) -> Bounds:
    """The bounds of a service under a setting.

    The timeout cuts off no request that was let in: those in front of it, its own batch, the one that runs and the delay
    take that long at most; and no less than the objective. Callers that give up earlier set it themselves.
    """
    slo_us = ms_to_us(service.slo.latency_ms)
    in_flight = in_flight_bound(
        slo_us=slo_us, full_batch_us=served.full_us, max_rows=service.max_batch_size, overhead_us=served.overhead_us
    )
    batches = in_flight // service.max_batch_size + 1
    timeout_us = max(slo_us, batches * served.full_us + setting.delay_us + served.overhead_us)
    if service.slo.caller_gives_up_ms is not None:
        timeout_us = ms_to_us(service.slo.caller_gives_up_ms)
    return Bounds(in_flight, timeout_us)
