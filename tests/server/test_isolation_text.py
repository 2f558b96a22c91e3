"""The suite against the shipped language model: nobody is hurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.isolation.result import Options
from brim.isolation.text import checks
from brim.isolation.text.special import patient_repository
from brim.isolation.text.suite import is_language_model, run_text_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.service.load import find_service
from brim.service.samples import sample_rows
from tests.server.text_callers import MODEL

CHECKS = ("identity", "streams", "stop_strings", "refused_neighbours", "caller_gone", "secrets", "order")
OPTIONS = Options(requests=16, callers=8, answer_timeout_s=120.0, checks=CHECKS)
PATIENT_S = 30.0


def test_text_generation_keeps_its_callers_apart(
    exported_text: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How soon blocks are free is measured elsewhere, on a quiet machine.
    monkeypatch.setattr(checks, "FREED_S", PATIENT_S)
    project = exported_text
    service = find_service(project.services, MODEL)
    with (
        patient_repository(project.model_repository, MODEL) as repository,
        EmbeddedServer(
            repository,
            [MODEL],
            cache=project.cache,
            log_file=tmp_path / "triton.log",
            canaries={MODEL: sample_rows(service)[0]},
            options=ServerOptions(exit_timeout_s=5),
        ) as server,
    ):
        assert is_language_model(server.endpoint, MODEL)
        results = run_text_suite(server.endpoint, MODEL, OPTIONS, own=server)
    assert [result.message for result in results if not result.ok] == []
    assert tuple(result.id for result in results if not result.skipped) == CHECKS
    by_id = {result.id: result for result in results}
    assert by_id["identity"].right == OPTIONS.requests
    assert by_id["refused_neighbours"].own_error > 20
    assert by_id["caller_gone"].cancelled > 0
    assert by_id["streams"].figures["characters_of_several_bytes"] > 0
