"""The run folder of a simulator's check: everything that was measured is on the disk before the next thing begins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brim.bench.simulation_calibration import Calibration
from brim.bench.simulation_check import Checked
from brim.errors import InputError

MEASUREMENTS_FILE = "simulation.jsonl"
Readers = Mapping[str, Callable[[Mapping[str, Any]], object]]
OF_BATCHES: Readers = {"point": Checked.from_json, "calibration": Calibration.from_json}


class Store:
    """What a run folder holds: one line of JSON for each thing that was measured, the last of a key counts."""

    def __init__(self, folder: Path, *, file: str = MEASUREMENTS_FILE, readers: Readers = OF_BATCHES) -> None:
        """Read what is there; a line that was cut short by the end of the process that wrote it is passed over.

        Args:
            folder: made when something is written.
            file: in it.
            readers: of each kind of line, which raise KeyError, TypeError or ValueError where it is something else.

        Raises:
            InputError: a whole line is no measurement of this benchmark.
        """
        self.path = folder / file
        self.known: dict[tuple[str, str], dict[str, Any]] = {}
        if not self.path.is_file():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            try:
                kind, key, found = document["kind"], document["key"], document["found"]
                readers[kind](found)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self.path}:{number}: no measurement of this benchmark: {type(error).__name__}: {error}",
                    hint="measure into a new folder, or remove the line",
                ) from error
            self.known[kind, key] = found

    def read(self, kind: str, key: str) -> dict[str, Any] | None:
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
