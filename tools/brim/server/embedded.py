"""The embedded server: one real tritonserver as a child process, on the CPU or on a GPU when there is one."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from brim.errors import InputError, NoSpace, PortInUse, ServerFailed
from brim.server import leftovers, wheel
from brim.server.canary import Tensors, wait_ready
from brim.server.endpoint import LOOPBACK, Endpoint
from brim.server.logs import log_tail
from brim.server.ports import choose_ports

PR_SET_PDEATHSIG = 1
LEAST_SHM_BYTES = 32 * 1024 * 1024
"""Every python-backend instance takes 1 MiB at start and grows; below this a start fails with an unclear text."""
START_TRIES = 3
EXIT_MARGIN_S = 5
"""What the server gets beyond its own exit timeout before it is killed."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to start: ports (None = chosen by the system), the profile, bounds in seconds, and further server arguments."""

    host: str = LOOPBACK
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    profile: str | None = None
    ready_timeout_s: float = 180.0
    exit_timeout_s: int = 10
    extra_arguments: tuple[str, ...] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)


def command_line(
    binary: Path,
    *,
    repository: Path,
    backends: Path,
    prefix: str,
    models: Sequence[str],
    ports: Mapping[str, int],
    options: ServerOptions,
) -> list[str]:
    """The tritonserver command for these settings. Only the named models are loaded."""
    command = [
        str(binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        "--disable-auto-complete-config",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in models),
        f"--exit-timeout-secs={options.exit_timeout_s}",
        "--log-format=ISO8601",
    ]
    for name in ("http", "grpc", "metrics"):
        command += [f"--{name}-address={options.host}", f"--{name}-port={ports[name]}"]
    if options.profile:
        command.append(f"--model-config-name={options.profile}")
    return [*command, *options.extra_arguments]


