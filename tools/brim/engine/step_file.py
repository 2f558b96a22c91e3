"""The step log as a file that others can read while it grows: a JSON object a line, the newest steps, within a bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from brim.engine.step_log import LoggedStep

VARIABLE = "BRIM_STEP_LOG"
"""Environment variable of the server: the folder of the files, one a model. Without it nothing is written."""
MOST_BYTES = 32 << 20
"""Of the file, and of the one that it becomes when it is full: some 100,000 steps each."""


def step_file(folder: Path, model: str) -> Path:
    """Where a model's steps are."""
    return folder / f"{model}.steps.jsonl"


def earlier(path: Path) -> Path:
    """Where the steps before those of ``path`` are, if it was ever full."""
    return path.with_name(f"{path.name}.1")


class StepFile:
    """Takes steps, and writes each at once. One thread at a time may use it."""

    def __init__(self, path: Path, on_error: Callable[[str], None], *, most_bytes: int = MOST_BYTES) -> None:
        """Begin an empty file, and forget an earlier one.

        Args:
            path: of the file. When it is full it is renamed to ``earlier(path)``, in the place of the one before.
            on_error: told once when it cannot be written; steps are then dropped, for a log must not end the serving.
            most_bytes: of each of the two.
        """
        self._path, self._on_error, self._most_bytes = path, on_error, most_bytes
        self._bytes = 0
        self._broken = False
        self._carefully(self._begin)

    def add(self, step: LoggedStep) -> None:
        """One more."""
        if not self._broken:
            self._carefully(lambda: self._append(json.dumps(step.as_json(), separators=(",", ":")).encode() + b"\n"))

    def _begin(self) -> None:
        earlier(self._path).unlink(missing_ok=True)
        self._file = self._path.open("wb", buffering=0)

    def _append(self, line: bytes) -> None:
        if self._bytes and self._bytes + len(line) > self._most_bytes:
            self._file.close()
            self._path.replace(earlier(self._path))
            self._file, self._bytes = self._path.open("wb", buffering=0), 0
        self._file.write(line)
        self._bytes += len(line)

    def _carefully(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._broken = True
            self._on_error(f"steps are not written down: {self._path}: {error.strerror}")
