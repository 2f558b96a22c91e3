"""Docker's own compose, out of Debian's package: it resolves a file without an engine. Kept in the project's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from brim.errors import MissingTool
from brim.measure import debian
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.measure.made_once import locked
from brim.paths import Project
from tests.conftest import ROOT

PACKAGES = {"debian": ("trixie", "docker-compose"), "ubuntu": ("noble", "docker-compose-v2")}
"""Distribution -> the suite that has version 2, and its package there. What is written in Go runs on older systems, too."""
PROGRAM = "docker-compose"
PLACES = ("usr/bin/docker-compose", "usr/libexec/docker/cli-plugins/docker-compose")
PLUGINS = ("/usr/libexec/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins", "/usr/lib/docker/cli-plugins")
"""Where Docker's own packages put it."""
TIMEOUT_S = 60


def find() -> Path:
    """A compose that runs here; fetched once, the next call needs no network.

    Raises:
        MissingTool: none can be had; says why.
    """
    ready = Project(ROOT).cache_folder() / PROGRAM / PROGRAM
    installed = shutil.which(PROGRAM, path=os.pathsep.join([os.environ["PATH"], *PLUGINS]))
    for path in (Path(installed) if installed else ready, ready):
        if _runs(path):
            return path
    ready.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(ready.parent / "lock", PROGRAM, lambda _: None):
            if not _runs(ready):
                _fetch(ready)
        run_bounded([str(ready), "version"], timeout_s=TIMEOUT_S)
    except (AttemptFailed, OSError) as failure:
        raise MissingTool(f"no {PROGRAM} runs here: {failure}", hint="install Docker's compose plugin") from failure
    return ready


def _runs(path: Path) -> bool:
    try:
        return run_bounded([str(path), "version", "--short"], timeout_s=TIMEOUT_S).stdout.lstrip("v").startswith("2")
    except AttemptFailed:
        return False


def _fetch(ready: Path) -> None:
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix=".fetching-") as folder:
        scratch = Path(folder)
        name = debian.distribution()
        suite, package = PACKAGES[name]
        tree = debian.unpack([package], debian.updated(name, suite, scratch / "apt", lambda _: None), scratch)
        for place in PLACES:
            if (tree / place).is_file() and not (tree / place).is_symlink():
                (tree / place).replace(ready)
                return
    raise AttemptFailed(f"the package {package} of {suite} has none of {', '.join(PLACES)}")


def resolved(file: Path, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What compose makes of a file: merged, interpolated, checked against its schema."""
    done = said(file, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def said(file: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """How ``docker-compose config`` ended. The environment is the given one alone: nobody's own settings count."""
    try:
        program = find()
    except MissingTool as missing:
        pytest.skip(missing.message)
    command = [str(program), "--project-directory", str(file.parent), "--file", str(file), *arguments]
    return subprocess.run(
        [*command, "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=file.parent,
        env={"HOME": str(file.parent), "PATH": "/usr/bin:/bin", **(environment or {})},
    )
