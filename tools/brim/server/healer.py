"""Heal one incident: release the callers first, then bring the model back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from brim.errors import BrimError, ServerFailed
from brim.retries import Budget
from brim.server.healing import (
    Action,
    Bounds,
    Cause,
    Heard,
    action_for_canary,
    action_for_dead_stub,
)
from brim.server.logs import log_tail
from brim.server.model_control import Activity
from brim.units import US_PER_S

POLL_S = 0.05
DID = {Action.RELOAD: "model loaded anew", Action.RESTART: "server restarted"}


@dataclass(frozen=True, slots=True)
class Incident:
    """What was seen.

    Attributes:
        cause: the kind.
        model: whose; several are joined by commas, and "" is the whole server, or a stub of which that cannot be told.
        detail: one clause for people.
        seen_s: when, on the healer's clock.
        dead: stubs that have just died.
        heard: what came of the last canary.
    """

    cause: Cause
    model: str
    detail: str
    seen_s: float
    dead: int = 0
    heard: Heard = Heard.ANSWER


@dataclass(frozen=True, slots=True)
class Event:
    """One attempt to heal.

    Attributes:
        time_us: when it ended, in microseconds since the epoch.
        model: whose; "" when the whole server had crashed, or when that could not be told.
        cause: what was wrong.
        action: what was done.
        took_us: from the detection until the canary answered, or until this attempt failed.
        ok: whether the canary answered.
        message: what was seen, and why the attempt failed if it did.
    """

    time_us: int
    model: str
    cause: Cause
    action: Action
    took_us: int
    ok: bool
    message: str

    def __str__(self) -> str:
        """The event's one line in a log."""
        whose = f"{self.model}: " if self.model else ""
        what = DID[self.action] if self.ok else f"{self.action.value} failed"
        seen = self.message.partition("\n")[0]
        return f"supervision: {whose}{self.cause.value.replace('_', ' ')}: {what} after {self.took_us / US_PER_S:.2f} s: {seen}"


class Patient(Protocol):
    """What a healer does to a server as a whole; ``EmbeddedServer`` is one."""

    log_file: Path
    start_took_us: int

    def drop(self) -> None:
        """End it at once."""

    def restart(self, *, cancelled: Callable[[], bool]) -> None:
        """Start it anew on the same ports."""

    def killed_stubs(self) -> int:
        """Dead stubs that it still waits for."""


class Control(Protocol):
    """What a healer does to one model; ``ModelControl`` is one."""

    def unload(self, model: str) -> str | None:
        """Refuse new callers."""

    def load(self, model: str, *, timeout_s: float) -> str | None:
        """Load it."""

    def state(self, model: str) -> tuple[str, str] | None:
        """State and reason in the repository index."""

    def activity(self, model: str) -> Activity | None:
        """Its counters."""

    def canary(self, model: str, *, timeout_s: float) -> tuple[Heard, str]:
        """Ask it."""


class Healer:
    """Takes incidents one after the other. ``wait`` sleeps and tells whether to stop, so that tests need no clock."""

    def __init__(
        self,
        server: Patient,
        control: Callable[[], Control],
        bounds: Bounds,
        *,
        on_event: Callable[[Event], None],
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the parts; ``control`` gives the model control of the server as it is now."""
        self.server = server
        self.control = control
        self.bounds = bounds
        self.budget = Budget(bounds.heals, bounds.within_s)
        self.on_event = on_event
        self.wait = wait
        self.clock = clock

    def heal(self, incident: Incident) -> None:
        """Release the callers, then try until a canary answers; an end of ``wait`` ends it half-way.

        Raises:
            ServerFailed: the budget is spent. The server is down then, so that nobody waits for it.
        """
        action, trouble = self._release(incident), ""
        while True:
            pause_s = self.budget.spend(self.clock())
            if pause_s is None:
                self.server.drop()
                raise self._gave_up(incident, trouble)
            if self.wait(pause_s):
                return
            trouble = self._reload(incident.model) if action is Action.RELOAD else self._restart()
            if self.wait(0):
                return
            message = f"{incident.detail}; {trouble}" if trouble else incident.detail
            took_us = round((self.clock() - incident.seen_s) * US_PER_S)
            self.on_event(
                Event(time.time_ns() // 1_000, incident.model, incident.cause, action, took_us, not trouble, message)
            )
            if not trouble:
                return
            action = Action.RESTART
            self.server.drop()

    def _release(self, incident: Incident) -> Action:
        """See to it that nobody waits for what cannot answer any more; what is left to do then."""
        action = Action.RESTART
        if incident.cause is Cause.DEAD_STUB:
            action = self._release_from_dead_stub(incident)
        elif incident.cause is Cause.UNANSWERED_CANARY and action_for_canary(incident.heard) is Action.RELOAD:
            action = Action.RESTART if self.control().unload(incident.model) else Action.RELOAD
        if action is Action.RESTART:
            self.server.drop()
        return action

    def _release_from_dead_stub(self, incident: Incident) -> Action:
        control, model = self.control(), incident.model
        if not model:
            return Action.RESTART
        leaked = self.server.killed_stubs() - incident.dead
        before = control.activity(model)
        if before is None or control.unload(model):
            return Action.RESTART
        activity = control.activity(model)
        waiting = activity.waiting if activity else None
        if (
            action_for_dead_stub(waiting=waiting, dead=incident.dead, leaked=leaked, bounds=self.bounds)
            is Action.RESTART
        ):
            return Action.RESTART
        while self.clock() < incident.seen_s + self.bounds.release_s:
            # Nothing was running, and Triton has collected the dead stub; or the batch that ran has been failed.
            if control.state(model) == ("UNAVAILABLE", "unloaded"):
                return Action.RELOAD
            activity = control.activity(model)
            if activity is not None and activity.failed > before.failed:
                return Action.RELOAD
            if self.wait(POLL_S):
                break
        return Action.RESTART

    def _reload(self, model: str) -> str:
        """Empty when the canary answered, else why not."""
        deadline = self.clock() + max(self.bounds.reload_s, 2 * self.server.start_took_us / US_PER_S)
        control = self.control()
        trouble = control.load(model, timeout_s=deadline - self.clock())
        if trouble:
            return trouble
        while True:
            heard, text = control.canary(model, timeout_s=max(POLL_S, deadline - self.clock()))
            if heard is Heard.ANSWER:
                return ""
            # Callers who had waited outside may fill its queue at once; then it is alive, and the canary's turn will come.
            if heard is not Heard.REFUSAL or self.clock() >= deadline or self.wait(POLL_S):
                return f"its canary after the reload: {text}"

    def _restart(self) -> str:
        """Empty when every canary answered, else why not."""
        try:
            self.server.restart(cancelled=lambda: self.wait(0))
        except BrimError as error:
            return error.message
        return ""

    def _gave_up(self, incident: Incident, trouble: str) -> ServerFailed:
        whose = f"{incident.model}: " if incident.model else ""
        return ServerFailed(
            f"{whose}{incident.cause.value.replace('_', ' ')} ({incident.detail}), and {self.bounds.heals} attempts within "
            f"{self.bounds.within_s:g} s are spent; the server is down\n"
            + (
                f"the last attempt: {trouble}"
                if trouble
                else f"the end of {self.server.log_file}:\n{log_tail(self.server.log_file)}"
            ),
            hint=f"{self.server.log_file} tells what ends it; a request that kills its model must be refused in front of it",
        )
