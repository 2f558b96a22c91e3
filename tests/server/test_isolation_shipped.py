"""The suite against the shipped models: nobody is hurt, but by what Triton itself spreads before any model code runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from brim.isolation.checks import CHECKS
from brim.isolation.suite import Options, run_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim_export.models import image_classifier
from brim_export.models.sentences import LONG, varied_sentences

OPTIONS = Options(requests=600, callers=120, answer_timeout_s=60.0)
FRAMING = "framing_neighbours"


@pytest.fixture(scope="module")
def own(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of this module's own: cancelled gRPC calls can end a tritonserver 24.10, and no other test should suffer."""
    with EmbeddedServer(
        exported.model_repository,
        ["text_embedding", "image_classifier"],
        cache=exported.cache,
        log_file=tmp_path_factory.mktemp("isolation") / "triton.log",
    ) as server:
        yield server


def test_image_classifier_passes_every_check_of_the_model(own: EmbeddedServer) -> None:
    images, _ = image_classifier.held_out()
    rows = [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in images[:120]]
    results = run_suite(own.endpoint, "image_classifier", OPTIONS, rows=rows)
    # Whether a request of zero rows meets a full batch is a matter of timing here; the fault is Triton's.
    assert [result.message for result in results if not result.ok and result.id != FRAMING] == []
    assert [result.id for result in results] == [check.id for check in CHECKS]
    assert results[0].right == OPTIONS.requests


def test_text_embedding_passes_all_but_the_framing_that_triton_spreads(own: EmbeddedServer) -> None:
    texts = [text for text in varied_sentences(80) if text != LONG]
    rows = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    options = replace(OPTIONS, requests=200, callers=100, checks=("identity", "poison_neighbours", "own_errors_only"))
    results = run_suite(own.endpoint, "text_embedding", options, rows=rows)
    assert [result.message for result in results if not result.ok] == []
    assert all(result.right > 0 for result in results)


def test_a_lying_length_of_a_text_is_reported_as_hurting_the_whole_batch(own: EmbeddedServer) -> None:
    rows = [{"TEXT": np.array([[f"text {number}".encode()]], dtype=np.object_)} for number in range(40)]
    options = replace(OPTIONS, requests=200, callers=100, checks=(FRAMING,))
    (result,) = run_suite(own.endpoint, "text_embedding", options, rows=rows)
    assert not result.ok
    assert result.neighbour_errors > 0 and result.wrong == 0 and result.hung == 0
    assert "incomplete string" in result.message
