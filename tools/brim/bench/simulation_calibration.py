"""One designed run a batch time, and what the simulator is told from it. Nothing of it comes from a measured point."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from brim.batcher.batch_time import MeasuredBatchTime, Point
from brim.batcher.machine import Machine
from brim.bench.simulation_grid import Effort
from brim.errors import CouldNotTell
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats, batch_time
from brim.measure.accounting import Account, Outcome
from brim.measure.arrivals import offsets, steady
from brim.measure.batch_stats import BatchStats
from brim.measure.batch_time_run import Design, measure_batch_time
from brim.measure.callers import Row
from brim.measure.measure import Target, ask_target, read_snapshot
from brim.measure.openloop import OpenLoopPlan
from brim.measure.openloop_run import run_open_loop
from brim.measure.plan import Distribution, Protocol
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

SHARES = (0.4, 0.6, 0.8)
"""Rates at which single rows are sent, over that of full batches."""
SHARE_US = 1_500_000
SETTLE_TIMEOUT_S = 10.0
REFINEMENTS = 5
LONE_GAP = 2.0
"""Gap between requests that must not meet, in batch times of one row."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of a batch time and of what surrounds it.

    Attributes:
        points: (rows, microseconds) of an execution that one request fills: the device's own time.
        prepare_row_us: what each request costs inside an execution beside that.
        overhead_us: of a request that is alone, at its caller: latency - tau(1).
    """

    points: tuple[tuple[int, float], ...]
    prepare_row_us: int
    overhead_us: int

    @property
    def machine(self) -> Machine:
        """The same for the simulator: the device is one, whatever the instances."""
        return Machine(
            MeasuredBatchTime([Point(rows, time_us) for rows, time_us in self.points]),
            prepare_row_us=self.prepare_row_us,
            serialised=True,
            overhead_us=self.overhead_us,
        )

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "points": [list(point) for point in self.points],
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
        return cls(points, int(document["prepare_row_us"]), int(document["overhead_us"]))


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

    Three parts: batches that one request fills (the device's own time), single rows at constant rates (what each request
    costs inside an execution), and requests that meet nobody (what a request costs outside).

    Raises:
        CouldNotTell: the runs differ too much, or a lone request was not answered.
        ServerFailed: the server does not answer.
    """
    design = Design(repeats=effort.repeats, executions=effort.executions, seed=seed, refinements=REFINEMENTS)
    together = measure_batch_time(endpoint, model, rows, design, on_progress=on_progress).fit
    on_progress("what single rows cost in a batch, and what a request costs alone")
    full_rate_per_s = BATCH_LIMIT * US_PER_S / together.time_us(BATCH_LIMIT)
    costs_us = []
    for share in SHARES:
        arrivals = offsets(steady(share * full_rate_per_s, SHARE_US), Distribution.CONSTANT)
        stats = answered(endpoint, model, rows, list(arrivals), SHARE_US)[1]
        costs_us.append(request_cost_us(together, stats))
    per_row_us = statistics.median(costs_us)
    gap_us = round(LONE_GAP * together.time_us(1))
    lone = [gap_us * number for number in range(effort.lone_requests)]
    lone_us = answered(endpoint, model, rows, lone, gap_us * len(lone))[0].since_due.percentile_us(50)
    assert lone_us is not None
    return Calibration(
        points=curve_points(together),
        prepare_row_us=max(0, round(per_row_us)),
        overhead_us=max(0, round(lone_us - together.time_us(1) - per_row_us)),
    )


def curve_points(found: batch_time.BatchTime) -> tuple[tuple[int, float], ...]:
    """The fit as points: the ends of a line, or all of a curve."""
    sizes = [point.rows for point in found.points]
    if found.form is batch_time.Form.AFFINE:
        sizes = [sizes[0], sizes[-1]]
    return tuple((size, found.time_us(size)) for size in sizes)


def request_cost_us(together: batch_time.BatchTime, stats: BatchStats) -> float:
    """What each request of a batch costs its instance beside the device's time for as many rows.

    Args:
        together: times of batches that one request fills.
        stats: of batches of single rows, whatever their sizes.
    """
    beyond_us = sum(
        count * (stats.execution_us_by_size[rows] - together.time_us(rows))
        for rows, count in stats.executions_by_size.items()
    )
    return beyond_us / stats.inferences


def answered(
    endpoint: Endpoint,
    model: str,
    rows: list[Row],
    arrivals: list[int],
    duration_us: int,
    *,
    late_us: int | None = None,
) -> tuple[Account, BatchStats, list[str]]:
    """One open loop over HTTP whose requests are all answered, or not sent for want of room.

    Returns:
        The account of it, what the server did, and in what ways the generator was the limit.

    Raises:
        CouldNotTell: a request was not answered, or somebody else uses the model.
    """
    target = ask_target(endpoint, model)
    before = _settled(target)
    plan = OpenLoopPlan(duration_us=duration_us, late_us=late_us)
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
    return whole, stats, result.limits


def _settled(target: Target) -> batch_stats.Snapshot:
    snapshot, settled = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    if not settled:
        raise CouldNotTell(f"{target.model}: other requests are under way", hint="leave the server alone meanwhile")
    return snapshot
