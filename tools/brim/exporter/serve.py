"""The exporter as a server: it asks its sources whenever it is asked, and never twice at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
from aiohttp import web

from brim.errors import PortInUse, ServerFailed
from brim.exporter.page import Page, Source
from brim.exporter.sources import SourceDown, Sources, ask_gateway, ask_server
from brim.server.endpoint import LOOPBACK
from brim.units import US_PER_S

CONTENT_TYPE = "text/plain"
START_TIMEOUT_S = STOP_TIMEOUT_S = 10.0
MOST_CONNECTIONS = 16
"""To the sources."""

_T = TypeVar("_T")


class Exporter:
    """Reads the sources. Used from one event loop."""

    def __init__(self, sources: Sources, on_change: Callable[[str], None] = lambda _: None) -> None:
        """Nothing is asked yet.

        Args:
            sources: whom to ask.
            on_change: told, a sentence each, when a source stops answering and when it does so again.
        """
        self.sources = sources
        self._say = on_change
        self._up: dict[Source, bool] = {}
        self._session: aiohttp.ClientSession | None = None
        self._reading: asyncio.Task[Page] | None = None

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        # Environment variables may name a proxy, and what is asked is beside us.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS), trust_env=False, raise_for_status=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        assert self._session is not None
        if self._reading is not None:
            self._reading.cancel()
        await self._session.close()

    async def page(self) -> Page:
        """What the sources say now. Whoever asks while they are being asked gets the same answer."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        # One caller that leaves does not take it from the others.
        return await asyncio.shield(self._reading)

    async def _read(self) -> Page:
        assert self._session is not None
        began_s = time.monotonic()
        server, gateway = await asyncio.gather(
            self._asked(Source.TRITON, ask_server(self._session, self.sources.server)),
            self._asked(Source.GATEWAY, ask_gateway(self._session, self.sources))
            if self.sources.has_gateway
            else _nothing(),
        )
        return Page(server, gateway, dict(self._up), round((time.monotonic() - began_s) * US_PER_S))

    async def _asked(self, source: Source, asking: Awaitable[_T]) -> _T | None:
        try:
            said = await asking
        except SourceDown as down:
            if self._up.get(source) is not False:
                self._say(f"{source.value} does not answer: {down}")
            self._up[source] = False
            return None
        if self._up.get(source) is False:
            self._say(f"{source.value} answers again")
        self._up[source] = True
        return said


async def _nothing() -> None:
    return None


@asynccontextmanager
async def listening(exporter: Exporter, *, host: str, port: int) -> AsyncIterator[str]:
    """Answer ``/metrics`` inside the block; ``host:port`` where. A port of 0 is chosen by the system.

    Raises:
        PortInUse: the port cannot be opened.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=(await exporter.page()).text(), content_type=CONTENT_TYPE, charset="utf-8")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    async with exporter:
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise PortInUse(
                    f"port {port} on {host} cannot be opened: {error.strerror}",
                    hint="give another one, or 0 to have one chosen",
                ) from error
            yield f"{host}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def serve(exporter: Exporter, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until cancelled. ``ready`` is told where, once it answers.

    Raises:
        PortInUse: the port cannot be opened.
    """
    async with listening(exporter, host=host, port=port) as address:
        ready(address)
        await asyncio.Event().wait()


class ExporterBeside:
    """An exporter in a thread of this process, for as long as a ``with`` block lasts."""

    def __init__(
        self,
        sources: Sources,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing starts before the block; see ``Exporter`` and ``listening``."""
        self._exporter = Exporter(sources, on_change)
        self._host, self._port = host, port
        self._told: SimpleQueue[str | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="brim-exporter", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self.address = ""

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            PortInUse: the port cannot be opened.
            ServerFailed: it did not start.
        """
        self._thread.start()
        try:
            told = self._told.get(timeout=START_TIMEOUT_S)
        except Empty:
            raise ServerFailed(
                f"the exporter did not start within {START_TIMEOUT_S:g} s", hint="is the machine this busy?"
            ) from None
        if isinstance(told, BaseException):
            raise told
        self.address = told
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        assert self._loop is not None and self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive() and kind is None:
            raise ServerFailed(f"the exporter did not stop within {STOP_TIMEOUT_S:g} s", hint="please report it")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - raised where the block begins
            self._told.put(error)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with listening(self._exporter, host=self._host, port=self._port) as address:
            self._told.put(address)
            await self._over.wait()
