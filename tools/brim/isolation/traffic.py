"""What each check sends. How it is judged is the same for all (``brim.isolation.judge``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from brim.isolation.check import Material
from brim.isolation.malformed import framing_requests, malformed_requests
from brim.isolation.pool import Pool
from brim.isolation.request import Expected, Leaving, Request
from brim.isolation.rows import Special, marked_rows, poison_rows, rows_of_lengths, rows_together
from brim.isolation.wire import wire_tensors
from brim.measure.plan import Protocol

MANY = 0.10
"""Share of bad requests in the second half of a check; in the first half there are few (``Options.poison_share``)."""
LEAVING_SHARE = 0.25
MARKED_MOST = 300
"""Each marked row is asked alone first, so there is a bound that does not grow with the requests."""
TARGETS = 4
NEIGHBOURS = (1, 2, 7, 31, 99)
MANY_ROWS = 8
FRAMING_SHARE = 0.25
JSON_SHARE = 0.25
"""Of the good requests over HTTP, where JSON can carry them."""
PROTOCOLS = tuple(Protocol)


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
    share = max(MANY, material.few, min(0.5, len(bad) / (len(halves[1]) + len(bad))))
    return among(halves[0], bad, material.few, draw) + among(halves[1], bad, share, draw)


def special_requests(pool: Pool, specials: Sequence[Special]) -> list[Request]:
    """Each special row over both protocols; what it gets alone is yet unknown."""
    """Each special row over both protocols; what it gets is yet unknown."""
    return [
        Request(pool.contract.name, protocol, special.what, tensors=special.tensors, marker=special.marker)
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
        rows=tuple(numbers),
    )


def poison_neighbours(material: Material) -> list[Request]:
    """Harmful values among good rows."""
    pool = material.pool
    return mixture(material, special_requests(pool, poison_rows(pool.contract, pool.rows[0], material.draw)))


def whole_batch_failure(material: Material) -> list[Request]:
    """Every kind of poison beside good rows, a tenth of all; those that make no run fail are taken out again."""
    pool, draw = material.pool, material.draw
    bad = special_requests(pool, poison_rows(pool.contract, pool.rows[0], draw))
    return among(good(pool, material.count, draw), bad, max(MANY, len(bad) / (material.count + len(bad))), draw)


def unequal_lengths(material: Material) -> list[Request]:
    """Rows from one element or token to many, long beside short, and good ones of the pool between them."""
    pool, draw = material.pool, material.draw
    rows = special_requests(pool, rows_of_lengths(pool.contract, pool.rows[0], draw))
    rounds = -(-(material.count // 2) // len(rows))
    own = [rows[int(number)] for _ in range(rounds) for number in draw.permutation(len(rows))]
    mixed = own + good(pool, material.count // 2, draw)
    return [mixed[int(number)] for number in draw.permutation(len(mixed))]


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
        for number, request in enumerate(
            special_requests(pool, marked_rows(pool.contract, pool.rows, count, draw))[::2]
        )
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
