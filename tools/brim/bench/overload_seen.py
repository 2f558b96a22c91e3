"""What the gateway, Triton and the model count by themselves while somebody else sends: the driver's word is not enough."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote

from brim.errors import CouldNotTell, ServerFailed
from brim.isolation.waiting import waiting_requests
from brim.measure.accounting import Outcome

SAMPLE_EVERY_S = 0.02
WAITING_EVERY = 10
"""Triton's page is read at every so many samples: it holds far more than one gauge."""
TIMEOUT_S = 5.0
SETTLE_S = 40.0
GONE_FLAGS = frozenset(("DC", "DR"))
"""Envoy's response flags of a caller that closed its connection, or reset its stream."""
_COUNTER = re.compile(r"^envoy_brim_requests\{(?P<labels>[^}]*)\} (?P<value>\d+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_BY_HTTP = {"200": Outcome.ANSWERED, "429": Outcome.REFUSED, "503": Outcome.FAILED, "504": Outcome.EXPIRED}
_BY_GRPC = {"": Outcome.ANSWERED, "0": Outcome.ANSWERED, "8": Outcome.REFUSED, "4": Outcome.EXPIRED}


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests of one model as the gateway has counted them.

    Attributes:
        outcomes: (class, outcome) -> requests.
        reasons: (class, why it was refused) -> requests.
    """

    outcomes: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All of them."""
        return self.outcomes.total()

    def of(self, outcome: Outcome, name: str | None = None) -> int:
        """How many came to this end, of one class or of all."""
        return sum(count for (of, end), count in self.outcomes.items() if end is outcome and name in (None, of))

    def since(self, before: Counted) -> Counted:
        """What came after ``before``."""
        return Counted(self.outcomes - before.outcomes, self.reasons - before.reasons)


def counted(page: str, model: str) -> Counted:
    """What Envoy's metrics page says of one model (``brim.gateway.envoy_config``, its counters)."""
    found = Counted()
    for labels, value in _counters(page):
        if labels.get("model") != model:
            continue
        name, requests = labels.get("class", ""), value
        found.outcomes[name, _outcome(labels)] += requests
        if labels.get("reason"):
            found.reasons[name, labels["reason"]] += requests
    return found


def _counters(page: str) -> Iterator[tuple[dict[str, str], int]]:
    for line in _COUNTER.finditer(page):
        yield dict(_LABEL.findall(line["labels"])), int(line["value"])


def _outcome(labels: dict[str, str]) -> Outcome:
    if GONE_FLAGS & set(labels.get("flags", "").split(",")):
        return Outcome.CANCELLED
    outcome = _BY_HTTP.get(labels.get("code", ""), Outcome.FAILED)
    return _BY_GRPC.get(labels.get("grpc_status", ""), Outcome.FAILED) if outcome is Outcome.ANSWERED else outcome


class Gauges:
    """The gateway's and Triton's own counts of one model's requests, over one kept connection each."""

    def __init__(self, admin: str, metrics: str, model: str) -> None:
        """``admin`` and ``metrics`` are ``host:port`` of Envoy's pages and of Triton's."""
        self._admin = http.client.HTTPConnection(admin, timeout=TIMEOUT_S)
        self._admin_address, self._metrics_address, self._model = admin, metrics, model
        # Envoy's main thread looks at every gauge for this, 0.2 ms of a core; without the type at every counter as well.
        pattern = f"^cluster\\.triton/{re.escape(model)}\\.upstream_rq_active$"
        self._path = f"/stats?type=Gauges&format=json&filter={quote(pattern)}"

    def in_flight(self) -> int:
        """Requests between the gateway and Triton now.

        Raises:
            ServerFailed: the gateway has no such gauge.
        """
        self._admin.request("GET", self._path)
        stats = json.loads(self._admin.getresponse().read())["stats"]
        if len(stats) != 1:
            raise ServerFailed(f"the gateway has {len(stats)} gauges of {self._model}", hint="see its log")
        return int(stats[0]["value"])

    def waiting(self) -> int:
        """Requests that wait for a batch in Triton now."""
        return waiting_requests(_page(f"{self._metrics_address}/metrics"), self._model)

    def counted(self) -> Counted:
        """The gateway's counters of this model."""
        return counted(_page(f"{self._admin_address}/stats/prometheus?filter=brim"), self._model)

    def settled(self) -> Counted:
        """The same once nothing is in flight or waits any more.

        Raises:
            CouldNotTell: something still is after ``SETTLE_S``.
        """
        until_s = time.monotonic() + SETTLE_S
        while (in_flight := self.in_flight()) or self.waiting():
            if time.monotonic() > until_s:
                raise CouldNotTell(
                    f"{in_flight} requests of {self._model} are still in flight {SETTLE_S:g} s after the last answer",
                    hint="does somebody else use this gateway?",
                )
            time.sleep(SAMPLE_EVERY_S)
        return self.counted()

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode("utf-8", "replace"))


class Sampler:
    """Looks at both gauges while a ``with`` block runs, from a thread of its own.

    Attributes:
        most_in_flight: highest value of the gateway's gauge.
        most_waiting: highest value of Triton's.
        samples: how often the gateway's was read.
    """

    def __init__(self, admin: str, metrics: str, model: str) -> None:
        """Nothing is read before the block."""
        self._gauges = Gauges(admin, metrics, model)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="brim-gauges", daemon=True)
        self._error: Exception | None = None
        self.most_in_flight = self.most_waiting = self.samples = 0

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End; what went wrong while reading is raised here, unless something else is on its way already."""
        self._over.set()
        self._thread.join(2 * TIMEOUT_S)
        self._gauges.close()
        if self._error is not None and kind is None:
            raise CouldNotTell(f"the gauges could not be read: {self._error}", hint="is the gateway still there?")

    def _sample(self) -> None:
        try:
            while not self._over.wait(SAMPLE_EVERY_S):
                self.most_in_flight = max(self.most_in_flight, self._gauges.in_flight())
                if self.samples % WAITING_EVERY == 0:
                    self.most_waiting = max(self.most_waiting, self._gauges.waiting())
                self.samples += 1
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self._error = error
