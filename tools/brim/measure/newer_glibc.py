"""Newer system libraries beside the system's own, so that a program built for a newer Linux runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from brim.measure import debian
from brim.measure.attempt import AttemptFailed, run_bounded

SUITES = {"debian": "trixie", "ubuntu": "noble"}
"""Distribution -> first suite with glibc 2.38 or newer: trixie has 2.41, noble 2.39."""
LOADER = "ld-linux-x86-64.so.2"
FIRST_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1")
PACKAGE_OF_LIBRARY = {
    "libz.so.1": "zlib1g",
    "libssl.so.3": "libssl3t64",
    "libcrypto.so.3": "libssl3t64",
    "libzstd.so.1": "libzstd1",
}
LIST_TIMEOUT_S = 60.0
MOST_ROUNDS = 3


def loader_prefix(folder: Path) -> tuple[str, ...]:
    """What stands before the program to start it with the libraries in ``folder``."""
    return (str(folder / LOADER), "--library-path", str(folder))


def fetch(program: Path, folder: Path, scratch: Path, on_progress: Callable[[str], None]) -> None:
    """Fill ``folder`` with the loader and every library that ``program`` lacks on this system.

    Args:
        program: the program that must run.
        folder: where the libraries go; made here.
        scratch: where apt's own state and the packages go; the caller removes it.
        on_progress: told what is happening.

    Raises:
        AttemptFailed: no apt here, no mirror answers, or a library stays missing.
    """
    name = debian.distribution()
    apt = debian.updated(name, SUITES[name], scratch / "apt", on_progress)
    packages = list(FIRST_PACKAGES)
    for _ in range(MOST_ROUNDS):
        on_progress(f"fetching {', '.join(packages)}")
        _add(packages, apt, scratch, folder)
        listing = run_bounded([*loader_prefix(folder), "--list", str(program)], timeout_s=LIST_TIMEOUT_S)
        missing = missing_libraries(listing.stdout)
        if not missing:
            return
        unknown = [library for library in missing if library not in PACKAGE_OF_LIBRARY]
        if unknown:
            raise AttemptFailed(f"no package is known for {', '.join(unknown)}, which perf_analyzer needs")
        packages = sorted({PACKAGE_OF_LIBRARY[library] for library in missing})
    raise AttemptFailed(f"{', '.join(missing)} still missing after {MOST_ROUNDS} rounds")


def missing_libraries(listing: str) -> list[str]:
    """Names of the libraries that ``ld.so --list`` could not find."""
    return re.findall(r"^\s*(\S+) => not found", listing, flags=re.MULTILINE)


def _add(packages: Iterable[str], apt: debian.Apt, scratch: Path, folder: Path) -> None:
    tree = debian.unpack(packages, apt, scratch)
    # Both layouts: libraries under /lib before the /usr merge, under /usr/lib since.
    for libraries in (tree / "lib/x86_64-linux-gnu", tree / "usr/lib/x86_64-linux-gnu"):
        if libraries.is_dir():
            shutil.copytree(libraries, folder, symlinks=True, dirs_exist_ok=True)
    if not (folder / LOADER).is_file():
        raise AttemptFailed(f"the packages {', '.join(packages)} hold no {LOADER}")
