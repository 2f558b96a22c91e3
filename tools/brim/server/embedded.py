"""The embedded server: one real tritonserver as a child process, on the CPU or on a GPU when there is one."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from brim.errors import InputError, NoSpace, PortInUse, ServerFailed
from brim.parent import die_with_parent as die_with_parent
from brim.server import leftovers, wheel
from brim.server.canary import Tensors
from brim.server.child import ChildServer
from brim.server.logs import log_tail
from brim.server.options import ServerOptions as ServerOptions
from brim.server.ports import choose_ports
from brim.server.stubs import Stub, killed_stubs_of, stubs_of, unseen_stubs_of
from brim.server.tracing import trace_arguments
from brim.units import US_PER_S

LEAST_SHM_BYTES = 32 * 1024 * 1024
"""Every python-backend instance takes 1 MiB at start and grows; below this a start fails with an unclear text."""
START_TRIES = 3
EXIT_MARGIN_S = 5
"""What the server gets beyond its own exit timeout before it is killed."""
MAIMED_GRACE_S = 3.0
"""What a server with a killed stub gets: it would wait for that stub as long as its exit timeout lets it (measured)."""
STUB_LOOK_S = 0.5
"""How often a start looks for killed stubs; a look reads every process's parent, some 14 ms."""


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
    return [*command, *trace_arguments(options.tracing, options.trace_file), *options.extra_arguments]


@dataclass(frozen=True, slots=True)
class _Life:
    """One process of the server, and the prefix of all that it makes."""

    process: subprocess.Popen[bytes]
    prefix: str


@dataclass(frozen=True, slots=True)
class _Program:
    """What every life of the server is started from."""

    binary: Path
    backends: Path
    environment: Mapping[str, str]


