"""A file of JSON lines that grows while something is measured, and survives that its writer ends at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from brim.errors import InputError

T = TypeVar("T")


def append_line(path: Path, document: Mapping[str, Any]) -> None:
    """Add one line, and see it on the disk before this returns. A line that was cut short before is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(document) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, made: Callable[[Any], T], what: str) -> list[T]:
    """The lines in their order; none when there is no file.

    A line that was cut short by the end of the process that wrote it is passed over: what it was of is measured again.

    Args:
        path: the file.
        made: makes one of a line's document; raises pydantic's ``ValidationError`` where it is something else.
        what: the lines are, for the error's text.

    Raises:
        InputError: a whole line is something else.
    """
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        try:
            found.append(made(document))
        except ValidationError as error:
            raise InputError(
                f"{path}:{number}: not {what}: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}",
                hint="measure into a new folder, or remove the line",
            ) from error
    return found


def write_whole(path: Path, text: str) -> None:
    """The file with this text, whole or not at all: beside it first, then in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
