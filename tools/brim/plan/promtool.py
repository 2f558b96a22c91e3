"""Prometheus' own checker of rules: the one on PATH, or the one in Debian's package, kept in the project's cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from brim.errors import MissingTool
from brim.measure import debian
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.measure.made_once import locked

PROGRAM, PACKAGE = "promtool", "prometheus"
PROBE_TIMEOUT_S = 30.0
TESTS_TIMEOUT_S = 120.0


def find_promtool(cache: Path, *, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """A promtool that runs here. It is fetched once; the next call needs no network.

    Args:
        cache: the project's cache folder.
        on_progress: told what is happening.

    Raises:
        MissingTool: none is here, and none can be fetched; says why.
        CouldNotTell: another process is fetching it for too long.
    """
    given = shutil.which(PROGRAM)
    ready = cache / PROGRAM / PROGRAM
    for path in (Path(given) if given else None, ready):
        if path is not None and _runs(path):
            return path
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with locked(ready.parent / "lock", PROGRAM, on_progress):
            if not _runs(ready):
                _fetch(ready, on_progress)
        run_bounded([str(ready), "--version"], timeout_s=PROBE_TIMEOUT_S)
    except (AttemptFailed, OSError) as failure:
        raise MissingTool(
            f"no promtool runs here: {failure}",
            hint="install Prometheus (Debian and Ubuntu: apt-get install prometheus), or put its promtool on PATH",
        ) from failure
    return ready


def check(promtool: Path, rules: Path) -> str:
    """What promtool has against a rule file; empty when nothing."""
    return _said([str(promtool), "check", "rules", str(rules)])


def run_tests(promtool: Path, tests: Path) -> str:
    """What failed of a file of tests; empty when all passed."""
    return _said([str(promtool), "test", "rules", tests.name], tests.parent)


def _said(command: list[str], folder: Path | None = None) -> str:
    try:
        run_bounded(command, timeout_s=TESTS_TIMEOUT_S, cwd=folder, whole=True)
    except AttemptFailed as failure:
        return str(failure)
    return ""


def _runs(path: Path) -> bool:
    try:
        run_bounded([str(path), "--version"], timeout_s=PROBE_TIMEOUT_S)
    except AttemptFailed:
        return False
    return True


def _fetch(ready: Path, on_progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix=".fetching-") as folder:
        scratch = Path(folder)
        apt = debian.updated(debian.distribution(), debian.own_suite(), scratch / "apt", on_progress)
        on_progress(f"fetching {PACKAGE}")
        program = debian.unpack([PACKAGE], apt, scratch) / "usr" / "bin" / PROGRAM
        if not program.is_file():
            raise AttemptFailed(f"the package {PACKAGE} holds no {PROGRAM}")
        program.replace(ready)
