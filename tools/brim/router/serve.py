"""The picker as a server: gRPC for Envoy, HTTP for its own page, and what it watches, until it is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from aiohttp import web

from brim.errors import PortInUse
from brim.router.own_page import own_page
from brim.router.picker import Picker
from brim.router.pools import Pools
from brim.router.watch import Watch

HEALTH = "grpc.health.v1.Health"
SERVING = b"\x08\x01"
"""``HealthCheckResponse`` with ``status: SERVING`` (grpc/grpc, health.proto)."""
MOST_CALLS = 65_536
"""Requests under way; of what is more, the gateway balances by itself."""
STOP_S = 0.5


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the picker answers, ``host:port`` each."""

    grpc: str
    metrics: str


@asynccontextmanager
async def listening(
    picker: Picker, pools: Pools, watch: Watch, *, host: str, port: int, metrics_port: int
) -> AsyncIterator[Listening]:
    """Answer inside the block. A port of 0 is chosen by the system.

    Raises:
        PortInUse: a port is taken.
    """
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers((picker.handler(), _health()))
    page = web.Application()
    page.router.add_get("/metrics", lambda _: _text(own_page(picker, pools, watch)))
    runner = web.AppRunner(page, access_log=None)
    try:
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise PortInUse(
                f"port {port} on {host} cannot be opened", hint="give another one, or 0 to have one chosen"
            ) from error
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, metrics_port)
            await site.start()
        except OSError as error:
            raise PortInUse(
                f"port {metrics_port} on {host} cannot be opened: {error.strerror}",
                hint="give another one, or 0 to have one chosen",
            ) from error
        await server.start()
        yield Listening(f"{host}:{bound}", f"{host}:{runner.addresses[0][1]}")
    finally:
        await server.stop(STOP_S)
        await runner.cleanup()


async def serve(
    picker: Picker,
    pools: Pools,
    watch: Watch,
    *,
    host: str,
    port: int,
    metrics_port: int,
    ready: Callable[[Listening], None],
) -> None:
    """Serve until cancelled. ``ready`` is told where, once it answers."""
    async with listening(picker, pools, watch, host=host, port=port, metrics_port=metrics_port) as where:
        ready(where)
        await watch.run()


async def _text(page: str) -> web.Response:
    return web.Response(text=page, content_type="text/plain")


def _health() -> grpc.GenericRpcHandler[bytes, bytes]:
    async def check(request: bytes, context: object) -> bytes:
        return SERVING

    return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})
