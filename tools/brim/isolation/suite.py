"""The run: references first, then one check after the other, a canary after each, results as they come."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from time import perf_counter_ns

import numpy as np
from tritonclient.utils import InferenceServerException

from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.isolation.checks import CHECKS, Check, Material
from brim.isolation.contract import other_model, read_contract
from brim.isolation.exchange import LOST, exchange
from brim.isolation.judge import Judgement, Tally, Verdict, judge
from brim.isolation.pool import Pool, make_pool
from brim.isolation.request import Came, Expected, Request
from brim.isolation.rows import random_rows
from brim.isolation.waiting import wait_until_none_waits
from brim.measure import batch_stats
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.service.samples import Row

POOL_ROWS = 200
CANARY_TIMEOUT_S = 10.0
FREED_TIMEOUT_S = 10.0
MESSAGES = 3
"""Faults that a check's message shows; ``faults`` has a few more."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run.

    Attributes:
        requests: rows of the checks that send most; the others send a part of it.
        seed: every random choice follows from it and from the check's id.
        callers: how many at once.
        answer_timeout_s: longest wait for one answer.
        tolerance: how far a floating-point answer may be from the one alone (``brim.isolation.judge.deviation``).
        checks: ids to run; all when empty.
        repeat: command that repeats the run, without ``--check``; a failure's message ends with it.
    """

    requests: int = 2_000
    seed: int = 0
    callers: int = 120
    answer_timeout_s: float = 30.0
    tolerance: float = 1e-4
    checks: tuple[str, ...] = ()
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check found. ``sent`` is the sum of the six counts after it.

    Attributes:
        id: the check.
        ok: nobody was hurt, and the server answers afterwards.
        sent: requests with a verdict, the ones asked alone to learn what they get included.
        right: own answer.
        own_error: own error, where it gets that alone, too.
        cancelled: the caller went away itself.
        wrong: another answer than alone, or an error that speaks of others.
        neighbour_errors: an error that it does not get alone.
        hung: no answer in time.
        message: what went wrong and the command that repeats it; or why there was nothing to check.
        mean_batch: rows in a batch while all of them were sent; None where the server does not tell.
        skipped: whether there was nothing to check.
        largest_deviation: of all right answers from those alone.
        faults: the first few, in words.
        took_us: the whole check.
    """

    id: str
    ok: bool
    sent: int
    right: int
    own_error: int
    cancelled: int
    wrong: int
    neighbour_errors: int
    hung: int
    message: str
    mean_batch: float | None
    skipped: bool
    largest_deviation: float
    faults: tuple[str, ...]
    took_us: int

    def as_json(self) -> dict[str, object]:
        """The result as a JSON object."""
        return asdict(self)


def chosen(ids: Sequence[str]) -> tuple[Check, ...]:
    """The checks with these ids in the order of the suite; all when there are none.

    Raises:
        InputError: an id is unknown.
    """
    known = [check.id for check in CHECKS]
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise InputError(f"no check is called {', '.join(unknown)}", hint=f"the checks are {', '.join(known)}")
    return tuple(check for check in CHECKS if not ids or check.id in ids)


