"""The exporter's questions to tritonserver and to the gateway, each bounded in time and size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from brim.errors import BrimError
from brim.exporter.gateway_said import PAGE_FILTER, GatewaySaid, read_gateway
from brim.exporter.server_said import ServerSaid, read_server

SOURCE_TIMEOUT_S = 4.0
"""Of all questions to one source: Prometheus gives up after ten seconds, or after its interval where that is shorter."""
LONGEST_ANSWER_BYTES = 32 << 20
MOST_MODELS = 256
AT_ONCE = 8
"""Configurations asked for at the same time."""

_T = TypeVar("_T")


class SourceDown(Exception):
    """A source did not answer, or not what it should. The text says so."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom to ask, ``host:port`` each.

    Attributes:
        server: tritonserver's HTTP port.
        gateway_admin: Envoy's own pages; None where they are out of reach.
        gateway_metrics: in their place, its page for Prometheus, which does not tell its bounds.
    """

    server: str
    gateway_admin: str | None = None
    gateway_metrics: str | None = None

    @property
    def has_gateway(self) -> bool:
        """Whether a gateway is asked at all."""
        return self.gateway_admin is not None or self.gateway_metrics is not None


async def ask_server(session: aiohttp.ClientSession, address: str) -> ServerSaid:
    """What tritonserver says now.

    Raises:
        SourceDown: it does not answer in time, or something else does.
    """
    return await _bounded(address, _ask_server(session, f"http://{address}"))


async def ask_gateway(session: aiohttp.ClientSession, sources: Sources) -> GatewaySaid:
    """What the gateway says now.

    Raises:
        SourceDown: it does not answer in time, or something else does.
    """
    address = sources.gateway_admin or sources.gateway_metrics
    assert address is not None
    return await _bounded(address, _ask_gateway(session, sources))


async def _ask_server(session: aiohttp.ClientSession, base: str) -> ServerSaid:
    statistics = json.loads(await _text(session, f"{base}/v2/models/stats"))
    index = json.loads(await _text(session, f"{base}/v2/repository/index", method="POST"))
    names = sorted({entry["name"] for entry in statistics["model_stats"]})[:MOST_MODELS]
    turn = asyncio.Semaphore(AT_ONCE)

    async def configuration(name: str) -> Any:
        async with turn:
            found = await _text(session, f"{base}/v2/models/{quote(name, safe='')}/config", gone_is_fine=True)
        return json.loads(found) if found else None

    documents = await asyncio.gather(*(configuration(name) for name in names))
    known = {name: document for name, document in zip(names, documents, strict=True) if document is not None}
    return read_server(statistics, known, index)


async def _ask_gateway(session: aiohttp.ClientSession, sources: Sources) -> GatewaySaid:
    wanted = {"filter": PAGE_FILTER}
    if sources.gateway_admin is None:
        return read_gateway(await _text(session, f"http://{sources.gateway_metrics}/metrics", wanted))
    base = f"http://{sources.gateway_admin}"
    page = await _text(session, f"{base}/stats/prometheus", wanted)
    return read_gateway(page, json.loads(await _text(session, f"{base}/clusters", {"format": "json"})))


async def _text(
    session: aiohttp.ClientSession,
    url: str,
    query: dict[str, str] | None = None,
    *,
    method: str = "GET",
    gone_is_fine: bool = False,
) -> str:
    """The body; empty where the answer is an error and that is fine."""
    async with session.request(method, url, params=query) as answer:
        if answer.status != 200 and gone_is_fine:
            return ""
        if answer.status != 200:
            raise SourceDown(f"{url}: answered {answer.status}")
        parts, size = [], 0
        async for part in answer.content.iter_chunked(1 << 16):
            size += len(part)
            if size > LONGEST_ANSWER_BYTES:
                raise SourceDown(f"{url}: more than {LONGEST_ANSWER_BYTES >> 20} MiB")
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


async def _bounded(address: str, asking: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_S):
            return await asking
    except TimeoutError:
        raise SourceDown(f"{address}: no answer within {SOURCE_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SourceDown(f"{address}: {error}") from error
    except BrimError as error:
        raise SourceDown(f"{address}: {error.message}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SourceDown(f"{address}: answers in another form: {error!r}") from error
