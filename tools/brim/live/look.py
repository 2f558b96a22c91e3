"""Asking servers and gateway how they are, all at once, each question with a bound."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import quote

from brim.errors import InputError
from brim.live.places import MOST_SERVERS, Places, ServerPlace
from brim.live.seen import SERVER_NAMES, Seen, SeenGateway, SeenServer, kept_lines, kept_of_gateway
from brim.measure.batch_stats import instance_count
from brim.measure.text.server_side import LARGEST_PAGE

TIMEOUT_S = 2.0
ENVOY_FILTER = "brim|upstream_rq_active"
"""Of the names that Envoy itself has for what ``brim.live.ended`` reads."""
NO_PAGE = (OSError, HTTPException, ValueError)
AT_ONCE = 16
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Environment variables may name a proxy, and what is asked is beside us."""


class Looker:
    """Looks at the same places again and again. A place may be silent at any time, and come back."""

    def __init__(self, places: Callable[[], Places], *, clock_us: Callable[[], int] | None = None) -> None:
        """Nothing is asked yet.

        Args:
            places: where to look, asked before each look: replicas come and go. When it raises ``InputError`` after the
                first time, the last answer goes on to hold.
            clock_us: for tests.
        """
        self._places = places
        self._clock_us = clock_us or (lambda: time.monotonic_ns() // 1_000)
        self._last: Places | None = None
        self._instances: dict[tuple[str, str], int] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="brim-look")

    def __enter__(self) -> Self:
        """Ready."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what was asked, each question for its bound at most."""
        self._pool.shutdown()

    def look(self) -> Seen:
        """One look.

        Raises:
            InputError: at the first look, there is nowhere to look at.
        """
        try:
            self._last = self._places()
        except InputError:
            if self._last is None:
                raise
        places = self._last
        asked = {one.name: self._pool.submit(self._server, one) for one in places.servers[:MOST_SERVERS]}
        gateway = None if places.gateway is None else self._pool.submit(self._gateway, places.gateway)
        servers = {name: one.result() for name, one in asked.items()}
        front = None if gateway is None else gateway.result()
        return Seen(self._clock_us(), servers, front)

    def _server(self, place: ServerPlace) -> SeenServer | str:
        try:
            statistics = _json(f"http://{place.http}/v2/models/stats")
        except NO_PAGE as error:
            # What comes back may have other instances.
            self._instances = {key: count for key, count in self._instances.items() if key[0] != place.http}
            return f"no statistics: {_reason(error)}"
        taken_us = self._clock_us()
        page = None
        if place.metrics is not None:
            try:
                page = kept_lines(_text(f"http://{place.metrics}/metrics"), SERVER_NAMES)
            except NO_PAGE:
                page = None
        entries = statistics.get("model_stats") if isinstance(statistics, dict) else None
        if not isinstance(entries, list):
            return "no statistics: another form than Triton's"
        names = {str(one.get("name", "")) for one in entries if isinstance(one, dict)}
        instances = {name: self._instances_of(place.http, name) for name in sorted(names)}
        return SeenServer(taken_us, statistics, instances, page)

    def _instances_of(self, http: str, model: str) -> int:
        key = (http, model)
        if key not in self._instances:
            try:
                self._instances[key] = instance_count(_json(f"http://{http}/v2/models/{quote(model)}/config"))
            except (*NO_PAGE, TypeError, AttributeError):
                # Asked again at the next look.
                return 1
        return self._instances[key]

    def _gateway(self, address: str) -> SeenGateway | str:
        failures = []
        # Envoy's own pages, or the one for Prometheus, which offers nothing else.
        for path in (f"/stats/prometheus?filter={quote(ENVOY_FILTER)}", "/metrics"):
            try:
                page = _text(f"http://{address}{path}")
            except NO_PAGE as error:
                failures.append(_reason(error))
                if not isinstance(error, urllib.error.HTTPError):
                    break
            else:
                return SeenGateway(self._clock_us(), kept_of_gateway(page))
        return f"no page: {failures[-1]}"


def _text(url: str) -> str:
    with DIRECT.open(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read(LARGEST_PAGE).decode("utf-8", "replace"))


def _json(url: str) -> Any:
    return json.loads(_text(url))


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)
