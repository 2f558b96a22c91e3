"""One bounded try at something that may not work on this machine, and why it did not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LAST_LINES = 2
TEXT_LIMIT = 400


class Output(NamedTuple):
    """What a program wrote."""

    stdout: str
    stderr: str


class AttemptFailed(Exception):
    """A way to get a tool did not work; the text says how. The next way is tried."""


def run_bounded(command: Sequence[str], *, timeout_s: float, cwd: Path | None = None, whole: bool = False) -> Output:
    """Run a program to its end and return what it wrote.

    Args:
        command: what to run.
        timeout_s: it is ended after that.
        cwd: where it runs.
        whole: an error has all that it said, not its last lines alone.

    Raises:
        AttemptFailed: it cannot start, outlives ``timeout_s``, or ends with another status than 0.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            cwd=cwd,
            env=clean_environment(),
            check=False,
        )
    except OSError as error:
        raise AttemptFailed(f"{name} could not be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise AttemptFailed(f"{name} took longer than {timeout_s:.0f} s") from error
    output = Output(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    if done.returncode != 0:
        if whole:
            text = without_credentials(f"{output.stdout}\n{output.stderr}".strip())
        else:
            lines = (output.stderr.strip() or output.stdout.strip()).splitlines()[-LAST_LINES:]
            text = without_credentials(" ".join(lines))[-TEXT_LIMIT:]
        raise AttemptFailed(f"{name} ended with status {done.returncode}: {text}")
    return output


def clean_environment() -> dict[str, str]:
    """This process's environment in the C locale and without LD_LIBRARY_PATH, which may hold a server's libraries."""
    return {**{name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}, "LC_ALL": "C"}


def without_credentials(text: str) -> str:
    """The text without user names and passwords in addresses, which mirrors and indexes may carry."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1", text)
