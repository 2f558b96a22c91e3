"""One designed run a batch time, and what the simulator is told from it. Nothing of it comes from a measured point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from brim.batcher.batch_time import MeasuredBatchTime, Point
from brim.batcher.machine import Machine
from brim.bench.simulation_grid import Effort
from brim.errors import CouldNotTell
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats, batch_time
from brim.measure.accounting import Outcome
from brim.measure.arrivals import offsets, steady
from brim.measure.batch_stats import BatchStats
from brim.measure.batch_time_run import Design, measure_batch_time
from brim.measure.callers import Row
from brim.measure.measure import Target, ask_target, read_snapshot
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_run import run_open_loop
from brim.measure.plan import Distribution, Protocol
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

SHARES = (0.4, 0.6, 0.85)
"""Rates at which single rows are sent, over that of full batches."""
LOADED_US = 2_000_000
SETTLE_TIMEOUT_S = 10.0
REFINEMENTS = 5
LONE_GAP = 2.0
"""Gap between requests that must not meet, in batch times of one row."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of a batch time and of what surrounds it.

    Attributes:
        points: (rows, microseconds) of an execution that one request fills: the device's own time.
        prepare_us: what a batch costs its instance beside that.
        prepare_row_us: the same for each request of the batch.
        overhead_us: of a request that is alone, at its caller: latency - all of the above for one row.
    """

    points: tuple[tuple[int, float], ...]
    prepare_us: int
    prepare_row_us: int
    overhead_us: int

    @property
    def machine(self) -> Machine:
        """The same for the simulator: the device is one, whatever the instances."""
        return Machine(
            MeasuredBatchTime([Point(rows, time_us) for rows, time_us in self.points]),
            prepare_us=self.prepare_us,
            prepare_row_us=self.prepare_row_us,
            serialised=True,
            overhead_us=self.overhead_us,
        )

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "points": [list(point) for point in self.points],
            "prepare_us": self.prepare_us,
            "prepare_row_us": self.prepare_row_us,
            "overhead_us": self.overhead_us,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        points = tuple((int(rows), float(time_us)) for rows, time_us in document["points"])
        return cls(points, *(int(document[name]) for name in ("prepare_us", "prepare_row_us", "overhead_us")))


def calibrate(
    endpoint: Endpoint,
    model: str,
    rows: list[Row],
    effort: Effort,
    *,
    seed: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure a model that has one instance, no preferred size and no delay.

    Three parts: batches that one request fills (the device's own time); single rows at constant rates (what batches and
    requests cost an instance beside that); and requests that meet nobody (what a request costs outside).

    Raises:
        CouldNotTell: the runs differ too much, or a lone request was not answered.
        ServerFailed: the server does not answer.
    """
    design = Design(repeats=effort.repeats, executions=effort.executions, seed=seed, refinements=REFINEMENTS)
    together = measure_batch_time(endpoint, model, rows, design, on_progress=on_progress).fit
    on_progress("what batches of single rows cost beside it, and a request that is alone")
    full_rate_per_s = BATCH_LIMIT * US_PER_S / together.time_us(BATCH_LIMIT)
    costs = beside_the_device([_loaded(endpoint, model, rows, together, share * full_rate_per_s) for share in SHARES])
    gap_us = round(LONE_GAP * together.time_us(1))
    lone = [gap_us * number for number in range(effort.lone_requests)]
    lone_us = answered(endpoint, model, rows, lone, gap_us * len(lone))[0].whole.since_due.percentile_us(50)
    assert lone_us is not None
    lone_busy_us = together.time_us(1) + costs.batch_us + costs.request_us
    return Calibration(
        points=curve_points(together),
        prepare_us=round(costs.batch_us),
        prepare_row_us=round(costs.request_us),
        overhead_us=max(0, round(lone_us - lone_busy_us)),
    )


def curve_points(found: batch_time.BatchTime) -> tuple[tuple[int, float], ...]:
    """The fit as points: the ends of a line, or all of a curve."""
    sizes = [point.rows for point in found.points]
    if found.form is batch_time.Form.AFFINE:
        sizes = [sizes[0], sizes[-1]]
    return tuple((size, found.time_us(size)) for size in sizes)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A time in which an instance always had something waiting.

    Attributes:
        batches: executions in it.
        requests: single rows in them.
        beyond_us: what of that time was not the device's.
    """

    batches: int
    requests: int
    beyond_us: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What an instance spends beside the device's time: on each batch, and on each request of it."""

    batch_us: float
    request_us: float


def beside_the_device(runs: Sequence[Loaded]) -> Costs:
    """Least squares for ``beyond = batches * batch_us + requests * request_us``; neither is negative."""
    counts = np.array([(one.batches, one.requests) for one in runs], float)
    beyond_us = np.array([one.beyond_us for one in runs])
    found = np.linalg.lstsq(counts, beyond_us, rcond=None)[0]
    for zero, other in ((1, 0), (0, 1)):
        if found[zero] < 0:
            alone = counts[:, other]
            found[zero], found[other] = 0.0, max(0.0, float(alone @ beyond_us) / float(alone @ alone))
    return Costs(*found.tolist())


def _loaded(
    endpoint: Endpoint, model: str, rows: list[Row], together: batch_time.BatchTime, rate_per_s: float
) -> Loaded:
    """Single rows at a constant rate, several of which come while even the shortest batch is executed.

    The instance is busy from the first request to the last answer. The last request has a segment of its own, since its
    latency says when that was.
    """
    arrivals = [*offsets(steady(rate_per_s, LOADED_US), Distribution.CONSTANT), LOADED_US]
    result, stats = answered(endpoint, model, rows, arrivals, LOADED_US + 1, segment_us=LOADED_US)
    last_us = result.accounts[-1].since_due.max_us
    assert last_us is not None
    device_us = sum(count * together.time_us(size) for size, count in stats.executions_by_size.items())
    return Loaded(stats.executions, stats.inferences, LOADED_US + last_us - device_us)


def answered(
    endpoint: Endpoint,
    model: str,
    rows: list[Row],
    arrivals: list[int],
    duration_us: int,
    *,
    late_us: int | None = None,
    segment_us: int | None = None,
) -> tuple[OpenLoopResult, BatchStats]:
    """One open loop over HTTP whose requests are all answered, or not sent for want of room; and what the server did.

    Raises:
        CouldNotTell: a request was not answered, or somebody else uses the model.
    """
    target = ask_target(endpoint, model)
    before = _settled(target)
    plan = OpenLoopPlan(duration_us, late_us=late_us, segment_us=segment_us)
    result = run_open_loop(endpoint, Protocol.HTTP, model, rows, arrivals, plan)
    stats = batch_stats.difference(before, _settled(target), instances=target.instances)
    whole = result.whole
    count = whole.counts[Outcome.ANSWERED]
    if not count or count + whole.counts[Outcome.NOT_SENT] < whole.offered or stats.inferences != count:
        raise CouldNotTell(
            f"{count} of {whole.offered} requests to {model} were answered, and {stats.inferences} rows were executed: "
            f"{dict(whole.messages)}",
            hint="leave the server alone meanwhile, and see its log",
        )
    return result, stats


def _settled(target: Target) -> batch_stats.Snapshot:
    snapshot, settled = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    if not settled:
        raise CouldNotTell(f"{target.model}: other requests are under way", hint="leave the server alone meanwhile")
    return snapshot
