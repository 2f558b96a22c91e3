"""Tell the stubs that have died from those that Triton has ended itself.

Triton ends stubs all the time: at an unload, at a failed load, and when a load of a loaded model has swapped the new one in
(the former may also linger on, unused, until a later load; measured on 24.10). It collects what it has ended, so a stub that
stays a zombie has died; but a large one on a busy machine stays a zombie for a while, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from brim.server.stubs import Stub

SURE_AFTER_S = 0.3
"""How long a zombie may wait to be collected before it counts as died. 0.02 s were too short beside 120 callers on two cores."""
SCAN_EVERY_S = 0.25
"""How often stubs that somebody else's load has made are looked for; with a millisecond a scan, half a percent of a core."""
LOAD_FAILS_WITHIN_S = 5.0
"""A stub that dies while its model is loaded fails the load about 2 s later, and Triton collects it; but one that dies before it
has reported for the first time holds that load up for ever (both measured on 24.10)."""
LOADING = "LOADING"
"""State of a model in its first load; one that is loaded anew stays READY (core's ``ModelLifeCycle::AsyncLoad``)."""
GIVEN_UP = frozenset({"UNLOADING", "UNAVAILABLE"})
"""States of a model whose stubs nobody misses."""


@dataclass(frozen=True, slots=True)
class Death:
    """A stub that has died, and when it was first seen gone, on the watch's clock."""

    stub: Stub
    seen_s: float


class StubWatch:
    """The stubs of one life of a server."""

    def __init__(
        self,
        unseen: Callable[[Collection[int]], list[Stub]],
        state: Callable[[str], tuple[str, str] | None],
        loading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is known yet.

        Args:
            unseen: the server's stubs, living and dead, but for some process ids.
            state: a model's state and reason; None when the server does not tell.
            loading: whether any model is being loaded that was not loaded before.
            clock: seconds.
        """
        self._unseen = unseen
        self._state = state
        self._loading = loading
        self._clock = clock
        self._living: dict[int, Stub] = {}
        self._gone: dict[int, Death] = {}
        self._settled: dict[int, Stub] = {}
        """Decided about, and kept as long as they stand in the process table, so that no later scan takes them for new."""
        self._scan_at = clock()

    @property
    def undecided(self) -> bool:
        """Whether a stub has gone so lately that it may still be collected."""
        now_s = self._clock()
        return any(now_s < death.seen_s + SURE_AFTER_S for death in self._gone.values())

    def begin(self) -> None:
        """Learn which stubs there are. Those that are dead already were dead before the watch."""
        self._scan()
        self._settled |= {pid: stub for pid, stub in self._living.items() if stub.duty is None}
        self._living = {pid: stub for pid, stub in self._living.items() if stub.duty is not None}

    def look(self) -> list[Death]:
        """The stubs that have died since the last look; each is told once."""
        now_s = self._clock()
        if now_s >= self._scan_at:
            self._scan()
        left = {pid: stub for pid, stub in self._living.items() if stub.has_gone()}
        if left:
            for pid, stub in left.items():
                del self._living[pid]
                self._gone[pid] = Death(stub, now_s)
            # What replaces them was started before they were told to go.
            self._scan()
        died, unsure = [], []
        for death in list(self._gone.values()):
            verdict = self._has_died(death, now_s)
            if verdict is None:
                unsure.append(death)
                continue
            self._settle(death)
            if verdict:
                died.append(death)
        if not died:
            return []
        # Stubs that go together have died together, and one restart is for all of them.
        together = [death for death in unsure if death.stub.is_uncollected() and death.stub.duty is not None]
        for death in together:
            self._settle(death)
        return died + together

    def _settle(self, death: Death) -> None:
        pid = death.stub.process.pid
        self._settled[pid] = self._gone.pop(pid).stub

    def _has_died(self, death: Death, now_s: float) -> bool | None:
        """None: that cannot be told yet."""
        stub = death.stub
        if any(other.replaces(stub) for other in self._living.values()):
            return False
        uncollected = stub.is_uncollected()
        if uncollected and now_s < death.seen_s + SURE_AFTER_S:
            return None
        if stub.duty is None:
            if not uncollected:
                return False
            state = LOADING if self._loading() else ""
        else:
            state = (self._state(stub.model) or ("",))[0]
        if uncollected:
            if state == LOADING and now_s < death.seen_s + LOAD_FAILS_WITHIN_S:
                return None
            return state not in GIVEN_UP
        return state == "READY" and not any(other.model == stub.model for other in self._living.values())

    def _scan(self) -> None:
        """Learn of stubs that are new. Those known already stay, so that no death is missed between a look and a scan."""
        self._settled = {pid: stub for pid, stub in self._settled.items() if stub.is_uncollected()}
        seen = self._living.keys() | self._gone.keys() | self._settled.keys()
        self._living |= {stub.process.pid: stub for stub in self._unseen(seen)}
        self._scan_at = self._clock() + SCAN_EVERY_S
