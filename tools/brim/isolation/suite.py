"""The run: references first, then one check after the other, a canary after each, results as they come."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np

from brim.errors import CouldNotTell, ServerFailed
from brim.isolation.bench import MESSAGES, Account, Bench
from brim.isolation.checks import chosen
from brim.isolation.contract import other_model, read_contract
from brim.isolation.judge import Verdict
from brim.isolation.pool import Pool, make_pool
from brim.isolation.result import Options, Result
from brim.isolation.rows import random_rows
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.supervise import Supervisor
from brim.service.samples import Row

POOL_ROWS = 200


def run_suite(
    endpoint: Endpoint,
    model: str,
    options: Options,
    *,
    rows: Sequence[Row] = (),
    own: EmbeddedServer | None = None,
    supervisor: Supervisor | None = None,
    guarded: bool = False,
    on_result: Callable[[Result], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
    on_count: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Run the chosen checks against a model.

    Args:
        endpoint: the server, both protocols.
        model: its name there.
        options: how much, how, which.
        rows: good rows with the batch dimension 1 in front; random ones by the model's types and shapes when empty.
        own: the server at or behind ``endpoint`` where the suite may harm it and start others like it; without it, the checks
            that need this are skipped.
        supervisor: what starts that server again when it dies, so that the other checks are run all the same.
        guarded: whether a gateway stands at ``endpoint``; then what ends a bare server is sent, too.
        on_result: told each result when its check has ended.
        on_progress: told what is happening, a short sentence each.
        on_count: told how many more answers have come, while they come.

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
    control = own.endpoint if own else endpoint
    other = (
        _other_pool(endpoint, other_model(control, model), options)
        if any(check.id == "two_models" for check in checks)
        else None
    )
    bench = Bench(endpoint, pool, other, options, own=own, supervisor=supervisor, guarded=guarded, on_count=on_count)
    trouble = bench.canary()
    if trouble:
        raise ServerFailed(
            f"{model} answered over HTTP, and now a good row is not answered over both protocols: {trouble}",
            hint="--grpc-port tells where the server's gRPC side is",
        )
    results: list[Result] = []
    last = ""
    for check in checks:
        began = perf_counter_ns()
        if bench.dead:
            account = Account(troubles=[f"not run: the server no longer answers since {last}"])
        else:
            on_progress(f"{check.id}: {check.title}")
            account = check.run(bench)
            last = check.id
        result = result_of(check.id, account, options, (perf_counter_ns() - began) // 1_000)
        results.append(result)
        on_result(result)
    return results


def _other_pool(endpoint: Endpoint, name: str | None, options: Options) -> Pool | None:
    if name is None:
        return None
    contract = read_contract(endpoint, name)
    rows = random_rows(contract, POOL_ROWS // 4, np.random.default_rng([options.seed, zlib.crc32(name.encode())]))
    try:
        return make_pool(endpoint, contract, rows, timeout_s=options.answer_timeout_s, tolerance=options.tolerance)
    except CouldNotTell:
        return None


def result_of(check_id: str, account: Account, options: Options, took_us: int) -> Result:
    """What a check's account comes to: a fault or a trouble is a failure, and its message tells how to repeat it."""
    tally = account.tally
    ok = not tally.hurt and not account.troubles
    message = f"nothing to check: {account.skipped}" if account.skipped else account.note
    if not ok:
        hurt = [f"{tally.hurt} of {tally.sent} requests were hurt"] if tally.hurt else []
        message = " | ".join([*hurt, *account.troubles, *tally.faults[:MESSAGES]])
        if options.repeat:
            message += f"; repeat with: {' '.join([options.repeat, '--check', check_id, *account.repeat])}"
    return Result(
        id=check_id,
        ok=ok,
        sent=tally.sent,
        **{verdict.value: tally.counts[verdict] for verdict in Verdict},
        message=message,
        mean_batch=account.mean_batch,
        skipped=bool(account.skipped),
        largest_deviation=tally.deviation,
        faults=tuple(tally.faults),
        took_us=took_us,
        exchanges=tuple(account.journal.kept),
        figures=account.figures,
    )
