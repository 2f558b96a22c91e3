"""The fuzz against real servers: the shipped models take it, and a model or a server that does not is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brim.isolation.contract import read_contract
from brim.isolation.fuzz import FuzzOutcome, run_fuzz
from brim.isolation.fuzz_bodies import KILLER_EVERY, FuzzSource
from brim.isolation.fuzz_plan import FuzzPlan, Window
from brim.isolation.judge import Verdict
from brim.isolation.pool import Pool, make_pool
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.service.samples import Row
from brim_export.models import image_classifier
from tests.server.doubler import make_project

BODIES = 300
DIES_OF_THREE = """
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if len(x) == 3:
                os._exit(1)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]))
        return answers
"""


def pool_of(server: EmbeddedServer, model: str, rows: list[Row]) -> Pool:
    contract = read_contract(server.endpoint, model)
    return make_pool(server.endpoint, contract, rows, timeout_s=60.0, tolerance=1e-4)


def images() -> list[Row]:
    return [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in image_classifier.held_out()[0][:30]]


def texts() -> list[Row]:
    return [{"TEXT": np.array([[f"text {number}".encode()]], dtype=np.object_)} for number in range(30)]


@pytest.mark.parametrize(("model", "rows"), [("image_classifier", images), ("text_embedding", texts)])
def test_a_shipped_model_takes_it_and_nobody_notices(shipped: EmbeddedServer, model: str, rows: object) -> None:
    assert callable(rows)
    outcome = run_fuzz(shipped.endpoint, pool_of(shipped, model, rows()), FuzzPlan(bodies=BODIES, seed=1))
    assert outcome.tally.faults == [] and outcome.troubles == () and not outcome.dead
    counts = outcome.tally.counts
    assert counts[Verdict.RIGHT] + counts[Verdict.OWN_ERROR] == outcome.tally.sent
    assert counts[Verdict.OWN_ERROR] > BODIES / 2
    # 200 right ones first; every fuzzed one ends in one way.
    assert sum(outcome.statuses.values()) == 200 + 2 * BODIES
    # Triton blames itself for much that its client did wrong.
    assert outcome.statuses["http 500"] > 0 and outcome.statuses["grpc INTERNAL"] > 0
    assert shipped.how_it_ended() is None


def fuzz_doubler(
    tmp_path: Path, cache: Path, plan: FuzzPlan, model: str | None = None
) -> tuple[FuzzOutcome, Pool, str | None]:
    project = make_project(tmp_path / "checkout", **({"model": model} if model else {}))
    rows: list[Row] = [{"X": np.full((1, 4), number, np.float32)} for number in range(10)]
    with EmbeddedServer(
        project.model_repository,
        ["doubler"],
        cache=cache,
        log_file=tmp_path / "server.log",
        options=ServerOptions(exit_timeout_s=1),
    ) as server:
        pool = pool_of(server, "doubler", rows)
        return run_fuzz(server.endpoint, pool, plan), pool, server.how_it_ended()


def test_a_model_that_dies_of_some_input_is_pinned_to_a_window(checkout: Path, tmp_path: Path) -> None:
    plan = FuzzPlan(bodies=BODIES, seed=3)
    outcome, pool, _ = fuzz_doubler(tmp_path, Project(checkout).cache, plan, DIES_OF_THREE)
    assert outcome.dead and outcome.tally.counts[Verdict.WRONG] == 1
    assert "no longer answers a good row" in outcome.troubles[0] and "of seed 3" in outcome.troubles[0]
    window = Window.parse(outcome.repeat[1])
    source = FuzzSource(pool, 3)
    kinds = {
        kind for number in range(window.first, window.last + 1) for kind in source.body(window.protocol, number).kinds
    }
    assert kinds & {"rows_more", "shape", "bytes", "twice"}


def test_a_known_killer_ends_the_server_and_is_found(checkout: Path, tmp_path: Path) -> None:
    """Measured on 24.10, which is why the fuzz leaves these out unless it is told otherwise."""
    plan = FuzzPlan(bodies=KILLER_EVERY, killers=True)
    outcome, _, ended = fuzz_doubler(tmp_path, Project(checkout).cache, plan)
    assert ended is not None
    assert outcome.dead and outcome.tally.hurt > 0
    window = Window.parse(outcome.repeat[1])
    assert window.first <= KILLER_EVERY - 1 <= window.last
