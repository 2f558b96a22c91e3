"""Newer system libraries beside the system's own, so that a program built for a newer Linux runs.

The packages come from the mirrors that this machine's apt is set up for, through an apt state of our own: the system's
lists, caches and installed packages are not touched, and signatures are checked as always.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from brim.measure.attempt import AttemptFailed, run_bounded, without_credentials

SUITES = {"debian": "trixie", "ubuntu": "noble"}
"""Distribution (``ID`` of os-release) -> first suite with glibc 2.38 or newer: trixie has 2.41, noble 2.39."""
KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
LOADER = "ld-linux-x86-64.so.2"
FIRST_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1")
PACKAGE_OF_LIBRARY = {
    "libz.so.1": "zlib1g",
    "libssl.so.3": "libssl3t64",
    "libcrypto.so.3": "libssl3t64",
    "libzstd.so.1": "libzstd1",
}
UPDATE_TIMEOUT_S = 300.0
DOWNLOAD_TIMEOUT_S = 300.0
LIST_TIMEOUT_S = 60.0
MOST_MIRRORS = 4
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
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise AttemptFailed(f"this system has no {tool} to fetch a newer C library with")
    distribution = _distribution()
    apt = _update(distribution, scratch / "apt", on_progress)
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


def mirrors(index_targets: str) -> list[str]:
    """Base addresses, one a line as apt prints them, in its order and without repeats.

    Archives of security updates go last: they carry no whole suite.
    """
    seen = dict.fromkeys(line.strip() for line in index_targets.splitlines() if "://" in line)
    return sorted(seen, key=lambda address: "security" in address)


def source_text(address: str, suite: str, keyring: Path | None) -> str:
    """A deb822 source for one suite of one mirror. Without a keyring apt uses its trusted keys; never unsigned."""
    lines = ["Types: deb", f"URIs: {address}", f"Suites: {suite}", "Components: main", "Architectures: amd64"]
    if keyring is not None:
        lines.append(f"Signed-By: {keyring}")
    return "\n".join(lines) + "\n"


def apt_options(state: Path) -> list[str]:
    """Options that make apt keep everything under ``state`` and read only the sources there."""
    settings = {
        "Dir::State": state / "state",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": state / "sources",
        "Acquire::Languages": "none",
        "Acquire::Retries": 2,
        "Acquire::http::Timeout": 30,
        "Acquire::https::Timeout": 30,
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _distribution() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError as error:
        raise AttemptFailed(f"this system does not say what it is: {error}") from error
    for name in (release.get("ID", ""), *release.get("ID_LIKE", "").split()):
        if name in SUITES:
            return name
    raise AttemptFailed(f"{release.get('ID')} is neither Debian nor Ubuntu, whose newer C library could be used")


def _update(distribution: str, state: Path, on_progress: Callable[[str], None]) -> list[str]:
    listed = run_bounded(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], timeout_s=LIST_TIMEOUT_S
    )
    addresses = mirrors(listed.stdout)[:MOST_MIRRORS]
    if not addresses:
        raise AttemptFailed("this machine's apt names no mirror")
    keyring = KEYRINGS[distribution] if KEYRINGS[distribution].is_file() else None
    for folder in ("state/lists/partial", "cache/archives/partial", "sources"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    options = apt_options(state)
    failures = []
    for address in addresses:
        on_progress(f"reading the package list of {SUITES[distribution]}")
        source = source_text(address, SUITES[distribution], keyring)
        (state / "sources" / "newer.sources").write_text(source, encoding="utf-8")
        try:
            run_bounded(["apt-get", *options, "--quiet", "update", "--error-on=any"], timeout_s=UPDATE_TIMEOUT_S)
        except AttemptFailed as failure:
            failures.append(f"{without_credentials(address)}: {failure}")
        else:
            return ["apt-get", *options]
    raise AttemptFailed(f"no mirror of this machine has {SUITES[distribution]}: " + "; ".join(failures))


def _add(packages: Iterable[str], apt: list[str], scratch: Path, folder: Path) -> None:
    downloads = scratch / "downloads"
    tree = scratch / "tree"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    run_bounded([*apt, "--quiet", "download", *packages], timeout_s=DOWNLOAD_TIMEOUT_S, cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        run_bounded(["dpkg-deb", "-x", str(package), str(tree)], timeout_s=LIST_TIMEOUT_S)
    # Both layouts: libraries under /lib before the /usr merge, under /usr/lib since.
    for libraries in (tree / "lib/x86_64-linux-gnu", tree / "usr/lib/x86_64-linux-gnu"):
        if libraries.is_dir():
            shutil.copytree(libraries, folder, symlinks=True, dirs_exist_ok=True)
    if not (folder / LOADER).is_file():
        raise AttemptFailed(f"the packages {', '.join(packages)} hold no {LOADER}")
