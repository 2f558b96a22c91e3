"""Spreading requests evenly and alike everywhere: numbers that look random and depend on nothing but what is put in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

_WORD = (1 << 64) - 1


def draw(count: int, choices: int, *, number: int, seed: int) -> Sequence[int]:
    """Which of ``count`` replicas are looked at for a request: ``choices`` of them in ascending order, or all when 0."""
    if not 0 < choices < count:
        return range(count)
    drawn: set[int] = set()
    step = 0
    while len(drawn) < choices:
        drawn.add(_mixed(seed, number, step) % count)
        step += 1
    return sorted(drawn)


def rank(name: str, key: int, seed: int) -> tuple[int, str]:
    """The highest of several names for a key is the same in every router, and moves only when that name goes away.

    Source: rendezvous hashing (Thaler, Ravishankar, 1996).
    """
    return _mixed(seed, key, _named(name)), name


@lru_cache(maxsize=4096)
def _named(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _mixed(*values: int) -> int:
    """One well-spread number of several (the finaliser of splitmix64)."""
    mixed = 0
    for value in values:
        mixed = (mixed + (value & _WORD) + 0x9E3779B97F4A7C15) & _WORD
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
        mixed ^= mixed >> 31
    return mixed
