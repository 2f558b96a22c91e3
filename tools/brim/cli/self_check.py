"""Real requests to a running server, alone and many at once, over both protocols; every answer is compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from brim.errors import CouldNotTell
from brim.measure import batch_stats
from brim.measure.callers import Answer, ask_all
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim_export.known_answers import known_answers

ALONE = 5
TOGETHER = 200
ANSWER_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 2.0
ROW_TOLERANCE = 1e-4
"""Where the reference is the server's own answer to the same row alone: what another batch size may change."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came back for one way of asking."""

    service: str
    protocol: str
    callers: int
    asked: int
    right: int
    faults: list[str]
    """The first few wrong answers and errors."""
    executions_by_size: dict[int, int]
    reference: str

    @property
    def ok(self) -> bool:
        """Whether every answer was right."""
        return self.right == self.asked


def self_check(endpoint: Endpoint, service: Service, *, together: int = TOGETHER, seed: int = 0) -> list[Verdict]:
    """Ask a few rows one by one, then many at once, over HTTP and gRPC."""
    requests, answers, tolerance, reference = _expected(endpoint, service, together, seed)
    verdicts = []
    for protocol in Protocol:
        for callers, count in ((1, ALONE), (together, together)):
            address = endpoint.http if protocol is Protocol.HTTP else endpoint.grpc
            with closing(endpoint.http_client()) as client:
                read = partial(batch_stats.snapshot, client, service.name)
                before = read()
                got = ask_all(address, protocol, service.name, requests[:count], callers, ANSWER_TIMEOUT_S)
                # An answer leaves before its batch is counted.
                after, _ = batch_stats.settle(read, timeout_s=SETTLE_TIMEOUT_S)
            faults = [text for one, right in zip(got, answers, strict=False) if (text := fault(one, right, tolerance))]
            sizes = batch_stats.difference(before, after, instances=1).executions_by_size
            verdicts.append(
                Verdict(service.name, protocol.value, callers, count, count - len(faults), faults[:3], sizes, reference)
            )
    return verdicts


def fault(answer: Answer, right: Row, tolerance: float) -> str | None:
    """What is wrong with an answer, or None."""
    if answer.outputs is None:
        return f"request {answer.index}: {answer.error.message if answer.error else 'no answer'}"
    for name, expected in right.items():
        got = answer.outputs.get(name)
        if got is None or got.shape != expected.shape:
            return f"request {answer.index}: {name} is {None if got is None else list(got.shape)}, expected {list(expected.shape)}"
        if expected.dtype.kind not in "fc":
            if not np.array_equal(got, expected):
                return f"request {answer.index}: {name} differs"
        elif not np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"request {answer.index}: {name} is off by {np.nanmax(np.abs(got - expected)):.2g}"
    return None


def _expected(
    endpoint: Endpoint, service: Service, count: int, seed: int
) -> tuple[Sequence[Row], Sequence[Row], float, str]:
    known = known_answers(service, count, seed=seed)
    if known is not None:
        return known.requests, known.answers, max(known.tolerance, ROW_TOLERANCE), "torch"
    samples = sample_rows(service)
    rows = [samples[i % len(samples)] for i in range(count)] if samples else random_rows(service, count, seed=seed)
    alone = ask_all(endpoint.http, Protocol.HTTP, service.name, rows, 1, ANSWER_TIMEOUT_S)
    silent = [answer for answer in alone if answer.outputs is None]
    if silent:
        error = silent[0].error
        raise CouldNotTell(
            f"{service.name}: {len(silent)} of {count} rows get no answer even alone: {error.message if error else ''}",
            hint=f"give services/{service.name}.yaml real rows under `samples:`",
        )
    return rows, [dict(answer.outputs or {}) for answer in alone], ROW_TOLERANCE, "the same row alone"
