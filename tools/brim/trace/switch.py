"""Triton's tracing of one model, switched on for as long as a block lasts, and the files that it writes meanwhile.

Protocol: docs/protocol/extension_trace.md of triton-inference-server/server. A model's own settings stand over the server's, and
are taken back at the end; then Triton writes what it still holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from brim.errors import InputError, ServerFailed
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.trace.events import Followed, parse

MOST_FOLLOWED = 100_000
"""Requests that Triton follows before it stops by itself, those of other callers among them."""
A_FILE = 100
"""Requests in each file."""
MOST_FILE_BYTES = 16 << 20
MOST_FILES = MOST_FOLLOWED // A_FILE + 1
HINT = "give the service `tracing: {}` and start its server anew, or leave --url out: then brim trace starts one of its own"
_OWN: dict[str, Any] = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1",
    "trace_count": str(MOST_FOLLOWED),
    "log_frequency": str(A_FILE),
}


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Triton's trace files with a number behind ``path``, of which those are ours that were not there before."""

    path: Path
    before: frozenset[tuple[str, int, int]]

    def followed(self, model: str) -> list[Followed]:
        """The requests to this model that the new files tell of, and those whose model cannot be read.

        Raises:
            ServerFailed: a file cannot be read, or is larger than Triton makes them.
        """
        found: list[Followed] = []
        new = sorted(_there(self.path) - self.before)
        for name, _, _ in new[:MOST_FILES]:
            file = self.path.parent / name
            try:
                with file.open("rb") as opened:
                    text = opened.read(MOST_FILE_BYTES + 1)
            except OSError as error:
                raise ServerFailed(
                    f"{file}: {error.strerror}", hint="trace on the machine of the server, as its user"
                ) from error
            if len(text) > MOST_FILE_BYTES:
                raise ServerFailed(
                    f"{file} has more than {MOST_FILE_BYTES >> 20} MiB for {A_FILE} requests",
                    hint="is it a trace file?",
                )
            found += [one for one in parse(text.decode("utf-8", "replace")) if one.model in (model, "")]
        return found


@contextmanager
def followed_all(endpoint: Endpoint, model: str) -> Iterator[TraceFiles]:
    """Every request to the model is followed inside the block; afterwards the server does what it did before.

    Args:
        endpoint: of the server itself, not of a gateway, which does not offer this.
        model: that it serves.

    Raises:
        InputError: the server has no file to trace to, or sends its traces away, or follows this model on somebody's word.
        ServerFailed: it does not answer.
    """
    with closing(endpoint.http_client()) as client:
        try:
            settings = client.get_trace_settings(model)
            everybody = client.get_trace_settings()
        except InferenceServerException as error:
            raise InputError(f"{endpoint.http}: {error.message()}", hint=HINT) from error
        except NO_ANSWER as error:
            raise ServerFailed(
                f"{endpoint.http}: no server answers: {error}", hint="start it with `brim serve`"
            ) from error
        path = trace_file(endpoint.http, settings)
        if settings != everybody:
            raise InputError(
                f"{endpoint.http}: {model} has trace settings of its own already: {settings}",
                hint="somebody else traces it; wait, or take them back over /v2/models/MODEL/trace/setting",
            )
        files = TraceFiles(path, frozenset(_there(path)))
        try:
            _set(client, endpoint, model, _OWN)
            yield files
        finally:
            _set(client, endpoint, model, dict.fromkeys(_OWN))


def _set(client: Any, endpoint: Endpoint, model: str, settings: Mapping[str, Any]) -> None:
    try:
        client.update_trace_settings(model, settings)
    except NO_ANSWER as error:
        raise ServerFailed(
            f"{endpoint.http}: the trace settings of {model} could not be changed: {error}",
            hint=f"if the server still runs, it follows {MOST_FOLLOWED:,} requests at most; its log says more",
        ) from error


def trace_file(address: str, settings: Mapping[str, Any]) -> Path:
    """Where a server writes what it follows, from its answer to ``/v2/trace/setting``.

    Raises:
        InputError: nowhere, or nowhere on this machine.
    """
    if settings.get("trace_mode", "triton") != "triton":
        raise InputError(
            f"{address}: the server sends its traces to a collector (mode {settings['trace_mode']})",
            hint="look there, or leave --url out: then brim trace starts a server of its own",
        )
    path = settings.get("trace_file", "")
    if not path:
        raise InputError(f"{address}: the server was started without a file for traces", hint=HINT)
    if not Path(path).parent.is_dir():
        raise InputError(
            f"{address}: the server's trace file {path} is on another machine",
            hint="trace where the server runs, or leave --url out",
        )
    return Path(path)


def _there(path: Path) -> set[tuple[str, int, int]]:
    """Name, size and time of each file with a number behind; a restarted server writes over those of the one before."""
    found = set()
    with os.scandir(path.parent) as entries:
        for entry in entries:
            name, dot, number = entry.name.rpartition(".")
            if dot and name == path.name and number.isdecimal():
                state = entry.stat()
                found.add((entry.name, state.st_size, state.st_mtime_ns))
    return found
