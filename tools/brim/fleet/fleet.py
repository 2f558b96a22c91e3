"""Several servers behind one gateway: started one after the other, each healed by itself, and asked only while it is well."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from brim.errors import BrimError, InputError, ServerFailed
from brim.fleet.orders import ORDERS_FOLDER, Order, taken_orders, write_status
from brim.fleet.pace import Slowness
from brim.fleet.replica import Replica, State
from brim.fleet.versions import odd_ones
from brim.gateway.envoy import Gateway
from brim.gateway.hosts import Host, hosts
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Balance, Picking, Replicas
from brim.server.embedded import EmbeddedServer
from brim.server.healing import Bounds
from brim.server.logs import bound_log
from brim.server.model_control import ModelControl

KEPT_ORDERS = 20
HOSTS_FOLDER = "hosts"
QUIET_LOOKS = 2
"""In a row, at which nothing was under way on a replica that drains."""
LAST_WORDS_S = 2.0
"""What a model gets to end the texts that are past the deadline, each with an error of its own."""


class Fleet:
    """Replicas for as long as the ``with`` block lasts. ``tick`` has to be called now and then."""

    def __init__(
        self,
        make: Callable[[str], EmbeddedServer],
        count: int,
        *,
        models: Sequence[str],
        paced: Sequence[str] = (),
        folder: Path,
        bounds: Bounds | None = None,
        balance: Balance = Balance.LEAST_REQUEST,
        picking: Picking | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing starts before the ``with`` block.

        Args:
            make: the server of a replica, from the replica's name; not started.
            count: how many there are at first.
            models: that have a cluster of their own in the gateway.
            paced: those of them that answer in batches, whose times tell when a replica is slow.
            folder: of this fleet alone: its files for Envoy, its status, its orders. Removed at the end.
            bounds: of each replica's supervision.
            balance: how requests are spread.
            picking: what picks a replica in front of that.
            on_progress: told what happens, a short sentence each; from several threads.
        """
        self._make, self._count, self._models, self._paced = make, count, list(models), list(paced)
        self._slowness = Slowness()
        self.folder = folder
        self._bounds = bounds or Bounds()
        self._balance, self._picking = balance, picking
        self._say = on_progress
        self.replicas: list[Replica] = []
        self.gateway: Gateway | None = None
        """Set once it stands in front; replicas that drain are asked about there."""
        self._numbered = 0
        self._turn = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._ended: ThreadPoolExecutor | None = None
        self._quiet: dict[str, int] = {}
        self._states: dict[str, State] = {}
        self._orders: deque[tuple[str, dict[str, Any]]] = deque(maxlen=KEPT_ORDERS)
        self._serving = 0
        self._told: dict[str, Any] = {}
        self._files: ReplicaFiles | None = None

    @property
    def for_gateway(self) -> Replicas:
        """Where the gateway finds the replicas."""
        return Replicas(self.folder / HOSTS_FOLDER, self._balance, self._picking)

    @property
    def first(self) -> Replica:
        """The one that is told where one server is asked for."""
        return self.replicas[0]

    def __enter__(self) -> Self:
        """Start every replica; return when the first attempt at each has ended, and one at least serves.

        Raises:
            BrimError: why the first one did not start.
        """
        (self.folder / ORDERS_FOLDER).mkdir(parents=True, exist_ok=True)
        self._files = ReplicaFiles(self.folder / HOSTS_FOLDER, self._models)
        self._ended = ThreadPoolExecutor(thread_name_prefix="brim-end")
        try:
            # What is wrong with all of them is told by one.
            first = self._add()
            first.tried.wait()
            if first.error is not None:
                raise first.error
            for replica in [self._add() for _ in range(self._count - 1)]:
                replica.tried.wait()
            self.tick()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all of them."""
        self.stop()

    def stop(self) -> None:
        """End every replica, and remove the folder. Safe to call twice."""
        replicas, self.replicas = self.replicas, []
        with ThreadPoolExecutor(max(1, len(replicas))) as pool:
            list(pool.map(lambda replica: replica.stop(), replicas))
        if self._ended is not None:
            self._ended.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tick(self) -> None:
        """One look: orders, replicas that drain, and who takes requests.

        Raises:
            ServerFailed: every replica was given up.
        """
        self._take_orders()
        self._look_at_draining()
        self._look_at_paces()
        self._publish()
        for replica in self.replicas:
            bound_log(replica.server.log_file)
            state = replica.state
            if self._states.get(replica.name, State.SERVING) is not state:
                because = f": {replica.detail}" if replica.detail else ""
                self._say(f"{replica.name}: {state.value}{because}")
            self._states[replica.name] = state
        self._tell()
        if self.replicas and all(replica.state is State.GIVEN_UP for replica in self.replicas):
            reasons = "; ".join(f"{replica.name}: {replica.detail}" for replica in self.replicas)
            raise ServerFailed(f"every replica was given up: {reasons}", hint="each one's log tells more")

    def status(self) -> dict[str, Any]:
        """How it is, for ``status.json``."""
        return {
            "pid": os.getpid(),
            "gateway": None if self.gateway is None else self.gateway.endpoint.http,
            "replicas": [self.describe(replica) for replica in self.replicas],
            "orders": dict(self._orders),
        }

    @staticmethod
    def describe(replica: Replica) -> dict[str, Any]:
        """One replica, for status and ready line."""
        endpoint = replica.endpoint
        addresses: Mapping[str, str | None] = (
            endpoint.as_json() if endpoint else dict.fromkeys(("http", "grpc", "metrics"))
        )
        pid = None
        with suppress(ServerFailed):
            pid = replica.server.pid
        return {
            "name": replica.name,
            "state": replica.state.value,
            "slow": replica.slow,
            "detail": replica.detail,
            **addresses,
            "pid": pid,
        }

    def drain(self, name: str, deadline_s: float) -> None:
        """Give a replica no more requests, and end it when those under way have ended, at the deadline at latest.

        Raises:
            InputError: there is none of this name, it goes already, or no other one takes requests.
        """
        found = [replica for replica in self.replicas if replica.name == name]
        hint = "`brim replicas` shows them"
        if not found:
            known = ", ".join(replica.name for replica in self.replicas)
            raise InputError(f"no replica {name!r}; there are {known}", hint=hint)
        if found[0].drain_until_s is not None:
            raise InputError(f"{name} is draining already", hint=hint)
        if not any(other.state is State.SERVING for other in self.replicas if other is not found[0]):
            raise InputError(f"{name} is the only one that takes requests", hint="add another one first")
        found[0].drain_until_s = time.monotonic() + deadline_s

    def scale(self, count: int, deadline_s: float) -> None:
        """Start further replicas, or drain the newest.

        Raises:
            InputError: as ``drain``.
        """
        staying = [replica for replica in self.replicas if replica.drain_until_s is None]
        for _ in range(count - len(staying)):
            self._add()
        # Those that serve nobody go first.
        newest_first = list(reversed(staying))
        leaving = sorted(newest_first, key=lambda replica: replica.state is State.SERVING)
        for replica in leaving[: max(0, len(staying) - count)]:
            self.drain(replica.name, deadline_s)

    def _add(self) -> Replica:
        self._numbered += 1
        name = f"r{self._numbered}"
        replica = Replica(
            name, self._make(name), bounds=self._bounds, start_turn=self._turn, paced=self._paced, say=self._say
        )
        self.replicas.append(replica)
        replica.begin()
        return replica

    def _take_orders(self) -> None:
        for name, order in taken_orders(self.folder):
            try:
                if isinstance(order, InputError):
                    raise order
                self._obey(order)
            except BrimError as error:
                self._orders.append((name, {"ok": False, "message": error.message, "hint": error.hint}))
            else:
                self._orders.append((name, {"ok": True, "message": ""}))

    def _obey(self, order: Order) -> None:
        if order.drain is not None:
            self.drain(order.drain, order.deadline_s)
        elif order.replicas is not None:
            self.scale(order.replicas, order.deadline_s)

    def _look_at_draining(self) -> None:
        draining = [one for one in self.replicas if one.drain_until_s is not None and one.state is not State.STOPPING]
        if not draining:
            return
        known: dict[str, Host] | None = {}
        if self.gateway is not None:
            try:
                known = hosts(self.gateway.admin)
            except ServerFailed:
                # Envoy is being started again: nothing is known, and the deadline holds all the same.
                known = None
        for replica in draining:
            late = replica.drain_until_s is not None and time.monotonic() > replica.drain_until_s
            quiet = known is not None and self._is_quiet(replica, known)
            self._quiet[replica.name] = self._quiet.get(replica.name, 0) + 1 if quiet else 0
            if late or self._quiet[replica.name] >= QUIET_LOOKS:
                self._end(replica, late=not quiet)

    def _look_at_paces(self) -> None:
        for replica in self.replicas:
            if replica.state is State.HEALING:
                self._slowness.forget(replica.name)
                replica.slow = False
            while not replica.paces.empty():
                was, replica.slow = replica.slow, self._slowness.heard(replica.name, replica.paces.get())
                if was is not replica.slow:
                    words = (
                        "slower than the others: it gets few requests"
                        if replica.slow
                        else "as fast as the others again"
                    )
                    self._say(f"{replica.name}: {words}")

    def _is_quiet(self, replica: Replica, known: Mapping[str, Host]) -> bool:
        endpoint = replica.endpoint
        if endpoint is None or self.gateway is None or replica.state is not State.DRAINING:
            return True
        here = [known[address] for address in (endpoint.http, endpoint.grpc) if address in known]
        return all(host.draining and not host.under_way for host in here)

    def _end(self, replica: Replica, *, late: bool) -> None:
        self._say(
            f"{replica.name}: its deadline has passed: what is under way ends" if late else f"{replica.name}: drained"
        )
        replica.leave()

        def end() -> None:
            if late:
                _end_texts(replica)
            replica.stop()

        assert self._ended is not None
        self._ended.submit(end).add_done_callback(lambda _: self._forget(replica))

    def _forget(self, replica: Replica) -> None:
        with self._lock:
            self.replicas = [one for one in self.replicas if one is not replica]
            self._slowness.forget(replica.name)
        self._say(f"{replica.name}: stopped")

    def _publish(self) -> None:
        assert self._files is not None
        faults = odd_ones({one.name: one.versions for one in self.replicas if one.versions})
        for replica in self.replicas:
            replica.fault = faults.get(replica.name, "")
        members = [member for replica in self.replicas if (member := replica.member()) is not None]
        self._files.publish(members)
        for path in self._files.put_right():
            self._say(
                f"{path} is not as this fleet has written it; Envoy keeps what it had where it cannot read it: written anew"
            )
        serving = sum(not member.draining for member in members)
        if self.gateway is not None and serving != self._serving:
            # Where it does not answer it is being started again, and then told.
            with suppress(ServerFailed):
                self.gateway.allow_for(serving)
                self._serving = serving

    def _tell(self) -> None:
        status = self.status()
        if status != self._told:
            write_status(self.folder, status)
            self._told = status


@contextmanager
def attended(fleet: Fleet, every_s: float = 0.1) -> Iterator[None]:
    """``tick`` from a thread of its own for as long as the block lasts, for who has something else to do meanwhile.

    Raises:
        ServerFailed: at the end of the block, when every replica was given up.
    """
    over, failed = threading.Event(), list[BrimError]()

    def look() -> None:
        while not failed and not over.wait(every_s):
            try:
                fleet.tick()
            except BrimError as error:
                failed.append(error)

    thread = threading.Thread(target=look, name="brim-fleet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in failed:
        raise error


def _end_texts(replica: Replica) -> None:
    """A text ends with an error of its own when its model is unloaded; when its server ends it is only cut."""
    with suppress(ServerFailed):
        control = ModelControl(replica.server.endpoint, {})
        for model in replica.server.models:
            control.unload(model)
        time.sleep(LAST_WORDS_S)
