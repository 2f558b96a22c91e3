"""The suite against the shipped models behind the gateway: nobody is hurt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from brim.cli.commands.serve import canaries
from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway
from brim.isolation import hostile, throughput
from brim.isolation.checks import CHECKS
from brim.isolation.result import Options, Result
from brim.isolation.suite import run_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.supervise import Supervisor
from brim.service.load import find_services
from brim.service.samples import Row
from brim_export.models import image_classifier
from brim_export.models.sentences import LONG, varied_sentences

OPTIONS = Options(requests=600, callers=120, answer_timeout_s=60.0)
FRAMING = "framing_neighbours"


@pytest.fixture(scope="module")
def healed(shipped_apart: EmbeddedServer) -> Iterator[Supervisor]:
    """Cancelled gRPC calls can end a tritonserver 24.10, and one check kills a stub."""
    with Supervisor(shipped_apart) as supervisor:
        yield supervisor


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are of no interest here, and the fuzz has tests of its own."""
    monkeypatch.setattr(throughput, "SEGMENT_S", 0.1)
    monkeypatch.setattr(hostile, "BODIES", 0.5)


@pytest.fixture(scope="module")
def gateway(healed: Supervisor, exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    services = find_services(exported.services, ["image_classifier", "text_embedding"])
    with Gateway(
        healed.server.endpoint,
        log_file=tmp_path_factory.mktemp("gateway") / "envoy.log",
        admitted={service.name: Admission() for service in services},
        canaries=canaries(services),
    ) as running:
        yield running


def isolate(healed: Supervisor, gateway: Gateway, model: str, options: Options, rows: Sequence[Row]) -> list[Result]:
    return run_suite(gateway.endpoint, model, options, rows=rows, own=healed.server, supervisor=healed, guarded=True)


def test_image_classifier_passes_every_check_of_the_model(healed: Supervisor, gateway: Gateway) -> None:
    images, _ = image_classifier.held_out()
    rows = [{"IMAGE": image[np.newaxis].astype(np.float32)} for image in images[:120]]
    results = isolate(healed, gateway, "image_classifier", OPTIONS, rows)
    assert [result.message for result in results if not result.ok] == []
    assert [result.id for result in results] == [check.id for check in CHECKS]
    assert results[0].right == OPTIONS.requests
    by_id = {result.id: result for result in results}
    assert [result.id for result in results if result.skipped] == ["unequal_lengths", "whole_batch_failure"]
    assert by_id["deterministic_batches"].figures["plans"] == 3
    assert by_id["backend_killed"].figures["waiting_when_killed"] >= 100
    ratio = by_id["poison_throughput"].figures
    assert 0 < ratio["lowest_ratio"] <= ratio["poison_throughput_ratio"] <= ratio["highest_ratio"]


def test_text_embedding_passes(healed: Supervisor, gateway: Gateway) -> None:
    texts = [text for text in varied_sentences(80) if text != LONG]
    rows = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    checks = ("identity", "unequal_lengths", "poison_neighbours", "own_errors_only", "deterministic_batches", FRAMING)
    options = replace(OPTIONS, requests=200, callers=100, checks=checks)
    results = isolate(healed, gateway, "text_embedding", options, rows)
    assert [result.message for result in results if not result.ok] == []
    assert all(result.right > 0 and not result.skipped for result in results)


def test_without_a_gateway_a_lying_length_of_a_text_is_reported_as_hurting_the_whole_batch(healed: Supervisor) -> None:
    rows = [{"TEXT": np.array([[f"text {number}".encode()]], dtype=np.object_)} for number in range(40)]
    options = replace(OPTIONS, requests=200, callers=100, checks=(FRAMING,))
    (result,) = run_suite(healed.server.endpoint, "text_embedding", options, rows=rows)
    assert not result.ok
    assert result.neighbour_errors > 0 and result.wrong == 0 and result.hung == 0
    assert "incomplete string" in result.message
