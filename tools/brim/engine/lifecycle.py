"""A request's life: what is asked, what is told while it goes on, and the one way in which it ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from brim.engine.engine import Sampling


class RequestClass(IntEnum):
    """Who waits for the answer. A lower value goes first."""

    INTERACTIVE = 0
    """Somebody reads along."""
    BATCH = 1
    """Nobody does: refused first, preempted if needed, and never starved."""


class Reason(StrEnum):
    """Why a request was refused or has failed. The values are stable: callers and dashboards go by them."""

    ROOM_FULL = "room_full"
    """The waiting room has no place for its class."""
    SHED = "shed"
    """It waited, had not begun, and gave its place to an interactive request."""
    DEADLINE = "deadline"
    """It cannot begin before its deadline or within the longest wait of its class."""
    TOO_LONG_FOR_CONTEXT = "too_long_for_context"
    """Prompt and text together are more than the model takes."""
    TOO_LONG_FOR_CACHE = "too_long_for_cache"
    """Prompt and text together are more than the whole KV cache holds."""
    DRAINING = "draining"
    """The server is going down and takes nothing new."""
    ENGINE_LOST = "engine_lost"
    """The engine's process has ended or hangs; another one is being started, so it may be tried again soon."""
    ENGINE_DOWN = "engine_down"
    """The engine could not be started again: the model answers nobody until it is loaded anew."""


class End(StrEnum):
    """How a request ended. Each ends once."""

    STOP = "stop"
    """End-of-text, a stop token or a stop string."""
    LENGTH = "length"
    """All of ``max_tokens`` were produced."""
    CANCELLED = "cancelled"
    """Its caller went."""
    REFUSED = "refused"
    """It never began; ``Ended.reason`` says why."""
    EXPIRED = "expired"
    """Its deadline passed after it had begun."""
    FAILED = "failed"
    """The engine could not go on with it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One caller's call, validated (``brim.engine.validation``).

    Attributes:
        id: differs from that of every other living request. Not the caller's word for it, which may repeat.
        tokens: the prompt, 1 token or more.
        sampling: how to go on.
        kind: whether somebody waits.
        deadline_us: when the answer is of no use any more, on the scheduler's clock; None for never.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    kind: RequestClass = RequestClass.INTERACTIVE
    deadline_us: int | None = None

    @property
    def most_tokens(self) -> int:
        """Prompt and the longest text together."""
        return len(self.tokens) + self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of a request, one or more, in order."""

    request_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a request: nothing more comes for it.

    Attributes:
        request_id: whose.
        end: how.
        output_tokens: tokens that were delivered before it.
        reason: of a refusal, and of a failure that has one; else None.
        message: what to tell the caller where the end is an error: where the limit lies and where it comes from.
    """

    request_id: str
    end: End
    output_tokens: int = 0
    reason: Reason | None = None
    message: str = ""


Event = Delta | Ended
