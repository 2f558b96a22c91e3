"""Who may wait, who goes next, and who is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from brim.engine.engine import EngineLimits
from brim.engine.kv_cache import blocks_for
from brim.engine.lifecycle import Reason, Request, RequestClass
from brim.errors import InputError
from brim.units import US_PER_S, us_to_ms

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH
SMOOTHING = 0.2
"""Weight of the newest value in a running mean."""
SPARED_FOR_US = 10 * US_PER_S
"""After the last interactive request, batch requests leave seats free for so long."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decides.

    Attributes:
        max_sequences: requests that hold a seat: those whose prefill has begun and those that decode.
        max_waiting: requests that wait for a seat beyond those for whom one is free, all classes together.
        max_waiting_batch: requests of the batch class among them.
        chunk_tokens: most prompt tokens of a step; None for all that the engine's step leaves. A smaller chunk makes the gaps
            between the tokens of running texts shorter, and prefills longer.
        long_share: share of a step's prompt tokens that the oldest unfinished prefill gets even while shorter ones keep
            coming, 0 to 1.
        ageing_us: after waiting so long, by class, a request goes before every younger one of any class; a batch request
            then keeps its seat, and so only as far as ``batch_kept_share`` goes.
        first_token_within_us: a request whose wait for a seat leaves its prefill no time to be done within so long is refused,
            by class; a class left out is not bounded. See ``longest_wait_us``.
        spare_seats: seats that batch requests leave free while interactive ones come, so that these begin in the very next
            step. Without them each has to preempt first, which costs both a step and the batch request a prefill.
        preempts: whether running batch requests make room for interactive ones.
        max_preemptions: after so many, a request is left alone until it ends.
        batch_kept_share: share of the seats and of the KV blocks that batch requests may keep against interactive ones, above 0
            to 1; one at least, however large. Beyond it they get what is free, as long as they can be preempted.
    """

    max_sequences: int = 32
    max_waiting: int = 64
    max_waiting_batch: int = 32
    chunk_tokens: int | None = None
    long_share: float = 0.25
    ageing_us: dict[RequestClass, int] = field(
        default_factory=lambda: {INTERACTIVE: 2 * US_PER_S, BATCH: 30 * US_PER_S}, hash=False
    )
    first_token_within_us: dict[RequestClass, int] = field(default_factory=dict, hash=False)
    spare_seats: int = 0
    preempts: bool = True
    max_preemptions: int = 2
    batch_kept_share: float = 1.0

    @property
    def kept_seats(self) -> int:
        """Seats that batch requests may keep."""
        return max(1, int(self.max_sequences * self.batch_kept_share))

    def kept_blocks(self, limits: EngineLimits) -> int:
        """KV blocks that batch requests may keep."""
        return int(limits.total_blocks * self.batch_kept_share)

    def check(self, limits: EngineLimits) -> None:
        """Refuse what cannot work with an engine, all faults at once.

        Raises:
            InputError: a value is out of its range, or the engine's step has no room for a prefill beside the decodes.
        """
        faults = list(self._faults(limits))
        if faults:
            raise InputError(
                "; ".join(faults),
                hint="a step must hold one token of every sequence and at least one block of a prompt",
            )

    def _faults(self, limits: EngineLimits) -> Iterator[str]:
        for name, least in (
            ("max_sequences", 1),
            ("max_waiting", 0),
            ("max_waiting_batch", 0),
            ("spare_seats", 0),
            ("max_preemptions", 0),
        ):
            value = getattr(self, name)
            if value < least:
                yield f"{name} is {value}; {least} or more is expected"
        if self.spare_seats >= max(1, self.max_sequences):
            yield f"spare_seats is {self.spare_seats}; of {self.max_sequences} seats it leaves none to batch requests"
        if not 0 <= self.long_share <= 1:
            yield f"long_share is {self.long_share}; 0 to 1 is expected"
        if not 0 < self.batch_kept_share <= 1:
            yield f"batch_kept_share is {self.batch_kept_share}; above 0 to 1 is expected"
        elif self.kept_blocks(limits) < 1:
            yield f"batch_kept_share is {self.batch_kept_share}; of {limits.total_blocks} KV blocks it leaves none"
        if self.chunk_tokens is not None and self.chunk_tokens < limits.block_tokens:
            yield f"chunk_tokens is {self.chunk_tokens}; a block of the engine has {limits.block_tokens} tokens"
        most = limits.step_tokens - limits.block_tokens + 1
        if self.max_sequences > most:
            yield (
                f"max_sequences is {self.max_sequences}; a step of {limits.step_tokens} tokens with blocks of "
                f"{limits.block_tokens} leaves room for a prefill beside at most {most}"
            )
        for name in ("ageing_us", "first_token_within_us"):
            for kind, value_us in getattr(self, name).items():
                if value_us < 0:
                    yield f"{name} of {kind.name.lower()} is {value_us}; 0 or more is expected"
        missing = [kind.name.lower() for kind in RequestClass if kind not in self.ageing_us]
        if missing:
            yield f"ageing_us lacks {missing}: without it a class could starve"


def misfit(request: Request, limits: EngineLimits) -> tuple[Reason, str] | None:
    """Why a request can never run on this engine, and what to tell its caller; None when it can."""
    asked = f"the prompt has {len(request.tokens)} tokens and max_tokens is {request.sampling.max_tokens}"
    if request.most_tokens > limits.context_tokens:
        return Reason.TOO_LONG_FOR_CONTEXT, f"{asked}; the model takes {limits.context_tokens} together"
    blocks = blocks_for(request.most_tokens, limits.block_tokens)
    if blocks > limits.total_blocks:
        return (
            Reason.TOO_LONG_FOR_CACHE,
            f"{asked}: {blocks} KV blocks of {limits.block_tokens} tokens; the cache has {limits.total_blocks}",
        )
    return None


@dataclass(slots=True)
class Pace:
    """How fast things go: running means, None until something was seen.

    Attributes:
        step_us: time of a step.
        seat_us: time for which a request holds its seat.
    """

    step_us: float | None = None
    seat_us: float | None = None

    def saw_step(self, took_us: int) -> None:
        """One more step."""
        self.step_us = _smoothed(self.step_us, took_us)

    def saw_seat(self, held_us: int) -> None:
        """One more request left its seat of its own."""
        self.seat_us = _smoothed(self.seat_us, held_us)

    def seat_wait_us(self, ahead: int, free_seats: int, taken_seats: int) -> float:
        """Expected wait for a seat behind ``ahead`` others: seats come free at the rate taken seats / time each is held.

        0 while it is not known, so that nobody is refused on a guess.
        """
        missing = ahead + 1 - free_seats
        if missing <= 0 or self.seat_us is None:
            return 0.0
        return missing * self.seat_us / max(1, taken_seats)

    def prefill_us(self, tokens: int, tokens_a_step: int) -> float:
        """Expected time of so many prompt tokens."""
        return (self.step_us or 0.0) * blocks_for(tokens, tokens_a_step)


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)


def longest_wait_us(first_token_within_us: float, prefill_us: float) -> float:
    """How long a request may wait for its seat: what its own prefill leaves, but half of the time in any case.

    A prompt that takes longer by itself is late however soon it begins, and is let in all the same.
    """
    return max(first_token_within_us - prefill_us, first_token_within_us / 2)


def too_late(
    request: Request,
    now_us: int,
    waited_us: float,
    prefill_us: float,
    first_token_us: float,
    first_token_within_us: int | None,
) -> str | None:
    """What to tell a caller whose request cannot begin in time; None when it can.

    Args:
        request: whose.
        now_us: on the scheduler's clock.
        waited_us: time for which it has waited and is expected to wait for a seat, together.
        prefill_us: expected time of its own prefill.
        first_token_us: expected time from now to its first token.
        first_token_within_us: of its class; None without a bound.
    """
    if first_token_within_us is not None:
        most_us = longest_wait_us(first_token_within_us, prefill_us)
        if waited_us > most_us:
            return (
                f"a seat would take {us_to_ms(waited_us):.0f} ms, and this request may wait {us_to_ms(most_us):.0f} ms: "
                f"the class {request.kind.name.lower()} has its first token within "
                f"{us_to_ms(first_token_within_us):.0f} ms or is refused"
            )
    if request.deadline_us is not None and now_us + first_token_us > request.deadline_us:
        left_ms = us_to_ms(max(0, request.deadline_us - now_us))
        return (
            f"the first token would take {us_to_ms(first_token_us):.0f} ms; {left_ms:.0f} ms are left to the deadline"
        )
    return None
