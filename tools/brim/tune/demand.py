"""What the service has to stand: its objective and its traffic, as the simulator and the generator need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.batcher.arrivals import Times, bursty, poisson
from brim.service.schema import Arrival, Service
from brim.units import US_PER_S, ms_to_us

CAPACITY_SHARE = 0.99
"""Capacity is the highest rate with goodput of this share of what is offered."""
BURST_SHARE = 0.1
USUAL_BURST = 4.0
"""Rate in a burst over the mean rate where the service does not say a peak."""
DRAWS = 8


@dataclass(frozen=True, slots=True)
class Demand:
    """Objective and traffic.

    Attributes:
        slo_us: latency of the objective.
        percentile: of all requests that must be answered within it, in percent.
        rate_per_s: expected requests a second, on average.
        peak_per_s: at the worst.
        burst: rate in a burst over the mean rate; None for steady traffic.
    """

    slo_us: int
    percentile: float
    rate_per_s: float
    peak_per_s: float
    burst: float | None = None

    @property
    def share(self) -> float:
        """Share of the offered requests that must be answered in time for a rate to count as within capacity.

        ``CAPACITY_SHARE``, or the objective's own where that asks for less: an objective that lets one in ten be late
        has no use for a capacity at which one in a hundred is.
        """
        return min(CAPACITY_SHARE, self.percentile / 100)

    @property
    def needed_per_s(self) -> float:
        """Mean rate that has to be served: the peak of steady traffic; with bursts, the peak is in the mean's own bursts."""
        return self.rate_per_s if self.burst is not None else self.peak_per_s

    def arrivals_us(self, rate_per_s: float, count: int, seed: int) -> Times:
        """When ``count`` requests of this kind of traffic are sent, at a mean rate.

        Of a few draws the one that comes nearest to the mean rate: a short run whose rate is off by chance would be
        compared with runs of other rates.
        """
        draws = (self._draw(rate_per_s, count, np.random.default_rng([seed, draw])) for draw in range(DRAWS))
        length_us = count / rate_per_s * US_PER_S
        return min(draws, key=lambda times: abs(float(times[-1]) - length_us))

    def _draw(self, rate_per_s: float, count: int, rng: np.random.Generator) -> Times:
        if self.burst is None:
            return poisson(rate_per_s, count, rng)
        return bursty(rate_per_s, count, rng, peak=self.burst, share=BURST_SHARE)


def demand_of(service: Service) -> Demand:
    """What the service file says. Bursts have the peak as their rate, as far as one tenth of the time can carry it."""
    traffic = service.traffic
    peak_per_s = traffic.rate_per_s if traffic.peak_per_s is None else traffic.peak_per_s
    burst = None
    if traffic.arrival is Arrival.BURSTY:
        wanted = USUAL_BURST if traffic.peak_per_s is None else peak_per_s / traffic.rate_per_s
        burst = min(wanted, 1 / BURST_SHARE)
    return Demand(ms_to_us(service.slo.latency_ms), service.slo.percentile, traffic.rate_per_s, peak_per_s, burst)
