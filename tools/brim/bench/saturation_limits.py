"""What keeps a served model below its own loop without a server, from the figures of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from brim.bench.saturation_served import Segment
from brim.bench.verdict import spread_of
from brim.measure.known_time import Execution
from brim.measure.saturation import BUSY_DUTY, STARVED_MACHINE

EDGE = 5
"""Executions at either end of a segment that are not looked at: callers come and go."""
HELD = 0.85
"""Share of the time from which on the emulated device itself is the limit."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How an emulated device was used.

    Attributes:
        held: share of the time in which an execution ran on it.
        gap_us: mean time from the end of an execution to the begin of the next.
        waited: share of those times in which an instance waited for the device already.
    """

    held: float
    gap_us: float
    waited: float


def device_use(executions: Sequence[Execution]) -> DeviceUse | None:
    """From the notes of the model of known batch time, the edges cut off; None of a single execution."""
    if len(executions) < 2:
        return None
    edge = min(EDGE, len(executions) // 2 - 1)
    ordered = sorted(executions, key=lambda one: one.locked_ns)[edge : len(executions) - edge]
    pairs = list(pairwise(ordered))
    gaps_ns = [later.locked_ns - earlier.free_ns for earlier, later in pairs]
    span_ns = ordered[-1].locked_ns - ordered[0].locked_ns
    return DeviceUse(
        held=1 - sum(gaps_ns) / span_ns,
        gap_us=sum(gaps_ns) / len(gaps_ns) / 1_000,
        waited=sum(later.began_ns <= earlier.free_ns for earlier, later in pairs) / len(pairs),
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting of one model in all rounds.

    Attributes:
        name: of the figures.
        words: the setting, for people.
        instances: of the model, and processes of the loop without a server.
        served: one a round.
        offline_per_s: rows a second without a server, one a round.
        device: how the emulated device was used while the model was served, one a round; empty where there is none.
        device_offline: the same without a server.
    """

    name: str
    words: str
    instances: int
    served: Sequence[Segment]
    offline_per_s: Sequence[float]
    device: Sequence[DeviceUse] = ()
    device_offline: Sequence[DeviceUse] = ()

    @property
    def ratios(self) -> list[float]:
        """Served / offline of every round."""
        return [one.rate_per_s / offline for one, offline in zip(self.served, self.offline_per_s, strict=True)]

    @property
    def generator_bound(self) -> int:
        """Rounds in which the callers set the figure."""
        return sum(one.generator_bound for one in self.served)

    @property
    def figures(self) -> dict[str, Sequence[float]]:
        """By name, one value a round; what was not seen in every round is left out."""
        found: dict[str, list[float | None]] = {
            "served_per_s": [one.rate_per_s for one in self.served],
            "offline_per_s": list(self.offline_per_s),
            "mean_batch": [one.mean_batch for one in self.served],
            "shared_batch": [one.shared_batch for one in self.served],
            "duty": [one.duty for one in self.served],
            "server_us": [one.server_us for one in self.served],
            "generator_us": [one.generator_us for one in self.served],
            "generator_cores": [one.generator_cores for one in self.served],
            "machine_busy": [one.machine_busy for one in self.served],
            "device_held": [one.held for one in self.device],
            "device_gap_us": [one.gap_us for one in self.device],
            "offline_device_held": [one.held for one in self.device_offline],
            "offline_device_gap_us": [one.gap_us for one in self.device_offline],
        }
        figures: dict[str, Sequence[float]] = {}
        for name, values in found.items():
            seen = [value for value in values if value is not None]
            if len(seen) == len(self.served):
                figures[f"{self.name}_{name}"] = seen
        return figures

    def __str__(self) -> str:
        """One line: the ratio, and what limits."""
        spread = spread_of(self.ratios)
        return (
            f"{self.words}: served {spread.median:.3f} of offline ({spread.low:.3f} to {spread.high:.3f}, "
            f"{spread.confidence:.0%}), requests in batches of {median(one.shared_batch for one in self.served):.0f}. "
            f"Limit: {limit(self)}."
        )


def limit(found: Compared) -> str:
    """What limits, the first of these that holds in the median of the rounds.

    1. In more than half of the rounds the callers were the limit.
    2. The emulated device is taken for ``HELD`` of the time: what is missing is the time between two executions.
    3. The instances are taken for ``BUSY_DUTY`` of the time (without a device of their own). What the loop without a server
       needs for the same rows is the model's share; the rest is spent on every request beside it.
    4. The machine's processors are ``STARVED_MACHINE`` busy.
    5. None: the instances wait for work.
    """
    served = found.served
    duty = median(one.duty for one in served)
    server_us = median(one.server_us for one in served)
    spent = f"the server spends {server_us:.0f} us of processor time a request"
    own = [one.generator_us for one in served if one.generator_us is not None]
    if own:
        spent += f", the callers {median(own):.0f} us"
    if found.generator_bound * 2 > len(served):
        return f"the callers, not the server, in {found.generator_bound} of {len(served)} rounds; {spent}"
    if found.device:
        held, gap_us = median(one.held for one in found.device), median(one.gap_us for one in found.device)
        waited = median(one.waited for one in found.device)
        between = (
            f"{gap_us:.0f} us from one execution to the next, in {waited:.0%} of which an instance waits with its batch"
        )
        if found.device_offline:
            between += f" (without a server {median(one.gap_us for one in found.device_offline):.0f} us)"
        if held >= HELD:
            return f"the device, taken for {held:.1%} of the time; {between}; {spent}"
        return f"the time between executions: the device is taken for {held:.1%} of the time; {between}; {spent}"
    busy = [one.machine_busy for one in served if one.machine_busy is not None]
    if duty >= BUSY_DUTY:
        share = min(1.0, median(found.ratios) / duty)
        instances = "its instance" if found.instances == 1 else f"its {found.instances} instances"
        return (
            f"{instances}, taken for {duty:.0%} of the time; offline the same rows take {share:.0%} of that, the rest is work "
            f"on requests; {spent}"
        )
    if busy and median(busy) >= STARVED_MACHINE:
        return f"the machine's processors, {median(busy):.0%} busy, while the instances are taken for {duty:.0%} of the time; {spent}"
    return f"the instances wait for work, taken for {duty:.0%} of the time; {spent}"
