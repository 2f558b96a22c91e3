"""The tritonserver inside the nvidia-pytriton wheel, arranged so that it runs with this interpreter.

The wheel keeps one python-backend stub per Python version apart from the backend's library; Triton expects them in one
folder. ``assemble`` makes that folder once in the cache.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from brim.errors import MissingTool

WHEEL = "nvidia-pytriton"
OLDEST_GLIBC = (2, 35)
"""The wheel is built as manylinux_2_35."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """Folders of the wheel: ``tritonserver/`` and the shared libraries that auditwheel moved beside it."""

    version: str
    tritonserver: Path
    libraries: Path

    @property
    def binary(self) -> Path:
        """The server's executable."""
        return self.tritonserver / "bin" / "tritonserver"

    def stub(self, python: str) -> Path:
        """The python-backend stub for a Python version such as ``3.11``."""
        return self.tritonserver / "python_backend_stubs" / python / "triton_python_backend_stub"


def running_python() -> str:
    """``major.minor`` of this interpreter."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def glibc_version() -> tuple[int, int] | None:
    """Version of the C library, or None where it is not glibc."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return None
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def find_wheel() -> Wheel:
    """The installed wheel.

    Raises:
        MissingTool: the wheel is not installed, or this machine cannot run it (platform, C library, Python, numpy).
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise MissingTool(
            f"the embedded tritonserver is built for Linux x86_64, and this is {platform.system()} {platform.machine()}",
            hint="serve from a container (brim serve --container) or point at a running server with --url",
        )
    glibc = glibc_version()
    if glibc is None or glibc < OLDEST_GLIBC:
        found = "no glibc" if glibc is None else "glibc {}.{}".format(*glibc)
        raise MissingTool(
            f"the embedded tritonserver needs glibc {OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]} (manylinux_2_35), and this machine has {found}",
            hint="use a distribution from 2022 or later (Debian 12, Ubuntu 22.04), or brim serve --container",
        )
    try:
        distribution = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError as error:
        raise MissingTool(f"the wheel {WHEEL} is not installed", hint="run `make env`") from error
    root = Path(str(distribution.locate_file("")))
    wheel = Wheel(distribution.version, root / "pytriton" / "tritonserver", root / "nvidia_pytriton.libs")
    if not wheel.binary.is_file():
        raise MissingTool(
            f"{WHEEL} {wheel.version} has no tritonserver at {wheel.binary}", hint="reinstall it: `make clean env`"
        )
    if not wheel.stub(running_python()).is_file():
        stubs = sorted(p.name for p in (wheel.tritonserver / "python_backend_stubs").iterdir())
        raise MissingTool(
            f"the python backend has no stub for Python {running_python()}; {WHEEL} {wheel.version} has {', '.join(stubs)}",
            hint="make the environment with another interpreter: `make clean up PYTHON=python3.12`",
        )
    if int(np.__version__.split(".")[0]) >= 2:
        # Seen on 24.10: every numeric tensor arrives or leaves empty, and a BYTES tensor aborts the stub.
        raise MissingTool(
            f"numpy {np.__version__} is installed, and the stub of tritonserver 24.10 is built against the numpy 1 ABI",
            hint="run `make env` to get the pinned numpy",
        )
    return wheel


def libpython_folder() -> Path | None:
    """Folder of this interpreter's shared libpython, which the stub links to; None when the loader finds it by itself.

    Raises:
        MissingTool: this interpreter has no shared libpython anywhere.
    """
    library = f"libpython{running_python()}.so.1.0"
    candidates = [sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib")]
    for folder in candidates:
        if folder and (Path(folder) / library).is_file():
            return Path(folder)
    if ctypes.util.find_library(f"python{running_python()}"):
        return None
    raise MissingTool(
        f"{library} was not found (looked in {', '.join(str(c) for c in candidates if c)} and the loader's folders); "
        "the python backend's stub links to it",
        hint=f"install the shared library of this Python, on Debian and Ubuntu `apt-get install libpython{running_python()}`",
    )


def assemble(wheel: Wheel, cache: Path) -> Path:
    """Folder for ``--backend-directory``, with the stub for this interpreter in place. Made once, then reused."""
    folder = cache / f"triton-{wheel.version}-py{running_python()}"
    if (folder / "python" / "triton_python_backend_stub").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".triton-", dir=cache))
    try:
        backend = Path(shutil.copytree(wheel.tritonserver / "backends" / "python", beside / "python"))
        stub = Path(shutil.copy(wheel.stub(running_python()), backend / "triton_python_backend_stub"))
        stub.chmod(0o755)
        beside.chmod(0o755)
        try:
            beside.rename(folder)
        except OSError:
            # Another process put the same folder there first.
            if not (folder / "python" / "triton_python_backend_stub").is_file():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def environment(wheel: Wheel) -> dict[str, str]:
    """Environment of the server: its libraries, libpython, and this interpreter first on PATH.

    The stub runs isolated and ignores PYTHONPATH; it takes the interpreter, and with it the site-packages of a virtual
    environment, from PATH (measured on 24.10).
    """
    folders = [libpython_folder(), wheel.libraries, os.environ.get("LD_LIBRARY_PATH")]
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in folders if folder),
    }
