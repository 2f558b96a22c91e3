"""Measuring the points of a plan, one perf_analyzer run each, with Triton's own statistics around every run.

Never one run over a range: with ``--max-threads=2``, release 2.60.0 keeps at its later concurrencies the few callers of
its first one (seen: 1:13:4 gives 167, 388, 396 and 378 inferences a second, 9 alone gives 959).
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path

from tritonclient.utils import InferenceServerException

import brim
from brim.errors import InputError, ServerFailed
from brim.measure import batch_stats
from brim.measure.batch_stats import BatchStats, Snapshot
from brim.measure.launcher import Launcher
from brim.measure.perf_analyzer import MeasurementFailed, Run, any_stability, run_perf_analyzer
from brim.measure.plan import Mode, Plan, usable_cores
from brim.measure.point import Point, Provenance, append_point, read_points
from brim.measure.saturation import Evidence, judge
from brim.server.endpoint import NO_ANSWER, Endpoint

SETTLE_TIMEOUT_S = 10.0
METRICS_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a running server, as it says of itself."""

    endpoint: Endpoint
    model: str
    instances: int
    server: str
    """Name and version of the server."""
    config_digest: str
    """Twelve hex digits that change with the model's configuration."""


def measure(
    endpoint: Endpoint,
    model: str,
    plan: Plan,
    *,
    launcher: Launcher,
    folder: Path,
    resume: bool = False,
    on_point: Callable[[Point], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Measure every value of a plan, in its order.

    Each point is one perf_analyzer run between two readings of the model's statistics, and is appended to
    ``measurements.jsonl`` as soon as it is over. When its windows never agree, a second run reports what three windows
    say, and the point is marked as not stable.

    Args:
        endpoint: where the server answers.
        model: name of the model.
        plan: what to measure.
        launcher: a perf_analyzer that runs.
        folder: the run folder; raw output goes to a folder for each run in it.
        resume: take over points that the folder holds already for this plan and this configuration of the model.
        on_point: told of each point as it ends.
        on_progress: told what is happening.

    Raises:
        ServerFailed: the server does not answer.
        InputError: the model is unknown, or perf_analyzer refuses the input.
        MeasurementFailed: perf_analyzer gave no figure; points measured before are kept.
        CountersWentBackwards: the server was started anew during a run.
    """
    target = ask_target(endpoint, model)
    known = {point.key: point for point in read_points(folder)} if resume else {}
    points: list[Point] = []
    for value in plan.values:
        key = f"{model}/{plan.protocol.value}/{plan.mode.value}={value:g}/{plan.fingerprint()}/{target.config_digest}"
        point = known.get(key)
        if point is None:
            on_progress(f"measuring {model} at {plan.mode.value} {value:g}")
            point = _measure_point(target, plan, value, key, launcher, folder, points, on_progress)
            append_point(folder, point)
        points.append(point)
        on_point(point)
    return points


def ask_target(endpoint: Endpoint, model: str) -> Target:
    """What the server says of itself and of the model.

    Raises:
        ServerFailed: it does not answer.
        InputError: it does not know the model.
    """
    with closing(endpoint.http_client()) as client:
        try:
            metadata = client.get_server_metadata()
        except NO_ANSWER as error:
            raise ServerFailed(
                f"{endpoint.http}: no server answers: {error}", hint="start it with `brim serve`"
            ) from error
        try:
            config = client.get_model_config(model)
        except InferenceServerException as error:
            raise InputError(
                f"{model}: {error.message()}", hint="check the model's name and that it is loaded"
            ) from error
    server = f"{metadata.get('name', 'server')} {metadata.get('version', '?')}"
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    return Target(endpoint, model, batch_stats.instance_count(config), server, digest)


def read_snapshot(target: Target) -> Snapshot:
    """The model's totals now, with failures by reason when the server's metrics page is known and answers.

    Raises:
        ServerFailed: the server does not answer.
    """
    metrics = None
    if target.endpoint.metrics is not None:
        metrics = _read_metrics(target.endpoint.metrics)
    with closing(target.endpoint.http_client()) as client:
        try:
            return batch_stats.snapshot(client, target.model, metrics=metrics)
        except NO_ANSWER as error:
            raise ServerFailed(
                f"{target.endpoint.http}: the statistics of {target.model} cannot be read: {error}",
                hint="the server may have ended: see its log",
            ) from error


def _read_metrics(address: str) -> str | None:
    """The metrics page; None when a server does not offer one."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=METRICS_TIMEOUT_S) as page:
            return str(page.read().decode(errors="replace"))
    except (OSError, HTTPException):
        return None


@dataclass(frozen=True, slots=True)
class _Observed:
    run: Run
    stats: BatchStats
    settled: bool


def _measure_point(
    target: Target,
    plan: Plan,
    value: float,
    key: str,
    launcher: Launcher,
    folder: Path,
    earlier: list[Point],
    on_progress: Callable[[str], None],
) -> Point:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    load_average = os.getloadavg()[0]
    observed = _observe(target, plan, value, launcher, folder)
    stable = observed.run.figures is not None
    if not stable and not observed.run.ended:
        on_progress(f"{plan.max_trials} windows did not agree; reading three as they are")
        observed = _observe(target, any_stability(plan), value, launcher, folder)
    provenance = Provenance(
        command=list(observed.run.command),
        perf_analyzer=launcher.version,
        origin=launcher.origin.value,
        server=target.server,
        brim=brim.__version__,
        usable_cores=usable_cores(),
        load_average=load_average,
        started_at=started_at,
        raw=observed.run.folder.relative_to(folder.resolve()).as_posix(),
    )
    return make_point(
        target, plan, value, key, observed.run, observed.stats, stable, observed.settled, earlier, provenance
    )


def _observe(target: Target, plan: Plan, value: float, launcher: Launcher, folder: Path) -> _Observed:
    before, idle_before = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    raw = new_folder(folder, f"{plan.mode.value}-{value:g}")
    try:
        run = run_perf_analyzer(launcher, target.endpoint, target.model, plan, value, raw)
    except MeasurementFailed as failure:
        # Requests that fail because the server has ended read like any others: ask the server.
        try:
            read_snapshot(target)
        except ServerFailed as gone:
            raise ServerFailed(f"the server ended during the run: {failure}", hint=gone.hint) from failure
        raise
    after, idle_after = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    # What an ended open loop leaves queued is still run afterwards: then only the time between the readings is sure.
    wall_us = None if run.ended else run.usage.loaded_us or None
    stats = batch_stats.difference(before, after, instances=target.instances, wall_us=wall_us)
    return _Observed(run, stats, idle_before and idle_after)


def new_folder(folder: Path, name: str) -> Path:
    """A folder of that name with the next free number: an earlier run's raw output is never written over."""
    number = 1
    while True:
        path = folder / "raw" / f"{name}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def make_point(
    target: Target,
    plan: Plan,
    value: float,
    key: str,
    run: Run,
    stats: BatchStats,
    stable: bool,
    settled: bool,
    earlier: list[Point],
    provenance: Provenance,
) -> Point:
    """A point from one run and the statistics around it.

    When perf_analyzer reported no row, throughput is what the server counted, and the watched percentile is the last
    window's.
    """
    figures, console, usage = run.figures, run.console, run.usage
    if figures is not None:
        throughput: float | None = figures.throughput
        by_percentile: dict[float, int] = {**run.further_us, **{float(p): us for p, us in figures.latency_us.items()}}
        latency_us = {f"{p:g}": by_percentile[p] for p in sorted(by_percentile)}
        split_us = figures.split_us
    else:
        throughput = batch_stats.rate_per_s(stats)
        last = console.windows[-1:]
        latency_us, split_us = {str(window.percentile): window.latency_us for window in last}, {}
    server_us = [share for name, share in split_us.items() if name.startswith("server_")]
    below = [
        point.throughput
        for point in earlier
        if point.mode is plan.mode and point.value < value and point.throughput is not None
    ]
    evidence = Evidence(
        mode=plan.mode,
        value=value,
        throughput=throughput,
        latency_us=sum(split_us.values()) or None,
        server_us=sum(server_us) if server_us else None,
        duty=stats.duty,
        generator_cores=usage.cores,
        usable_cores=min(plan.threads(usable_cores()), usable_cores()),
        machine_busy=usage.machine_busy,
        sent_rate=console.sent_rate,
        earlier_throughput=max(below, default=None),
    )
    verdict = judge(evidence)
    return Point(
        key=key,
        model=target.model,
        protocol=plan.protocol.value,
        mode=plan.mode,
        concurrency=round(value) if plan.mode is Mode.CONCURRENCY else None,
        rate=value if plan.mode is Mode.RATE else None,
        throughput=throughput,
        p50_us=latency_us.get("50"),
        p99_us=latency_us.get("99"),
        latency_us=latency_us,
        split_us=split_us,
        mean_batch=stats.mean_batch,
        fill=stats.fill,
        duty=stats.duty,
        queue_us=stats.queue_us,
        compute_us=stats.compute_us,
        executions_by_size=stats.executions_by_size,
        execution_us_by_size=stats.execution_us_by_size,
        inferences=stats.inferences,
        executions=stats.executions,
        failed=stats.failed,
        instances=stats.instances,
        stable=stable,
        settled=settled,
        generator_bound=verdict.generator_bound,
        reason=verdict.reason,
        note=run.ended,
        generator_cores=usage.cores,
        machine_busy=usage.machine_busy,
        outside_ratio=evidence.outside_ratio,
        callers_in_server=evidence.callers_in_server,
        sent_rate=console.sent_rate,
        delayed_ratio=console.delayed_ratio,
        provenance=provenance,
    )
