"""Callers that go on and on while something is done to their server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from types import TracebackType
from typing import Self

from brim.isolation.bench import Account, Bench
from brim.isolation.flights import Flights
from brim.isolation.request import Request

JOIN_MARGIN_S = 30.0


class Traffic:
    """Sends the requests again and again from a thread of its own, from the start of the ``with`` block to its end."""

    def __init__(
        self,
        bench: Bench,
        requests: Sequence[Request],
        prefix: str,
        account: Account,
        *,
        callers: int,
        errors_allowed: bool = False,
        pause_s: float = 0.0,
    ) -> None:
        """Nothing is sent before the ``with`` block. The arguments are those of ``Bench.company``."""
        self.flights = Flights()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._timeout_s = bench.options.answer_timeout_s + JOIN_MARGIN_S

        def run() -> None:
            try:
                bench.company(
                    self._until_stopped(requests),
                    prefix,
                    account,
                    callers=callers,
                    flights=self.flights,
                    errors_allowed=errors_allowed,
                    pause_s=pause_s,
                )
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one
                self._error = error

        self._thread = threading.Thread(target=run, name=f"traffic {prefix}", daemon=True)

    def _until_stopped(self, requests: Sequence[Request]) -> Iterator[Request]:
        for request in cycle(requests):
            if self._stop.is_set():
                return
            yield request

    @property
    def running(self) -> bool:
        """False once nothing is sent any more: it was told to stop, or too many callers had no answer."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait until every caller has its answer or has waited long enough."""
        self._stop.set()
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            raise RuntimeError("callers did not end within their own bound")
        if self._error is not None and error is None:
            raise self._error
