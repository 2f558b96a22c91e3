"""Stay beside an embedded server and heal it: dead stubs, models that answer no more, a crashed server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from brim.errors import ServerFailed
from brim.server.canary import Tensors
from brim.server.deaths import StubWatch
from brim.server.embedded import EmbeddedServer
from brim.server.healer import Event, Healer, Incident
from brim.server.healing import Action as Action
from brim.server.healing import Bounds as Bounds
from brim.server.healing import CanaryRecord, Cause
from brim.server.model_control import ModelControl

KEPT_EVENTS = 1000
POLL_S = 0.01
"""Between looks while a stub that has gone may still be collected."""
JOIN_S = 2.0


class Supervisor:
    """Heals a server for as long as the ``with`` block lives.

    ``with EmbeddedServer(...) as server, Supervisor(server) as supervisor:``. A heal that is under way when the block ends
    is broken off, and the server may be down then.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        *,
        canaries: Mapping[str, Tensors | None] | None = None,
        bounds: Bounds | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """Nothing happens before the ``with`` block.

        Args:
            server: a running embedded server.
            canaries: model name -> the row to send; the server's own when absent.
            bounds: how often, how long.
            on_event: told of each attempt when it has ended, on the supervisor's thread.
        """
        self.server = server
        self.canaries = dict(server.canaries if canaries is None else canaries)
        self.bounds = bounds or Bounds()
        self.failed: ServerFailed | None = None
        """Why it gave up; None as long as it heals."""
        self._tell = on_event
        self._counts = dict.fromkeys((*Cause, *Action), 0)
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._told_to_stop = threading.Event()
        self._watch = self._new_watch()
        self._watched = server.prefix
        self._verdicts: SimpleQueue[tuple[int, Incident]] = SimpleQueue()
        self._changed = threading.Condition()
        self._looks = 0
        self._heals = 0
        self._healing = False
        self._thread = threading.Thread(target=self._run, name="brim-supervisor", daemon=True)
        self._healer = Healer(server, self._control, self.bounds, on_event=self._note, wait=self._told_to_stop.wait)

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest attempts, oldest first."""
        return tuple(self._events)

    @property
    def counts(self) -> dict[str, int]:
        """Incidents by cause and attempts by action, since the block began."""
        return {str(key): count for key, count in self._counts.items()}

    @property
    def healing(self) -> bool:
        """Whether a heal is under way."""
        return self._healing

    def __enter__(self) -> Self:
        """Begin to look."""
        self._watch, self._watched = self._new_watch(), self.server.prefix
        self._watch.begin()
        self._thread.start()
        if self.bounds.canary_every_s > 0:
            for model in self.canaries:
                threading.Thread(target=self._ask, args=(model,), name=f"brim-canary-{model}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more, and break off a heal that is under way."""
        self._told_to_stop.set()
        # What it waits for may be the server's answer to a load; the server's own end is what ends that.
        self._thread.join(JOIN_S)

    def wait_healed(self, timeout_s: float, *, events: int = 0) -> bool:
        """Block until a look that began after this call has found nothing to heal; false when time ran out or it gave up.

        Args:
            timeout_s: bound on the wait.
            events: how many events there must be by then. Who has just killed something waits for one more than there
                were: a signal is delivered some milliseconds after it was sent, and until then all is well.
        """

        def healed() -> bool:
            return self._looks >= target and len(self._events) >= events

        with self._changed:
            target = self._looks + 2
            self._changed.wait_for(lambda: self.failed is not None or healed(), timeout_s)
            return self.failed is None and healed()

    def _control(self) -> ModelControl:
        return ModelControl(self.server.endpoint, self.canaries)

    def _run(self) -> None:
        try:
            while not self._told_to_stop.wait(POLL_S if self._watch.undecided else self.bounds.look_every_s):
                incident = self._look() or self._verdict()
                if incident is not None:
                    self._heal(incident)
                elif self._watch.undecided:
                    continue
                with self._changed:
                    self._looks += 1
                    self._changed.notify_all()
        except ServerFailed as error:
            self.failed = error
        finally:
            with self._changed:
                if self.failed is None and not self._told_to_stop.is_set():
                    self.failed = ServerFailed(
                        "the supervision has ended by a fault of its own; nothing is healed any more",
                        hint="the traceback on stderr says where; please report it",
                    )
                self._changed.notify_all()

    def _heal(self, incident: Incident) -> None:
        self._healing = True
        self._counts[incident.cause] += 1
        try:
            self._healer.heal(incident)
        finally:
            self._heals += 1
            self._healing = False

    def _note(self, event: Event) -> None:
        self._counts[event.action] += 1
        self._events.append(event)
        self._tell(event)

    def _new_watch(self) -> StubWatch:
        return StubWatch(
            self.server.unseen_stubs, lambda model: self._control().state(model), lambda: self._control().is_loading()
        )

    def _look(self) -> Incident | None:
        seen_s = time.monotonic()
        ended = self.server.how_it_ended()
        if ended:
            return Incident(Cause.CRASHED_SERVER, "", ended, seen_s)
        if self._watched != self.server.prefix:
            # The stubs of a former life have ended with it, and those of a new one have all answered a canary.
            self._watch, self._watched = self._new_watch(), self.server.prefix
        deaths = self._watch.look()
        # Stubs die with their server: the next look tells which of the two it was.
        if not deaths or self.server.how_it_ended() is not None:
            return None
        detail = f"stub process {', '.join(str(death.stub.process.pid) for death in deaths)} has died"
        models = ", ".join(sorted({death.stub.model for death in deaths} - {""}))
        seen_s = min(death.seen_s for death in deaths)
        return Incident(Cause.DEAD_STUB, models, detail, seen_s, dead=len(deaths))

    def _verdict(self) -> Incident | None:
        try:
            heals, incident = self._verdicts.get_nowait()
        except Empty:
            return None
        return incident if heals == self._heals else None

    def _ask(self, model: str) -> None:
        """A canary every so often; runs on a thread of its own, since a canary may wait long behind others."""
        record = CanaryRecord(self.bounds)
        while not self._told_to_stop.wait(self.bounds.canary_every_s) and self.failed is None:
            heals = self._heals
            try:
                control = self._control()
            except ServerFailed:
                return
            before = control.activity(model)
            heard, text = control.canary(model, timeout_s=self.bounds.canary_timeout_s)
            after = control.activity(model)
            if self._healing or heals != self._heals:
                record.forget()
                continue
            answered = before is not None and after is not None and after.succeeded > before.succeeded
            if record.heard(heard, others_answered=answered):
                detail = f"{record.failed} canaries in a row failed, the last with {heard.value}: {text}"
                incident = Incident(Cause.UNANSWERED_CANARY, model, detail, time.monotonic(), heard=heard)
                self._verdicts.put((heals, incident))
                record.forget()
