"""Measuring tau(b) on a real server: a short designed run, with Triton's own statistics as the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import grpc
import numpy as np
from tritonclient.utils import InferenceServerException

import brim
from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats
from brim.measure.batch_stats import Snapshot
from brim.measure.batch_time import MeasuredBatchTime, design_sizes, finer_sizes, fit
from brim.measure.callers import Row, ask_all
from brim.measure.measure import Target, ask_target
from brim.measure.openloop_wire import grpc_body
from brim.measure.plan import Protocol
from brim.server.endpoint import NO_ANSWER, Endpoint

INFER = "/inference.GRPCInferenceService/ModelInfer"
FILE_NAME = "batch_time.json"
SETTLE_TIMEOUT_S = 10.0
SETTLE_POLL_S = 0.002
WARM_UP_REQUESTS = 2
REQUEST_PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


class Sent(StrEnum):
    """How the rows of a batch arrive."""

    TOGETHER = "together"
    """All rows of a batch in one request, one request at a time: any size at will, and nothing else runs meanwhile."""
    SINGLY = "singly"
    """One row a request, from twice as many callers, as in service: while one half is executed the other half waits. What
    each request costs inside an execution is in the time. The sizes are those that the batcher forms."""


@dataclass(frozen=True, slots=True)
class Design:
    """What to run.

    Attributes:
        sizes: batch sizes (half the callers, with ``singly``). When empty, ``design_sizes`` of the model's limit, and where
            the times go up in steps further sizes that close in on each step.
        repeats: runs of each size, in random order, so that a slow drift of the machine falls on all sizes alike.
        executions: executions of one run at least.
        sent: how the rows of a batch arrive.
        timeout_s: longest wait for one answer.
        seed: for the order.
        refinements: how often further sizes are added at most.
    """

    sizes: tuple[int, ...] = ()
    repeats: int = 5
    executions: int = 10
    sent: Sent = Sent.TOGETHER
    timeout_s: float = 60.0
    seed: int = 0
    refinements: int = 3

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: with every fault at once.
        """
        faults = [f"size {size}: must be 1 to {BATCH_LIMIT}" for size in self.sizes if not 1 <= size <= BATCH_LIMIT]
        faults += [
            f"{name} {value:g}: must be {least}"
            for name, value, least, good in (
                ("repeats", self.repeats, "1 or more", self.repeats >= 1),
                ("executions", self.executions, "1 or more", self.executions >= 1),
                ("refinements", self.refinements, "0 or more", self.refinements >= 0),
                ("timeout_s", self.timeout_s, "above 0", self.timeout_s > 0),
            )
            if not good
        ]
        if faults:
            raise InputError("the design cannot be carried out: " + "; ".join(faults), hint="correct these values")


@dataclass(frozen=True, slots=True)
class _Run:
    """Times of one run: of an execution by size, and of a request beside queue and execution, in the server and outside."""

    by_size_us: Mapping[int, float]
    overhead_us: float | None
    outside_us: float | None


