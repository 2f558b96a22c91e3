"""The backend's own process killed under its callers: they are released, the model comes back, readiness does not lie."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from types import TracebackType
from typing import Self

import psutil
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from brim.isolation.background import Traffic
from brim.isolation.bench import Account, Bench
from brim.isolation.check import Material
from brim.isolation.flights import Flights
from brim.isolation.traffic import good
from brim.server.canary import ask, infer_inputs
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.service.samples import Row

LEAST_CALLERS = 100
RELEASED_S = 2.0
"""Every caller that waits when the process dies has an answer or an error by then."""
BACK_S = 10.0
"""The model answers again by then."""
LIE_S = 2.0
"""Readiness may lag behind a failing canary by this, the bound on detection."""
GIVE_UP_S = 60.0
STILL_S = 0.2
POLL_S = 0.02
PAUSE_S = 0.1
CANARY_S = 5.0


def backend_killed(bench: Bench, material: Material, prefix: str) -> Account:
    """Callers send good rows; a stub is stopped so that all of them wait on it, then killed."""
    account = Account()
    own, supervisor = bench.own, bench.supervisor
    if own is None or supervisor is None:
        account.skipped = "the server is not the suite's own, so nothing of it is killed"
        return account
    callers = max(LEAST_CALLERS + 20, material.callers)
    requests = good(material.pool, material.count, material.draw)
    with (
        Traffic(bench, requests, prefix, account, callers=callers, errors_allowed=True, pause_s=PAUSE_S) as traffic,
        _Watch(bench.endpoint, bench.model, material.pool.rows[0]) as watch,
    ):
        killed_us = _kill(own, bench.model, traffic.flights, least=LEAST_CALLERS)
        if killed_us is None:
            account.troubles.append(f"no stub was killed: {LEAST_CALLERS} callers never waited at once")
            return account
        began = time.monotonic()
        watch.since(began)
        while watch.back_after_s is None and time.monotonic() - began < GIVE_UP_S:
            time.sleep(POLL_S)
    supervisor.wait_healed(GIVE_UP_S)
    released_us = traffic.flights.released_us(killed_us)
    late = int((released_us > RELEASED_S * 1e6).sum())
    account.figures = {
        "waiting_when_killed": len(released_us),
        "last_released_us": int(released_us.max(initial=0)),
        "back_after_us": -1 if watch.back_after_s is None else round(watch.back_after_s * 1e6),
        "false_ready_us": round(watch.longest_lie_s * 1e6),
    }
    if late:
        last_s = account.figures["last_released_us"] / 1e6
        account.troubles.append(
            f"{late} of {len(released_us)} callers waited longer than {RELEASED_S:g} s, up to {last_s:.2f} s"
        )
    if watch.back_after_s is None or watch.back_after_s > BACK_S:
        when = f"after {watch.back_after_s:.1f} s" if watch.back_after_s else f"not within {GIVE_UP_S:g} s"
        account.troubles.append(f"the model answered again {when}, {BACK_S:g} s are allowed")
    if watch.longest_lie_s > LIE_S:
        account.troubles.append(f"readiness said yes for {watch.longest_lie_s:.1f} s while canaries failed")
    if account.troubles and supervisor.events:
        account.troubles.append(f"what was done about it: {supervisor.events[-1]}")
    account.note = (
        f"{len(released_us)} callers waited when the stub was killed, the last was released after "
        f"{account.figures['last_released_us'] / 1e6:.2f} s; the model was back after {watch.back_after_s or 0:.1f} s"
    )
    return account


def _kill(own: EmbeddedServer, model: str, flights: Flights, *, least: int) -> int | None:
    """Stop the model's stubs until nobody is answered any more, then kill one; when, on the callers' clock.

    The newest: after a model was loaded anew, its former stub stays until the next load (measured on 24.10).

    Returns:
        None where fewer than ``least`` callers waited then, and nothing was killed.
    """
    deadline = time.monotonic() + GIVE_UP_S
    while len(flights.requests) < 2 * least:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)
    stubs = sorted((stub.process for stub in own.living_stubs() if stub.model == model), key=psutil.Process.create_time)
    if not stubs:
        return None
    with suppress(psutil.NoSuchProcess):
        for stub in stubs:
            stub.suspend()
    try:
        still_since_us = flights.now_us()
        while flights.landed_since(still_since_us):
            if time.monotonic() > deadline:
                return None
            still_since_us = flights.now_us()
            time.sleep(STILL_S)
        if len(flights.in_flight(flights.now_us())) < least:
            return None
        killed_us = flights.now_us()
        stubs[-1].kill()
        return killed_us
    finally:
        for stub in stubs:
            with suppress(psutil.NoSuchProcess):
                stub.resume()


class _Watch:
    """Asks all the time whether the model is ready and whether it answers; keeps how long the two disagreed."""

    def __init__(self, endpoint: Endpoint, model: str, row: Row) -> None:
        self.endpoint = endpoint
        self.model = model
        self.row = row
        self.back_after_s: float | None = None
        self.longest_lie_s = 0.0
        self._since: float | None = None
        self._failed = False
        self._lie_began: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def since(self, began: float) -> None:
        """From this moment on a failure counts."""
        self._since = began

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * CANARY_S)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            asked = time.monotonic()
            before = self._ready()
            trouble = ask(self.endpoint, self.model, self.row, timeout_s=CANARY_S)
            after = self._ready()
            now = time.monotonic()
            if self._since is None or asked < self._since:
                continue
            if trouble and before and after:
                self._lie_began = asked if self._lie_began is None else self._lie_began
                self.longest_lie_s = max(self.longest_lie_s, now - self._lie_began)
            else:
                self._lie_began = None
            if trouble is None and self.back_after_s is None and self._answers_over_grpc():
                self.back_after_s = time.monotonic() - self._since

    def _answers_over_grpc(self) -> bool:
        client = self.endpoint.grpc_client()
        try:
            client.infer(self.model, infer_inputs(self.row, triton_grpc), client_timeout=CANARY_S)
        except InferenceServerException:
            return False
        finally:
            client.close()
        return True

    def _ready(self) -> bool:
        try:
            with closing(self.endpoint.http_client(timeout_s=CANARY_S)) as client:
                return bool(client.is_server_ready() and client.is_model_ready(self.model))
        except NO_ANSWER:
            return False
