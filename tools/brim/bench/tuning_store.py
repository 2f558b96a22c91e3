"""The run folder of the tuner's benchmark: every figure is on the disk before the next one is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from brim.errors import InputError

MEASUREMENTS_FILE = "tuning.jsonl"
PARAMETERS = "parameters"


class Store:
    """Lines of JSON, each with a kind, a key and what was found; the first says what the folder was made for."""

    def __init__(self, folder: Path, parameters: dict[str, Any]) -> None:
        """Read what is there. A line that was cut short by the end of the process that wrote it is passed over.

        Raises:
            InputError: a line is none of this benchmark, or the folder was made with other parameters.
        """
        self.path = folder / MEASUREMENTS_FILE
        self.known: dict[tuple[str, str], dict[str, Any]] = {}
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.is_file() else []
        for number, line in enumerate(lines, start=1):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            try:
                kind, key, found = document["kind"], document["key"], document["found"]
                self.known[str(kind), str(key)] = dict(found)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self.path}:{number}: no measurement of this benchmark: {type(error).__name__}: {error}",
                    hint="measure into a new folder",
                ) from error
        wanted = json.loads(json.dumps(parameters))
        before = self.read(PARAMETERS)
        if before is None and self.known:
            raise InputError(
                f"{self.path} does not say with which parameters it was made", hint="measure into a new folder"
            )
        if before is not None and before != wanted:
            names = sorted(name for name in {*before, *wanted} if before.get(name) != wanted.get(name))
            raise InputError(
                f"{self.path} was made with other parameters: {', '.join(names)}",
                hint="measure into a new folder, or with the options that this one was made with",
            )
        self.resumed = len(self.known)
        """Lines of earlier runs."""
        if before is None:
            self.append(PARAMETERS, "", wanted)

    def read(self, kind: str, key: str = "") -> dict[str, Any] | None:
        """What was measured under this key; None when nothing was."""
        return self.known.get((kind, key))

    def append(self, kind: str, key: str, found: dict[str, Any]) -> None:
        """Add a line, and see it on the disk before anything else is measured."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.is_file() and self.path.stat().st_size > 0 and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps({"kind": kind, "key": key, "found": found}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.known[kind, key] = json.loads(json.dumps(found))
