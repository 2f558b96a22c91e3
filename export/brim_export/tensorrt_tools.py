"""What builds and runs TensorRT engines on this machine: its GPU, TensorRT's version, and a builder."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from brim.errors import BrimError, CouldNotTell, MissingTool
from brim_export import tensorrt_session
from brim_export.session import Runs

BUILD_LIMIT_S = 3600.0
"""Longest a build may take: tactics of every layer are timed, which takes minutes for the shipped models."""
QUERY_LIMIT_S = 30.0
TRTEXEC_PLACES = ("/usr/src/tensorrt/bin", "/opt/tensorrt/bin")
"""Where NVIDIA's images have it, beside PATH."""
_TAIL = 800


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The machine's. A test gives one of its own.

    Attributes:
        gpu: the GPU's name, as the driver gives it.
        version: TensorRT's.
        trtexec: path of the program; None where Polygraphy builds.
        build: runs a builder's command; what it prints goes to the file.
        opened: loads an engine for the length of a block.
    """

    gpu: str
    version: str
    trtexec: Path | None
    build: Callable[[Sequence[str], Path], None]
    opened: Callable[[Path], AbstractContextManager[Runs]]


def find_toolchain(gpu: int, command: str) -> Toolchain:
    """What is here.

    Args:
        gpu: number of the GPU that the engine is for.
        command: that builds the engine, for the message when this machine cannot.

    Raises:
        MissingTool: there is no GPU, no TensorRT or no Polygraphy.
    """
    lacking = []
    name = _gpu_name(gpu)
    if name is None:
        lacking.append(f"GPU {gpu} (nvidia-smi does not name it)")
    # Found, not imported: TensorRT's import fails without a driver, and takes long with one.
    lacking += [
        f"the Python package {package}"
        for package in ("tensorrt", "polygraphy")
        if importlib.util.find_spec(package) is None
    ]
    if name is None or lacking:
        raise MissingTool(
            f"an engine is built and checked on the GPU that serves it; here is no {', no '.join(lacking)}",
            hint=f"on that machine `pip install tensorrt polygraphy`, and this command again; or, without the gates: {command}",
        )
    return Toolchain(name, importlib.metadata.version("tensorrt"), _trtexec(), run_builder, tensorrt_session.opened)


def run_builder(command: Sequence[str], log: Path) -> None:
    """Run a builder to its end.

    Raises:
        CouldNotTell: it took longer than ``BUILD_LIMIT_S``.
        BuildFailed: it said no.
    """
    words = list(command)
    if words[0] == "polygraphy":
        # Beside this Python, whether or not its folder is on PATH.
        words[0] = str(Path(sys.executable).parent / words[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=BUILD_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CouldNotTell(
                f"{words[0]} has not built the engine within {BUILD_LIMIT_S:g} s", hint=f"what it printed is in {log}"
            ) from error
        except OSError as error:
            raise MissingTool(f"{words[0]} does not start: {error.strerror}", hint="install TensorRT again") from error
    if done.returncode:
        tail = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-_TAIL:]
        raise BuildFailed(
            f"{words[0]} ended with {done.returncode} and built no engine: {tail}",
            hint=f"all that it printed is in {log}",
        )


class BuildFailed(BrimError):
    """TensorRT does not make an engine of this graph."""


def _trtexec() -> Path | None:
    found = shutil.which("trtexec") or next(
        (where for place in TRTEXEC_PLACES if (where := shutil.which("trtexec", path=place))), None
    )
    return Path(found) if found else None


def _gpu_name(gpu: int) -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", str(gpu)],
            capture_output=True,
            text=True,
            timeout=QUERY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    name = done.stdout.strip()
    return name if done.returncode == 0 and name else None
