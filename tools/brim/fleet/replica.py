"""One replica: its server, what heals it, and whether it may be asked."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from queue import SimpleQueue
from typing import Any

from brim.errors import BrimError
from brim.fleet.pace import LEAST_EXECUTIONS, LEAST_EXECUTIONS_SLOW, SLOW_WEIGHT, WELL_WEIGHT, Pace, sizes_of
from brim.fleet.versions import Versions
from brim.gateway.replicas import Member
from brim.gateway.xds import Upstream
from brim.measure import batch_stats
from brim.measure.batch_stats import Snapshot
from brim.retries import Budget
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.server.healing import Bounds
from brim.server.supervise import Supervisor

PROBE_EVERY_S, PROBE_TIMEOUT_S = 0.5, 2.0
VERSIONS_EVERY, PACE_EVERY = 10, 2
"""Probes."""
SILENT_AFTER_S = 5.0
"""Without an answer to ``/v2/health/live``, a replica gets no requests. A stopped process still takes connections."""
HUNG_AFTER_S = 20.0
"""And then it is ended, so that nobody waits for it any longer, and started anew."""
JOIN_S = 30.0


class State(StrEnum):
    """Of a replica. Only one that serves is given requests."""

    STARTING = "starting"
    SERVING = "serving"
    HEALING = "healing"
    """Its supervisor loads a model anew or starts the server again."""
    SILENT = "silent"
    """It answers nothing, though its process is there."""
    UNFIT = "unfit"
    """It has another version of a model than the others, or lacks one."""
    DRAINING = "draining"
    STOPPING = "stopping"
    GIVEN_UP = "given_up"


@dataclass(slots=True)
class Seen:
    """What is known of a replica at a moment; ``state_of`` makes a word of it."""

    started: bool
    gave_up: bool
    stopping: bool
    draining: bool
    down: bool
    silent: bool
    unfit: bool


def state_of(seen: Seen) -> State:
    """The first of these that holds."""
    for holds, state in (
        (seen.stopping, State.STOPPING),
        (seen.gave_up, State.GIVEN_UP),
        (not seen.started, State.STARTING),
        (seen.draining, State.DRAINING),
        (seen.down, State.HEALING),
        (seen.silent, State.SILENT),
        (seen.unfit, State.UNFIT),
    ):
        if holds:
            return state
    return State.SERVING


class Replica:
    """A server of its own with a supervisor of its own, on a thread of its own."""

    def __init__(
        self,
        name: str,
        server: EmbeddedServer,
        *,
        bounds: Bounds,
        start_turn: AbstractContextManager[Any],
        paced: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        """Nothing starts before ``begin``.

        Args:
            name: of the replica.
            server: not started yet.
            bounds: of its supervision, and of the attempts at its first start.
            start_turn: held while it starts, so that a small machine starts one after the other.
            paced: models whose batches tell whether it is slow.
            say: told what happens to it.
        """
        self.name, self.server = name, server
        self.drain_until_s: float | None = None
        """On the monotonic clock; None while nobody has told it to go."""
        self.versions: Versions = {}
        """What it had when it was asked last."""
        self.fault = ""
        """What is wrong with that, as whoever knows the others says."""
        self.error: BrimError | None = None
        """Why it did not start, or was given up."""
        self.tried = threading.Event()
        """Set when the first attempt to start it has ended."""
        self.paces: SimpleQueue[Pace] = SimpleQueue()
        """What it did since the look before, each time that this was enough to tell anything."""
        self.slow = False
        """As whoever knows the others says."""
        self._bounds, self._turn, self._paced, self._say = bounds, start_turn, paced, say
        self._before: dict[str, Snapshot] = {}
        self._supervisor: Supervisor | None = None
        self._gave_up = False
        self._stopping = threading.Event()
        self._heard_s = 0.0
        self._checked = ""
        self._thread = threading.Thread(target=self._live, name=f"brim-replica-{name}", daemon=True)

    @property
    def state(self) -> State:
        """As it is now."""
        supervisor = self._supervisor
        healing = supervisor is not None and (supervisor.healing or self.server.how_it_ended() is not None)
        return state_of(
            Seen(
                started=supervisor is not None,
                gave_up=self._gave_up or (supervisor is not None and supervisor.failed is not None),
                stopping=self._stopping.is_set(),
                draining=self.drain_until_s is not None,
                # A life that nobody has looked at yet may have anything loaded.
                down=healing or self._checked != self.server.prefix,
                silent=time.monotonic() - self._heard_s > SILENT_AFTER_S,
                unfit=bool(self.fault),
            )
        )

    @property
    def detail(self) -> str:
        """Why it does not serve; empty where its state says it all."""
        failed = self._supervisor.failed if self._supervisor else None
        error = self.error or failed
        if error is not None:
            return error.message.partition("\n")[0]
        return self.fault if self.state is State.UNFIT else ""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it answers, once it has been started."""
        return self.server.endpoint if self._supervisor is not None and not self._stopping.is_set() else None

    def member(self) -> Member | None:
        """As the gateway shall have it; None for not at all."""
        state, endpoint = self.state, self.endpoint
        if endpoint is None or state not in (State.SERVING, State.DRAINING):
            return None
        weight = SLOW_WEIGHT if self.slow else WELL_WEIGHT
        return Member(
            self.name,
            Upstream(endpoint.http, endpoint.grpc),
            draining=state is State.DRAINING,
            weight=weight,
            metrics=endpoint.metrics,
        )

    def begin(self) -> None:
        """Start it, in the background."""
        self._thread.start()

    def leave(self) -> None:
        """Begin to stop: from now on nobody heals it, and nobody is sent there."""
        self._stopping.set()

    def stop(self) -> None:
        """End it and everything that it made. Safe in any state."""
        self._stopping.set()
        if self._supervisor is None:
            self.server.stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self.server.stop()

    def _live(self) -> None:
        try:
            if not self._start():
                return
            with Supervisor(
                self.server, bounds=self._bounds, on_event=lambda event: self._say(f"{self.name}: {event}")
            ) as supervisor:
                self._heard_s = time.monotonic()
                self._ask_versions()
                self._supervisor = supervisor
                self.tried.set()
                probes = 0
                while not self._stopping.wait(PROBE_EVERY_S):
                    probes += 1
                    self._probe(supervisor)
                    if probes % PACE_EVERY == 0 and not supervisor.healing:
                        self._look_at_pace()
                    if self._checked != self.server.prefix or self.fault or probes % VERSIONS_EVERY == 0:
                        self._ask_versions()
        finally:
            self.tried.set()

    def _start(self) -> bool:
        budget = Budget(self._bounds.heals, self._bounds.within_s)
        while (pause_s := budget.spend(time.monotonic())) is not None:
            if self._stopping.wait(pause_s):
                return False
            try:
                with self._turn:
                    if self._stopping.is_set():
                        return False
                    self.server.__enter__()
            except BrimError as error:
                self.error = error
                if not self._stopping.is_set():
                    self._say(f"{self.name}: did not start: {self.detail}")
                self.tried.set()
                continue
            self.error = None
            return True
        self._gave_up = True
        return False

    def _probe(self, supervisor: Supervisor) -> None:
        if supervisor.healing or self.server.how_it_ended() is not None or self._is_live():
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > HUNG_AFTER_S:
            self._say(f"{self.name}: nothing heard for {HUNG_AFTER_S:g} s though its process is there: ended")
            # Its supervisor takes it for crashed, and starts it again.
            self.server.drop()
            self._heard_s = time.monotonic()

    def _is_live(self) -> bool:
        try:
            address = f"http://{self.server.endpoint.http}/v2/health/live"
            with urllib.request.urlopen(address, timeout=PROBE_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException, BrimError):
            return False

    def _look_at_pace(self) -> None:
        pace, enough = {}, 0
        after: dict[str, Snapshot] = {}
        try:
            with closing(self.server.endpoint.http_client(timeout_s=PROBE_TIMEOUT_S)) as client:
                for model in self._paced:
                    after[model] = batch_stats.snapshot(client, model)
                    if model in self._before:
                        done = batch_stats.difference(self._before[model], after[model], instances=1)
                        pace[model] = sizes_of(done)
                        enough += done.executions
        except (*NO_ANSWER, BrimError):
            self._before = {}
            return
        if not self._before:
            self._before = after
        elif enough >= (LEAST_EXECUTIONS_SLOW if self.slow else LEAST_EXECUTIONS):
            self.paces.put(pace)
            self._before = after

    def _ask_versions(self) -> None:
        life = self.server.prefix
        found: dict[str, tuple[str, ...]] = {}
        try:
            with closing(self.server.endpoint.http_client(timeout_s=PROBE_TIMEOUT_S)) as client:
                for model in self.server.models:
                    versions = client.get_model_metadata(model)["versions"] if client.is_model_ready(model) else ()
                    found[model] = tuple(sorted(versions))
        except (*NO_ANSWER, BrimError):
            return
        self.versions, self._checked = found, life
