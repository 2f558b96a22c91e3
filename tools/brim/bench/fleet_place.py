"""Replicas of a model of known time behind the real gateway, for as long as a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

from brim.fleet.fleet import Fleet, attended
from brim.gateway.admission import Admission
from brim.gateway.envoy import Gateway
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Balance, Replicas
from brim.measure.callers import Row
from brim.measure.known_time import INPUT, WIDTH, KnownTime, write_known_time
from brim.server.embedded import EmbeddedServer
from brim.server.healing import Bounds
from brim.server.options import ServerOptions

MODEL = "known"
ROWS: list[Row] = [{INPUT: np.full((1, WIDTH), value, np.float32)} for value in range(10)]
ADMITTED = {MODEL: Admission()}
DEFAULT_TIME = KnownTime(tau0_us=80_000, alpha_us=2_500, max_batch=16)
"""A full batch takes 120 ms: 133 a second and replica. It is a wait and no work, so that two cores carry several."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is served, and what is asked of it.

    Attributes:
        time: of a batch on a replica that is well.
        replicas: how many.
        slow_factor: so many times as long the slow one takes.
        load: offered, over what all replicas can do in full batches.
    """

    time: KnownTime = DEFAULT_TIME
    replicas: int = 3
    slow_factor: float = 4.0
    load: float = 0.5

    @property
    def rate_per_s(self) -> float:
        """Offered."""
        full = self.time.max_batch * 1e6 / self.time.time_us(self.time.max_batch)
        return self.load * self.replicas * full


@dataclass
class Place:
    """A fleet, attended to, and its gateway.

    Attributes:
        case: what is served.
        cache: of the embedded servers.
        log_folder: for the log of each.
        slowed: replica name -> so many times as long it takes.
        say: told what is happening.
    """

    case: Case
    cache: Path
    log_folder: Path
    slowed: Mapping[str, float] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _: None

    def __enter__(self) -> Self:
        """Start all of it."""
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="brim-fleet-")))
            self.log_folder.mkdir(parents=True, exist_ok=True)
            self.fleet = stack.enter_context(
                Fleet(
                    self._server,
                    self.case.replicas,
                    models=[MODEL],
                    paced=[MODEL],
                    folder=self.folder / "run",
                    # A benchmark kills one in every round.
                    bounds=Bounds(heals=1_000),
                    on_progress=self.say,
                )
            )
            self.gateway = stack.enter_context(self.before(self.fleet.for_gateway, "fleet"))
            self.fleet.gateway = self.gateway
            stack.enter_context(attended(self.fleet))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of it."""
        self._stack.close()

    def before(self, replicas: Replicas, name: str) -> Gateway:
        """A gateway before the replicas, not started."""
        return Gateway(
            self.fleet.first.server.endpoint,
            log_file=self.log_folder / f"{name}.gateway.log",
            admitted=ADMITTED,
            canaries={MODEL: dict(ROWS[0])},
            replicas=replicas,
        )

    def untold(self, balance: Balance) -> Gateway:
        """Another gateway before the same replicas, which nobody tells that one is slow; not started."""
        files = ReplicaFiles(self.folder / balance.value, [MODEL])
        members = [member for replica in self.fleet.replicas if (member := replica.member()) is not None]
        files.publish([replace(member, weight=1) for member in members])
        return self.before(Replicas(files.folder, balance), balance.value)

    def _server(self, name: str) -> EmbeddedServer:
        repository, factor = self.folder / name, self.slowed.get(name, 1.0)
        time = self.case.time
        slow = replace(time, tau0_us=round(time.tau0_us * factor), alpha_us=time.alpha_us * factor)
        write_known_time(repository, MODEL, slow)
        return EmbeddedServer(
            repository,
            [MODEL],
            cache=self.cache,
            log_file=self.log_folder / f"{name}.log",
            canaries={MODEL: ROWS[0]},
            options=ServerOptions(exit_timeout_s=2),
            on_progress=self.say,
        )
