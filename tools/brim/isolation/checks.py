"""The checks: each says what is sent. How it is judged is the same for all (``brim.isolation.judge``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from brim.isolation.malformed import framing_requests, malformed_requests
from brim.isolation.pool import Pool
from brim.isolation.request import Expected, Leaving, Request
from brim.isolation.rows import Special, markable, marked_rows, poison_rows, rows_together
from brim.isolation.wire import wire_tensors
from brim.measure.plan import Protocol

FEW, MANY = 0.01, 0.10
"""Shares of bad requests among good ones: the first half of a check has few, the second many."""
LEAVING_SHARE = 0.25
MARKED_MOST = 300
"""Each marked row is asked alone first, so there is a bound that does not grow with the requests."""
TARGETS = 4
NEIGHBOURS = (1, 2, 7, 31, 99)
MANY_ROWS = 8
FRAMING_SHARE = 0.25
OVERFULL = 2.5
"""Callers of a check that needs full batches, for each row that a batch may have."""
OVERFULL_ROUNDS = 4
JSON_SHARE = 0.25
"""Of the good requests over HTTP, where JSON can carry them."""
PROTOCOLS = tuple(Protocol)


@dataclass(frozen=True, slots=True)
class Material:
    """What a check may use.

    Attributes:
        pool: good rows of the model under test.
        other: good rows of another model on the same server, where there is one.
        draw: random numbers of this check alone.
        count: about how many rows to send.
        callers: how many callers there will be.
    """

    pool: Pool
    other: Pool | None
    draw: np.random.Generator
    count: int
    callers: int


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
    """

    id: str
    title: str
    share: float
    make: Callable[[Material], list[Request]]
    needless: Callable[[Material], str] = lambda material: ""
    frees: bool = False
    overfull: bool = False

    def callers(self, wanted: int, max_rows: int) -> int:
        """How many callers at once: ``wanted``, more where full batches are needed."""
        return max(wanted, round(OVERFULL * max_rows)) if self.overfull else wanted

    def count(self, requests: int, callers: int) -> int:
        """About how many rows, of ``requests`` asked for: enough for every caller to meet others more than once."""
        return max((OVERFULL_ROUNDS if self.overfull else 2) * callers, round(requests * self.share))


