"""A served model under more callers than fill its batches, for a moment: what was answered, and what it took."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from brim.bench.server_cost import cpu_us
from brim.errors import CouldNotTell
from brim.measure.batch_stats import BatchStats, Snapshot, difference, settle, snapshot
from brim.measure.callers import Row, ask_all
from brim.measure.launcher import Launcher
from brim.measure.perf_analyzer import any_stability, run_perf_analyzer
from brim.measure.plan import Mode, Plan, Protocol, usable_cores
from brim.measure.saturation import Evidence, judge
from brim.server.embedded import EmbeddedServer
from brim.units import US_PER_S

ANSWER_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 10.0
CALLERS_THREADS = 1
"""The closed loop of ``ask_all`` is one event loop."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One model at saturation for a moment.

    Attributes:
        rate_per_s: answers a second, as the callers see them.
        answered: requests in all.
        mean_batch: rows an execution, the small ones of start and end included.
        shared_batch: rows of the batch that a request was in, on average over the requests.
        duty: time in which the instances were taken, by wall time and instances.
        server_us: the server's processor time a request, its stubs included.
        generator_us: the callers' processor time a request; None when it could not be read.
        generator_cores: the same by wall time.
        machine_busy: busy share of the machine's processors; None when it was not looked at.
        generator_bound: whether the callers set the figure, not the server (``brim.measure.saturation``).
    """

    rate_per_s: float
    answered: int
    mean_batch: float
    shared_batch: float
    duty: float
    server_us: float
    generator_us: float | None
    generator_cores: float | None
    machine_busy: float | None
    generator_bound: bool


@dataclass(frozen=True, slots=True)
class Generated:
    """perf_analyzer on one model, in a closed loop over gRPC.

    Attributes:
        server: that runs.
        model: on it.
        instances: of the model.
        launcher: the load generator.
        data: its file of rows; random ones when None.
        folder: a folder for the raw output of each segment is made in it.
        callers: of the loop.
        window_ms: of perf_analyzer, which takes three.
    """

    server: EmbeddedServer
    model: str
    instances: int
    launcher: Launcher
    data: Path | None
    folder: Path
    callers: int
    window_ms: int

    def segment(self, number: int) -> Segment:
        """Three windows. Throughput is that of the later two: the first one holds the start, before batches are full.

        Raises:
            CouldNotTell: a request failed, or the generator gave no figure.
        """
        plan = any_stability(
            Plan(
                Mode.CONCURRENCY,
                (self.callers,),
                protocol=Protocol.GRPC,
                input_data=self.data,
                window_ms=self.window_ms,
            )
        )
        folder = self.folder / f"{number:03}-{self.model}"
        before = _totals(self.server, self.model)
        spent_us = cpu_us(self.server.pid)
        run = run_perf_analyzer(self.launcher, self.server.endpoint, self.model, plan, self.callers, folder)
        spent_us = cpu_us(self.server.pid) - spent_us
        stats = _difference(self.server, self.model, before, self.instances, run.usage.loaded_us, folder)
        windows = run.console.windows[1:]
        if run.figures is None or not windows:
            raise CouldNotTell(
                f"{self.model}: perf_analyzer gave no figure {run.ended}", hint=f"its output is in {folder}"
            )
        rate_per_s = mean(window.throughput for window in windows)
        shares = run.figures.split_us
        evidence = Evidence(
            mode=Mode.CONCURRENCY,
            value=self.callers,
            throughput=rate_per_s,
            latency_us=sum(shares.values()) or None,
            server_us=sum(share for name, share in shares.items() if name.startswith("server_")),
            duty=stats.duty,
            generator_cores=run.usage.cores,
            usable_cores=min(plan.threads(usable_cores()), usable_cores()),
            machine_busy=run.usage.machine_busy,
        )
        return _segment(evidence, stats, rate_per_s, spent_us)


@dataclass(frozen=True, slots=True)
class Asked:
    """Python's own closed loop over gRPC: a fixed number of rows, each sent once.

    For a model so slow that a window of perf_analyzer would hold one or two batches.

    Attributes:
        server: that runs.
        model: on it.
        instances: of the model.
        rows: of every round, one request each.
        callers: of the loop.
    """

    server: EmbeddedServer
    model: str
    instances: int
    rows: Sequence[Sequence[Row]]
    callers: int

    def segment(self, number: int) -> Segment:
        """All rows of a round, from the first request to the last answer.

        Raises:
            CouldNotTell: a request failed.
        """
        rows = self.rows[number]
        before = _totals(self.server, self.model)
        began_s, spent_us, own_us = time.perf_counter(), cpu_us(self.server.pid), cpu_us(os.getpid(), children=False)
        answers = ask_all(self.server.endpoint.grpc, Protocol.GRPC, self.model, rows, self.callers, ANSWER_TIMEOUT_S)
        elapsed_s = time.perf_counter() - began_s
        spent_us = cpu_us(self.server.pid) - spent_us
        own_cores = (cpu_us(os.getpid(), children=False) - own_us) / US_PER_S / elapsed_s
        failed = next((answer.error for answer in answers if answer.error), None)
        if failed:
            raise CouldNotTell(
                f"{self.model}: a request failed: {failed.message}", hint=f"the server's log is {self.server.log_file}"
            )
        elapsed_us = round(elapsed_s * US_PER_S)
        stats = _difference(self.server, self.model, before, self.instances, elapsed_us, self.server.log_file)
        rate_per_s = len(answers) / elapsed_s
        evidence = Evidence(
            mode=Mode.CONCURRENCY,
            value=self.callers,
            throughput=rate_per_s,
            latency_us=round(float(np.mean([answer.latency_us for answer in answers]))),
            server_us=None if stats.queue_us is None else stats.queue_us + sum(stats.compute_us.values()),
            duty=stats.duty,
            generator_cores=own_cores,
            usable_cores=CALLERS_THREADS,
            machine_busy=None,
        )
        return _segment(evidence, stats, rate_per_s, spent_us)


def _segment(evidence: Evidence, stats: BatchStats, rate_per_s: float, spent_us: int) -> Segment:
    assert stats.mean_batch is not None and stats.duty is not None
    cores = evidence.generator_cores
    return Segment(
        rate_per_s=rate_per_s,
        answered=stats.inferences,
        mean_batch=stats.mean_batch,
        shared_batch=shared_batch(stats.executions_by_size),
        duty=stats.duty,
        server_us=spent_us / stats.inferences,
        generator_us=None if cores is None else cores * US_PER_S / rate_per_s,
        generator_cores=cores,
        machine_busy=evidence.machine_busy,
        generator_bound=judge(evidence).generator_bound,
    )


def shared_batch(executions_by_size: Mapping[int, int]) -> float:
    """Rows of the batch that a row was in, on average over the rows."""
    rows = sum(size * count for size, count in executions_by_size.items())
    return sum(size * size * count for size, count in executions_by_size.items()) / rows


def _totals(server: EmbeddedServer, model: str) -> Snapshot:
    """Once they stand still: a batch is counted a moment after its last answer."""
    # Over HTTP: gRPC's library leaves threads behind, and the next start of the generator can wait for them for ever.
    with closing(server.endpoint.http_client()) as client:
        totals, _ = settle(lambda: snapshot(client, model), timeout_s=SETTLE_TIMEOUT_S)
    return totals


def _difference(
    server: EmbeddedServer, model: str, before: Snapshot, instances: int, wall_us: int, output: Path
) -> BatchStats:
    stats = difference(before, _totals(server, model), instances=instances, wall_us=wall_us)
    if not stats.inferences or not wall_us or stats.failed:
        raise CouldNotTell(f"{model}: {stats.succeeded} requests answered, {stats.failed} failed", hint=f"see {output}")
    return stats
