"""From what the user names to configuration files, each with the model folder that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from brim.errors import InputError
from brim.lint.subject import CONFIG_NAME, PROFILE_FOLDER, is_version

TEXT_SUFFIXES = {".pbtxt", ".textproto", ".txtpb", ".prototxt"}
"""Names under which protobuf text is kept; a folder is searched for the first of them only."""

MAX_FOLDERS = 20_000
"""A search below a folder stops with an error beyond this many folders."""


def discover(paths: Iterable[Path]) -> Iterator[tuple[Path, Path | None]]:
    """Every configuration below ``paths`` once, as (file, model folder or None).

    Raises:
        InputError: a path does not exist, or nothing below it is a configuration.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist", hint="name a .pbtxt file, a model folder, or a model repository")
        found = False
        for file, folder in _below(path) if path.is_dir() else _single(path):
            found = True
            key = file.resolve()
            if key not in seen:
                seen.add(key)
                yield file, folder
        if not found:
            raise InputError(
                f"{path} holds no configuration: no {CONFIG_NAME} and no other .pbtxt file in it or below",
                hint="name a .pbtxt file, a model folder, or a model repository",
            )


def _single(file: Path) -> Iterator[tuple[Path, Path | None]]:
    """A file that was named itself belongs to a model folder only when that has a version folder."""
    parent = file.absolute().parent
    if file.name == CONFIG_NAME and _has_version(parent):
        yield file, file.parent if file.parent.name else parent
    elif file.suffix == ".pbtxt" and parent.name == PROFILE_FOLDER and _has_version(parent.parent):
        yield file, parent.parent
    elif file.suffix in TEXT_SUFFIXES:
        yield file, None


def _has_version(folder: Path) -> bool:
    return any(is_version(entry.name) and entry.is_dir() for entry in folder.iterdir())


def _below(root: Path) -> Iterator[tuple[Path, Path | None]]:
    visited = 0
    for here, folders, files in os.walk(root):
        visited += 1
        if visited > MAX_FOLDERS:
            raise InputError(
                f"{root} has more than {MAX_FOLDERS} folders below it", hint="name the model repository itself"
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        folder = Path(here)
        profiles = sorted((folder / PROFILE_FOLDER).glob("*.pbtxt")) if PROFILE_FOLDER in folders else []
        if CONFIG_NAME in files or profiles:
            folders.clear()
            model = folder if folder.name and folder.name != ".." else folder.resolve()
            if CONFIG_NAME in files:
                yield folder / CONFIG_NAME, model
            yield from ((profile, model) for profile in profiles)
            continue
        for name in sorted(files):
            if name.endswith(".pbtxt"):
                yield from _single(folder / name)