class EmbeddedServer(ChildServer):
    """A tritonserver that lives as long as the ``with`` block, and no longer.

    Whatever ends the block (the end, an exception, Ctrl-C) stops the server, its stubs, and removes its shared-memory
    regions. When this process is killed outright the kernel tells the server to stop, and the next start clears the rest.
    The kernel's notice is tied to the thread that starts the server, so a thread of the object's own does that, and lives
    until ``stop``: ``restart`` may be called from a thread that ends earlier.
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
        super().__init__(
            repository, models, log_file=log_file, canaries=canaries, options=options, on_progress=on_progress
        )
        self.cache = cache
        self.start_took_us = 0
        """How long the last start took, up to the last canary's answer."""
        self._program: _Program | None = None
        self._ports: Mapping[str, int] = {}
        self._starter: futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._prefix = ""
        self._told_to_stop = False

    @property
    def prefix(self) -> str:
        """What every shared-memory region and stub of this server carries in its name. A restart changes it."""
        return self._prefix

    def _running(self) -> subprocess.Popen[bytes] | None:
        life = self._life
        return life.process if life else None

    def stubs(self) -> dict[int, str]:
        """Process id -> model of the python backend's living stubs. Empty when the server does not run."""
        return {stub.process.pid: stub.model for stub in self.living_stubs()}

    def living_stubs(self) -> list[Stub]:
        """The same as processes."""
        life = self._life
        return stubs_of(life.process.pid, life.prefix) if life else []

    def unseen_stubs(self, seen: Collection[int]) -> list[Stub]:
        """All stubs, living and dead, but for the process ids in ``seen``."""
        life = self._life
        return unseen_stubs_of(life.process.pid, life.prefix, seen) if life else []

    def killed_stubs(self) -> int:
        """How many stubs have died without being told to and still stand in the process table."""
        life = self._life
        return killed_stubs_of(life.process.pid) if life else 0

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
        self._program = _Program(found.binary, backends, {**wheel.environment(found), **self.options.extra_environment})
        self._told_to_stop = False
        self._starter = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="brim-starter")
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(START_TRIES):
                try:
                    self._start(choose_ports(self.options.host, self.options.given_ports), fresh_log=True)
                    return self
                except PortInUse:
                    # A port that the system had picked was taken before the server could open it: pick again.
                    if any(self.options.given_ports.values()) or attempt == START_TRIES - 1:
                        raise
        except BaseException:
            self.stop()
            raise
        raise AssertionError("unreachable")

    def drop(self) -> None:
        """End the server at once, so that every caller's connection closes. The endpoint is kept for ``restart``."""
        self._end_life(0)

    def restart(self, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """End the server at once and start it anew on the same ports with the same models. The log goes on.

        Args:
            cancelled: asked while the models load; true ends the start.

        Raises:
            PortInUse: another program has taken a port meanwhile.
            ServerFailed: a model did not answer its canary; the server is down then, and may be restarted again.
        """
        self.drop()
        if self._program is None or self._told_to_stop:
            raise self._not_running()
        self._start(choose_ports(self.options.host, dict(self._ports)), cancelled, grace_s=0)

    def _start(
        self,
        ports: Mapping[str, int],
        cancelled: Callable[[], bool] = lambda: False,
        *,
        fresh_log: bool = False,
        grace_s: float | None = None,
    ) -> None:
        if self._starter is None:
            raise self._not_running()
        started = time.monotonic()
        self.on_progress(f"starting tritonserver with {', '.join(self.models)}")
        launch = self._starter.submit(self._launch, ports, fresh_log)
        try:
            life = launch.result()
            self._ports, self._endpoint = ports, self._answers_at(ports)
            self._wait_ready(self._endpoint, self._trouble_of(life, cancelled))
        except BaseException as error:
            if not launch.cancel():
                # An interrupt of this thread does not interrupt the starter: the process may be born a moment later.
                futures.wait([launch])
            self._end_life(grace_s)
            if isinstance(error, ServerFailed):
                raise self._explain(error) from error
            raise
        self.start_took_us = round((time.monotonic() - started) * US_PER_S)

    def _launch(self, ports: Mapping[str, int], fresh_log: bool) -> _Life:
        """Runs on the starter's thread."""
        with self._lock:
            if self._program is None or self._told_to_stop:
                raise self._not_running()
            prefix = leftovers.new_prefix()
            command = command_line(
                self._program.binary,
                repository=self.repository,
                backends=self._program.backends,
                prefix=prefix,
                models=self.models,
                ports=ports,
                options=self.options,
            )
            try:
                if fresh_log:
                    self.log_file.write_bytes(b"")
                # Append mode, so that the file can be cut while the server writes.
                with self.log_file.open("ab") as log:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=dict(self._program.environment),
                        start_new_session=True,
                        preexec_fn=die_with_parent(os.getpid()),
                    )
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise NoSpace(f"no space left to write {self.log_file}", hint="free some disk space") from error
                raise ServerFailed(
                    f"tritonserver could not be started: {error}", hint="`brim doctor` looks at what it needs"
                ) from error
            life = self._life = _Life(process, prefix)
            self._prefix = prefix
            leftovers.note_for(prefix, process.pid).write()
            return life

    def how_it_ended(self) -> str | None:
        """None while the server runs, else one sentence."""
        life = self._life
        if life is None:
            return "tritonserver is not running"
        status = life.process.poll()
        return None if status is None else f"tritonserver ended with status {status}"

    def _trouble_of(self, life: _Life, cancelled: Callable[[], bool]) -> Callable[[], str | None]:
        """What a start that waits for canaries asks: None as long as they may still be answered."""
        look_at = time.monotonic() + STUB_LOOK_S

        def trouble() -> str | None:
            nonlocal look_at
            if self._told_to_stop or cancelled():
                return "told to stop while the server started"
            ended = self.how_it_ended()
            if ended or time.monotonic() < look_at:
                return ended
            look_at = time.monotonic() + STUB_LOOK_S
            killed = killed_stubs_of(life.process.pid)
            return f"{killed} process(es) of the python backend died during the start" if killed else None

        return trouble

    def _explain(self, error: ServerFailed) -> ServerFailed:
        tail = log_tail(self.log_file)
        if "already in use" in tail:
            return PortInUseAtStart(error.message, hint="another program took the port between the check and the start")
        return ServerFailed(
            f"{error.message}\nthe end of {self.log_file}:\n{tail}",
            hint="`brim lint` checks the configuration, `brim doctor` the machine",
        )

    def stop(self) -> None:
        """End the server and everything that it made. Safe to call twice, from any thread, and in any state."""
        self._told_to_stop = True
        try:
            self._end_life()
        finally:
            self._endpoint = None
            if self._starter is not None:
                self._starter.shutdown(wait=False)

    def _end_life(self, grace_s: float | None = None) -> None:
        """End the process that runs. Without a grace (0) it is killed; None is what a stop takes on its own."""
        with self._lock:
            life, self._life = self._life, None
        if life is None:
            return
        try:
            if grace_s is None:
                maimed = killed_stubs_of(life.process.pid) > 0
                grace_s = MAIMED_GRACE_S if maimed else self.options.exit_timeout_s + EXIT_MARGIN_S
            if grace_s:
                life.process.terminate()
                life.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also when a signal interrupts the wait: nothing of the server may stay behind.
            life.process.kill()
            life.process.wait(leftovers.END_TIMEOUT_S)
            leftovers.clear(life.prefix)


class PortInUseAtStart(ServerFailed, PortInUse):
    """The server lost a race for a port that had been free a moment earlier."""

    code = "port_in_use"


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
