"""The checks of a language model, in the order of the suite."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from brim.errors import InputError
from brim.isolation.bench import Account
from brim.isolation.text import neighbours, seats, streams
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call
from brim.isolation.text.kv_blocks import wait_until_free
from brim.isolation.text.plans import Material

FREED_S = 1.0
"""Longest time from the last caller's end until nobody holds a KV block."""

Procedure = Callable[[TextBench, Material, str], Account]


@dataclass(frozen=True, slots=True)
class TextCheck:
    """One check.

    Attributes:
        id: stable name.
        title: what it proves.
        share: of the calls asked for; a check never makes fewer than one for each caller.
        procedure: how to run it.
        frees: whether all KV blocks must be free afterwards, by the server's own count.
    """

    id: str
    title: str
    share: float
    procedure: Procedure
    frees: bool = False

    def run(self, bench: TextBench, pool: Sequence[Call], alone_us: int) -> Account:
        """Do it, and ask afterwards whether the server still answers."""
        options = bench.options
        material = Material(
            pool,
            np.random.default_rng([options.seed, zlib.crc32(self.id.encode())]),
            max(options.callers, round(options.requests * self.share)),
            options.callers,
            alone_us,
        )
        incidents = bench.incidents
        account = self.procedure(bench, material, self.id)
        if account.skipped:
            return account
        if self.frees:
            _look_at_blocks(bench, account)
        trouble = bench.canary()
        if trouble or bench.incidents > incidents:
            bench.revive()
        if bench.supervisor and bench.incidents > incidents:
            what = bench.supervisor.events[-1:] or ("nothing is known about it yet",)
            account.troubles.append(f"the server died and was started again: {what[0]}")
        elif trouble:
            account.troubles.append(f"afterwards the server does not answer a good call: {trouble}")
        return account


def _look_at_blocks(bench: TextBench, account: Account) -> None:
    trouble, freed_us = "", None
    if bench.endpoint.metrics:
        trouble, freed_us = wait_until_free(bench.endpoint.metrics, bench.model, timeout_s=FREED_S)
    if trouble:
        account.troubles.append(trouble)
    elif freed_us is None:
        why = "has no count of KV blocks" if bench.endpoint.metrics else "is not known"
        account.note = "; ".join(filter(None, [account.note, f"whether blocks are free: the metrics page {why}"]))
    if freed_us is not None:
        account.figures = {**account.figures, "blocks_free_after_us": freed_us}


CHECKS = (
    TextCheck("identity", "every caller gets its own answer", 1.0, neighbours.identity),
    TextCheck("streams", "a text is the same however it is asked for, in whole characters", 0, streams.streams),
    TextCheck("stop_strings", "a stop string ends a text and never shows", 0.5, streams.stop_strings),
    TextCheck(
        "refused_neighbours",
        "a refused request hurts its own caller only",
        0.5,
        neighbours.refused_neighbours,
        frees=True,
    ),
    TextCheck(
        "caller_gone", "a caller that leaves hurts nobody and frees its slot", 1.0, neighbours.caller_gone, frees=True
    ),
    TextCheck("long_prompts", "a long prompt changes nobody's text", 0.25, neighbours.long_prompts, frees=True),
    TextCheck("secrets", "nothing of one prompt shows in another's answer", 0.5, neighbours.secrets),
    TextCheck("shared_prefix", "prompts that begin alike stay apart", 0.5, neighbours.shared_prefix, frees=True),
    TextCheck("same_request_ids", "callers with the same id get their own texts", 0.25, neighbours.same_request_ids),
    TextCheck("slow_readers", "who reads slowly, or never, stops nobody", 0.25, neighbours.slow_readers, frees=True),
    TextCheck("order", "short texts end first", 0.5, seats.order),
    TextCheck("free_seat", "a seat is taken by the next caller at once", 0, seats.free_seat),
    TextCheck("small_cache", "texts stay the same when the KV cache is too small for all", 0.25, seats.small_cache),
)


def chosen(ids: Sequence[str]) -> tuple[TextCheck, ...]:
    """The checks with these ids in the order of the suite; all when there are none.

    Raises:
        InputError: an id is unknown.
    """
    known = [check.id for check in CHECKS]
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise InputError(
            f"no check of a language model is called {', '.join(unknown)}", hint=f"the checks are {', '.join(known)}"
        )
    return tuple(check for check in CHECKS if not ids or check.id in ids)
