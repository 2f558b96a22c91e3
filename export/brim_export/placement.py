"""Put the files of an export in place all together or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.errors import InputError, NoSpace

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk, or a used-up share of it, answers."""

LOCK_LIMIT_S = 30.0
"""Longest wait for another process that is moving files into the same place, which takes it moments."""

_LOCK_POLL_S = 0.05
_LEFT_AFTER_S = 60.0
"""A younger folder may have been made this moment, by a process that has not locked it yet."""


@contextlib.contextmanager
def staging(out_dir: Path) -> Iterator[Path]:
    """A hidden folder beside ``out_dir``, on the same file system, gone afterwards whatever happens.

    Raises:
        InputError: no folder can be made there, or ``out_dir`` is a file.
        NoSpace: the disk is full.
    """
    with _space(out_dir):
        if not out_dir.name or (out_dir.exists() and not out_dir.is_dir()):
            what = "a file" if out_dir.name else "no folder that an export can fill"
            raise InputError(
                f"{out_dir} is {what}, expected a folder to export into", hint="name another folder with --out"
            )
        check_utf8(out_dir)
        with contextlib.ExitStack() as stack:
            try:
                out_dir.parent.mkdir(parents=True, exist_ok=True)
                folder = stack.enter_context(work_folder(out_dir.parent, f".{out_dir.name}.export-"))
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise InputError(
                    f"cannot export into {out_dir}: {error.strerror}", hint="name another folder with --out"
                ) from error
            yield folder


def check_utf8(path: Path) -> None:
    """Refuse a path that ONNX Runtime cannot open and no text file can name.

    Raises:
        InputError: its bytes are no UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the path {str(path)!r} is not UTF-8", hint="rename the file or its folder") from error


@contextlib.contextmanager
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder of this process's own, gone afterwards. Those that killed processes left behind go first.

    Each is locked for as long as its process lives, so that a folder without a lock is known to be nobody's.
    """
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _opened(left) as handle:
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with _opened(folder) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` against every other process that puts files of an export into it; short work only.

    Raises:
        InputError: another process has not let go of it for ``LOCK_LIMIT_S`` seconds.
    """
    with _opened(folder) as handle:
        deadline = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"another brim has been putting files into {folder} for {LOCK_LIMIT_S:g} s",
                        hint="wait for it to end, or end it, then try again",
                    ) from error
                time.sleep(_LOCK_POLL_S)
        yield


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def place(stage: Path, names: Sequence[str], out_dir: Path, backup: Path) -> None:
    """Move ``names`` from ``stage`` into ``out_dir`` in that order, replacing earlier ones; on failure put those back.

    Each file is renamed, never written in place, so a reader sees the old file or the new one. ``backup`` is an
    empty folder on the same file system. Other files in ``out_dir`` stay as they are.
    """
    created = not out_dir.exists()
    try:
        for name in names:
            target, kept = out_dir / name, backup / name
            target.parent.mkdir(parents=True, exist_ok=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                _keep(target, kept)
            (stage / name).replace(target)
    except BaseException:
        for name in reversed(names):
            target, kept = out_dir / name, backup / name
            if kept.exists():
                kept.replace(target)
            elif not (stage / name).exists():
                target.unlink(missing_ok=True)
        if created:
            shutil.rmtree(out_dir, ignore_errors=True)
        raise


def _keep(target: Path, kept: Path) -> None:
    """A second name for the earlier file, so that ``target`` is never missing; a move where there are no hard links."""
    try:
        kept.hardlink_to(target)
    except OSError:
        target.replace(kept)


@contextlib.contextmanager
def _space(out_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoSpace(
                f"no room left for the export in {out_dir.parent}",
                hint="free some space, or export elsewhere with --out",
            ) from error
        raise
