"""Prometheus' own checker of rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brim.measure.attempt import AttemptFailed, run_bounded
from brim.monitor.programs import Program, find_program

TESTS_TIMEOUT_S = 120.0


def find_promtool(cache: Path, *, on_progress: Callable[[str], None] = lambda _: None) -> Path:
    """A promtool that runs here; see ``find_program``.

    Raises:
        MissingTool: none is here, and none can be fetched; says why.
        CouldNotTell: another process is fetching it for too long.
    """
    return find_program(Program.PROMTOOL, cache, on_progress=on_progress)


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
