"""The stall of a bounded queue: the driver sees it on a real server, the simulator predicts it, the linter warns of it.

Pairs of requests: the second comes while the first is executed, and nobody after them for longer than the stall. With a
queue policy the batcher may miss the end of the execution, and then wakes for its half-second tick only.

It misses it when it wakes faster than the instance goes from its callback to its queue (`Payload::Execute` and
`RateLimiter::DequeuePayload` in core at r24.10), and how fast a thread wakes on another processor is a matter of the
machine: from three pairs in a hundred to half of them. All of the server on one processor, the batcher takes the processor
from the instance in that moment: four pairs in five, on a quiet machine and on a busy one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.batcher.arrivals import OpenLoop
from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.batcher.settings import settings_of
from brim.batcher.simulate import simulate
from brim.config.textformat import parse, write
from brim.lint.check import lint_paths
from brim.measure.accounting import Objective, Outcome
from brim.measure.known_time import KnownTime, write_known_time
from brim.measure.openloop import OpenLoopPlan
from brim.measure.openloop_run import run_open_loop
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint

BATCH_US = 20_000
PAIRS = 6
APART_US = 700_000
ROUNDS = 6
ARRIVALS = [number * APART_US + offset for number in range(PAIRS) for offset in (0, BATCH_US // 2)]
STALL_US = 450_000
LONGEST_STALL_US = 1_100_000
BOUNDED, FREE = "bounded", "free"


def config_of(repository: Path, model: str) -> ModelConfig:
    config = parse((repository / model / "config.pbtxt").read_bytes(), model).message
    assert config is not None
    return config


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that differ in the bound of the queue only, which none of the requests here reaches."""
    folder = tmp_path_factory.mktemp("stall") / "repository"
    for name in (BOUNDED, FREE):
        write_known_time(folder, name, KnownTime(tau0_us=BATCH_US, alpha_us=0))
    config = config_of(folder, BOUNDED)
    config.dynamic_batching.default_queue_policy.max_queue_size = 400
    (folder / BOUNDED / "config.pbtxt").write_text(write(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def endpoint(repository: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    log_file = tmp_path_factory.mktemp("log") / "server.log"
    with EmbeddedServer(repository, [BOUNDED, FREE], cache=Project(checkout).cache, log_file=log_file) as server:
        on_one_processor()
        yield server.endpoint


def on_one_processor() -> None:
    """Every thread of this process's tritonserver, which was made before this, to the same processor."""
    processor = min(os.sched_getaffinity(0))
    servers = [child for child in psutil.Process().children(recursive=True) if child.name() == "tritonserver"]
    assert servers
    for thread in (thread for server in servers for thread in server.threads()):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, {processor})


def measured_stalls(endpoint: Endpoint, model: str) -> int:
    """Requests of all pairs that took as long as a stall; every one is answered."""
    rows = [{"X": np.zeros((1, 4), np.float32)}]
    plan = OpenLoopPlan(duration_us=PAIRS * APART_US, objective=Objective(99, STALL_US))
    whole = run_open_loop(endpoint, Protocol.HTTP, model, rows, ARRIVALS, plan).whole
    assert whole.counts[Outcome.ANSWERED] == len(ARRIVALS)
    assert whole.since_due.max_us is not None and whole.since_due.max_us < LONGEST_STALL_US
    return whole.offered - whole.in_slo


def predicted_stalls(repository: Path, model: str, seed: int) -> int:
    settings = settings_of(config_of(repository, model))
    found = simulate(settings, Machine(AffineBatchTime(BATCH_US, 0)), OpenLoop(ARRIVALS), seed=seed)
    assert found.latency_us.max() < LONGEST_STALL_US
    return int(np.count_nonzero(found.latency_us >= STALL_US))


def test_a_bounded_queue_stalls_on_the_real_server(endpoint: Endpoint) -> None:
    assert any(measured_stalls(endpoint, BOUNDED) for _ in range(ROUNDS))


def test_without_the_policy_nothing_stalls(endpoint: Endpoint) -> None:
    assert not all(measured_stalls(endpoint, FREE) for _ in range(ROUNDS)), (
        "a machine that stands still does not do so often"
    )


def test_the_simulator_predicts_both(repository: Path) -> None:
    stalls = [predicted_stalls(repository, BOUNDED, seed) for seed in range(20)]
    assert sum(map(bool, stalls)) >= 18
    assert all(count <= PAIRS for count in stalls)
    assert [predicted_stalls(repository, FREE, seed) for seed in range(20)] == [0] * 20


def test_the_linter_warns_of_the_policy_alone(repository: Path) -> None:
    codes = {model: {finding.code for finding in lint_paths([repository / model])} for model in (BOUNDED, FREE)}
    assert codes[BOUNDED] - codes[FREE] == {"TRI001"}
