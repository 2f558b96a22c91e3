"""Triton's trace files: what became of each request that the server followed, with a time in nanoseconds for each event.

Source of the form: docs/user_guide/trace.md and ``src/tracer.cc`` of triton-inference-server/server at v2.51.0. The times are of
``steady_clock``, which is Python's ``time.monotonic_ns`` on the same machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IN_SERVER = (
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
)
"""In the order in which they happen to a request over HTTP."""
ANSWERED = "INFER_RESPONSE_COMPLETE"
"""The answer is put together; it may be before ``COMPUTE_END``, which is the whole batch's."""
COMPUTED = "COMPUTED"
"""This request's part of the batch is done: what comes first of ``ANSWERED`` and ``COMPUTE_END``."""
_BEGIN = '{"id":'


@dataclass(frozen=True, slots=True)
class Followed:
    """One request in the server.

    Attributes:
        model: its name; empty where what stands at the head of the request cannot be read.
        version: of the model.
        request_id: as the caller said; empty when it said none.
        events: name -> nanoseconds on the monotonic clock. Of what happens several times, the first.
    """

    model: str
    version: int
    request_id: str
    events: Mapping[str, int]

    def moments(self) -> dict[str, int]:
        """Its events, and when its part of the batch was done (``COMPUTED``)."""
        ends = [self.events[name] for name in ("COMPUTE_END", ANSWERED) if name in self.events]
        return {**self.events, **({COMPUTED: min(ends)} if ends and "COMPUTE_OUTPUT_START" in self.events else {})}

    def in_order(self) -> bool:
        """Whether its events are in the order in which they can only have happened."""
        times = [self.events[name] for name in IN_SERVER if name in self.events]
        answered, computed = self.events.get(ANSWERED), self.events.get("COMPUTE_OUTPUT_START")
        late = answered is None or computed is None or answered >= computed
        return late and times == sorted(times)


def parse(text: str) -> list[Followed]:
    """The requests of one file, in the order in which they were written.

    Triton writes a caller's id into its JSON as it came, so an id with a quotation mark breaks what it stands in, or could
    put events of its own making there. A request whose head cannot be read has no model and no id, and one of which something
    is said twice that can be only once is left out.
    """
    heads: dict[int, Mapping[str, Any]] = {}
    events: dict[int, dict[str, int]] = {}
    doubtful: set[int] = set()
    for item in _objects(text):
        number = item.get("id")
        if not isinstance(number, int):
            continue
        if "model_name" in item:
            if number in heads:
                doubtful.add(number)
            heads[number] = item
        for event in _events(item):
            known = events.setdefault(number, {})
            if event[0] in known and event[0] in IN_SERVER:
                doubtful.add(number)
            known.setdefault(*event)
    known_heads = [
        Followed(
            str(head["model_name"]),
            int(head.get("model_version", 0)),
            str(head.get("request_id", "")),
            events.get(number, {}),
        )
        for number, head in heads.items()
        if number not in doubtful and "parent_id" not in head
    ]
    headless = [
        Followed("", 0, "", found)
        for number, found in events.items()
        if number not in heads and number not in doubtful and "REQUEST_START" in found
    ]
    return known_heads + headless


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    decoder = json.JSONDecoder()
    at = text.find(_BEGIN)
    while at >= 0:
        try:
            item, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            yield item
        at = text.find(_BEGIN, end)


def _events(item: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
    stamps = item.get("timestamps", [])
    if not isinstance(stamps, list):
        return []
    return [
        (stamp["name"], stamp["ns"])
        for stamp in stamps
        if isinstance(stamp, dict) and isinstance(stamp.get("name"), str) and isinstance(stamp.get("ns"), int)
    ]
