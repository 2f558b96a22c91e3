"""One success shape and one error shape for every command, and who reads which stream."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from brim import __version__
from brim.errors import BrimError, InputError

people = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
"""Words for people. Progress is drawn only on a terminal."""


def say(text: str) -> None:
    """One line for people, as long as there is anybody to read it."""
    with suppress(OSError):
        # Bytes of a path that are no UTF-8 are shown as escapes.
        people.print(text.encode(errors="backslashreplace").decode())


def put(text: str) -> None:
    """Data on stdout, at once. What the terminal's encoding lacks is written as an escape."""
    if sys.stdout is None:
        raise InputError("stdout is closed, and the answer goes there", hint="leave stdout open: > FILE, or | PROGRAM")
    text = text if text.endswith("\n") else text + "\n"
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def table_text(table: Table) -> str:
    """A table as plain text, as wide as it needs to be."""
    written = io.StringIO()
    Console(width=200, highlight=False, markup=False, emoji=False, color_system=None, file=written).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def provenance() -> dict[str, Any]:
    """With what, where and when an answer was made."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:],
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def put_answer(command: str, data: Any, *, ok: bool = True) -> None:
    """The JSON envelope. ``ok`` is false when the answer is no; the data says why."""
    envelope = {"command": command, "version": __version__, "ok": ok, "data": data, "provenance": provenance()}
    put(json.dumps(envelope))


def put_error(command: str, error: BrimError, *, as_json: bool) -> None:
    """An error as the JSON error shape on stdout, or as words on stderr."""
    if as_json:
        shape = {"code": error.code, "message": error.message, "hint": error.hint}
        try:
            put(json.dumps({"command": command, "version": __version__, "ok": False, "error": shape}))
        except (OSError, InputError):
            # What is wrong may be stdout itself.
            pass
        else:
            return
    say(f"error: {error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
