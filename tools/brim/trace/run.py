"""A run: own requests sent through the gateway, and what caller, gateway and Triton know of each, put together."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from brim.errors import CouldNotTell, InputError
from brim.gateway.access_log import AccessLog, Passage
from brim.measure.batch_stats import difference, settle, snapshot
from brim.measure.callers import Row
from brim.server.endpoint import Endpoint
from brim.trace.batches import Batch, batches_of, sizes
from brim.trace.callers import Call, call_all
from brim.trace.events import Followed
from brim.trace.switch import TraceFiles, followed_all
from brim.trace.waterfall import Waterfall, waterfall

SETTLE_S = 3.0
"""How long the run waits for Triton's counts to stand still; while others use the model they do not."""
GATHER_S = 10.0
"""How long the run waits for what gateway and server have still to write."""
LOOK_S = 0.1


def new_prefix() -> str:
    """What the ids of a run begin with. Nobody can guess it, so nobody else's request is taken for one of the run."""
    return f"brim-trace-{secrets.token_hex(6)}-"


@dataclass(frozen=True, slots=True)
class Traced:
    """One request of the run.

    Attributes:
        call: as its caller saw it.
        way: its parts.
        batch: the execution that it was in; None when it was in none, or Triton did not tell.
        followed: what Triton noted; None when the request did not reach it.
        refused_for: why the gateway refused it; empty when it did not.
    """

    call: Call
    way: Waterfall
    batch: Batch | None
    followed: Followed | None
    refused_for: str

    @property
    def in_order(self) -> bool | None:
        """Whether Triton's events are in a possible order; None when there are none."""
        return None if self.followed is None else self.followed.in_order()


@dataclass(frozen=True, slots=True)
class Run:
    """All of it.

    Attributes:
        model: that was asked.
        prefix: of the ids.
        traced: every request of the run, in the order of their ids.
        batches: executions that had at least one of them.
        executions_by_size: Triton's own count meanwhile, all callers together, by rows.
        agrees: whether that is what the batches say; None when others used the model, whose rows nobody tells us.
    """

    model: str
    prefix: str
    traced: tuple[Traced, ...]
    batches: tuple[Batch, ...]
    executions_by_size: dict[int, int]
    agrees: bool | None

    def one(self, request_id: str | None) -> Traced:
        """The request of this id, or of this number in the run; the one that took longest when absent.

        Raises:
            InputError: there is none.
        """
        if request_id is None:
            answered = [one for one in self.traced if one.batch is not None]
            return max(answered or self.traced, key=lambda one: one.way.took_us)
        for one in self.traced:
            if one.call.request_id in (request_id, f"{self.prefix}{request_id}"):
                return one
        raise InputError(
            f"{request_id}: no request of this run has that id; they are {self.prefix}0 to {self.prefix}{len(self.traced) - 1}",
            hint="the number alone is enough: --request-id 17",
        )

    def as_json(self) -> dict[str, Any]:
        """The run without the way of each request."""
        return {
            "model": self.model,
            "requests": len(self.traced),
            "followed": sum(one.followed is not None for one in self.traced),
            "outcomes": dict(sorted(Counter(one.call.outcome for one in self.traced).items())),
            "refused": dict(sorted(Counter(one.refused_for for one in self.traced if one.refused_for).items())),
            "batches": [self.batch_as_json(batch) for batch in self.batches],
            "executions_by_size": {str(size): count for size, count in self.executions_by_size.items()},
            "agrees_with_batch_stats": self.agrees,
            "in_order": all(one.in_order is not False for one in self.traced),
        }

    def batch_as_json(self, batch: Batch) -> dict[str, Any]:
        """An execution. Of other callers' requests nothing is told but that they were there."""
        own = [one.request_id for one in batch.members if one.request_id.startswith(self.prefix)]
        return {
            "number": batch.number,
            "requests": len(batch.members),
            "own": own,
            "others": len(batch.members) - len(own),
            "took_us": (batch.ended_ns - batch.began_ns) // 1_000,
        }

    def way_as_json(self, one: Traced) -> dict[str, Any]:
        """One request with its way and its batch."""
        return {
            "request_id": one.call.request_id,
            "outcome": one.call.outcome,
            "status": one.call.status,
            "reason": one.refused_for,
            "message": one.call.message,
            "took_us": one.way.took_us,
            "parts": [asdict(part) for part in one.way.parts],
            "in_order": one.in_order,
            "gateway_moved_us": one.way.gateway_moved_us,
            "contradicted_us": one.way.contradicted_us,
            "stayed_us": one.way.stayed_us,
            "batch": None if one.batch is None else self.batch_as_json(one.batch),
        }