def measure_batch_time(
    endpoint: Endpoint,
    model: str,
    rows: Sequence[Row],
    design: Design | None = None,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> MeasuredBatchTime:
    """Measure the batch time of a served model.

    The time of an execution is the server's own: input, inference and output of ``batch_stats``, exactly as long as an
    instance was taken. With several instances that share a device and ``singly`` sent rows it holds their waiting for
    each other, too: one instance gives the device's own time.

    Args:
        endpoint: the server.
        model: name of the model.
        rows: what to send, with the batch dimension 1 in front. Rows sent together have one shape: those of the first row.
        design: what to run.
        on_progress: told what is happening.

    Raises:
        CouldNotTell: other requests were under way, too few sizes came about, or the runs differ too much.
        InputError: the model does not batch, a size is above its limit, or it refuses the rows.
        ServerFailed: the server does not answer.
    """
    design = design or Design()
    if not rows:
        raise InputError("no row to send", hint="give one at least")
    target = ask_target(endpoint, model)
    sizes = design.sizes or tuple(design_sizes(_largest_batch(target)))
    too_large = [size for size in sizes if size > _largest_batch(target)]
    if too_large:
        raise InputError(
            f"sizes {too_large}: {model} has max_batch_size {_largest_batch(target)}", hint="leave these sizes out"
        )
    draw = np.random.default_rng(design.seed)
    runs = _run_all(target, rows, sizes, design, draw, on_progress)
    found = fit(_by_size(runs))
    if not design.sizes and design.sent is Sent.TOGETHER:
        for _ in range(design.refinements):
            further = finer_sizes(found)
            if not further:
                break
            on_progress(f"the times go up in steps: {further} rows as well")
            runs += _run_all(target, rows, further, design, draw, on_progress)
            found = fit(_by_size(runs))
    return MeasuredBatchTime(
        model=model,
        fit=found,
        overhead_us=_median(one.overhead_us for one in runs),
        outside_us=_median(one.outside_us for one in runs),
        provenance={
            "server": target.server,
            "brim": brim.__version__,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "config_digest": target.config_digest,
            "instances": target.instances,
            "sent": design.sent.value,
            "repeats": design.repeats,
            "executions": design.executions,
            "seed": design.seed,
        },
    )


def _run_all(
    target: Target,
    rows: Sequence[Row],
    sizes: Sequence[int],
    design: Design,
    draw: np.random.Generator,
    on_progress: Callable[[str], None],
) -> list[_Run]:
    """Every size ``repeats`` times, in random order."""
    run = _run_together if design.sent is Sent.TOGETHER else _run_singly
    schedule = draw.permutation(np.repeat(sizes, design.repeats)).tolist()
    runs = []
    for number, size in enumerate(schedule):
        if number % len(sizes) == 0:
            on_progress(f"batch times of {target.model}: {number} of {len(schedule)} runs")
        runs.append(run(target, rows, size, design))
    return runs


def _by_size(runs: Sequence[_Run]) -> dict[int, list[float]]:
    by_size: dict[int, list[float]] = {}
    for one in runs:
        for size, time_us in one.by_size_us.items():
            by_size.setdefault(size, []).append(time_us)
    return by_size


def _run_together(target: Target, rows: Sequence[Row], size: int, design: Design) -> _Run:
    """Requests of ``size`` rows, one after the other.

    Raises:
        CouldNotTell: executions of other sizes, or more of them, ran meanwhile.
    """
    body = grpc_body(target.model, _together(rows, size))
    latencies_us = []
    with grpc.insecure_channel(target.endpoint.grpc, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call: Any = channel.unary_unary(INFER, None, None)
        begun = _settled(target)
        for _ in range(WARM_UP_REQUESTS):
            _ask(call, body, target, size, design.timeout_s)
        before = _settled(target, begun.inferences + WARM_UP_REQUESTS * size)
        for _ in range(design.executions):
            began_ns = time.monotonic_ns()
            _ask(call, body, target, size, design.timeout_s)
            latencies_us.append((time.monotonic_ns() - began_ns) / 1_000)
    after = _settled(target, before.inferences + design.executions * size)
    seen = _between(target, before, after)
    if seen.sizes != {size: design.executions}:
        raise CouldNotTell(
            f"{design.executions} requests of {size} rows were sent to {target.model} and executions of "
            f"{seen.sizes} (size: count) ran",
            hint="leave the server alone meanwhile; with a response cache on, switch it off",
        )
    outside_us = None if seen.total_us is None else statistics.fmean(latencies_us) - seen.total_us
    return _Run(seen.by_size_us, seen.overhead_us, outside_us)


def _run_singly(target: Target, rows: Sequence[Row], size: int, design: Design) -> _Run:
    """Twice ``size`` callers, one row a request.

    Raises:
        InputError: the server refuses a row.
    """
    callers = 2 * size
    before = _settled(target)
    requests = [rows[i % len(rows)] for i in range(size * design.executions + size)]
    answers = ask_all(target.endpoint.grpc, Protocol.GRPC, target.model, requests, callers, design.timeout_s)
    wrong = [answer.error for answer in answers if answer.error is not None]
    if wrong:
        raise _refused(target, 1, wrong[0].message)
    seen = _between(target, before, _settled(target, before.inferences + len(requests)))
    latency_us = statistics.fmean(answer.latency_us for answer in answers)
    return _Run(seen.by_size_us, seen.overhead_us, None if seen.total_us is None else latency_us - seen.total_us)


def _together(rows: Sequence[Row], size: int) -> Row:
    """So many rows as one request, out of those that have the first row's shapes."""
    shapes = {name: array.shape for name, array in rows[0].items()}
    alike = [row for row in rows if {name: array.shape for name, array in row.items()} == shapes]
    return {name: np.concatenate([alike[i % len(alike)][name] for i in range(size)]) for name in shapes}


def _ask(call: Any, body: bytes, target: Target, size: int, timeout_s: float) -> None:
    try:
        call(body, timeout=timeout_s)
    except grpc.RpcError as error:
        # What is raised here is the call itself, too; the base class says neither code nor details.
        said = error.details() if isinstance(error, grpc.Call) else str(error)
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise CouldNotTell(
                f"{target.model} did not answer a request of {size} rows within {timeout_s:g} s",
                hint="allow more time for an answer",
            ) from error
        raise _refused(target, size, str(said)) from error


def _refused(target: Target, size: int, said: str) -> InputError:
    return InputError(
        f"{target.model} does not answer a request of {size} rows: {said}", hint="check the rows, and the server's log"
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the server counted between two readings; times are means a request or an execution."""

    sizes: dict[int, int]
    by_size_us: dict[int, float]
    total_us: float | None
    overhead_us: float | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """The statistics of a model, and of its requests as a whole: how many, their time, and the part of each phase."""

    snapshot: Snapshot
    requests: int
    total_ns: int
    phases_ns: int

    @property
    def inferences(self) -> int:
        """Rows answered so far."""
        return sum(counters.inferences for counters in self.snapshot.versions.values())


def _settled(target: Target, least: int = 0) -> _Reading:
    """The model's totals once they hold ``least`` rows and two readings agree: an answer reaches its caller before it is
    counted.

    Raises:
        CouldNotTell: they go on moving.
        ServerFailed: the server does not answer.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    with closing(target.endpoint.http_client()) as client:
        earlier = _read(client, target)
        while True:
            later = _read(client, target)
            still = later.snapshot.versions == earlier.snapshot.versions
            if still and later.inferences >= least:
                return later
            if time.monotonic() > deadline:
                what = (
                    f"{later.inferences} rows are counted, {least} were sent"
                    if still
                    else "other requests are under way"
                )
                raise CouldNotTell(f"{target.model}: {what}", hint="leave the server alone meanwhile")
            earlier = later
            time.sleep(SETTLE_POLL_S)


def _read(client: Any, target: Target) -> _Reading:
    try:
        document = client.get_inference_statistics(target.model)
    except NO_ANSWER as error:
        raise ServerFailed(
            f"{target.endpoint.http}: the statistics of {target.model} cannot be read: {error}",
            hint="the server may have ended: see its log",
        ) from error
    versions = batch_stats.parse_statistics(document, target.model)
    totals = [entry.get("inference_stats", {}) for entry in document["model_stats"] if entry["name"] == target.model]

    def sum_of(name: str, key: str) -> int:
        return sum(int(stats.get(name, {}).get(key, 0)) for stats in totals)

    return _Reading(
        Snapshot(time.monotonic_ns() // 1_000, versions),
        sum_of("success", "count"),
        sum_of("success", "ns"),
        sum(sum_of(phase, "ns") for phase in REQUEST_PHASES),
    )


def _between(target: Target, before: _Reading, after: _Reading) -> _Seen:
    stats = batch_stats.difference(before.snapshot, after.snapshot, instances=target.instances)
    requests = after.requests - before.requests
    total_us = (after.total_ns - before.total_ns) / requests / 1_000 if requests else None
    phases_us = (after.phases_ns - before.phases_ns) / requests / 1_000 if requests else 0.0
    return _Seen(
        sizes=stats.executions_by_size,
        by_size_us={size: float(time_us) for size, time_us in stats.execution_us_by_size.items()},
        total_us=total_us,
        overhead_us=None if total_us is None else total_us - phases_us,
    )


def _largest_batch(target: Target) -> int:
    """The model's ``max_batch_size``, at most ``BATCH_LIMIT``.

    Raises:
        InputError: the model does not batch.
    """
    with closing(target.endpoint.http_client()) as client:
        try:
            config = client.get_model_config(target.model)
        except InferenceServerException as error:
            raise InputError(f"{target.model}: {error.message()}", hint="check the model's name") from error
    largest = int(config.get("max_batch_size", 0))
    if largest < 1:
        raise InputError(
            f"{target.model} has max_batch_size {largest}: Triton does not batch it, so it has no batch time",
            hint="give it a max_batch_size",
        )
    return min(largest, BATCH_LIMIT)


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
