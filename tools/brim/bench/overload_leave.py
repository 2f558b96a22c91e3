"""Callers that disconnect while they wait in the queue: are they executed, and when are their places free?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import numpy as np

from brim.bench.overload_case import SLOW
from brim.bench.overload_load import rows_of
from brim.bench.overload_place import ROWS, Place
from brim.bench.overload_seen import Gauges
from brim.errors import CouldNotTell
from brim.measure.accounting import Outcome
from brim.measure.known_time import INPUT, WIDTH
from brim.measure.openloop_http import Connection
from brim.measure.openloop_run import INFER, grpc_reply, messages
from brim.measure.openloop_wire import grpc_body
from brim.measure.plan import Protocol
from brim.units import US_PER_S

POLL_S = 0.002
QUEUED_TIMEOUT_S = 10.0
FREE_AFTER_S = 0.02
"""The gateway's script looks for callers that have left every 10 ms at most (``admission.lua``)."""
REFUSED_WITHIN_S = 0.3
"""Newcomers that are refused never fill the bound; no refusal takes as long as this."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Callers that left while a batch ran and they waited behind it, at the gateway's bound.

    Attributes:
        protocol: in which they called.
        queued: whether all of this took place while the one batch ran; else the rest says nothing.
        leavers: who disconnected.
        stayers: who waited on, the batch that ran and every caller of it as one included.
        newcomers: who came as soon as the places were free.
        refused_at_bound: of one call more before anybody left: 1 when the bound holds.
        newcomers_refused: of the newcomers.
        answered: stayers and newcomers.
        freed_us: from the disconnection until the gateway's gauge had none of the leavers.
        executed_for_nobody: rows executed, by the model, without those of stayers and newcomers.
        cancelled: leavers, by the gateway's counters.
        most_in_flight: highest value of the gateway's gauge.
    """

    protocol: Protocol
    queued: bool
    leavers: int
    stayers: int
    newcomers: int
    refused_at_bound: int
    newcomers_refused: int
    answered: int
    freed_us: int
    executed_for_nobody: int
    cancelled: int
    most_in_flight: int

    def as_json(self) -> dict[str, Any]:
        """For ``bench.json``."""
        return asdict(self)


def measure_leaving(place: Place, protocol: Protocol, leavers: int) -> Leave:
    """One batch runs, callers fill the bound behind it, ``leavers`` of them disconnect, and as many new ones come.

    Raises:
        CouldNotTell: callers did not get as far as the queue.
    """
    return asyncio.run(_leaving(place, protocol, leavers))


async def _leaving(place: Place, protocol: Protocol, leavers: int) -> Leave:
    bound, gauges = place.case.bound, place.gauges(SLOW)
    before, known = gauges.settled(), place.executions(SLOW)
    stayers = bound - leavers
    full_batch = {INPUT: np.zeros((place.case.max_rows, WIDTH), np.float32)}
    address = place.gateway.endpoint.grpc
    staying = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    going = _GrpcLeavers(address) if protocol is Protocol.GRPC else _HttpLeavers(place)
    row = grpc_body(SLOW, ROWS[0])
    try:
        with place.sampler(SLOW) as sampler:
            ask = staying.unary_unary(INFER, None, None)
            await _until(gauges, lambda now: now == 0)
            calls: list[Any] = [ask(grpc_body(SLOW, full_batch))]
            await _until(gauges, lambda now: now == 1)
            calls += [ask(row) for _ in range(stayers - 1)]
            await _until(gauges, lambda now: now == stayers)
            await going.call(leavers)
            await _until(gauges, lambda now: now >= bound)
            over = await _outcomes([ask(row)])
            left_s = time.monotonic()
            await going.leave()
            freed_us = round((await _until(gauges, lambda now: now <= stayers) - left_s) * US_PER_S)
            await asyncio.sleep(FREE_AFTER_S)
            new = [ask(row) for _ in range(leavers)]
            await _until(gauges, lambda now: now >= bound, at_most_s=REFUSED_WITHIN_S)
            queued = len(place.executions(SLOW)) == len(known)
            stayed, came = await _outcomes(calls), await _outcomes(new)
    finally:
        await going.leave()
        await staying.close(None)
    try:
        after = gauges.settled().since(before)
    finally:
        gauges.close()
    answered = stayed.count(Outcome.ANSWERED) + came.count(Outcome.ANSWERED)
    # The batch that ran was one call with a full batch of rows.
    own_rows = answered - 1 + place.case.max_rows
    return Leave(
        protocol=protocol,
        queued=queued,
        leavers=leavers,
        stayers=stayers,
        newcomers=leavers,
        refused_at_bound=over.count(Outcome.REFUSED),
        newcomers_refused=came.count(Outcome.REFUSED),
        answered=answered,
        freed_us=freed_us,
        executed_for_nobody=rows_of(place.executions(SLOW)) - rows_of(known) - own_rows,
        cancelled=after.of(Outcome.CANCELLED),
        most_in_flight=sampler.most_in_flight,
    )


async def _until(gauges: Gauges, enough: Callable[[int], bool], *, at_most_s: float | None = None) -> float:
    """When (monotonic) the gateway's gauge was as it should be, or ``at_most_s`` had passed."""
    begin_s = time.monotonic()
    while not enough(now := gauges.in_flight()):
        waited_s = time.monotonic() - begin_s
        if at_most_s is not None and waited_s > at_most_s:
            break
        if waited_s > QUEUED_TIMEOUT_S:
            raise CouldNotTell(
                f"{now} requests in flight after {QUEUED_TIMEOUT_S:g} s, more were sent", hint="see the gateway's log"
            )
        await asyncio.sleep(POLL_S)
    return time.monotonic()


async def _outcomes(calls: Sequence[Any]) -> list[Outcome]:
    async def one(call: Any) -> Outcome:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return grpc_reply(error.code().name, error.details() or "").outcome
        return Outcome.ANSWERED

    return list(await asyncio.gather(*map(one, calls)))


class _GrpcLeavers:
    """Callers on a connection of their own."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.calls: list[Any] = []

    async def call(self, count: int) -> None:
        ask = self.channel.unary_unary(INFER, None, None)
        self.calls = [ask(grpc_body(SLOW, ROWS[0])) for _ in range(count)]

    async def leave(self) -> None:
        await self.channel.close(None)
        await asyncio.gather(*self.calls, return_exceptions=True)


class _HttpLeavers:
    """Callers with a connection each."""

    def __init__(self, place: Place) -> None:
        self.endpoint = place.gateway.endpoint
        self.connections: list[Connection] = []
        self.answers: list[asyncio.Future[tuple[int, bytes]]] = []

    async def call(self, count: int) -> None:
        host, _, port = self.endpoint.http.rpartition(":")
        request = messages(self.endpoint, Protocol.HTTP, SLOW, ROWS)[0]
        for _ in range(count):
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
            self.connections.append(connection)
        self.answers = [connection.send(request) for connection in self.connections]

    async def leave(self) -> None:
        for connection in self.connections:
            connection.close()
        await asyncio.gather(*self.answers, return_exceptions=True)
