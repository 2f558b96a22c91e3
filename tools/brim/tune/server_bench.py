"""The real server as the bench: one server a setting, an open loop in front of it, Triton's own statistics around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from brim.errors import InputError, ServerFailed
from brim.measure import batch_stats
from brim.measure.accounting import Objective, Outcome
from brim.measure.callers import Row
from brim.measure.measure import Target, ask_target, read_snapshot
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_processes import run_in_processes
from brim.measure.openloop_run import run_open_loop
from brim.measure.plan import Protocol, usable_cores
from brim.server.endpoint import Endpoint
from brim.tune.bystanders import BYSTANDERS, watch_bystanders
from brim.tune.demand import Demand
from brim.tune.overlay import write_overlay
from brim.tune.run import Load, Run
from brim.tune.setting import Setting
from brim.tune.verify import Send

SETTLE_TIMEOUT_S = 30.0
WARM_UP_US = 300_000
WARM_UP_PER_S = 50.0
PER_PROCESS_PER_S = {Protocol.HTTP: 4_000.0, Protocol.GRPC: 2_000.0}
"""What one generator process sends without being the limit (docs/measuring.md)."""
MOST_PROCESSES = 8
RETRIES = 2
"""A run that failed while the generator or other programs were short of processors is made again so often at most."""
PAUSE_S = 1.0

Serve = Callable[[Path], AbstractContextManager[Endpoint]]
"""Serves the model repository in this folder."""


def generators(cores: int) -> int:
    """Generator processes on a machine of so many cores, most of which the server needs."""
    return max(1, min(MOST_PROCESSES, cores // 2 - 1))


def ceiling_per_s(protocol: Protocol, cores: int | None = None) -> float:
    """The highest rate that is sent."""
    return PER_PROCESS_PER_S[protocol] * generators(cores or usable_cores())


class ServerBench:
    """Settings on the real server."""

    def __init__(
        self,
        model_folder: Path,
        serve: Serve,
        rows: Sequence[Row],
        demand: Demand,
        *,
        scratch: Path,
        protocol: Protocol = Protocol.HTTP,
    ) -> None:
        """Nothing is started yet.

        Args:
            model_folder: ``model_repository/NAME``, which is left as it is.
            serve: starts a server.
            rows: what callers send, with the batch dimension 1 in front.
            demand: the objective.
            scratch: an empty folder for repositories.
            protocol: how requests travel.

        Raises:
            InputError: there is no row.
        """
        if not rows:
            raise InputError("no row to send", hint="give the service a sample")
        self.model = model_folder.name
        self._model_folder, self._serve, self._rows, self._demand = model_folder, serve, rows, demand
        self._scratch, self._protocol = scratch, protocol
        self._opened = 0

    @contextmanager
    def serve(self, setting: Setting) -> Iterator[Endpoint]:
        """A server with this setting, and nothing sent to it yet."""
        self._opened += 1
        repository = write_overlay(self._scratch / str(self._opened), self._model_folder, setting)
        with self._serve(repository) as endpoint:
            yield endpoint

    @contextmanager
    def open(self, setting: Setting) -> Iterator[Send]:
        """A server with this setting."""
        with self.serve(setting) as endpoint:
            target = ask_target(endpoint, self.model)
            spacing_us = round(1e6 / WARM_UP_PER_S)
            self._loop(target, list(range(0, WARM_UP_US, spacing_us)), WARM_UP_US)
            yield lambda load: self._undisturbed(target, setting, load)

    def _undisturbed(self, target: Target, setting: Setting, load: Load) -> Run:
        """A run; when it fails while something else may be the reason, the best of a few."""
        run = self._send(target, setting, load)
        for _ in range(RETRIES):
            if run.in_slo_ratio >= self._demand.share or not _is_doubtful(run):
                break
            time.sleep(PAUSE_S)
            run = max(run, self._send(target, setting, load), key=lambda one: one.in_slo_ratio)
        return run

    def _send(self, target: Target, setting: Setting, load: Load) -> Run:
        before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
        with watch_bystanders() as bystanders:
            result = self._loop(target, load.sent_us.tolist(), load.duration_us)
        if not result.server_alive:
            raise ServerFailed(
                f"the server ended under {setting} at {load.rate_per_s:.6g} requests a second", hint="see its log"
            )
        after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
        stats = batch_stats.difference(before, after, instances=target.instances)
        whole = result.whole
        failed = whole.counts[Outcome.FAILED]
        if failed:
            raise ServerFailed(
                f"{failed} of {whole.offered} requests failed under {setting}: {next(iter(whole.messages), 'no message')}",
                hint="`brim isolate` looks at each kind of request; the rows sent are the service's samples",
            )
        return Run(
            setting=setting,
            purpose=load.purpose,
            repeat=load.repeat,
            rate_per_s=load.rate_per_s,
            duration_us=load.duration_us,
            offered=whole.offered,
            answered=whole.counts[Outcome.ANSWERED],
            in_slo=whole.in_slo,
            p50_us=whole.since_due.percentile_us(50),
            p99_us=whole.since_due.percentile_us(99),
            latency_us=whole.since_due.percentile_us(self._demand.percentile),
            mean_batch=stats.mean_batch,
            duty=stats.duty,
            executions_by_size=stats.executions_by_size,
            execution_us_by_size={size: float(time_us) for size, time_us in stats.execution_us_by_size.items()},
            limits=tuple(self._limits(result)),
            bystander_cores=bystanders.cores,
        )

    def _limits(self, result: OpenLoopResult) -> list[str]:
        """In what ways the generator set the figures. Not where even counted from sending the answers were too late, and all
        was sent: then it was the server that was too slow."""
        whole = result.whole
        sent_us = whole.since_sent.percentile_us(self._demand.percentile)
        if sent_us is not None and sent_us > self._demand.slo_us and not whole.counts[Outcome.NOT_SENT]:
            return []
        return result.limits

    def _loop(self, target: Target, due_us: list[int], duration_us: int) -> OpenLoopResult:
        plan = OpenLoopPlan(duration_us, objective=Objective(self._demand.percentile, self._demand.slo_us))
        processes = generators(usable_cores())
        if processes == 1:
            return run_open_loop(target.endpoint, self._protocol, self.model, self._rows, due_us, plan)
        return run_in_processes(
            target.endpoint, self._protocol, self.model, self._rows, due_us, plan, processes=processes
        )


def _is_doubtful(run: Run) -> bool:
    return bool(run.limits) or (run.bystander_cores or 0.0) > BYSTANDERS * usable_cores()
