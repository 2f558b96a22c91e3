"""Bringing the simulator's idea of the machine in line with what was measured in service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from brim.measure.batch_time import MeasuredBatchTime
from brim.tune.predict import Predictor, Served
from brim.tune.run import Load, Purpose, Run
from brim.tune.verify import simulated

JITTERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
GAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Which part of the overhead, which every request has, keeps its instance from the next batch as well. At low load a request
waits for both alike, so no more than all of it can."""
LEAST_SIZES = 3
LEAST_RANGE = 4
"""Sizes have to differ by this factor before a cost a row can be told from a cost a batch."""
FASTEST = 0.2
"""A batch in service takes at least this part of what it took alone."""
MOST_RUNS = 12
"""Runs that the simulator is compared with; the last ones, which lie closest to capacity."""
LOW_LOAD_WEIGHT = 3.0
"""Latencies at the expected rate are few among the runs, and the surest of them."""
OVERLOADED, CLIP = 0.9, 1.0
"""Where fewer were in time, a latency that is off by more than a factor of e counts no more than that: there they all are."""


def served_of(measured: MeasuredBatchTime, max_rows: int) -> Served:
    """What the designed run says, for every size up to ``max_rows``."""
    overhead_us = (measured.overhead_us or 0.0) + (measured.outside_us or 0.0)
    times = tuple(max(1.0, measured.fit.time_us(rows)) for rows in range(1, max_rows + 1))
    return Served(times, overhead_us=max(0, round(overhead_us)))


def with_service_times(served: Served, execution_us: Mapping[int, float], executions: Mapping[int, int]) -> Served:
    """tau(b) moved to what executions took in service, where every row came in a request of its own.

    Weighted least squares of the differences: a cost a batch and a cost a row, or the former alone where the sizes are too
    few or too alike to tell them apart.

    Args:
        served: the idea so far.
        execution_us: batch size -> mean time of an execution, of one instance.
        executions: batch size -> how many.
    """
    sizes = np.array([size for size in execution_us if 1 <= size <= served.max_rows], float)
    if not len(sizes):
        return served
    weights = np.sqrt([executions[int(size)] for size in sizes])
    off = np.array([execution_us[int(size)] - served.time_us[int(size) - 1] for size in sizes])
    apart = len(sizes) >= LEAST_SIZES and sizes.max() >= LEAST_RANGE * sizes.min()
    columns = [np.ones_like(sizes), sizes] if apart else [np.ones_like(sizes)]
    costs, *_ = np.linalg.lstsq(np.stack(columns, axis=1) * weights[:, None], off * weights, rcond=None)
    batch_us, row_us = float(costs[0]), float(costs[1]) if apart else 0.0
    rows = np.arange(1, served.max_rows + 1)
    alone = np.array(served.time_us)
    moved = np.maximum(alone + batch_us + row_us * rows, FASTEST * alone)
    return replace(served, time_us=tuple(np.maximum.accumulate(moved).tolist()))


def refit(
    served: Served,
    runs: Sequence[Run],
    load_of: Callable[[Run], Load],
    predictor_of: Callable[[Served], Predictor],
) -> Served:
    """An idea of the machine under which the simulator gives what was measured.

    First tau(b) from the executions of one instance, then the overhead from the medians at low load, then jitter and the
    time between batches by trying: those under which the simulator, given the very arrivals that were sent, comes nearest.
    Last, whether instances compute side by side, where several were measured.

    Args:
        served: the idea so far.
        runs: what was measured, of any settings.
        load_of: what was sent in a run.
        predictor_of: a simulator of an idea.
    """
    usable = [run for run in runs if not run.limits and run.p50_us is not None]
    if not usable:
        return served
    found = _with_times_of(served, usable)
    alone = [run for run in usable if run.purpose is Purpose.EXPECTED] or usable
    alone = [run for run in alone if run.setting.instances == 1] or alone
    predictor = predictor_of(found)
    late_us = float(np.median([_late_us(predictor, run, load_of(run)) for run in alone]))
    found = replace(found, overhead_us=max(0, round(found.overhead_us + late_us)))
    single = ([run for run in usable if run.setting.instances == 1] or usable)[-MOST_RUNS:]
    gaps_us = sorted({round(gap * found.overhead_us) for gap in GAPS})
    ideas = [
        replace(found, jitter=jitter, prepare_us=gap_us, overhead_us=found.overhead_us - gap_us)
        for jitter in JITTERS
        for gap_us in gaps_us
    ]
    found = min(ideas, key=lambda idea: _distance(predictor_of(idea), single, load_of))
    several = [run for run in usable if run.setting.instances > 1][-MOST_RUNS:]
    if several:
        blank = tuple(replace(one, side_by_side=None) for one in found.runtimes)
        ideas = [found, *(replace(found, serialised=serialised, runtimes=blank) for serialised in (True, False))]
        found = min(ideas, key=lambda idea: _distance(predictor_of(idea), several, load_of))
    return found


def _with_times_of(served: Served, runs: Sequence[Run]) -> Served:
    executions: dict[int, int] = {}
    total_us: dict[int, float] = {}
    for run in runs:
        if run.setting.instances > 1:
            # Their executions hold the waiting for one another.
            continue
        extra_us = served.extra_us(run.setting)
        for size, count in run.executions_by_size.items():
            executions[size] = executions.get(size, 0) + count
            own_us = 0.0 if extra_us is None else extra_us[size - 1]
            total_us[size] = total_us.get(size, 0.0) + count * (run.execution_us_by_size[size] - own_us)
    return with_service_times(served, {size: total_us[size] / count for size, count in executions.items()}, executions)


def _late_us(predictor: Predictor, run: Run, load: Load) -> float:
    predicted = simulated(predictor, run.setting)(load)
    assert run.p50_us is not None and predicted.p50_us is not None
    return run.p50_us - predicted.p50_us


def _distance(predictor: Predictor, runs: Sequence[Run], load_of: Callable[[Run], Load]) -> float:
    """How far the simulator is off: logarithms of both latencies, and the share in time."""
    total = 0.0
    for run in runs:
        seen = simulated(predictor, run.setting)(load_of(run))
        pairs = ((run.p50_us, seen.p50_us), (run.p99_us, seen.p99_us))
        weight = LOW_LOAD_WEIGHT if run.purpose is Purpose.EXPECTED else 1.0
        most = CLIP if run.in_slo_ratio < OVERLOADED else math.inf
        total += weight * sum(min(most, abs(math.log(real / said))) for real, said in pairs if real and said)
        total += abs(run.in_slo_ratio - seen.in_slo_ratio)
    return total
