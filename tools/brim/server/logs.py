"""The log file of a server: its end, for people, and its bound."""

from __future__ import annotations

import os
from pathlib import Path

TAIL_LINES = 15
LIMIT_BYTES = 64 * 1024 * 1024


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of the log: those that speak of an error, when there are any."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 1_000_000))
            text = log.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    errors = [line for line in text if " E " in line or "rror" in line]
    return "\n".join((errors or text)[-lines:])


def bound_log(path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Cut the log to its newest quarter once it has outgrown the limit. The server writes it in append mode."""
    if not path.is_file() or path.stat().st_size <= limit_bytes:
        return
    with path.open("r+b") as log:
        log.seek(-limit_bytes // 4, os.SEEK_END)
        kept = log.read()
        log.seek(0)
        log.write(kept)
        log.truncate()
