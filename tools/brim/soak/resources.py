"""Reading what the server, its stubs and the gateway hold."""

from __future__ import annotations

import itertools
import re
import urllib.request
from contextlib import suppress
from urllib.parse import quote

import psutil

from brim.errors import ServerFailed
from brim.gateway.envoy import Gateway
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.soak.sample import GATEWAY, SERVER, STUBS, Resources
from brim.units import US_PER_S

ANSWER_TIMEOUT_S = 5.0
BLOCK_BYTES = 512
"""Unit of ``st_blocks`` (stat(2))."""


class Reader:
    """Looks at one server and the gateway in front of it."""

    def __init__(self, server: EmbeddedServer, gateway: Gateway, model: str) -> None:
        """Both run already.

        Args:
            server: behind the gateway.
            gateway: where callers go.
            model: whose connections to the server count; the model has bounds of its own at the gateway.
        """
        self._server = server
        self._gateway = gateway
        cluster = f"cluster.triton/{model}.upstream_cx_active"
        self._stats = {"connections": "http.callers.downstream_cx_active", "upstream": cluster}

    def read(self) -> Resources:
        """Some 20 ms, most of it the search for stubs. A program that has just ended holds nothing."""
        stubs = [stub.process for stub in self._server.living_stubs()]
        programs = {SERVER: _process(self._server), STUBS: stubs, GATEWAY: _process(self._gateway)}
        held = {name: [_held(process) for process in processes] for name, processes in programs.items()}
        at_gateway = self._at_gateway()
        sizes = []
        for region in leftovers.regions_of(self._server.prefix):
            with suppress(FileNotFoundError):
                sizes.append(region.stat().st_blocks * BLOCK_BYTES)
        return Resources(
            rss={name: sum(rss for rss, _ in of) for name, of in held.items()},
            fds={name: sum(fds for _, fds in of) for name, of in held.items()},
            connections=at_gateway.get(self._stats["connections"]),
            upstream=at_gateway.get(self._stats["upstream"]),
            shm_regions=len(sizes),
            shm_bytes=sum(sizes),
            busy_us=_busy_us(),
            own_us=sum(map(_taken_us, [psutil.Process(), *itertools.chain(*programs.values())])),
        )

    def _at_gateway(self) -> dict[str, int]:
        wanted = "|".join(re.escape(name) for name in self._stats.values())
        address = f"http://{self._gateway.admin}/stats?filter={quote(f'^({wanted})$')}"
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_TIMEOUT_S) as answer:
                page = answer.read().decode()
        except OSError:
            return {}
        return {name: int(value) for name, value in re.findall(r"^(\S+): (\d+)$", page, re.MULTILINE)}


def _process(of: EmbeddedServer | Gateway) -> list[psutil.Process]:
    """None while it is being started anew."""
    try:
        return [psutil.Process(of.pid)]
    except (psutil.NoSuchProcess, ServerFailed):
        return []


def _held(process: psutil.Process) -> tuple[int, int]:
    try:
        return process.memory_info().rss, process.num_fds()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0, 0


def _taken_us(process: psutil.Process) -> int:
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return round((times.user + times.system) * US_PER_S)


def _busy_us() -> int:
    times = psutil.cpu_times()
    return round((times.user + times.nice + times.system + times.irq + times.softirq + times.steal) * US_PER_S)
