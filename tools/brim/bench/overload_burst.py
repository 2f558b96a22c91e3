"""Many requests at once onto an idle server: who is answered, how soon the others hear no, and what stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from brim.bench.overload_case import MODEL
from brim.bench.overload_place import ROWS, Place
from brim.measure.openloop_http import Pool
from brim.measure.openloop_run import messages
from brim.measure.plan import Protocol
from brim.units import US_PER_S

HEALTH = "/v2/health/ready"


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst, and the same client's questions for the health page beside it.

    Attributes:
        requests: sent at once.
        answered: with 200.
        in_slo: of them, within the objective.
        refused: with 429.
        last_answer_us: from the first request to the last answer.
        last_refusal_us: from the first request to the last refusal; None without one.
        health_us: from the first of as many questions for the health page to the last answer.
        lone_before_us: latency of a lone request before.
        lone_after_us: the same, sent when the last answer of the burst came.
        most_in_flight: highest value of the gateway's gauge.
        executed: rows, by the model, the two lone ones included.
    """

    requests: int
    answered: int
    in_slo: int
    refused: int
    last_answer_us: int
    last_refusal_us: int | None
    health_us: int
    lone_before_us: int
    lone_after_us: int
    most_in_flight: int
    executed: int

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json``."""
        return asdict(self)


def measure_bursts(place: Place, requests: int, rounds: int) -> list[Burst]:
    """Bursts one after the other, the health page first in every other round."""
    return asyncio.run(_bursts(place, requests, rounds))


async def _bursts(place: Place, requests: int, rounds: int) -> list[Burst]:
    address = place.gateway.endpoint.http
    host, _, port = address.rpartition(":")
    pool = Pool(host, int(port))
    infer = messages(place.gateway.endpoint, Protocol.HTTP, MODEL, ROWS)
    health = [f"GET {HEALTH} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()]
    try:
        await pool.open(requests)
        # Connections behind the gateway are made as they are needed, which no round should pay for alone.
        await _at_once(pool, health, requests)
        return [await _round(place, pool, infer, health, requests, number) for number in range(rounds)]
    finally:
        pool.close()


async def _round(
    place: Place, pool: Pool, infer: Sequence[bytes], health: Sequence[bytes], requests: int, number: int
) -> Burst:
    known = len(place.executions(MODEL))
    before = health_us = 0
    answers: list[tuple[int, int]] = []
    before = (await _at_once(pool, infer, 1))[0][1]
    if number % 2:
        health_us = _last(await _at_once(pool, health, requests))
    with place.sampler(MODEL) as sampler:
        answers = await _at_once(pool, infer, requests)
        after = (await _at_once(pool, infer, 1))[0][1]
    if not number % 2:
        health_us = _last(await _at_once(pool, health, requests))
    answered = [took_us for status, took_us in answers if status == 200]
    refused = [took_us for status, took_us in answers if status == 429]
    return Burst(
        requests=requests,
        answered=len(answered),
        in_slo=sum(took_us <= place.case.slo_us for took_us in answered),
        refused=len(refused),
        last_answer_us=max(answered, default=0),
        last_refusal_us=max(refused, default=None),
        health_us=health_us,
        lone_before_us=before,
        lone_after_us=after,
        most_in_flight=sampler.most_in_flight,
        executed=sum(execution.rows for execution in place.executions(MODEL)[known:]),
    )


def _last(answers: Sequence[tuple[int, int]]) -> int:
    return max(took_us for _, took_us in answers)


async def _at_once(pool: Pool, whole: Sequence[bytes], requests: int) -> list[tuple[int, int]]:
    """Status (0 without an answer) and microseconds from the beginning, of so many requests that leave together."""
    begin_s = time.monotonic()

    async def one(number: int) -> tuple[int, int]:
        try:
            status, _ = await pool.ask(whole[number % len(whole)])
        except OSError:
            status = 0
        return status, round((time.monotonic() - begin_s) * US_PER_S)

    return list(await asyncio.gather(*(one(number) for number in range(requests))))