class EmbeddedServer:
    """A tritonserver that lives as long as the ``with`` block, and no longer.

    Whatever ends the block (the end, an exception, Ctrl-C) stops the server, its stubs, and removes its shared-memory
    regions. When this process is killed outright the kernel tells the server to stop, and the next start clears the rest.
    Start it from a thread that lives as long as the server: the kernel's notice is tied to the starting thread.
    """

    def __init__(
        self,
        repository: Path,
        models: Sequence[str],
        *,
        cache: Path,
        log_file: Path,
        canaries: Mapping[str, Tensors | None] | None = None,
        options: ServerOptions | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing starts before the ``with`` block.

        Args:
            repository: Triton model repository.
            models: names of the models to load.
            cache: folder for the assembled backend.
            log_file: where the server's and the stubs' output goes; kept below 64 MiB.
            canaries: model name -> one row that the model must answer; a missing entry sends zeros.
            options: ports, profile, bounds.
            on_progress: told what is happening, a short sentence each.
        """
        self.repository = repository
        self.models = list(models)
        self.cache = cache
        self.log_file = log_file
        self.canaries = {name: (canaries or {}).get(name) for name in self.models}
        self.options = options or ServerOptions()
        self.on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = ""
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers. Only while it runs."""
        if self._endpoint is None:
            raise ServerFailed("the server is not running", hint="use it inside the `with` block")
        return self._endpoint

    @property
    def pid(self) -> int:
        """Process id of the tritonserver. Only while it runs."""
        if self._process is None:
            raise ServerFailed("the server is not running", hint="use it inside the `with` block")
        return self._process.pid

    @property
    def prefix(self) -> str:
        """What every shared-memory region and stub of this server carries in its name."""
        return self._prefix

    def __enter__(self) -> Self:
        """Start and wait until every model has answered its canary."""
        stale = leftovers.clear_stale()
        if stale:
            self.on_progress(f"cleared {len(stale)} server(s) left by an earlier run")
        check_shared_memory()
        for folder in (self.repository, self.cache):
            check_path(folder)
        found = wheel.find_wheel()
        backends = wheel.assemble(found, self.cache)
        environment = {**wheel.environment(found), **self.options.extra_environment}
        for attempt in range(START_TRIES):
            try:
                self._start(found.binary, backends, environment)
                return self
            except PortInUse:
                # A port that the system had picked was taken before the server could open it: pick again.
                given = (self.options.http_port, self.options.grpc_port, self.options.metrics_port)
                if any(given) or attempt == START_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def _start(self, binary: Path, backends: Path, environment: Mapping[str, str]) -> None:
        options = self.options
        ports = choose_ports(
            options.host, {"http": options.http_port, "grpc": options.grpc_port, "metrics": options.metrics_port}
        )
        self._prefix = leftovers.new_prefix()
        command = command_line(
            binary,
            repository=self.repository,
            backends=backends,
            prefix=self._prefix,
            models=self.models,
            ports=ports,
            options=options,
        )
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.on_progress(f"starting tritonserver with {', '.join(self.models)}")
        try:
            self.log_file.write_bytes(b"")
            # Append mode, so that the file can be cut while the server writes.
            with self.log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                    preexec_fn=die_with_parent(os.getpid()),
                )
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise NoSpace(f"no space left to write {self.log_file}", hint="free some disk space") from error
            raise ServerFailed(
                f"tritonserver could not be started: {error}", hint="`brim doctor` looks at what it needs"
            ) from error
        try:
            leftovers.note_for(self._prefix, self._process.pid).write()
            self._endpoint = Endpoint(**{name: f"{options.host}:{port}" for name, port in ports.items()})
            wait_ready(
                self._endpoint,
                self.canaries,
                timeout_s=options.ready_timeout_s,
                still_alive=self.how_it_ended,
                on_progress=lambda model: self.on_progress(f"{model} answered its canary"),
            )
        except BaseException as error:
            self.stop()
            if isinstance(error, ServerFailed):
                raise self._explain(error) from error
            raise

    def how_it_ended(self) -> str | None:
        """None while the server runs, else one sentence."""
        if self._process is None:
            return "tritonserver is not running"
        status = self._process.poll()
        return None if status is None else f"tritonserver ended with status {status}"

    def _explain(self, error: ServerFailed) -> ServerFailed:
        tail = log_tail(self.log_file)
        if "already in use" in tail:
            return PortInUseAtStart(error.message, hint="another program took the port between the check and the start")
        return ServerFailed(
            f"{error.message}\nthe end of {self.log_file}:\n{tail}",
            hint="`brim lint` checks the configuration, `brim doctor` the machine",
        )

    def stop(self) -> None:
        """End the server and everything that it made. Safe to call twice, and in any state."""
        process, self._process, self._endpoint = self._process, None, None
        if process is None:
            return
        try:
            process.terminate()
            process.wait(self.options.exit_timeout_s + EXIT_MARGIN_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also when a signal interrupts the wait: nothing of the server may stay behind.
            process.kill()
            process.wait(leftovers.END_TIMEOUT_S)
            leftovers.clear(self._prefix)


class PortInUseAtStart(ServerFailed, PortInUse):
    """The server lost a race for a port that had been free a moment earlier."""

    code = "port_in_use"


def die_with_parent(parent: int) -> Callable[[], None]:
    """For ``preexec_fn``: the kernel sends SIGTERM to the child when ``parent`` ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ask_kernel() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


def check_path(folder: Path) -> None:
    """Refuse a folder that the python backend cannot work in.

    It hands the paths of stub and model to a shell unquoted (measured on 24.10; later ones call execve), and its isolated
    interpreter reads them as ASCII (measured on 24.10): the server would wait for ever, or say something else.

    Raises:
        InputError: see above; names the characters.
    """
    path = str(folder.absolute())
    wrong = sorted({letter for letter in path if not letter.isascii() or shlex.quote(letter) != letter} - {"~"})
    if wrong:
        raise InputError(
            f"Triton's python backend cannot run from {path!r}: it does not quote {' '.join(map(repr, wrong))}",
            hint="move the checkout to a path of ASCII letters, digits and . _ - + , : = @ % ~ only",
        )


def check_shared_memory() -> None:
    """Refuse a start that shared memory has no room for.

    Raises:
        NoSpace: /dev/shm is missing or nearly full.
    """
    if not leftovers.SHM.is_dir():
        raise NoSpace(
            "/dev/shm does not exist, and the python backend keeps its tensors there", hint="mount a tmpfs on it"
        )
    free = shutil.disk_usage(leftovers.SHM).free
    if free < LEAST_SHM_BYTES:
        raise NoSpace(
            f"/dev/shm has {free // 2**20} MiB free, and the python backend needs at least {LEAST_SHM_BYTES // 2**20}",
            hint="remove old files there, or give the container more (docker run --shm-size=1g)",
        )
