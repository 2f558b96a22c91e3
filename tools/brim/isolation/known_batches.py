"""Batches that are known beforehand: which requests share one is decided here, and the server's statistics must agree.

With ``TRITONSERVER_DELAY_SCHEDULER=N`` in its environment a tritonserver holds a model's batcher back until N requests
wait in its queue, once after each load of the model (``BatcherThread`` in core's dynamic_batch_scheduler.cc). The
batcher then takes them in their order, as many as fit into ``max_batch_size`` rows (``GetDynamicBatch`` there), so that
the batches follow from the order and the row counts alone.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from brim.errors import BrimError, CouldNotTell, ServerFailed
from brim.isolation.bench import Account, Bench
from brim.isolation.check import Material
from brim.isolation.pool import Pool
from brim.isolation.request import Expected, Request
from brim.isolation.rows import poison_rows, rows_together
from brim.isolation.traffic import PROTOCOLS, special_requests
from brim.isolation.waiting import TIMEOUT_S, waiting_requests
from brim.isolation.wire import WireTensor, wire_tensors
from brim.limits import BATCH_LIMIT
from brim.measure import batch_stats
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.server.endpoint import NO_ANSWER, Endpoint

DELAY = "TRITONSERVER_DELAY_SCHEDULER"
LEAST_REQUESTS = 7
LIVE_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 180.0
QUEUED_TIMEOUT_S = 20.0
POLL_S = 0.002
SLOW_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests in the order in which they must wait, as many as the batcher is held back for."""

    name: str
    requests: list[Request]


def batches_of(rows: Sequence[int], max_rows: int) -> list[list[int]]:
    """Numbers of the requests in each batch, when all wait in this order: as many as fit, then the next."""
    found: list[list[int]] = []
    room = 0
    for number, size in enumerate(rows):
        if size > room:
            found.append([])
            room = max_rows
        found[-1].append(number)
        room -= size
    return found


def no_plan(config: Mapping[str, Any], max_rows: int) -> str:
    """Why batches of a model of this configuration cannot be known beforehand; empty when they can."""
    if max_rows < 2:
        return "the model takes one row a request"
    if "dynamic_batching" not in config:
        return "the model has no dynamic batcher"
    batcher = config["dynamic_batching"]
    preferred = {int(size) for size in batcher.get("preferred_batch_size", [])} - {max_rows}
    if preferred:
        return f"its preferred batch sizes {sorted(preferred)} make batches a matter of timing"
    if int(batcher.get("priority_levels", 0)) or batcher.get("default_queue_policy", {}).get("max_queue_size"):
        return "its queue has a bound or priorities, so that the order in it is not that of arrival"
    return ""


def deterministic_batches(bench: Bench, material: Material, prefix: str) -> Account:
    """A server of its own whose batcher waits for a known queue; every row is compared with its answer alone."""
    account = Account()
    if bench.own is None:
        account.skipped = "the server is not the suite's own, so its batcher cannot be held back"
        return account
    pool = material.pool
    with closing(bench.endpoint.http_client(timeout_s=LOAD_TIMEOUT_S)) as client:
        reason = no_plan(client.get_model_config(bench.model), pool.contract.max_rows)
    group = max(pool.alike, key=len)
    if reason or len(group) < 2:
        account.skipped = reason or "no two rows have the same size, so that they never share a batch"
        return account
    count = max(LEAST_REQUESTS, min(pool.contract.max_rows, BATCH_LIMIT))
    bad = special_requests(pool, poison_rows(pool.contract, pool.rows[group[0]], material.draw))
    learnt = bench.learn(bad, prefix, account)
    if bench.dead:
        return account
    plans = make_plans(pool, group, learnt, count, material.draw)
    try:
        with _held_back(bench.own, count) as server:
            for plan in plans:
                _carry_out(
                    Bench(server.endpoint, pool, None, bench.options, on_count=bench.on_count), plan, prefix, account
                )
    except BrimError as error:
        account.troubles.append(error.message)
    account.figures = {"plans": len(plans), "requests_in_a_queue": count}
    return account


