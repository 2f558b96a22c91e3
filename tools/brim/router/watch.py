"""What the picker looks at now and then: the file of replicas, their metrics pages, and Envoy's view of their health.

Each look has a time and a size that it does not exceed; one that fails leaves things as they were.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from brim.errors import InputError
from brim.router.gateway_health import sick_hosts, unfit_replicas
from brim.router.metrics_page import read_page
from brim.router.pools import Pools
from brim.router.replica_file import Server, read_replicas

LARGEST_PAGE = 16 << 20
GATEWAY = ""
"""In place of a replica's name."""
NO_PAGE = (OSError, aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError)


def clock_us() -> int:
    """The picker's clock."""
    return time.monotonic_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Looks:
    """What to look at.

    Attributes:
        servers: the replicas; of those of a file when it names none (yet).
        file: that names them, and is looked at again before every scrape.
        metrics_port: of replicas of the file that do not say where their page is.
        gateway_admin: ``host:port`` of Envoy's own pages; None where nobody tells who is sick.
        every_s: pause between two looks.
        timeout_s: longest that one takes.
    """

    servers: tuple[Server, ...] = ()
    file: Path | None = None
    metrics_port: int | None = None
    gateway_admin: str | None = None
    every_s: float = 0.1
    timeout_s: float = 0.5


class Watch:
    """Keeps the pools up to date."""

    def __init__(self, pools: Pools, looks: Looks, say: Callable[[str], None]) -> None:
        """Nothing is looked at yet, but for the file: it has to be there.

        Raises:
            InputError: there is no file, or it names no replicas.
        """
        self._pools, self._looks, self._say = pools, looks, say
        self._stamp: tuple[int, int] | None = None
        self._trouble = ""
        self._sick: dict[str, frozenset[str]] = {}
        self._under_way: set[str] = set()
        self.servers: dict[str, Server] = {}
        self.counts: Counter[str] = Counter()
        self._take(list(looks.servers))
        if looks.file is not None:
            self._stamp = _stamp(looks.file)
            self._take(read_replicas(looks.file, looks.metrics_port))

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._looks.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session, asyncio.TaskGroup() as tasks:
            while True:
                self.look_at_file()
                if self._looks.gateway_admin and GATEWAY not in self._under_way:
                    tasks.create_task(self._ask_gateway(session, self._looks.gateway_admin))
                for server in self.servers.values():
                    if server.metrics and server.name not in self._under_way:
                        tasks.create_task(self._scrape(session, server, server.metrics))
                await asyncio.sleep(self._looks.every_s)

    def look_at_file(self) -> None:
        """Read the file again when it is another one. One that cannot be read is said once, and the last good one counts."""
        path = self._looks.file
        if path is None or (stamp := _stamp(path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(read_replicas(path, self._looks.metrics_port))
            self.counts["file_read"] += 1
        except InputError as error:
            self.counts["file_refused"] += 1
            self._say(f"{error.message}: the replicas stay as they were")

    async def _scrape(self, session: aiohttp.ClientSession, server: Server, address: str) -> None:
        asked_us = clock_us()
        text = await self._get(session, server.name, f"http://{address}/metrics")
        # It may be another server by now that has this name.
        if text is not None and self.servers.get(server.name) == server:
            self.counts["restart"] += bool(self._pools.scrape(read_page(text, server.name, asked_us)))

    async def _ask_gateway(self, session: aiohttp.ClientSession, address: str) -> None:
        text = await self._get(session, GATEWAY, f"http://{address}/clusters?format=json")
        if text is not None:
            try:
                self._sick = sick_hosts(json.loads(text))
            except NO_PAGE:
                self.counts["gateway_failed"] += 1
                return
            self._pools.set_unfit(unfit_replicas(self._sick, self.servers.values()))

    async def _get(self, session: aiohttp.ClientSession, name: str, url: str) -> str | None:
        what = "gateway" if name == GATEWAY else "scrape"
        self._under_way.add(name)
        try:
            async with session.get(url) as answer:
                if answer.status != 200:
                    raise ValueError(f"status {answer.status}")
                text = (await _read(answer.content)).decode(errors="replace")
        except NO_PAGE:
            self.counts[f"{what}_failed"] += 1
            return None
        finally:
            self._under_way.discard(name)
        self.counts[what] += 1
        return text

    def _take(self, servers: list[Server]) -> None:
        before, self.servers = self.servers, {server.name: server for server in servers}
        # One that answers elsewhere now is another one, of which nothing is known.
        stay = [name for name, server in self.servers.items() if before.get(name, server).http == server.http]
        self._pools.set_replicas(stay)
        self._pools.set_replicas(self.servers)
        self._pools.set_unfit(unfit_replicas(self._sick, servers))


async def _read(content: Any) -> bytes:
    """All of it.

    Raises:
        ValueError: it is too long.
    """
    parts, size = [], 0
    async for part in content.iter_any():
        parts.append(part)
        size += len(part)
        if size > LARGEST_PAGE:
            raise ValueError(f"more than {LARGEST_PAGE} bytes")
    return b"".join(parts)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
