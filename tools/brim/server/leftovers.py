"""Servers that outlived their owner: each server leaves a note of itself, and the next start clears what is stale.

A note is a JSON file ``<prefix>.json`` with the ids and start times of owner and server. The prefix names everything that
the server makes: its shared-memory regions and, through them, its stubs' command lines. A process is ended only when it
is the one that a note names (same id and same start time) or carries a note's prefix on its command line.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
END_TIMEOUT_S = 10.0


def notes_folder() -> Path:
    """Where this user's notes lie: one folder a user, shared by every checkout on the machine."""
    folder = Path(tempfile.gettempdir()) / f"brim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def new_prefix() -> str:
    """A prefix that no other server on this machine has."""
    return f"brim_{os.getpid()}_{secrets.token_hex(4)}_"


@dataclass(frozen=True, slots=True)
class Note:
    """Who owns a server and what it made. When the two processes began is in clock ticks since the machine did."""

    prefix: str
    owner_pid: int
    owner_start_ticks: int
    server_pid: int
    server_start_ticks: int

    @property
    def path(self) -> Path:
        """The note's file."""
        return notes_folder() / f"{self.prefix}.json"

    def write(self) -> None:
        """Put the note down, whole or not at all."""
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(self)), encoding="utf-8")
        beside.replace(self.path)


def note_for(prefix: str, server_pid: int) -> Note:
    """The note of a server that this process has just started."""
    return Note(prefix, os.getpid(), start_ticks(os.getpid()), server_pid, start_ticks(server_pid))


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since the machine did: field 22 of proc_pid_stat(5).

    ``psutil.Process.create_time`` moves with the wall clock: once that is set, a living owner would look like another process.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The second field is the program's name, in which blanks and brackets may stand.
    return int(text.rpartition(")")[2].split()[19])


def _alive(pid: int, began_ticks: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        if start_ticks(pid) == began_ticks and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.NoSuchProcess:
        pass
    return None


def living() -> list[Note]:
    """The notes of what runs, owner and server, in the order of their prefixes."""
    found = []
    for path in sorted(notes_folder().glob("brim_*.json")):
        try:
            note = Note(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if _alive(note.owner_pid, note.owner_start_ticks) and _alive(note.server_pid, note.server_start_ticks):
            found.append(note)
    return found


def processes_of(prefix: str) -> list[psutil.Process]:
    """Processes whose command line names the prefix: the server, and its stubs through their region names."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(prefix in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def regions_of(prefix: str) -> list[Path]:
    """Shared-memory regions that carry the prefix."""
    return sorted(SHM.glob(f"{prefix}*")) if SHM.is_dir() else []


def clear(prefix: str) -> None:
    """End every process that carries the prefix, remove its shared-memory regions and its note."""
    processes = processes_of(prefix)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
    for region in regions_of(prefix):
        region.unlink(missing_ok=True)
    (notes_folder() / f"{prefix}.json").unlink(missing_ok=True)


def clear_stale() -> list[str]:
    """Clear every server whose owner is gone. Returns the prefixes that were cleared."""
    cleared = []
    for path in sorted(notes_folder().glob("brim_*.json")):
        try:
            note = Note(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if _alive(note.owner_pid, note.owner_start_ticks):
            continue
        server = _alive(note.server_pid, note.server_start_ticks)
        if server is not None:
            # It was told to stop when its owner died; let it finish, so that it removes its own regions.
            with suppress(psutil.NoSuchProcess):
                server.terminate()
            psutil.wait_procs([server], timeout=END_TIMEOUT_S)
        clear(note.prefix)
        cleared.append(note.prefix)
    return cleared
