"""The files that say which replicas there are: written whole or not at all, and put right when somebody else has changed them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from brim.errors import NoSpace
from brim.gateway.clusters import OTHERS, cluster_name
from brim.gateway.replicas import Member, assignment, count_file, file_of


class ReplicaFiles:
    """A folder with a file for each cluster, and one for the number of replicas that take requests."""

    def __init__(self, folder: Path, models: Sequence[str]) -> None:
        """Make the folder, with files that name no replica.

        Args:
            folder: for nothing else.
            models: that have a cluster of their own.

        Raises:
            NoSpace: they cannot be written.
        """
        self.folder = folder
        self.clusters = [OTHERS, *(cluster_name(model) for model in models)]
        self._written: dict[Path, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.publish([])

    def publish(self, members: Sequence[Member]) -> None:
        """Say which replicas there are from now on. What stands there already is not written again.

        Raises:
            NoSpace: a file cannot be written. Envoy goes on with what it had.
        """
        wanted = {file_of(self.folder, name): json.dumps(assignment(name, members)) for name in self.clusters}
        wanted[count_file(self.folder)] = f"{sum(not member.draining for member in members)}\n"
        for path, text in wanted.items():
            if self._written.get(path) != text:
                write_whole(path, text)
                self._written[path] = text

    def put_right(self) -> list[Path]:
        """Write anew what is not as it was written last. Those files.

        Envoy refuses what it cannot read and keeps what it had; what it can read, it would follow.

        Raises:
            NoSpace: as ``publish``.
        """
        changed = [path for path, text in self._written.items() if _text_of(path) != text]
        for path in changed:
            write_whole(path, self._written[path])
        return changed


def write_whole(path: Path, text: str) -> None:
    """Put a file in place by a rename, which is what Envoy watches for.

    Raises:
        NoSpace: it cannot be written.
    """
    try:
        handle, beside = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, path)  # noqa: PTH105 - both are names already
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)  # noqa: PTH108
            raise
    except OSError as error:
        raise NoSpace(f"{path} cannot be written: {error.strerror}", hint="free some disk space") from error


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
