"""What the batch runtime costs: the server's processor time a request, with it and with a bare model of the same graph.

Both models are on one server, one after the other under the same closed loop, in an order that turns every round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brim.bench.bare import TIMED_ADAPTER, add_variant, bare_model
from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.server_cost import cpu_us
from brim.bench.stages import us_per_request
from brim.bench.verdict import Target
from brim.errors import CouldNotTell
from brim.measure.batch_stats import Snapshot, difference, snapshot
from brim.measure.input_data import write_input_data
from brim.measure.launcher import Launcher
from brim.measure.perf_analyzer import any_stability, run_perf_analyzer
from brim.measure.plan import Mode, Plan, Protocol
from brim.paths import Project
from brim.runtime.session import Device, OnnxSession
from brim.server.embedded import EmbeddedServer
from brim.service.samples import random_rows
from brim.service.schema import Service

NAME = "runtime-cost"
TARGET = 1.10
"""Most server processor time a request, over that of the bare model."""
CALLERS = 256
"""More than two batches hold, so that full batches wait."""
COMPARABLE = 0.2
"""Most that the mean batches of a pair may differ, as a share of the smaller: a request costs more in a smaller batch."""
TRIES = 3
"""Pairs measured at most for a pair that can be compared."""
ROWS = 200
"""Different rows that are sent in turn."""
WINDOW_MS = 450
"""perf_analyzer takes three windows a segment."""
BARE, TIMED, TIMED_BARE = "bare", "timed", "timed_bare"
PROTOCOLS = (Protocol.GRPC, Protocol.HTTP)


@dataclass(frozen=True, slots=True)
class Segment:
    """One model under load for a moment.

    Attributes:
        cpu_us: of the server, a request.
        answered: requests.
        mean_batch: rows a batch.
    """

    cpu_us: float
    answered: int
    mean_batch: float


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: both models over both protocols, each.
        callers: of the closed loop.
        window_ms: of perf_analyzer; a segment takes three.
    """

    rounds: int = 8
    callers: int = CALLERS
    window_ms: int = WINDOW_MS


DEFAULT_EFFORT = Effort()