def run_suite(
    endpoint: Endpoint,
    model: str,
    options: Options,
    *,
    rows: Sequence[Row] = (),
    on_result: Callable[[Result], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run the chosen checks against a model.

    Args:
        endpoint: the server, both protocols.
        model: its name there.
        options: how much, how, which.
        rows: good rows with the batch dimension 1 in front; random ones by the model's types and shapes when empty.
        on_result: told each result when its check has ended.
        on_progress: told what is happening, a short sentence each.

    Raises:
        InputError: the model or a check is unknown.
        ServerFailed: no server answers.
        CouldNotTell: the model's answers alone cannot serve as references.
    """
    checks = chosen(options.checks)
    contract = read_contract(endpoint, model)
    on_progress(f"asking rows of {model} alone for reference")
    draw = np.random.default_rng([options.seed, zlib.crc32(model.encode())])
    mine = list(rows) or random_rows(contract, POOL_ROWS, draw)
    pool = make_pool(
        endpoint, contract, mine[:POOL_ROWS], timeout_s=options.answer_timeout_s, tolerance=options.tolerance
    )
    other = _other_pool(endpoint, model, options) if any(check.id == "two_models" for check in checks) else None
    bench = _Bench(endpoint, pool, other, options)
    trouble = bench.canary()
    if trouble:
        raise ServerFailed(
            f"{model} answered over HTTP, and now a good row is not answered over both protocols: {trouble}",
            hint="--grpc-port tells where the server's gRPC side is",
        )
    results: list[Result] = []
    after = ""
    for check in checks:
        if bench.dead:
            after = after or results[-1].id
            result = bench.not_run(check, after)
        else:
            on_progress(check.title)
            result = bench.run(check)
        results.append(result)
        on_result(result)
    return results


def _other_pool(endpoint: Endpoint, model: str, options: Options) -> Pool | None:
    name = other_model(endpoint, model)
    if name is None:
        return None
    contract = read_contract(endpoint, name)
    rows = random_rows(contract, POOL_ROWS // 4, np.random.default_rng([options.seed, zlib.crc32(name.encode())]))
    try:
        return make_pool(endpoint, contract, rows, timeout_s=options.answer_timeout_s, tolerance=options.tolerance)
    except CouldNotTell:
        return None


def _silent(known: Request) -> bool:
    """Whether what a request got alone is what it would get from a server that is gone."""
    return known.expected is not None and known.expected.status in (LOST, "UNAVAILABLE")


def _mean_batch(before: batch_stats.Snapshot | None, after: batch_stats.Snapshot | None) -> float | None:
    if before is None or after is None:
        return None
    try:
        return batch_stats.difference(before, after, instances=1).mean_batch
    except CouldNotTell:
        return None


class _Bench:
    """One server under test."""

    def __init__(self, endpoint: Endpoint, pool: Pool, other: Pool | None, options: Options) -> None:
        self.endpoint = endpoint
        self.pool = pool
        self.other = other
        self.options = options
        self.dead = False
        self.mean_batch: float | None = None

    def run(self, check: Check) -> Result:
        began = perf_counter_ns()
        self.mean_batch = None
        options = self.options
        callers = check.callers(options.callers, self.pool.contract.max_rows)
        material = Material(
            self.pool,
            self.other,
            np.random.default_rng([options.seed, zlib.crc32(check.id.encode())]),
            check.count(options.requests, callers),
            callers,
        )
        needless = check.needless(material)
        if needless:
            return self._result(check, Tally(), [], began, skipped=f"nothing to check: {needless}")
        tally = Tally()
        requests = self._learn(check, check.make(material), tally)
        unsent = len(requests) if self.dead else self._company(check, requests, callers, tally)
        more = [f"{unsent} more requests were not sent: too many callers had no answer"] if unsent else []
        trouble = self.canary()
        if trouble:
            more.append(f"afterwards the server does not answer a good row: {trouble}")
        elif check.frees and self.endpoint.metrics:
            left = wait_until_none_waits(self.endpoint.metrics, self.pool.contract.name, timeout_s=FREED_TIMEOUT_S)
            more += [left] if left else []
        return self._result(check, tally, more, began)

    def not_run(self, check: Check, after: str) -> Result:
        return self._result(check, Tally(), [f"not run: the server no longer answers since {after}"], perf_counter_ns())

    def _learn(self, check: Check, requests: list[Request], tally: Tally) -> list[Request]:
        """Ask every unusual request once alone; in company it must get the same. Those that hang alone are left out."""
        unknown = list({id(one): one for one in requests if one.expected is None}.values())
        learnt: dict[int, Request | None] = {}

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, self.options.tolerance)
            tally.add(judgement, f"{request.name()}, alone")
            usable = judgement.verdict in (Verdict.RIGHT, Verdict.OWN_ERROR)
            learnt[id(request)] = replace(request, expected=Expected(came.outputs, came.status)) if usable else None

        exchange(
            self.endpoint,
            unknown,
            callers=1,
            timeout_s=self.options.answer_timeout_s,
            prefix=f"{check.id}-alone",
            on_came=keep,
        )
        # A connection may end on a broken message; the server must not.
        gone = [one for one in unknown if (known := learnt.get(id(one))) is None or _silent(known)]
        if gone and (trouble := self.canary()):
            tally.add(Judgement(Verdict.WRONG, f"the server no longer answers: {trouble}"), f"{gone[0].name()}, alone")
            return []
        company = [one if one.expected is not None else learnt.get(id(one)) for one in requests]
        return [one for one in company if one is not None]

    def _company(self, check: Check, requests: Sequence[Request], callers: int, tally: Tally) -> int:
        """All of them, many at once; how many were not sent any more."""
        before = tally.sent
        batches_before = self._batches()

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, self.options.tolerance)
            tally.add(judgement, f"request {request_id} ({request.name()})")
            if judgement.verdict is Verdict.WRONG and came.outputs is not None and len(tally.faults) < MESSAGES:
                owner = self.pool.owner(came.outputs, self.options.tolerance)
                if owner is not None:
                    tally.faults[-1] += f"; what came is the answer to row {owner}"

        exchange(
            self.endpoint,
            requests,
            callers=callers,
            timeout_s=self.options.answer_timeout_s,
            prefix=check.id,
            on_came=keep,
        )
        self.mean_batch = _mean_batch(batches_before, self._batches())
        return len(requests) - (tally.sent - before)

    def _batches(self) -> batch_stats.Snapshot | None:
        """The server's own count of batches, where it has one."""
        with closing(self.endpoint.http_client(timeout_s=CANARY_TIMEOUT_S)) as client:
            try:
                return batch_stats.snapshot(client, self.pool.contract.name)
            except (InferenceServerException, OSError, ValueError, CouldNotTell):
                return None

    def canary(self) -> str:
        """A good row alone over each protocol; empty when both answers are right. Remembers a server that is gone."""
        troubles: list[str] = []

        def keep(number: int, request: Request, request_id: str, came: Came) -> None:
            judgement = judge(request, came, request_id, self.options.tolerance)
            if judgement.verdict is not Verdict.RIGHT:
                troubles.append(f"{request.protocol.value}: {judgement.fault}")

        canaries = [self.pool.request(0, protocol) for protocol in Protocol]
        exchange(self.endpoint, canaries, callers=1, timeout_s=CANARY_TIMEOUT_S, prefix="canary", on_came=keep)
        self.dead = bool(troubles)
        return "; ".join(troubles)

    def _result(self, check: Check, tally: Tally, more: Sequence[str], began_ns: int, *, skipped: str = "") -> Result:
        counts = {verdict.value: tally.counts[verdict] for verdict in Verdict}
        ok = not tally.hurt and not more
        parts = [*more, *tally.faults[:MESSAGES]]
        if tally.hurt:
            parts.insert(0, f"{tally.hurt} of {tally.sent} requests were hurt")
        message = skipped
        if not ok:
            repeat = f"; repeat with: {self.options.repeat} --check {check.id}" if self.options.repeat else ""
            message = " | ".join(parts) + repeat
        return Result(
            id=check.id,
            ok=ok,
            sent=tally.sent,
            **counts,
            message=message,
            mean_batch=self.mean_batch if tally.sent else None,
            skipped=bool(skipped),
            largest_deviation=tally.deviation,
            faults=tuple(tally.faults),
            took_us=(perf_counter_ns() - began_ns) // 1_000,
        )
