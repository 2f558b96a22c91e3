"""When to heal, what to do, and when to give up: decisions only, from what was seen.

The figures behind the rules were measured on 24.10 (docs/serving.md has them): a dead stub's running batch is released by
Triton itself 0.7 to 2.0 s after the death, every further batch of its queue one second later; a reload of the model
takes what its load takes and leaves the other models alone; killing the server releases everybody within 0.2 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What is wrong."""

    DEAD_STUB = "dead_stub"
    UNANSWERED_CANARY = "unanswered_canary"
    CRASHED_SERVER = "crashed_server"


class Action(StrEnum):
    """What is done about it: load one model anew, or end the server and start it on the same ports."""

    RELOAD = "reload"
    RESTART = "restart"


class Heard(StrEnum):
    """What came of a canary."""

    ANSWER = "answer"
    REFUSAL = "refusal"
    """The server said no without running the model (queue full, not loaded, request refused)."""
    FAILURE = "failure"
    """The model's backend failed."""
    SILENCE = "silence"
    """Nothing within the canary's timeout, or no connection."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the supervision, in seconds and counts.

    Attributes:
        heals: attempts within ``within_s`` before it gives up.
        within_s: the window of that count.
        look_every_s: how often stubs and server are looked at.
        release_s: from the detection of a dead stub: callers that Triton has not released by then are released by a
            restart. With the look before and the kill after it, this makes the promised 2 s.
        reload_s: what a reload gets before the server is restarted; at least twice what the server's start took.
        canary_every_s: pause between a model's canaries; 0 sends none.
        canary_timeout_s: how long a canary waits for its answer.
        canary_failures: canaries in a row that must fail while the model answers nobody else either.
        leaked_stubs: dead stubs that a server may keep from earlier reloads; with more it is restarted. Each is a
            zombie process, some 36 threads and a shared-memory region (measured).
    """

    heals: int = 5
    within_s: float = 600.0
    look_every_s: float = 0.1
    release_s: float = 1.5
    reload_s: float = 5.0
    canary_every_s: float = 5.0
    canary_timeout_s: float = 30.0
    canary_failures: int = 3
    leaked_stubs: int = 2


def action_for_dead_stub(*, waiting: int | None, dead: int, leaked: int, bounds: Bounds) -> Action:
    """Reload where Triton releases all callers in time by itself, else restart.

    Args:
        waiting: requests in the model's queue; None when that cannot be told.
        dead: stubs of the server that have just died.
        leaked: stubs that had died before and that Triton still waits for.
        bounds: the limits.
    """
    if waiting != 0 or dead != 1 or leaked > bounds.leaked_stubs:
        return Action.RESTART
    return Action.RELOAD


class CanaryRecord:
    """What a model's canaries have told so far. Busy is not dead: a model that answers anybody is alive."""

    def __init__(self, bounds: Bounds) -> None:
        """No canary has failed yet."""
        self.bounds = bounds
        self.failed = 0

    def heard(self, heard: Heard, *, others_answered: bool) -> bool:
        """Take one canary's outcome; true when the model must be healed.

        ``others_answered``: whether the model has answered any request while the canary waited. Under overload a canary
        waits as long as everybody else, and a restart would be the worst thing to do.
        """
        if heard in (Heard.ANSWER, Heard.REFUSAL) or others_answered:
            self.failed = 0
            return False
        self.failed += 1
        return self.failed >= self.bounds.canary_failures

    def forget(self) -> None:
        """Start anew, after a heal."""
        self.failed = 0


def action_for_canary(heard: Heard) -> Action:
    """A model that fails is loaded anew; one that is silent hangs, and its unload would hang with it."""
    return Action.RELOAD if heard is Heard.FAILURE else Action.RESTART
