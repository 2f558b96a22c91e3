"""Files out of Debian's and Ubuntu's packages, without root and without installing anything.

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

KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
COMPONENTS = {"debian": "main", "ubuntu": "main universe"}
UPDATE_TIMEOUT_S = 300.0
DOWNLOAD_TIMEOUT_S = 300.0
LIST_TIMEOUT_S = 60.0
MOST_MIRRORS = 4

Apt = list[str]
"""The beginning of apt-get's command line."""


def distribution() -> str:
    """``debian`` or ``ubuntu``: what this system is, or is made from.

    Raises:
        AttemptFailed: neither, or no tools of theirs are here.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise AttemptFailed(f"this system has no {tool} to fetch packages with")
    release = _release()
    for name in (release.get("ID", ""), *release.get("ID_LIKE", "").split()):
        if name in KEYRINGS:
            return name
    raise AttemptFailed(f"{release.get('ID')} is neither Debian nor Ubuntu, whose packages could be used")


def own_suite() -> str:
    """The suite that this system is of, such as ``bookworm``.

    Raises:
        AttemptFailed: it does not say.
    """
    name = _release().get("VERSION_CODENAME", "")
    if not re.fullmatch(r"[a-z]+", name):
        raise AttemptFailed("this system does not say which release it is (VERSION_CODENAME of os-release)")
    return name


def updated(name: str, suite: str, state: Path, on_progress: Callable[[str], None]) -> Apt:
    """An apt that knows one suite, its state in ``state``.

    Args:
        name: of the distribution.
        suite: such as ``trixie``.
        state: where apt keeps everything.
        on_progress: told what is happening.

    Raises:
        AttemptFailed: no mirror of this machine has the suite, or its signature is wrong.
    """
    listed = run_bounded(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], timeout_s=LIST_TIMEOUT_S
    )
    addresses = mirrors(listed.stdout)[:MOST_MIRRORS]
    if not addresses:
        raise AttemptFailed("this machine's apt names no mirror")
    keyring = KEYRINGS[name] if KEYRINGS[name].is_file() else None
    for folder in ("state/lists/partial", "cache/archives/partial", "sources"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    # apt takes a relative folder as one of its own root.
    options = apt_options(state.resolve())
    failures = []
    for address in addresses:
        on_progress(f"reading the package list of {suite}")
        source = source_text(address, suite, keyring, COMPONENTS[name])
        (state / "sources" / "one.sources").write_text(source, encoding="utf-8")
        try:
            run_bounded(["apt-get", *options, "--quiet", "update", "--error-on=any"], timeout_s=UPDATE_TIMEOUT_S)
        except AttemptFailed as failure:
            failures.append(f"{without_credentials(address)}: {failure}")
        else:
            return ["apt-get", *options]
    raise AttemptFailed(f"no mirror of this machine has {suite}: " + "; ".join(failures))


def needed(package: str, apt: Apt) -> list[str]:
    """A package and what it depends on, but for what is installed here; recommendations are left out.

    Raises:
        AttemptFailed: there is no such package, or its dependencies do not go with what is installed.
    """
    command = [*apt, "--quiet", "--simulate", "--no-install-recommends", "install", package]
    said = run_bounded(command, timeout_s=LIST_TIMEOUT_S).stdout
    names = sorted(set(re.findall(r"^Inst (\S+)", said, flags=re.MULTILINE)))
    # What is installed already is downloaded all the same.
    return names if package in names else sorted([*names, package])


def unpack(packages: Iterable[str], apt: Apt, scratch: Path) -> Path:
    """Download packages and lay their files out in a folder of ``scratch``; what earlier calls laid out stays there.

    Raises:
        AttemptFailed: one cannot be had.
    """
    downloads = scratch / "downloads"
    tree = scratch / "tree"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    run_bounded([*apt, "--quiet", "download", *packages], timeout_s=DOWNLOAD_TIMEOUT_S, cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        run_bounded(["dpkg-deb", "-x", str(package), str(tree)], timeout_s=LIST_TIMEOUT_S)
    return tree


def mirrors(index_targets: str) -> list[str]:
    """Base addresses, one a line as apt prints them, in its order and without repeats.

    Archives of security updates go last: they carry no whole suite.
    """
    seen = dict.fromkeys(line.strip() for line in index_targets.splitlines() if "://" in line)
    return sorted(seen, key=lambda address: "security" in address)


def source_text(address: str, suite: str, keyring: Path | None, components: str = "main") -> str:
    """A deb822 source for one suite of one mirror. Without a keyring apt uses its trusted keys; never unsigned."""
    lines = ["Types: deb", f"URIs: {address}", f"Suites: {suite}", f"Components: {components}", "Architectures: amd64"]
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


def _release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError as error:
        raise AttemptFailed(f"this system does not say what it is: {error}") from error
