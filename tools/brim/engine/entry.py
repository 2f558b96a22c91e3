"""What the scheduler knows of a living request, and of a sequence that is on its way out."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.engine.lifecycle import Request, RequestClass


@dataclass(eq=False, slots=True)
class Entry:
    """A living request.

    Attributes:
        request: as it was submitted.
        number: in the order of submission; owns its blocks in the ledger.
        arrived_us: when it was submitted.
        prompt: what the engine has to prefill: the request's tokens, and its text so far after a preemption.
        hashes: of the full blocks of ``prompt``.
        cached_tokens: leading tokens of ``prompt`` that the engine is expected to have; while waiting, when it got its seat.
        seated_us: when it got its seat; None without one.
        sequence: what runs for it in the engine; None for nothing.
        piece_tokens: length of the prefix that ``sequence`` is; 0 when it is the whole prompt.
        decoding: ``sequence`` has produced a token of its text since it was added.
        text: tokens delivered.
        replay: tokens of ``text`` that ``sequence`` has produced again so far; None when it is not to repeat any more.
        first_us: when its first token was delivered.
        last_us: when its last token was delivered.
        preemptions: how often it lost its seat.
        began: had a seat once.
        by_age: has its seat for having waited long, and keeps it.
    """

    request: Request
    number: int
    arrived_us: int
    prompt: tuple[int, ...]
    hashes: list[int]
    cached_tokens: int = 0
    seated_us: int | None = None
    sequence: int | None = None
    piece_tokens: int = 0
    decoding: bool = False
    text: list[int] = field(default_factory=list)
    replay: int | None = None
    first_us: int | None = None
    last_us: int = 0
    preemptions: int = 0
    began: bool = False
    by_age: bool = False

    @property
    def remaining_tokens(self) -> int:
        """Prompt tokens to prefill: at least the last one, whose successor is drawn from it."""
        return max(1, len(self.prompt) - self.cached_tokens)

    @property
    def engine_tokens(self) -> tuple[int, ...]:
        """Tokens of ``sequence`` so far, as far as they were told."""
        return (*self.request.tokens, *self.engine_text)

    @property
    def engine_text(self) -> list[int]:
        """Those of them that are text."""
        return self.text if self.replay is None else self.text[: self.replay]

    @property
    def may_be_shed(self) -> bool:
        """Whether it may be refused yet: a batch request that never had a seat. A text that has begun is finished."""
        return self.request.kind is RequestClass.BATCH and not self.began


@dataclass(slots=True)
class Leaving:
    """A sequence on its way out of the engine: whose blocks and seat it still takes, and whether the engine was told."""

    number: int
    told: bool = False
