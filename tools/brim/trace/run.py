"""A run: own requests sent through the gateway, and what caller, gateway and Triton know of each, put together."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from brim.errors import CouldNotTell, InputError
from brim.gateway.access_log import AccessLog, Passage
from brim.measure.batch_stats import difference, settle
from brim.measure.callers import Row
from brim.measure.measure import ask_target, read_snapshot
from brim.server.endpoint import Endpoint
from brim.trace.batches import Batch, batches_of, sizes
from brim.trace.callers import Call, call_all, tensor_requests
from brim.trace.events import Followed
from brim.trace.switch import followed_all
from brim.trace.waterfall import TENSOR_WAY, Waterfall, Way, waterfall

T = TypeVar("T")

SETTLE_S = 3.0
"""How long the run waits for Triton's counts to stand still; while others use the model they do not."""
GATHER_S = 10.0
"""How long the run waits for what gateway and server have still to write."""
LOOK_S = 0.1


def new_prefix() -> str:
    """What the ids of a run begin with. Nobody can guess it, so nobody else's request is taken for one of the run."""
    return f"brim-trace-{secrets.token_hex(6)}-"


@dataclass(frozen=True, slots=True)
class Told:
    """What the server told of one request.

    Attributes:
        moments: name (``brim.trace.waterfall``) -> nanoseconds on the monotonic clock.
        in_order: whether they are in an order in which they can have happened.
    """

    moments: Mapping[str, int]
    in_order: bool


@dataclass(frozen=True, slots=True)
class Traced:
    """One request of the run.

    Attributes:
        call: as its caller saw it.
        way: its parts.
        batches: executions that it was in: one, or as many steps as a text took; none when it was in none.
        told: by the server; None when the request did not reach it.
        refused_for: why the gateway refused it; empty when it did not.
    """

    call: Call
    way: Waterfall
    batches: tuple[Batch, ...]
    told: Told | None
    refused_for: str


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
        unit: what an execution is called: batch, or step where texts are made.
    """

    model: str
    prefix: str
    traced: tuple[Traced, ...]
    batches: tuple[Batch, ...]
    executions_by_size: Mapping[int, int]
    agrees: bool | None
    unit: str = "batch"

    def one(self, request_id: str | None) -> Traced:
        """The request of this id, or of this number in the run; the one that took longest when absent.

        Raises:
            InputError: there is none.
        """
        if request_id is None:
            answered = [one for one in self.traced if one.batches]
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
            "followed": sum(one.told is not None for one in self.traced),
            "outcomes": dict(sorted(Counter(one.call.outcome for one in self.traced).items())),
            "refused": dict(sorted(Counter(one.refused_for for one in self.traced if one.refused_for).items())),
            "unit": self.unit,
            "batches": [self.batch_as_json(batch) for batch in self.batches],
            "executions_by_size": {str(size): count for size, count in self.executions_by_size.items()},
            "agrees_with_batch_stats": self.agrees,
            "in_order": all(one.told is None or one.told.in_order for one in self.traced),
        }

    def batch_as_json(self, batch: Batch) -> dict[str, Any]:
        """An execution. Of other callers' requests nothing is told but that they were there."""
        own = [member for member in batch.members if member.startswith(self.prefix)]
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
            "in_order": None if one.told is None else one.told.in_order,
            "gateway_moved_us": one.way.gateway_moved_us,
            "contradicted_us": one.way.contradicted_us,
            "stayed_us": one.way.stayed_us,
            "batches": [self.batch_as_json(batch) for batch in one.batches],
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
    target = ask_target(server, model)
    before, _ = settle(lambda: read_snapshot(target), timeout_s=SETTLE_S)
    ahead_ns = wall_ahead_ns()
    on_progress(f"sending {requests} requests, {concurrency} at once, to {address}")
    with followed_all(server, model) as files:
        calls = call_all(address, tensor_requests(model, rows, ids), concurrency, timeout_s)
    after, still = settle(lambda: read_snapshot(target), timeout_s=SETTLE_S)
    expected = {call.request_id for call in calls if call.status == 200}
    followed = gathered(lambda: files.followed(model), lambda found: expected <= {one.request_id for one in found})
    counted = difference(before, after, instances=target.instances).executions_by_size if still else {}
    return of_batches(model, prefix, calls, noted(access, ids), followed, counted, ahead_ns)


def of_batches(
    model: str,
    prefix: str,
    calls: Sequence[Call],
    passages: Mapping[str, Passage],
    followed: Sequence[Followed],
    executions_by_size: Mapping[int, int],
    ahead_ns: int,
) -> Run:
    """A run of requests that are computed in one batch each, from what Triton wrote about all that came meanwhile.

    Raises:
        CouldNotTell: as ``trace``.
    """
    told = {
        one.request_id: Told(one.moments(), one.in_order()) for one in followed if one.request_id.startswith(prefix)
    }
    batches = batches_of(followed)
    alone = len(told) == len(followed)
    agrees = sizes(batches) == executions_by_size if alone and executions_by_size else None
    traced = put_together(model, calls, passages, told, batches, ahead_ns, TENSOR_WAY)
    ours = tuple(batch for batch in batches if not told.keys().isdisjoint(batch.members))
    return Run(model, prefix, traced, ours, executions_by_size, agrees)


def put_together(
    model: str,
    calls: Sequence[Call],
    passages: Mapping[str, Passage],
    told: Mapping[str, Told],
    batches: Sequence[Batch],
    ahead_ns: int,
    way: Way,
) -> tuple[Traced, ...]:
    """What callers, gateway and server know, by request.

    Raises:
        CouldNotTell: requests were answered, and the server has told nothing about any of them.
    """
    if any(call.status == 200 for call in calls) and not told:
        raise CouldNotTell(
            f"{model}: requests were answered, and the server has written nothing about them",
            hint="is there room on its disk, and is the folder of its traces writable for it?",
        )
    shared: dict[str, list[Batch]] = {}
    for batch in batches:
        for member in batch.members:
            shared.setdefault(member, []).append(batch)
    traced = []
    for call in calls:
        own, passage = told.get(call.request_id), passages.get(call.request_id)
        moments = {} if own is None else own.moments
        fall = waterfall(call.sent_ns, call.answered_ns, passage, moments, ahead_ns, way)
        refused_for = call.reason or (passage.reason if passage else "")
        traced.append(Traced(call, fall, tuple(shared.get(call.request_id, ())), own, refused_for))
    return tuple(traced)


def wall_ahead_ns() -> int:
    """Wall time minus monotonic time, from the reading that was interrupted least."""
    readings = []
    for _ in range(16):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


def gathered(read: Callable[[], T], enough: Callable[[T], bool]) -> T:
    """What ``read`` gives once it is enough, or after ``GATHER_S``."""
    deadline_s = time.monotonic() + GATHER_S
    while True:
        found = read()
        if enough(found) or time.monotonic() > deadline_s:
            return found
        time.sleep(LOOK_S)


def noted(access: AccessLog | None, ids: Sequence[str]) -> Mapping[str, Passage]:
    """The gateway's notes of these requests, as far as it makes any."""
    return {} if access is None else gathered(access.passages, lambda found: set(ids) <= found.keys())
