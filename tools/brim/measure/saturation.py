"""Telling a saturated load generator from a saturated server, from what was seen on both sides."""

from __future__ import annotations

from dataclasses import dataclass

from brim.measure.plan import Mode
from brim.units import US_PER_S

BUSY_DUTY = 0.85
"""At or above this the model's instances are the bottleneck: no generator could get much more out of them."""
STARVED_THREADS = 0.85
"""Share of the processor time that the generator's threads could use at which they are the bottleneck."""
STARVED_MACHINE = 0.97
"""Busy share of the machine's processors at which every program on it waits for one."""
MOSTLY_OUTSIDE = 0.5
"""Share of a request's life spent outside the server at which the callers were rather in the generator."""
NO_RISE = 1.05
"""Throughput that grows by less than this factor against a smaller load has stopped growing."""
KEPT_UP = 0.95
"""Achieved or sent rate / asked rate below which the asked rate was not offered, or not answered."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen at one point.

    Attributes:
        mode: closed or open loop.
        value: concurrency or asked rate.
        throughput: inferences a second; None when unknown.
        latency_us: mean client latency; None when unknown.
        server_us: mean time of a request in the server, queue and compute; None when unknown.
        duty: busy time of the instances / wall time; None when unknown.
        generator_cores: processor time of the generator per wall time, in cores; None when unknown.
        usable_cores: cores that its threads could use: the smaller of its threads and the cores it may run on.
        machine_busy: busy share of the machine's processors; None when unknown.
        sent_rate: requests a second really sent, in rate mode and when the generator says so.
        earlier_throughput: best throughput seen at a smaller value of the same plan; None without one.
    """

    mode: Mode
    value: float
    throughput: float | None
    latency_us: int | None
    server_us: int | None
    duty: float | None
    generator_cores: float | None
    usable_cores: int
    machine_busy: float | None
    sent_rate: float | None = None
    earlier_throughput: float | None = None

    @property
    def outside_ratio(self) -> float | None:
        """Share of a request's life spent outside the server: in the generator, or on the way."""
        if not self.latency_us or self.server_us is None:
            return None
        return max(0.0, 1 - self.server_us / self.latency_us)

    @property
    def callers_in_server(self) -> float | None:
        """Mean number of requests in the server, by Little's law: rate x time there."""
        if self.throughput is None or self.server_us is None:
            return None
        return self.throughput * self.server_us / US_PER_S

    @property
    def starved(self) -> bool:
        """Whether the generator had as much processor time as it could use, or the machine had no more to give."""
        own = self.generator_cores is not None and self.generator_cores >= STARVED_THREADS * self.usable_cores
        return own or (self.machine_busy is not None and self.machine_busy >= STARVED_MACHINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the generator, not the server, set the figure; and why."""

    generator_bound: bool
    reason: str


def judge(evidence: Evidence) -> Verdict:
    """Whether the load generator limited the figure.

    The rule. Three things must come together:

    1. the model's instances had time left (``duty`` below ``BUSY_DUTY``, or unknown);
    2. the generator was starved: it used ``STARVED_THREADS`` of the processor time that its threads could use, or the
       machine's processors were ``STARVED_MACHINE`` busy;
    3. the figure shows it: in a closed loop, requests spent more than ``MOSTLY_OUTSIDE`` of their life outside the
       server, or throughput did not rise (``NO_RISE``) against a smaller load of the same plan; in an open loop, less
       than ``KEPT_UP`` of the asked rate was sent or answered.

    In an open loop a generator that itself says it sent less than ``KEPT_UP`` of the asked rate while the instances had
    time left is bound without (2): sending does not wait for the server.

    Idle instances alone are not enough: a server that stalls (the bounded queue's 500 ms wait) leaves them idle too, with
    an idle generator beside it.
    """
    if evidence.duty is not None and evidence.duty >= BUSY_DUTY:
        return Verdict(False, f"the instances are busy: duty {evidence.duty:.2f}")
    if evidence.mode is Mode.RATE and evidence.sent_rate is not None and evidence.sent_rate < KEPT_UP * evidence.value:
        return Verdict(True, f"the generator sent {evidence.sent_rate:.0f} of {evidence.value:.0f} requests a second")
    if not evidence.starved:
        return Verdict(False, "the generator had processor time left")
    seen = _sign(evidence)
    idle = "the instances' duty is unknown" if evidence.duty is None else f"duty is only {evidence.duty:.2f}"
    if seen is None:
        return Verdict(False, f"{idle} and processor time is short, yet the figure does not show it")
    return Verdict(True, f"{idle}, the generator's processor time is short, and {seen}")


def _sign(evidence: Evidence) -> str | None:
    """How a starved generator shows in the figure; None when it does not."""
    if evidence.mode is Mode.RATE:
        if evidence.throughput is not None and evidence.throughput < KEPT_UP * evidence.value:
            return f"{evidence.throughput:.0f} of {evidence.value:.0f} requests a second were answered"
        return None
    outside = evidence.outside_ratio
    if outside is not None and outside > MOSTLY_OUTSIDE:
        return f"requests spend {outside:.0%} of their life outside the server"
    if (
        evidence.throughput is not None
        and evidence.earlier_throughput is not None
        and evidence.throughput < NO_RISE * evidence.earlier_throughput
    ):
        return f"throughput stays at {evidence.throughput:.0f}/s where fewer callers had {evidence.earlier_throughput:.0f}/s"
    return None
