"""Put the files of an export in place all together or not at all."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from brim.errors import InputError, NoSpace

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def staging(out_dir: Path) -> Iterator[Path]:
    """A hidden folder beside ``out_dir``, on the same file system, gone afterwards whatever happens.

    Raises:
        InputError: no folder can be made there, or ``out_dir`` is a file.
        NoSpace: the disk is full.
    """
    with _space(out_dir):
        folder = _fresh_folder(out_dir)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _fresh_folder(out_dir: Path) -> Path:
    if out_dir.exists() and not out_dir.is_dir():
        raise InputError(f"{out_dir} is a file, expected a folder to export into")
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.export-", dir=out_dir.parent))
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise InputError(
            f"cannot export into {out_dir}: {error.strerror}", hint="name another folder with --out"
        ) from error


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
        if error.errno in _FULL:
            raise NoSpace(
                f"no room left for the export in {out_dir.parent}",
                hint="free some space, or export elsewhere with --out",
            ) from error
        raise