def runtime_cost(
    project: Project,
    service: Service,
    *,
    launcher: Launcher,
    folder: Path,
    log_file: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare the shipped adapter with the bare model on ``service``, which has one input and one output and is exported.

    Args:
        project: where the model repository lies.
        service: the model to do it with.
        launcher: the load generator.
        folder: for the raw output of every segment.
        log_file: of the server.
        seed: for the rows that are sent.
        effort: how long to look.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: the server did not start, or died.
        CouldNotTell: a segment gave no figure, or a request failed.
    """
    watch = Watch()
    folder.mkdir(parents=True, exist_ok=True)
    data = write_input_data(
        folder / "rows.json",
        [{name: array[0] for name, array in row.items()} for row in random_rows(service, ROWS, seed=seed)],
    )
    names = [service.name, BARE, TIMED, TIMED_BARE]
    with tempfile.TemporaryDirectory(prefix="brim-bench-") as scratch:
        repository = Path(scratch)
        _add_models(repository, project.model_repository / service.name, service)
        with EmbeddedServer(
            repository,
            names,
            cache=project.cache,
            log_file=log_file,
            canaries=dict.fromkeys(names, random_rows(service, 1, seed=seed)[0]),
            on_progress=on_progress,
        ) as server:
            load = _Load(server, launcher, data, folder, effort)
            found = _rounds(load, service.name, effort, on_progress)
            for model in (TIMED, TIMED_BARE):
                load.segment(model, Protocol.GRPC)
            watch.note()
        stages = {"adapter": us_per_request(repository / TIMED), "bare": us_per_request(repository / TIMED_BARE)}
    figures: dict[str, Sequence[float]] = {}
    ratios = []
    conditions = watch.stop()
    for protocol in PROTOCOLS:
        ours, bare = found[service.name, protocol], found[BARE, protocol]
        figures[f"{protocol.value}_adapter_us"] = [segment.cpu_us for segment in ours]
        figures[f"{protocol.value}_bare_us"] = [segment.cpu_us for segment in bare]
        figures[f"{protocol.value}_adapter_mean_batch"] = [segment.mean_batch for segment in ours]
        figures[f"{protocol.value}_bare_mean_batch"] = [segment.mean_batch for segment in bare]
        target = Target(f"server CPU a request over {protocol.value}, adapter / bare", most=TARGET)
        ratios.append(judged(target, [a.cpu_us / b.cpu_us for a, b in zip(ours, bare, strict=True)], conditions))
    answered = sum(segment.answered for segments in found.values() for segment in segments)
    return Comparison(NAME, tuple(ratios), figures, conditions, {"stages_us": stages, "answered": answered})


def _add_models(repository: Path, source: Path, service: Service) -> None:
    version = source / "1"
    graph = OnnxSession(version / "model.onnx", Device(None, 1), remedy=f"run `brim export {service.name}`")
    bare = partial(bare_model, service, next(iter(graph.inputs)), next(iter(graph.outputs)))
    threads = max(1, service.runtime.threads)
    add_variant(repository, source, service.name, None)
    add_variant(repository, source, BARE, bare(threads=threads))
    add_variant(repository, source, TIMED, TIMED_ADAPTER)
    add_variant(repository, source, TIMED_BARE, bare(threads=threads, timed=True))


def _rounds(
    load: _Load, adapter: str, effort: Effort, on_progress: Callable[[str], None]
) -> dict[tuple[str, Protocol], list[Segment]]:
    found: dict[tuple[str, Protocol], list[Segment]] = {}
    for number in range(effort.rounds):
        words = []
        for protocol in PROTOCOLS:
            # What drifts during a round would favour whoever always comes first.
            ours, bare = _pair(load, adapter, protocol, turned=bool(number % 2))
            found.setdefault((adapter, protocol), []).append(ours)
            found.setdefault((BARE, protocol), []).append(bare)
            words.append(
                f"{protocol.value} {ours.cpu_us:.1f} / {bare.cpu_us:.1f} us in batches of {ours.mean_batch:.0f} / {bare.mean_batch:.0f}"
            )
        on_progress(f"round {number + 1} of {effort.rounds}, adapter / bare: {', '.join(words)}")
    return found


def _pair(load: _Load, adapter: str, protocol: Protocol, *, turned: bool) -> tuple[Segment, Segment]:
    """Both models, one after the other; again when other work on the machine made the batches of one smaller."""
    pairs = []
    for _ in range(TRIES):
        segments = {model: load.segment(model, protocol) for model in ((adapter, BARE) if turned else (BARE, adapter))}
        pair = segments[adapter], segments[BARE]
        pairs.append(pair)
        if unlike(*pair) <= COMPARABLE:
            break
    return min(pairs, key=lambda pair: unlike(*pair))


def unlike(one: Segment, other: Segment) -> float:
    """How much the mean batches differ, as a share of the smaller."""
    small, large = sorted((one.mean_batch, other.mean_batch))
    return large / small - 1


class _Load:
    """The generator, pointed at one model after the other."""

    def __init__(self, server: EmbeddedServer, launcher: Launcher, data: Path, folder: Path, effort: Effort) -> None:
        self._server = server
        self._launcher = launcher
        self._data = data
        self._folder = folder
        self._effort = effort
        self._segments = 0

    def segment(self, model: str, protocol: Protocol) -> Segment:
        """Load one model; what the server spent and answered meanwhile."""
        self._segments += 1
        effort = self._effort
        plan = any_stability(
            Plan(
                Mode.CONCURRENCY,
                (effort.callers,),
                protocol=protocol,
                input_data=self._data,
                window_ms=effort.window_ms,
            )
        )
        folder = self._folder / f"{self._segments:03}-{model}-{protocol.value}"
        spent_us, before = cpu_us(self._server.pid), self._totals(model)
        run_perf_analyzer(self._launcher, self._server.endpoint, model, plan, effort.callers, folder)
        done = difference(before, self._totals(model), instances=1)
        spent_us = cpu_us(self._server.pid) - spent_us
        if done.mean_batch is None or done.failed:
            raise CouldNotTell(
                f"{model} over {protocol.value}: {done.succeeded} requests answered, {done.failed} failed",
                hint=f"the generator's output is in {folder}",
            )
        return Segment(spent_us / done.inferences, done.inferences, done.mean_batch)

    def _totals(self, model: str) -> Snapshot:
        # Over HTTP: gRPC's library leaves threads behind, and the next start of the generator can wait for them for ever.
        with closing(self._server.endpoint.http_client()) as client:
            return snapshot(client, model)
