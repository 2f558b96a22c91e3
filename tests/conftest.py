"""Fixtures that every kind of test shares."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from brim.cli import main
from brim.config.files import differences
from brim.errors import MissingTool
from brim.paths import Project
from brim.plan.promtool import find_promtool
from brim.service.load import find_services
from brim_export.service_export import export_service

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Each of several workers has temporary files of its own: who starts a server clears away what others have killed."""
    if hasattr(config, "workerinput"):
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="brim-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove them."""
    if hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders whose files take minutes: each of several workers takes whole files, and none should be left
    alone with a long one at the end."""
    long = ("docs", "server")
    items.sort(key=lambda item: long.index(item.path.parent.name) if item.path.parent.name in long else len(long))


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Brim = Callable[..., Done]


@pytest.fixture
def brim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Brim]:
    """The command line, in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["brim", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, written.out, written.err)

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture(scope="session")
def cases() -> Path:
    """Small faulty inputs restated from public reports."""
    return ROOT / "tests" / "cases"


@pytest.fixture(scope="session")
def promtool(checkout: Path) -> Path:
    """Prometheus' checker of rules. Where there is none, what it would show is not shown."""
    try:
        return find_promtool(Project(checkout).cache_folder())
    except MissingTool as missing:
        pytest.skip(missing.message)


@pytest.fixture(scope="session")
def exported(checkout: Path) -> Project:
    """The checkout with both shipped models that answer a batch exported. An export that is up to date is kept."""
    return _with_exports(checkout, ["text_embedding", "image_classifier"])


@pytest.fixture(scope="session")
def exported_text(checkout: Path) -> Project:
    """The checkout with the shipped language model exported. An export that is up to date is kept."""
    return _with_exports(checkout, ["text_generation"])


def _with_exports(checkout: Path, names: list[str]) -> Project:
    project = Project(checkout)
    # Several workers need the same: one of them makes it, the others wait and find it.
    with (project.cache_folder() / "test-exports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for service in find_services(project.services, names):
            result = export_service(project, service)
            assert result is None or result.ok, result.gates
            assert differences(project.model_repository, service) == []
    return project
