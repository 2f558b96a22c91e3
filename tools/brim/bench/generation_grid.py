"""The points at which the simulator of token models is held against the engine: engines, mixes of lengths, loads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from brim.engine.traffic import Lengths


@dataclass(frozen=True, slots=True)
class Variant:
    """How an engine is started.

    Attributes:
        chunk_tokens: most tokens of a step.
        kv_blocks: of its cache.
        max_sequences: seats in front of it.
    """

    chunk_tokens: int
    kv_blocks: int
    max_sequences: int

    def __str__(self) -> str:
        """For tables."""
        return f"{self.chunk_tokens} tokens a step, {self.kv_blocks} blocks, {self.max_sequences} seats"


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of prompts and texts."""

    name: str
    prompts: Lengths
    texts: Lengths


@dataclass(frozen=True, slots=True)
class Case:
    """One point.

    Attributes:
        variant: of the engine.
        mix: of the calls.
        load: open loop: Poisson arrivals at so much of the rate that the simulator says the engine can stand; None: closed.
        callers: of the closed loop.
    """

    variant: Variant
    mix: Mix
    load: float | None = None
    callers: int = 0

    @property
    def name(self) -> str:
        """For tables."""
        how = f"{self.callers} callers" if self.load is None else f"open loop, {self.load:.0%}"
        return f"{self.mix.name}; {how}; {self.variant}"

    def as_json(self) -> dict[str, Any]:
        """What makes it what it is."""
        return asdict(self)


WIDE = Variant(256, 512, 32)
FINE = Variant(96, 512, 32)
COARSE = Variant(512, 512, 32)
TIGHT = Variant(256, 48, 32)
"""48 blocks are 1,536 tokens: a dozen of the shorter calls."""
CHATS = Mix("chats", Lengths(60, 0.8, 4, 400), Lengths(40, 0.7, 4, 160))
DOCUMENTS = Mix("documents", Lengths(450, 0.7, 40, 1400), Lengths(20, 0.6, 4, 64))
CASES = (
    *(Case(WIDE, CHATS, load=load) for load in (0.3, 0.6, 0.85)),
    *(Case(WIDE, CHATS, callers=callers) for callers in (2, 8, 24)),
    *(Case(WIDE, DOCUMENTS, load=load) for load in (0.4, 0.7)),
    Case(WIDE, DOCUMENTS, callers=4),
    Case(FINE, DOCUMENTS, load=0.6),
    Case(FINE, CHATS, callers=12),
    Case(COARSE, DOCUMENTS, callers=8),
    Case(TIGHT, CHATS, load=0.7),
    Case(TIGHT, CHATS, callers=16),
)
"""Cases of one variant stand together: an engine is started once for them."""
SCALED_CHATS = Mix("ShareGPT-like", Lengths(161.31 / 4, 1.2, 4, 512), Lengths(337.99 / 4, 1.0, 4, 512))
"""The chats of ``brim.engine.traffic``, means and cuts over four: two batches of whole requests take a minute, not four."""
STATIC = Variant(256, 512, 16)
"""16 texts of 512 tokens and their prompts fit its cache, so that seats alone are the limit."""
