"""The perf_analyzer program of PyPI, fetched by this interpreter's pip."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from brim.measure.attempt import AttemptFailed, run_bounded

RELEASE = "2.60.0"
PLATFORM = "manylinux_2_38_x86_64"
"""What the wheel is tagged with. pip must be told, or an older system makes it choose the empty 0.1.0."""
MEMBER = "perf_analyzer/bin/perf_analyzer"
DOWNLOAD_TIMEOUT_S = 600.0


def download(folder: Path) -> Path:
    """Download the wheel into ``folder`` and return its path.

    Raises:
        AttemptFailed: pip is missing, fails, or takes longer than ``DOWNLOAD_TIMEOUT_S``.
    """
    run_bounded(
        [
            *(sys.executable, "-m", "pip", "download"),
            *("--no-deps", "--only-binary=:all:", f"--platform={PLATFORM}"),
            *("--no-input", "--disable-pip-version-check", "--quiet", "--timeout=30", "--retries=2"),
            f"--dest={folder}",
            f"perf_analyzer=={RELEASE}",
        ],
        timeout_s=DOWNLOAD_TIMEOUT_S,
    )
    found = sorted(folder.glob("perf_analyzer-*.whl"))
    if not found:
        raise AttemptFailed(f"pip downloaded no perf_analyzer wheel into {folder}")
    return found[0]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the wheel's program into ``folder`` and return its path.

    Raises:
        AttemptFailed: the file is no wheel, or it holds no program (the empty placeholder 0.1.0).
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            if MEMBER not in opened.namelist():
                raise AttemptFailed(
                    f"{archive.name} holds no {MEMBER}: an empty placeholder package, perf_analyzer=={RELEASE} is wanted"
                )
            opened.extract(MEMBER, folder)
    except zipfile.BadZipFile as error:
        raise AttemptFailed(f"{archive.name} is not a wheel: {error}") from error
    found = program(folder)
    found.chmod(0o755)
    return found


def program(folder: Path) -> Path:
    """Where the program lies in an unpacked wheel."""
    return folder / MEMBER