def make_plans(
    pool: Pool, group: Sequence[int], poison: Sequence[Request], count: int, draw: np.random.Generator
) -> list[Plan]:
    """Each with ``count`` requests: sizes that go up and down, and single rows with poison at a known place.

    Poison that is refused alone is preferred to poison that gets an answer.
    """
    most = pool.contract.max_rows

    def rows(size: int) -> Request:
        return together(pool, [int(number) for number in draw.choice(group, size)], draw)

    sizes = (most, min(3, most), most, 1, max(1, most * 57 // 100), min(2, most), most)
    plans = [Plan("sizes", [*map(rows, sizes), *(rows(1) for _ in range(count - len(sizes)))])]
    refused = [one for one in poison if one.expected and one.expected.outputs is None]
    singles = [rows(1) for _ in range(count - 1)]
    for bad in _one_of(refused or poison, draw):
        place = int(draw.integers(count))
        plans.append(Plan("one_poison", [*singles[:place], bad, *singles[place:]]))
    for bad in _one_of(refused, draw):
        # Two good rows, then a request of several of which the first is poison, then three good rows.
        size = max(1, min(most - 5, most // 2))
        several = widened(bad, [int(number) for number in draw.choice(group, size - 1)], pool)
        three = [rows(min(2, most)), several, rows(min(3, most))]
        plans.append(Plan("poison_of_several_rows", [*three, *singles[: count - len(three)]]))
    return plans


def _one_of(requests: Sequence[Request], draw: np.random.Generator) -> list[Request]:
    return [requests[int(draw.integers(len(requests)))]] if requests else []


def together(pool: Pool, numbers: Sequence[int], draw: np.random.Generator) -> Request:
    """Rows of the pool in one request."""
    tensors = wire_tensors(pool.contract, rows_together([pool.rows[number] for number in numbers]))
    answer = rows_together([pool.answers[number] for number in numbers])
    protocol = PROTOCOLS[int(draw.integers(len(PROTOCOLS)))]
    return replace(pool.request(numbers[0], protocol), tensors=tensors, expected=Expected(answer), rows=tuple(numbers))


def widened(poison: Request, numbers: Sequence[int], pool: Pool) -> Request:
    """The poison's one row with good rows behind it: the request as a whole is what its first row makes it."""
    tensors = tuple(
        WireTensor(
            tensor.name,
            tensor.datatype,
            (len(numbers) + 1, *tensor.shape[1:]),
            b"".join([tensor.data, *(pool.tensors[number][place].data for number in numbers)]),
        )
        for place, tensor in enumerate(poison.tensors)
    )
    return replace(poison, tensors=tensors, what=f"{poison.what}, and {len(numbers)} good rows with it")


def _held_back(own: EmbeddedServer, count: int) -> EmbeddedServer:
    """A second server of the same repository, not started yet. It loads nothing before it is told to."""
    return EmbeddedServer(
        own.repository,
        [],
        cache=own.cache,
        log_file=own.log_file.with_name(f"{own.log_file.stem}-held-back.log"),
        options=ServerOptions(
            profile=own.options.profile,
            exit_timeout_s=own.options.exit_timeout_s,
            extra_arguments=own.options.extra_arguments,
            extra_environment={**own.options.extra_environment, DELAY: str(count)},
        ),
    )


def _carry_out(bench: Bench, plan: Plan, prefix: str, account: Account) -> None:
    """Load the model, let the requests wait in their order, and compare the batches that came of it with the plan."""
    prefix = f"{prefix}-{plan.name}"
    load_anew(bench.endpoint, bench.model)
    planned = batches_of([one.tensors[0].shape[0] for one in plan.requests], bench.pool.contract.max_rows)
    before = bench.batches()
    queue = Queue(bench.endpoint, bench.model)
    flights = bench.company(
        plan.requests, prefix, account, callers=len(plan.requests), gate=queue.wait_for_all_sent, batches=planned
    )
    after = bench.batches()
    if queue.trouble or len(flights.requests) < len(plan.requests):
        account.troubles.append(f"{plan.name}: the queue was not filled as planned: {queue.trouble or 'callers hung'}")
        return
    if before is None or after is None:
        account.troubles.append(f"{plan.name}: the server does not tell its batches")
        return
    ran = batch_stats.difference(before, after, instances=1).executions_by_size
    wanted = Counter(sum(plan.requests[number].tensors[0].shape[0] for number in batch) for batch in planned)
    if ran != dict(wanted):
        account.troubles.append(
            f"{plan.name}: planned were batches of {_sizes(wanted)} rows, the server had {_sizes(ran)}: "
            "who met whom is not known"
        )


def _sizes(batches: Mapping[int, int]) -> str:
    return ", ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in sorted(batches.items()))


def load_anew(endpoint: Endpoint, model: str) -> None:
    """Load the model, anew where it is loaded, so that its batcher is held back once more.

    Raises:
        ServerFailed: the server does not come up, or does not load it.
    """
    deadline = time.monotonic() + LIVE_TIMEOUT_S
    with closing(endpoint.http_client(timeout_s=LOAD_TIMEOUT_S)) as client:
        while True:
            try:
                if client.is_model_ready(model):
                    client.unload_model(model)
                elif client.is_server_live():
                    client.load_model(model)
                    return
            except InferenceServerException as error:
                raise ServerFailed(
                    f"{model} was not loaded by a second server: {error.message()}", hint="look at the server's log"
                ) from error
            except NO_ANSWER:
                pass
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"a second server did not get ready within {LIVE_TIMEOUT_S:g} s", hint="look at its log"
                )
            time.sleep(SLOW_POLL_S)


class Queue:
    """Lets a request go only when all before it wait in the server's queue, by its own metrics page."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        """Nothing has been sent yet."""
        self.page = f"http://{endpoint.metrics}/metrics"
        self.model = model
        self.sent = 0
        self.trouble = ""
        self.turn = asyncio.Lock()

    async def wait_for_all_sent(self) -> None:
        """A gate for ``exchange``. After ``QUEUED_TIMEOUT_S`` it lets everybody go, and ``trouble`` says why."""
        async with self.turn:
            deadline = time.monotonic() + QUEUED_TIMEOUT_S
            while not self.trouble and self.sent:
                waiting = await asyncio.to_thread(self._waiting)
                if waiting >= self.sent:
                    break
                if time.monotonic() > deadline:
                    self.trouble = (
                        f"{waiting} of {self.sent} requests wait {QUEUED_TIMEOUT_S:g} s after the last was sent"
                    )
                await asyncio.sleep(POLL_S)
            self.sent += 1

    def _waiting(self) -> int:
        try:
            with urllib.request.urlopen(self.page, timeout=TIMEOUT_S) as answer:
                return waiting_requests(answer.read().decode("utf-8", "replace"), self.model)
        except (OSError, CouldNotTell) as error:
            self.trouble = f"how many wait cannot be told: {error}"
            return 0