def good(pool: Pool, count: int, draw: np.random.Generator) -> list[Request]:
    """``count`` good requests: the pool's rows in shuffled order, again and again, over either protocol.

    Some of those over HTTP travel as JSON, since the server reads and writes them by other code.
    """
    rounds = -(-count // len(pool.rows))
    order = np.concatenate([draw.permutation(len(pool.rows)) for _ in range(rounds)])[:count]
    ways = draw.integers(len(PROTOCOLS), size=count)
    in_json = draw.random(count) < JSON_SHARE
    speaking = {int(row) for row in set(order) if pool.speaks_json(int(row))}
    return [
        replace(pool.request(int(row), PROTOCOLS[way]), as_json=bool(wanted) and int(row) in speaking)
        for row, way, wanted in zip(order, ways, in_json, strict=True)
    ]


def among(
    good_ones: Sequence[Request], bad: Sequence[Request], share: float, draw: np.random.Generator
) -> list[Request]:
    """The good requests with bad ones in between, ``share`` of all; every kind comes once before any comes twice."""
    wanted = max(1, round(len(good_ones) * share / (1 - share)))
    rounds = -(-wanted // len(bad))
    order = np.concatenate([draw.permutation(len(bad)) for _ in range(rounds)])[:wanted]
    mixed: list[Request] = [*good_ones, *(bad[int(number)] for number in order)]
    return [mixed[int(number)] for number in draw.permutation(len(mixed))]


def mixture(material: Material, bad: Sequence[Request]) -> list[Request]:
    """Good requests, first with few bad ones among them, then with many: as many as it takes to send each kind."""
    draw = material.draw
    halves = [good(material.pool, max(1, material.count // 2), draw) for _ in range(2)]
    share = max(MANY, min(0.5, len(bad) / (len(halves[1]) + len(bad))))
    return among(halves[0], bad, FEW, draw) + among(halves[1], bad, share, draw)


def _specials(material: Material, specials: Sequence[Special]) -> list[Request]:
    return [
        Request(material.pool.contract.name, protocol, special.what, tensors=special.tensors, marker=special.marker)
        for special in specials
        for protocol in PROTOCOLS
    ]


def identity(material: Material) -> list[Request]:
    """Good rows only."""
    return good(material.pool, material.count, material.draw)


def batch_invariance(material: Material) -> list[Request]:
    """A few rows with other neighbours each time: inside one request, at every place, and beside other callers' rows."""
    pool, draw = material.pool, material.draw
    budget = material.count // 2
    found: list[Request] = []
    for neighbours in NEIGHBOURS if pool.contract.max_rows > 1 else ():
        for group in pool.alike[:TARGETS]:
            size = min(neighbours + 1, pool.contract.max_rows)
            if size > budget:
                continue
            budget -= size
            rows = [int(number) for number in draw.choice(group, size)]
            rows[int(draw.integers(size))] = group[0]
            found.append(_several(pool, rows, PROTOCOLS[len(found) % 2]))
    singles = good(pool, material.count // 2, draw)
    targets = [
        pool.request(int(draw.integers(min(TARGETS, len(pool.rows)))), PROTOCOLS[number % 2])
        for number in range(len(singles))
    ]
    return found + [one for pair in zip(singles, targets, strict=True) for one in pair]


def row_counts(material: Material) -> list[Request]:
    """Requests of one to several rows side by side."""
    pool, draw = material.pool, material.draw
    most = min(MANY_ROWS, pool.contract.max_rows)
    found: list[Request] = []
    rows_left = material.count
    while rows_left > 0:
        group = pool.alike[int(draw.integers(len(pool.alike)))]
        rows = [int(number) for number in draw.choice(group, int(draw.integers(1, most + 1)))]
        rows_left -= len(rows)
        found.append(_several(pool, rows, PROTOCOLS[int(draw.integers(2))]))
    return found


def _several(pool: Pool, numbers: Sequence[int], protocol: Protocol) -> Request:
    row = rows_together([pool.rows[number] for number in numbers])
    answer = rows_together([pool.answers[number] for number in numbers])
    return replace(
        pool.request(numbers[0], protocol),
        tensors=wire_tensors(pool.contract, row),
        expected=Expected(answer),
    )


def poison_neighbours(material: Material) -> list[Request]:
    """Harmful values among good rows."""
    pool = material.pool
    return mixture(material, _specials(material, poison_rows(pool.contract, pool.rows[0], material.draw)))


def malformed_neighbours(material: Material) -> list[Request]:
    """Broken messages among good rows."""
    return mixture(material, malformed_requests(material.pool.contract, material.pool.rows[0]))


def framing_neighbours(material: Material) -> list[Request]:
    """Sizes that do not agree with the bytes, among good rows."""
    pool, draw = material.pool, material.draw
    bad = framing_requests(pool.contract, pool.rows[0])
    return among(good(pool, material.count, draw), bad, FRAMING_SHARE, draw)


def caller_gone(material: Material) -> list[Request]:
    """Callers that go before, during and after execution; at the end one good wave that needs every slot."""
    pool, draw = material.pool, material.draw
    ways = [(Protocol.HTTP, way) for way in (Leaving.CLOSE, Leaving.RESET, Leaving.HALF)]
    ways += [(Protocol.GRPC, way) for way in (Leaving.CANCEL, Leaving.DEADLINE)]
    latest_us = 3 * pool.alone_us
    wanted = max(len(ways), round(material.count * LEAVING_SHARE))
    leavers = []
    for number in range(wanted):
        protocol, way = ways[number % len(ways)]
        good_one = pool.request(int(draw.integers(len(pool.rows))), protocol)
        # A deadline of 0 would be none at all.
        after_us = int(draw.integers(1, latest_us + 2))
        leavers.append(replace(good_one, what=f"a caller that {way.value}", leaving=way, leaves_after_us=after_us))
    return among(good(pool, material.count, draw), leavers, LEAVING_SHARE, draw) + good(pool, material.callers, draw)


def own_errors_only(material: Material) -> list[Request]:
    """Rows that carry a marker each, half of them provoking an error, beside good ones."""
    pool, draw = material.pool, material.draw
    count = min(material.count, MARKED_MOST)
    marked = [
        replace(request, protocol=PROTOCOLS[number // 2 % 2])
        for number, request in enumerate(_specials(material, marked_rows(pool.contract, pool.rows, count, draw))[::2])
    ]
    mixed = marked + good(pool, count // 2, draw)
    return [mixed[int(number)] for number in draw.permutation(len(mixed))]


def two_models(material: Material) -> list[Request]:
    """Good rows of two models in turn."""
    if material.other is None:
        return []
    mine = good(material.pool, material.count // 2, material.draw)
    others = good(material.other, material.count // 2, material.draw)
    return [one for pair in zip(mine, others, strict=True) for one in pair]


def _no_marker(material: Material) -> str:
    return "" if markable(material.pool.contract) else "no input can carry a marker"


def _no_rows(material: Material) -> str:
    return "" if material.pool.contract.max_rows > 1 else "the model takes one row a request"


def _no_other(material: Material) -> str:
    return "" if material.other else "the server holds no other model that answers"


def _no_frames(material: Material) -> str:
    contract = material.pool.contract
    if contract.batched or any(spec.datatype == "BYTES" for spec in contract.inputs):
        return ""
    return "neither a batch dimension nor BYTES: the server can compare every size with the bytes"


CHECKS = (
    Check("identity", "every caller gets its own answer", 1.0, identity),
    Check("batch_invariance", "a row's answer does not move with its neighbours", 0.5, batch_invariance),
    Check("poison_neighbours", "a harmful value hurts its own caller only", 1.0, poison_neighbours),
    Check("malformed_neighbours", "a broken message hurts its own caller only", 0.5, malformed_neighbours),
    Check(
        "framing_neighbours",
        "sizes that lie hurt their own caller only",
        0.5,
        framing_neighbours,
        _no_frames,
        overfull=True,
    ),
    Check("caller_gone", "a caller that leaves hurts nobody and frees its slot", 0.5, caller_gone, frees=True),
    Check("row_counts", "requests of different row counts share batches", 0.5, row_counts, _no_rows),
    Check("own_errors_only", "an error speaks of its own request only", 0.5, own_errors_only, _no_marker),
    Check("two_models", "two models at once do not mix", 0.5, two_models, _no_other),
)
