"""How a benchmark that writes its own answer ends: on stdout for people or programs, and where the whole of it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brim.bench.verdict import ExitCode
from brim.cli.output import put, put_answer, say

INTERRUPTED = 130


def give_answer(
    code: ExitCode, document: Mapping[str, Any], shown: Callable[[], str], file: Path, *, as_json: bool
) -> int:
    """Show what a benchmark found.

    Args:
        code: of the answer.
        document: for the envelope.
        shown: makes the words for people.
        file: where the answer lies, in the run folder.
        as_json: the envelope instead of the words.

    Returns:
        The exit code.
    """
    if as_json:
        put_answer("bench", {**document, "folder": str(file.parent)}, ok=code is ExitCode.YES)
    else:
        put(shown())
        say(f"the whole answer: {file}")
    return int(code)


def interrupted(folder: Path) -> int:
    """A benchmark that can go on was stopped. Returns the exit code."""
    say(f"interrupted: what was measured is in {folder}; the same command with --out {folder} goes on")
    return INTERRUPTED
