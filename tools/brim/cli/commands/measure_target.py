"""What a measurement is of: the rows that are sent, and a server that runs already or one of its own."""

from __future__ import annotations

import errno
import http.client
import json
import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tritonclient.utils import InferenceServerException

from brim.cli.commands.serve import STOP_SIGNALS, canaries, new_log
from brim.cli.output import say
from brim.errors import InputError, ServerFailed
from brim.measure.measure import ask_target
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim_export.known_answers import known_answers

ROWS = 200
"""Different rows that the generator hands out in turn."""
INTERRUPTED = 130
ANSWER_TIMEOUT_S = 10.0
LONGEST_METADATA = 1 << 20
EXAMPLE = "1,10,100,200"


def numbers(text: str, option: str) -> tuple[float, ...]:
    """``"1,10,100"`` as numbers.

    Raises:
        InputError: a part is no finite number, or there is none; every such part at once.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not _is_finite(part)]
    if wrong:
        raise InputError(
            f"{option} {text}: " + ", ".join(repr(part) for part in wrong) + ": a number is expected",
            hint=f"numbers with commas between, such as {EXAMPLE}",
        )
    return tuple(float(part) for part in parts)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def refuse(given: Mapping[str, object], where: str, hint: str) -> None:
    """None of these options.

    Raises:
        InputError: one of them has a value; all such at once.
    """
    lost = [name for name, value in given.items() if value is not None]
    if lost:
        raise InputError(f"{', '.join(lost)} {where}", hint=hint)


def batched_rows(service: Service, *, seed: int) -> list[Row]:
    """Rows with the batch dimension 1: varied ones where the model's source has some, else samples, else random."""
    known = known_answers(service, ROWS, seed=seed)
    return known.requests if known else sample_rows(service) or random_rows(service, ROWS, seed=seed)


def payload(service: Service, *, seed: int) -> list[Row]:
    """The same rows without the batch dimension."""
    return [{name: array[0] for name, array in row.items()} for row in batched_rows(service, seed=seed)]


def check_running(endpoint: Endpoint, model: str, protocol: Protocol) -> None:
    """Refuse an address at which there is nothing to measure, before anything is written.

    Raises:
        ServerFailed: nothing answers there, or something that is no KServe v2 server.
        InputError: the server does not know the model.
    """
    connection = http.client.HTTPConnection(endpoint.http, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/v2")
        said = json.loads(connection.getresponse().read(LONGEST_METADATA))
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = repr(error)
    finally:
        connection.close()
    if not isinstance(said, dict) or "extensions" not in said:
        raise ServerFailed(
            f"{endpoint.http}: no KServe v2 server answers over HTTP: {str(said)[:200]}",
            hint="start one with `brim serve`, and give the HTTP address that it prints",
        )
    ask_target(endpoint, model)
    if protocol is Protocol.GRPC:
        with closing(endpoint.grpc_client()) as client:
            try:
                client.get_model_metadata(model, client_timeout=ANSWER_TIMEOUT_S)
            except InferenceServerException as error:
                raise ServerFailed(
                    f"{endpoint.grpc}: {model} does not answer over gRPC: {error.message()}",
                    hint="--grpc-port tells where the server's gRPC side is; --protocol http goes without",
                ) from error


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Say which file or folder of the run folder cannot be read or written, and why.

    Raises:
        InputError: anything of the kind but a full disk, which has its own error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC or not _on_the_way(error.filename, folder):
            raise
        raise InputError(
            f"{error.filename}: {error.strerror}: the run folder {folder} cannot be used",
            hint="--out wants a folder that is not there yet, or one of an earlier run",
        ) from error


def _on_the_way(path: object, folder: Path) -> bool:
    """Whether an error's path is the folder, above it or in it; an error need not have one."""
    if not isinstance(path, str | Path):
        return False
    found, folder = Path(path).absolute(), folder.absolute()
    return found.is_relative_to(folder) or folder.is_relative_to(found)


def serve_until_the_end(stack: ExitStack, project: Project, service: Service) -> Endpoint:
    """A server of this measurement's own; it ends with the stack.

    Raises:
        ServerFailed: it does not start.
    """
    server = EmbeddedServer(
        project.model_repository,
        [service.name],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries([service]),
        on_progress=say,
    )
    endpoint = stack.enter_context(server).endpoint
    # On the way out a signal has nothing left to interrupt but the end of the server, which must not be cut short.
    stack.callback(_disregard_signals)
    return endpoint


def _disregard_signals() -> None:
    """Until the end of ``stop_on_signal``'s block, which puts the handlers back."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
