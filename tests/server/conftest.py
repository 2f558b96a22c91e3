"""The shipped services, exported and served once for all tests that ask them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brim.paths import Project
from brim.server.embedded import EmbeddedServer


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
