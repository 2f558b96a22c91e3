"""The shipped services, exported and served once for all tests that ask them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.options import ServerOptions


def shipped_server(exported: Project, folder: Path, options: ServerOptions | None = None) -> EmbeddedServer:
    """Both shipped models on one real server, not started yet."""
    return EmbeddedServer(
        exported.model_repository,
        ["text_embedding", "image_classifier"],
        cache=exported.cache,
        log_file=folder / "triton.log",
        options=options,
    )


@pytest.fixture(scope="session")
def shipped(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of the shipped models for all tests that leave it as it is."""
    with shipped_server(exported, tmp_path_factory.mktemp("shipped")) as server:
        yield server


@pytest.fixture(scope="module")
def shipped_apart(exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Another one for the tests of one module, which may harm it."""
    # A stub that was killed holds up the end of the server for as long as it may.
    options = ServerOptions(exit_timeout_s=1)
    with shipped_server(exported, tmp_path_factory.mktemp("shipped-apart"), options) as server:
        yield server
