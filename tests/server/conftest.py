"""The shipped services, exported and served once for all tests that ask them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.config.files import differences
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.service.load import find_services
from brim_export.pipeline import require
from brim_export.service_export import export_service


@pytest.fixture(scope="session")
def exported(checkout: Path) -> Project:
    """The checkout with both shipped models exported. An export that is up to date is kept."""
    project = Project(checkout)
    for service in find_services(project.services, ["text_embedding", "image_classifier"]):
        result = export_service(project, service)
        if result is not None:
            require(result)
        assert differences(project.model_repository, service) == []
    return project


@pytest.fixture(scope="session")
def shipped(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Both shipped models on one real server."""
    with EmbeddedServer(
        exported.model_repository,
        ["text_embedding", "image_classifier"],
        cache=exported.cache,
        log_file=tmp_path_factory.mktemp("shipped") / "triton.log",
    ) as server:
        yield server
