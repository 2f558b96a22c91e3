"""The run against a language model: texts alone first, then one check after the other, results as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from statistics import median
from time import perf_counter_ns

import numpy as np
from tritonclient.utils import InferenceServerException

from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.isolation.bench import Account
from brim.isolation.contract import METADATA_TIMEOUT_S
from brim.isolation.result import Options, Result
from brim.isolation.suite import result_of
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call, alone_of
from brim.isolation.text.checks import chosen
from brim.isolation.text.prompts import good_asks
from brim.measure.text.stream import Heard
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.supervise import Supervisor

POOL_CALLS = 48
LEAST_CALLS = 8
POOL_SHARE = 1 / 8
"""Calls of the pool, of those asked for: each is made twice alone first."""
CONTRACT = ("text_input", "sampling_parameters", "stream")
"""Inputs by which a decoupled model is one that speaks the contract of Triton's vLLM backend."""


def is_language_model(endpoint: Endpoint, model: str) -> bool:
    """Whether the model's configuration says that it answers in pieces, and by that contract; a silent server says no.

    Raises:
        InputError: it answers in pieces by another contract.
    """
    with closing(endpoint.http_client(timeout_s=METADATA_TIMEOUT_S)) as client:
        try:
            config = client.get_model_config(model)
        except (InferenceServerException, OSError, ValueError):
            return False
    if not config.get("model_transaction_policy", {}).get("decoupled"):
        return False
    missing = set(CONTRACT) - {entry["name"] for entry in config.get("input", [])}
    if missing:
        raise InputError(
            f"{model} answers in pieces, and has no input {', '.join(sorted(missing))}",
            hint="of decoupled models, those that speak the contract of Triton's vLLM backend can be put through the suite",
        )
    return True


def run_text_suite(
    endpoint: Endpoint,
    model: str,
    options: Options,
    *,
    own: EmbeddedServer | None = None,
    supervisor: Supervisor | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
    on_count: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Run the chosen checks against a language model. The arguments are those of ``brim.isolation.suite.run_suite``.

    Raises:
        InputError: a check is unknown.
        ServerFailed: the model answers nobody.
        CouldNotTell: its texts alone cannot serve as references.
    """
    checks = chosen(options.checks)
    bench = TextBench(endpoint, model, options, own=own, supervisor=supervisor, on_count=on_count)
    on_progress(f"asking {model} for texts alone, for reference")
    pool, alone_us = reference_pool(bench)
    bench.good = min(pool, key=lambda call: (call.alone.output_tokens or 0) if call.alone else 0)
    results: list[Result] = []
    last = ""
    for check in checks:
        began = perf_counter_ns()
        if bench.dead:
            account = Account(troubles=[f"not run: the server no longer answers since {last}"])
        else:
            on_progress(f"{check.id}: {check.title}")
            account = check.run(bench, pool, alone_us)
            last = check.id
        result = result_of(check.id, account, options, (perf_counter_ns() - began) // 1_000)
        results.append(result)
        on_result(result)
    return results


def reference_pool(bench: TextBench) -> tuple[list[Call], int]:
    """Good calls with what each gets alone, asked twice, and how long one takes, the median.

    Raises:
        ServerFailed: none is answered.
        CouldNotTell: texts move by themselves, or all are alike.
    """
    options = bench.options
    count = min(POOL_CALLS, max(LEAST_CALLS, round(options.requests * POOL_SHARE)))
    calls = [Call(ask) for ask in good_asks(count, np.random.default_rng(options.seed))]
    first, second = bench.alone(calls), bench.alone(calls)
    if not any(heard.complete for heard in first):
        raise ServerFailed(
            f"{bench.model} answers none of {len(first)} good calls, such as {calls[0].statement()}: "
            f"{first[0].error or 'no finish reason'}",
            hint="--grpc-port tells where the server's gRPC side is",
        )
    _compare(bench.model, calls, first, second)
    pool = [replace(call, alone=alone_of(heard)) for call, heard in zip(calls, first, strict=False) if heard.complete]
    if len({call.alone.text for call in pool if call.alone}) < 2:
        raise CouldNotTell(
            f"{bench.model} answers every call alike, so a mix-up could not be seen", hint="is it the right model?"
        )
    return pool, round(median(heard.ended_us - heard.sent_us for heard in first if heard.complete))


def _compare(model: str, calls: Sequence[Call], first: Sequence[Heard], second: Sequence[Heard]) -> None:
    for call, one, other in zip(calls, first, second, strict=False):
        if alone_of(one) != alone_of(other):
            raise CouldNotTell(
                f"{model} answers the same call differently twice, alone: {call.statement()} gets "
                f"{(one.text or one.error)[:60]!r}, then {(other.text or other.error)[:60]!r}",
                hint="an engine whose texts move by themselves cannot be judged; are seeds taken, and is it deterministic?",
            )
