"""What every server that this program starts has in common: a process, an endpoint, canaries, an end."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from brim.errors import ServerFailed
from brim.server.canary import Tensors, wait_ready
from brim.server.endpoint import Endpoint
from brim.server.options import ServerOptions


class ChildServer(ABC):
    """A server that lives as long as its ``with`` block."""

    def __init__(
        self,
        repository: Path,
        models: Sequence[str],
        *,
        log_file: Path,
        canaries: Mapping[str, Tensors | None] | None,
        options: ServerOptions | None,
        on_progress: Callable[[str], None],
    ) -> None:
        """Nothing starts before the ``with`` block; the subclasses describe the arguments."""
        self.repository = repository
        self.models = list(models)
        self.log_file = log_file
        self.canaries = {name: (canaries or {}).get(name) for name in self.models}
        self.options = options or ServerOptions()
        self.on_progress = on_progress
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers, from its start to its end."""
        if self._endpoint is None:
            raise self._not_running()
        return self._endpoint

    @property
    def pid(self) -> int:
        """Id of the process that was started. Only while it runs."""
        process = self._running()
        if process is None:
            raise self._not_running()
        return process.pid

    @abstractmethod
    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process that was started last and not ended on purpose."""

    @abstractmethod
    def how_it_ended(self) -> str | None:
        """None while the server runs, else one sentence."""

    @abstractmethod
    def stop(self) -> None:
        """End the server. Safe to call twice."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def _answers_at(self, ports: Mapping[str, int]) -> Endpoint:
        return Endpoint(**{name: f"{self.options.host}:{port}" for name, port in ports.items()})

    def _wait_ready(self, endpoint: Endpoint, still_alive: Callable[[], str | None]) -> None:
        wait_ready(
            endpoint,
            self.canaries,
            timeout_s=self.options.ready_timeout_s,
            still_alive=still_alive,
            on_progress=lambda model: self.on_progress(f"{model} answered its canary"),
        )

    @staticmethod
    def _not_running() -> ServerFailed:
        return ServerFailed("the server is not running", hint="use it inside the `with` block")
