"""The designed run, fitted to the time that it may take: tau(b) with all rows in one request, then the same in service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from brim.errors import CouldNotTell, InputError
from brim.measure import batch_stats
from brim.measure.batch_stats import BatchStats
from brim.measure.batch_time import MeasuredBatchTime, design_sizes
from brim.measure.batch_time_run import Design, measure_batch_time
from brim.measure.callers import Row, ask_all
from brim.measure.measure import ask_target, read_snapshot
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint

BUDGET_US = 15_000_000
ANSWER_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 10.0
WARM_UP_REQUESTS = 2
ATTEMPTS = 3
SERVICE_CALLERS = (2, 16, 64)
"""Callers of the closed loops that show what a row costs which comes in a request of its own."""
MOST_CALLS, LEAST_CALLS = 600, 30


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the server with the service's current configuration showed.

    Attributes:
        batch_time: tau(b) and overheads, all rows of a batch in one request.
        in_service: executions while single rows came; None where several instances make their times wait for one another.
    """

    batch_time: MeasuredBatchTime
    in_service: BatchStats | None


def measure_baseline(
    endpoint: Endpoint,
    model: str,
    rows: Sequence[Row],
    *,
    max_rows: int,
    seed: int = 0,
    budget_us: int = BUDGET_US,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Baseline:
    """Measure a served model for about ``budget_us``, whatever its batches take.

    Raises:
        InputError: the model refuses a row.
        CouldNotTell: the runs differ too much, or others use the server.
        ServerFailed: the server does not answer.
    """
    full_us = _probe_us(endpoint, model, rows, max_rows)
    design = _design(full_us, max_rows, seed=seed, budget_us=budget_us)
    batch_time = _measured(endpoint, model, rows, design, on_progress)
    target = ask_target(endpoint, model)
    if target.instances > 1:
        return Baseline(batch_time, None)
    on_progress("batch times in service: single rows from concurrent callers")
    before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    one_us = full_us / max_rows
    for callers in SERVICE_CALLERS:
        calls = int(min(MOST_CALLS, max(LEAST_CALLS, 2 * callers, budget_us / 10 / max(1.0, one_us))))
        requests = [rows[i % len(rows)] for i in range(calls)]
        answers = ask_all(endpoint.grpc, Protocol.GRPC, model, requests, callers, ANSWER_TIMEOUT_S)
        wrong = [answer.error for answer in answers if answer.error is not None]
        if wrong:
            raise InputError(f"{model} does not answer a row: {wrong[0].message}", hint="check the service's samples")
    after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    return Baseline(batch_time, batch_stats.difference(before, after, instances=1))


def _measured(
    endpoint: Endpoint, model: str, rows: Sequence[Row], design: Design, on_progress: Callable[[str], None]
) -> MeasuredBatchTime:
    """The designed run; again where a busy machine made its runs differ too much, ``ATTEMPTS`` times at most."""
    for attempt in range(1, ATTEMPTS):
        try:
            return measure_batch_time(
                endpoint, model, rows, replace(design, seed=design.seed + attempt), on_progress=on_progress
            )
        except CouldNotTell as error:
            on_progress(f"once more: {error.message}")
    return measure_batch_time(endpoint, model, rows, design, on_progress=on_progress)


def _probe_us(endpoint: Endpoint, model: str, rows: Sequence[Row], max_rows: int) -> float:
    """Time of a full batch, roughly."""
    whole = {name: np.concatenate([rows[i % len(rows)][name] for i in range(max_rows)]) for name in rows[0]}
    answers = ask_all(endpoint.grpc, Protocol.GRPC, model, [whole, whole], 1, ANSWER_TIMEOUT_S)
    error = answers[-1].error
    if error is not None:
        raise InputError(
            f"{model} does not answer a request of {max_rows} rows: {error.message}",
            hint="check the service's samples and max_batch_size",
        )
    return float(answers[-1].latency_us)


def _design(full_us: float, max_rows: int, *, seed: int, budget_us: int) -> Design:
    """The most thorough design that is likely to keep within the budget: fewer runs first, then fewer sizes."""
    every = design_sizes(max_rows)
    some = tuple(
        sorted({every[0], every[len(every) // 3], every[len(every) // 2], every[2 * len(every) // 3], every[-1]})
    )
    designs = [
        Design(repeats=7, executions=100, seed=seed, timeout_s=ANSWER_TIMEOUT_S, refinements=1),
        Design(repeats=7, executions=30, seed=seed, timeout_s=ANSWER_TIMEOUT_S, refinements=1),
        Design(repeats=5, executions=10, seed=seed, timeout_s=ANSWER_TIMEOUT_S, refinements=1),
        Design(repeats=3, executions=5, seed=seed, timeout_s=ANSWER_TIMEOUT_S, refinements=1),
        Design(tuple(every), repeats=3, executions=2, seed=seed, timeout_s=ANSWER_TIMEOUT_S),
        Design(some, repeats=3, executions=1, seed=seed, timeout_s=ANSWER_TIMEOUT_S),
    ]

    def cost_us(design: Design) -> float:
        sizes = design.sizes or tuple(every)
        # A batch of one row takes a tenth of a full one where there is a fixed part; the rest goes with the rows.
        each = sum(full_us * (0.1 + 0.9 * size / max_rows) for size in sizes)
        return design.repeats * (design.executions + WARM_UP_REQUESTS) * each

    return next((design for design in designs if cost_us(design) <= budget_us), designs[-1])
