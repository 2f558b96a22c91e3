"""Where a checkout keeps things. Every folder is derived from one root, so a test can point at a root of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from brim.errors import InputError


@dataclass(frozen=True, slots=True)
class Project:
    """A checkout: the folder that holds ``services/`` and ``model_repository/``."""

    root: Path

    @property
    def services(self) -> Path:
        """Service files, one a service."""
        return self.root / "services"

    @property
    def model_repository(self) -> Path:
        """Triton's model repository: generated configurations, adapters, built weights."""
        return self.root / "model_repository"

    @property
    def cache(self) -> Path:
        """What can be made again: the assembled server, unpacked tools. Ignored by git."""
        return self.root / ".cache"

    def cache_folder(self) -> Path:
        """The cache, made if it is not there yet. It lies on the same file system as what is moved out of it."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.cache

    @property
    def runs(self) -> Path:
        """One immutable folder a run. Ignored by git."""
        return self.root / "runs"


def find_project(start: Path | None = None) -> Project:
    """The checkout that holds ``start`` (the working directory), or the one named by ``BRIM_ROOT``.

    Raises:
        InputError: no folder from there upwards has ``services/`` and ``model_repository/``.
    """
    given = os.environ.get("BRIM_ROOT")
    if given:
        return Project(Path(given).resolve())
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "services").is_dir() and (folder / "model_repository").is_dir():
            return Project(folder)
    raise InputError(
        f"{here} is not inside a Brim checkout: no services/ and model_repository/ here or above",
        hint="run the command inside the checkout, or set BRIM_ROOT to it",
    )