def trace(
    server: Endpoint,
    address: str,
    model: str,
    rows: Sequence[Row],
    *,
    requests: int,
    concurrency: int,
    timeout_s: float,
    prefix: str,
    access: AccessLog | None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Send the requests and gather what is known of them.

    Args:
        server: Triton itself, on this machine.
        address: ``host:port`` to which the requests go: the gateway, or the server's own.
        model: that is asked.
        rows: that are sent, in turn, with a batch dimension of 1.
        requests: how many.
        concurrency: callers at once.
        timeout_s: bound on the wait for one answer.
        prefix: of the ids (``new_prefix``).
        access: the gateway's notes; None when it makes none.
        on_progress: told what is happening.

    Raises:
        InputError: the server cannot follow requests; see ``followed_all``.
        CouldNotTell: requests were answered, and Triton has written nothing about any of them.
    """
    ids = [f"{prefix}{number}" for number in range(requests)]
    with closing(server.http_client()) as client:
        before, _ = settle(lambda: snapshot(client, model), timeout_s=SETTLE_S)
        wall_ahead_ns = _wall_ahead_ns()
        on_progress(f"sending {requests} requests, {concurrency} at once, to {address}")
        with followed_all(server, model) as files:
            calls = call_all(address, model, rows, ids, concurrency, timeout_s)
        after, still = settle(lambda: snapshot(client, model), timeout_s=SETTLE_S)
    expected = {call.request_id for call in calls if call.status == 200}
    followed = _gathered(files, model, expected)
    passages = _noted(access, set(ids))
    stats = difference(before, after, instances=1)
    return put_together(
        model, prefix, calls, passages, followed, stats.executions_by_size if still else {}, wall_ahead_ns
    )


def put_together(
    model: str,
    prefix: str,
    calls: Sequence[Call],
    passages: dict[str, Passage],
    followed: Sequence[Followed],
    executions_by_size: dict[int, int],
    wall_ahead_ns: int,
) -> Run:
    """What callers, gateway and Triton know, by request.

    Raises:
        CouldNotTell: as ``trace``.
    """
    by_id = {one.request_id: one for one in followed if one.request_id.startswith(prefix)}
    if any(call.status == 200 for call in calls) and not by_id:
        raise CouldNotTell(
            f"{model}: requests were answered, and the server has written nothing about them",
            hint="is there room on its disk, and is its trace file's folder writable for it?",
        )
    batches = batches_of(followed)
    batch_of = {member.request_id: batch for batch in batches for member in batch.members}
    traced = []
    for call in calls:
        own, passage = by_id.get(call.request_id), passages.get(call.request_id)
        way = waterfall(call.sent_ns, call.answered_ns, passage, None if own is None else own.events, wall_ahead_ns)
        refused_for = call.reason or (passage.reason if passage else "")
        traced.append(Traced(call, way, batch_of.get(call.request_id), own, refused_for))
    ours = tuple(batch for batch in batches if any(one.request_id in by_id for one in batch.members))
    alone = all(one.request_id in by_id for one in followed)
    agrees = sizes(batches) == executions_by_size if alone and executions_by_size else None
    return Run(model, prefix, tuple(traced), ours, executions_by_size, agrees)


def _wall_ahead_ns() -> int:
    """Wall time minus monotonic time, from the reading that was interrupted least."""
    readings = []
    for _ in range(16):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


def _gathered(files: TraceFiles, model: str, expected: set[str]) -> list[Followed]:
    """What Triton has written, once everybody is in it who was answered, or after ``GATHER_S``."""
    deadline_s = time.monotonic() + GATHER_S
    while True:
        found = files.followed(model)
        if expected <= {one.request_id for one in found} or time.monotonic() > deadline_s:
            return found
        time.sleep(LOOK_S)


def _noted(access: AccessLog | None, ids: set[str]) -> dict[str, Passage]:
    if access is None:
        return {}
    deadline_s = time.monotonic() + GATHER_S
    while True:
        found = access.passages()
        if ids <= found.keys() or time.monotonic() > deadline_s:
            return found
        time.sleep(LOOK_S)
