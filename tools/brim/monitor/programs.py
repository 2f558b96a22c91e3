"""Prometheus' own programs: those on PATH, or those in Debian's package, kept in the project's cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from brim.errors import MissingTool
from brim.measure import debian
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.measure.made_once import locked

PACKAGE = "prometheus"
PROBE_TIMEOUT_S = 30.0


class Program(StrEnum):
    """What the package brings."""

    PROMETHEUS = "prometheus"
    PROMTOOL = "promtool"


def find_program(program: Program, cache: Path, *, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """One that runs here. The package is fetched once, with all of them; the next call needs no network.

    Args:
        program: which.
        cache: the project's cache folder.
        on_progress: told what is happening.

    Raises:
        MissingTool: none is here, and none can be fetched; says why.
        CouldNotTell: another process is fetching it for too long.
    """
    given = shutil.which(program)
    ready = cache / PACKAGE / program
    for path in (Path(given) if given else None, ready):
        if path is not None and _runs(path):
            return path
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with locked(ready.parent / "lock", PACKAGE, on_progress):
            if not _runs(ready):
                _fetch(ready.parent, on_progress)
        run_bounded([str(ready), "--version"], timeout_s=PROBE_TIMEOUT_S)
    except (AttemptFailed, OSError) as failure:
        raise MissingTool(
            f"no {program} runs here: {failure}",
            hint=f"install Prometheus (Debian and Ubuntu: apt-get install {PACKAGE}), or put its {program} on PATH",
        ) from failure
    return ready


def _runs(path: Path) -> bool:
    try:
        run_bounded([str(path), "--version"], timeout_s=PROBE_TIMEOUT_S)
    except AttemptFailed:
        return False
    return True


def _fetch(folder: Path, on_progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        apt = debian.updated(debian.distribution(), debian.own_suite(), Path(scratch) / "apt", on_progress)
        on_progress(f"fetching {PACKAGE}")
        programs = debian.unpack([PACKAGE], apt, Path(scratch)) / "usr" / "bin"
        for program in Program:
            if not (programs / program).is_file():
                raise AttemptFailed(f"the package {PACKAGE} holds no {program}")
        for program in Program:
            (programs / program).replace(folder / program)
