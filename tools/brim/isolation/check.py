"""A check: what is sent, to what end, and when there is nothing to check."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from brim.isolation.bench import Account, Bench
from brim.isolation.flights import Flights
from brim.isolation.pool import Pool
from brim.isolation.request import Request
from brim.isolation.waiting import wait_until_none_waits

OVERFULL = 2.5
"""Callers of a check that needs full batches, for each row that a batch may have."""
OVERFULL_ROUNDS = 4
FREED_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Material:
    """What a check may use.

    Attributes:
        pool: good rows of the model under test.
        other: good rows of another model on the same server, where there is one.
        draw: random numbers of this check alone.
        count: about how many rows to send.
        callers: how many callers there will be.
        few: share of bad requests where there are few.
    """

    pool: Pool
    other: Pool | None
    draw: np.random.Generator
    count: int
    callers: int
    few: float = 0.01


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: stable name.
        title: what it proves.
        share: of the requests asked for; a check never sends fewer than two for each caller, where it can.
        make: the requests in sending order. Those with ``expected`` None are asked alone first.
        needless: why there is nothing to check here; empty when there is.
        frees: whether the server's own count of waiting requests must come back to 0 afterwards.
        overfull: whether full batches are needed, so that more callers wait than a batch has room for.
        kills: whether the check itself kills a part of the server.
        narrow: given the requests once it is known what each gets alone, those to send; with a reason and none of
            them, there is nothing to check.
        procedure: how to run it, where sending what ``make`` makes is not all; it then does without ``make``.
    """

    id: str
    title: str
    share: float
    make: Callable[[Material], list[Request]] = lambda material: []
    needless: Callable[[Material], str] = lambda material: ""
    frees: bool = False
    overfull: bool = False
    kills: bool = False
    narrow: Callable[[Sequence[Request]], tuple[Sequence[Request], str]] = lambda requests: (requests, "")
    procedure: Callable[[Bench, Material, str], Account] | None = None

    def callers(self, wanted: int, max_rows: int) -> int:
        """How many callers at once: ``wanted``, more where full batches are needed."""
        return max(wanted, round(OVERFULL * max_rows)) if self.overfull else wanted

    def count(self, requests: int, callers: int) -> int:
        """About how many rows, of ``requests`` asked for: enough for every caller to meet others more than once."""
        return max((OVERFULL_ROUNDS if self.overfull else 2) * callers, round(requests * self.share))

    def run(self, bench: Bench) -> Account:
        """Do it, and ask afterwards whether the server still answers."""
        options = bench.options
        callers = self.callers(options.callers, bench.pool.contract.max_rows)
        material = Material(
            bench.pool,
            bench.other,
            np.random.default_rng([options.seed, zlib.crc32(self.id.encode())]),
            self.count(options.requests, callers),
            callers,
            options.poison_share,
        )
        needless = self.needless(material)
        if needless:
            return Account(skipped=needless)
        incidents = bench.incidents()
        account = self.procedure(bench, material, self.id) if self.procedure else self._send(bench, material)
        if account.skipped:
            return account
        trouble = bench.canary()
        if trouble or bench.incidents() > incidents:
            bench.revive()
        if not self.kills and bench.supervisor and bench.incidents() > incidents:
            what = bench.supervisor.events[-1:] or ("nothing is known about it yet",)
            account.troubles.append(f"the server died and was started again: {what[0]}")
        elif trouble:
            account.troubles.append(f"afterwards the server does not answer a good row: {trouble}")
        elif self.frees and bench.endpoint.metrics:
            left = wait_until_none_waits(bench.endpoint.metrics, bench.model, timeout_s=FREED_TIMEOUT_S)
            account.troubles += [left] if left else []
        return account

    def _send(self, bench: Bench, material: Material) -> Account:
        account = Account()
        requests, reason = self.narrow(bench.learn(self.make(material), self.id, account))
        if bench.dead or (account.tally.hurt and not requests):
            return account
        if reason and not requests:
            account.skipped = reason
            return account
        send_all(bench, requests, self.id, account, callers=material.callers)
        return account


def send_all(bench: Bench, requests: Sequence[Request], prefix: str, account: Account, *, callers: int) -> Flights:
    """All of them, many at once, and when. Some that are not sent any more are a trouble: too many callers had no answer."""
    flights = bench.company(requests, prefix, account, callers=callers)
    unsent = len(requests) - len(flights.requests)
    if unsent:
        account.troubles.append(f"{unsent} more requests were not sent: too many callers had no answer")
    return flights
