"""What a policy is told: replicas as last scraped, what was done since, the request, and what to go by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.units import US_PER_S

LEAST_IMPORTANT = 1 << 31
"""Of a request that has no priority of its own: as Triton counts them, 1 is the most important."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as its metrics page last showed it. What the page did not say, or could not mean, is None.

    Attributes:
        name: which; also what equal replicas are told apart by.
        waiting: requests that wait for a seat or a batch.
        running: requests that are worked on.
        kv_free: part of the KV cache that no sequence holds, 0..1; None for tensor models.
        kv_blocks: KV blocks in all.
        kv_block_tokens: tokens a KV block.
        scraped_us: when the page was asked for; None when it never answered.
        incarnation: changes with every start of the replica; empty where the page does not tell.
        counted: a counter that only grows while the replica lives.
    """

    name: str
    waiting: float | None = None
    running: float | None = None
    kv_free: float | None = None
    kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    scraped_us: int | None = None
    incarnation: str = ""
    counted: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a policy knows of a request.

    Attributes:
        prompt_tokens: its prompt's length, estimated where it was not tokenised; 0 for tensors.
        blocks: hashes of its leading blocks, each over everything before it too; empty for tensors.
        priority: 1 is the most important.
    """

    prompt_tokens: int = 0
    blocks: tuple[int, ...] = ()
    priority: int = LEAST_IMPORTANT


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as it may be now: what was scraped, and what this router has done since.

    Attributes:
        replica: as last scraped.
        own: requests that this router sent there and that have not ended.
        unseen: those of ``own`` that the scrape cannot have seen.
        unseen_behind: those of ``unseen`` that are less important than the request to be placed.
        unseen_tokens: the prompts of ``unseen`` together.
        ended: requests that the scrape may have seen and that have ended since.
        matched_blocks: leading blocks of the prompt that it was given before, and probably still has.
    """

    replica: Replica
    own: int = 0
    unseen: int = 0
    unseen_behind: int = 0
    unseen_tokens: int = 0
    ended: int = 0
    matched_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a policy goes by.

    Attributes:
        seed: tells equal replicas apart, and draws ``choices``.
        choices: look at so many replicas, drawn anew for each request, and at those that hold the beginning of its prompt;
            0: at all. Envoy's own LEAST_REQUEST looks at 2.
        stale_us: a page that was asked for longer ago than this says nothing.
        settle_us: a request that was sent less than this before a page was asked for may not be on it.
        block_tokens: tokens that one hashed block of a prompt stands for.
        least_match_tokens: a shorter match is none: what all prompts have in common tells no replica from another.
        saturated_waiting: a replica where so many wait is taken only when all are saturated, whatever it holds.
        saturated_kv_free: likewise one that has less than this part of its KV cache free.
        load_factor: a replica is taken for its prefix only while its outstanding requests, the new one included, are at
            most this many times the mean.
        free_load: below so many outstanding requests the mean does not matter.
        waiting_weight: what a request that waits costs on top of being outstanding.
        kv_weight: what a full KV cache costs.
        prefix_weight: what it is worth to hold all of the prompt. A replica gets no further ahead of the others than this.
        indifference: costs that differ by less are equal; the prompt's prefix then decides, alike in every router.
    """

    seed: int = 0
    choices: int = 0
    stale_us: int = 2 * US_PER_S
    settle_us: int = 0
    block_tokens: int = 16
    least_match_tokens: int = 128
    saturated_waiting: float = 5
    saturated_kv_free: float = 0.1
    load_factor: float = 1.34
    free_load: int = 2
    waiting_weight: float = 1.0
    kv_weight: float = 2.0
    prefix_weight: float = 1.5
    indifference: float = 0.25


class Reason(StrEnum):
    """Why a replica was taken."""

    TURN = "turn"
    LEAST = "least"
    WARM = "warm"
    """It holds the beginning of the prompt, and the others were not better by more than that is worth."""
    WARM_SATURATED = "warm_saturated"
    """Another one, since those that hold it are saturated."""
    WARM_OVER_CAP = "warm_over_cap"
    """Another one, since those that hold it would have too much more than the mean."""
    WARM_OUTWEIGHED = "warm_outweighed"
    """Another one, since those that hold it have more to do than that is worth."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, by its place among the candidates, and why."""

    index: int
    reason: Reason
