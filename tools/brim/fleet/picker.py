"""The picker of a fleet as a child process: ``brim picker``, for as long as a ``with`` block lasts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from brim.parent import die_with_parent
from brim.retries import Budget
from brim.server.healing import Bounds
from brim.server.logs import bound_log
from brim.server.ports import choose_ports
from brim.server.program import end_program

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PickerPlace:
    """Where a picker answers, chosen before it or its gateway is there: the gateway has to know it to start.

    Attributes:
        host: address of both.
        port: for the gateway.
        metrics_port: for Prometheus.
    """

    host: str
    port: int
    metrics_port: int

    @property
    def address(self) -> str:
        """``host:port`` for the gateway."""
        return f"{self.host}:{self.port}"

    @property
    def metrics(self) -> str:
        """``host:port`` whose ``/metrics`` Prometheus reads."""
        return f"{self.host}:{self.metrics_port}"


def choose_place(host: str) -> PickerPlace:
    """Two ports that the system picks."""
    ports = choose_ports(host, {"picker": None, "picker-metrics": None})
    return PickerPlace(host, ports["picker"], ports["picker-metrics"])


@dataclass(slots=True)
class PickerProcess:
    """A picker. The gateway does without while it is not there, so nobody waits for it, and it is no reason to stop.

    Start it from a thread that lives as long as it shall.

    Attributes:
        place: where it answers.
        file: that names the replicas.
        gateway_admin: ``host:port`` of Envoy's own pages.
        classes: class of callers -> its priority.
        log_file: where its output goes.
        say: told what happens.
        budget: of starts.
    """

    place: PickerPlace
    file: Path
    gateway_admin: str
    classes: Mapping[str, int]
    log_file: Path
    say: Callable[[str], None]
    budget: Budget = field(default_factory=lambda: Budget(Bounds().heals, Bounds().within_s))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None while it has none."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        """Start it."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self._end()

    def keep_running(self) -> None:
        """Keep its log bounded, and start it again when it has ended. Call it now and then, from the thread that started it."""
        bound_log(self.log_file)
        if self._process is None or (status := self._process.poll()) is None:
            return
        self._end()
        pause_s = self.budget.spend(time.monotonic())
        if pause_s is None:
            self.say(
                f"the picker ended with status {status}, too often: the gateway goes on without; see {self.log_file}"
            )
            return
        time.sleep(pause_s)
        self._start()
        self.say(f"the picker ended with status {status}: started again")

    def _start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "brim", "picker", "--host", self.place.host, "--port", str(self.place.port)),
            *("--metrics-port", str(self.place.metrics_port), "--eds", str(self.file)),
            *("--gateway-admin", self.gateway_admin),
            *(part for name, priority in self.classes.items() for part in ("--class", f"{name}={priority}")),
        ]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Nothing is lost with it, and SIGTERM could find it before it listens to it.
                preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
            )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_program(process, STOP_TIMEOUT_S)
