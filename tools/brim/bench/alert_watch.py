"""Watches the alerts of a Prometheus while somebody else makes it have some."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from brim.errors import CouldNotTell
from brim.monitor.prometheus import Alert, Prometheus

LOOK_EVERY_S = 0.2
STOP_TIMEOUT_S = 60.0


class State(StrEnum):
    """What an alert has become."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    """No longer firing."""
    WITHDRAWN = "withdrawn"
    """No longer pending, without having fired."""


@dataclass(frozen=True, slots=True)
class Change:
    """One alert that has become something.

    Attributes:
        at_s: since the watch began.
        alert: its name.
        who: its labels, as words.
        state: what it has become.
    """

    at_s: float
    alert: str
    who: str
    state: State

    def as_json(self) -> dict[str, Any]:
        """For the envelope."""
        return asdict(self)


Key = tuple[str, str]


class AlertWatch:
    """Notes every change while a ``with`` block runs, from a thread of its own."""

    def __init__(self, prometheus: Prometheus, on_change: Callable[[Change], None] = lambda _: None) -> None:
        """Nothing is asked before the block."""
        self._prometheus, self._say = prometheus, on_change
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="brim-alerts", daemon=True)
        self._error: Exception | None = None
        self._states: dict[Key, State] = {}
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        """Begin."""
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End; what went wrong while asking is raised here, unless something else is on its way already."""
        self._over.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._error is not None and kind is None:
            raise CouldNotTell(f"the alerts could not be read: {self._error}", hint="is Prometheus still there?")

    def states(self, alert: str) -> list[State]:
        """What the alert of this name has become, in turn, whoever it is about."""
        return [change.state for change in self.changes if change.alert == alert]

    def failed(self) -> bool:
        """Whether nothing is being noted any more."""
        return self._error is not None

    def _look(self) -> None:
        try:
            while not self._over.wait(LOOK_EVERY_S):
                self._note(time.monotonic() - self._began_s, self._prometheus.alerts())
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self._error = error

    def _note(self, at_s: float, alerts: list[Alert]) -> None:
        now = {_key(alert): State(alert.state) for alert in alerts}
        for key, before in list(self._states.items()):
            if key not in now:
                del self._states[key]
                self._change(at_s, key, State.RESOLVED if before is State.FIRING else State.WITHDRAWN)
        for key, state in now.items():
            if self._states.get(key) is not state:
                self._states[key] = state
                self._change(at_s, key, state)

    def _change(self, at_s: float, key: Key, state: State) -> None:
        change = Change(round(at_s, 1), *key, state)
        self.changes.append(change)
        self._say(change)


def _key(alert: Alert) -> Key:
    return alert.name, ", ".join(f"{name}={value}" for name, value in sorted(alert.labels.items()))
