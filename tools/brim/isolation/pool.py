"""Good rows and the answer to each, taken while the server has nothing else to do: the reference of every check."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from brim.errors import CouldNotTell
from brim.isolation.contract import ModelContract
from brim.isolation.exchange import exchange
from brim.isolation.judge import deviation
from brim.isolation.request import Came, Expected, Request
from brim.isolation.rows import shape_of
from brim.isolation.wire import WireTensor, json_values, wire_tensors
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.service.samples import Row

LEAST_ROWS = 2
REPEATED = 5
"""Rows that are asked a second time alone: a model that answers itself differently cannot be judged."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows of one model with their answers alone.

    Attributes:
        contract: of the model.
        rows: good rows, one each.
        tensors: the same as they travel.
        answers: what the server gave for each alone.
        alone_us: median time of a request alone.
        alike: groups of row numbers that may share a request, since all their tensors have equal sizes.
    """

    contract: ModelContract
    rows: list[Row]
    tensors: list[tuple[WireTensor, ...]]
    answers: list[Row]
    alone_us: int
    alike: list[list[int]] = field(default_factory=list)

    def speaks_json(self, number: int) -> bool:
        """Whether JSON can carry row ``number`` and its answer, which it cannot for bytes, half precision, NaN and infinity."""
        given = all(json_values(tensor) is not None for tensor in self.tensors[number])
        outputs = [spec.datatype not in ("BYTES", "FP16", "BF16") for spec in self.contract.outputs]
        values = (*self.rows[number].values(), *self.answers[number].values())
        return given and all(outputs) and all(np.isfinite(array).all() for array in values if array.dtype.kind == "f")

    def request(self, number: int, protocol: Protocol) -> Request:
        """Row ``number`` as a well-meant request."""
        return Request(
            self.contract.name,
            protocol,
            tensors=self.tensors[number],
            expected=Expected(self.answers[number]),
            rows=(number,),
        )

    def owner(self, outputs: Row, tolerance: float) -> int | None:
        """The row whose answer ``outputs`` is, where there is one."""
        for number, answer in enumerate(self.answers):
            off, fault = deviation(outputs, answer)
            if not fault and off <= tolerance:
                return number
        return None


def make_pool(
    endpoint: Endpoint, contract: ModelContract, rows: Sequence[Row], *, timeout_s: float, tolerance: float
) -> Pool:
    """Ask every row alone, one at a time. Rows that are refused are left out.

    Raises:
        CouldNotTell: too few rows are answered, all answers are alike, or an answer does not repeat.
    """
    name = contract.name
    requests = [Request(name, Protocol.HTTP, tensors=wire_tensors(contract, row)) for row in rows]
    came: list[Came] = []
    taken_us: list[int] = []
    began = time.perf_counter_ns()

    def keep(number: int, request: Request, request_id: str, what: Came) -> None:
        nonlocal began
        now = time.perf_counter_ns()
        taken_us.append((now - began) // 1_000)
        began = now
        came.append(what)

    repeated = requests[:REPEATED]
    exchange(endpoint, [*requests, *repeated], callers=1, timeout_s=timeout_s, prefix="alone", on_came=keep)
    first, again = came[: len(requests)], came[len(requests) :]
    answered = [number for number, one in enumerate(first) if one.outputs is not None]
    if len(answered) < LEAST_ROWS:
        trouble = next((one.error or "no answer in time" for one in first if one.outputs is None), "no rows")
        raise CouldNotTell(
            f"{name}: {len(answered)} of {len(rows)} rows get an answer alone, {LEAST_ROWS} are needed: {trouble[:300]}",
            hint="give a service with rows under `samples:`, or look at the server's log",
        )
    for one, second in zip(first, again, strict=False):
        if one.outputs is None or second.outputs is None:
            continue
        off, fault = deviation(second.outputs, one.outputs)
        if fault or off > tolerance:
            raise CouldNotTell(
                f"{name}: a row alone gets another answer the second time: {fault or f'off by {off:.3g}'}",
                hint="a model that draws random numbers cannot be compared; fix its seed",
            )
    answers = [outputs for number in answered if (outputs := first[number].outputs) is not None]
    if all(_same(answers[0], answer, tolerance) for answer in answers[1:]):
        raise CouldNotTell(
            f"{name}: all {len(answers)} rows get the same answer, so a swapped one could not be seen",
            hint="give a service with rows under `samples:` that differ",
        )
    kept = [rows[number] for number in answered]
    return Pool(
        contract,
        kept,
        [requests[number].tensors for number in answered],
        answers,
        round(statistics.median(taken_us)),
        _alike(kept, answers),
    )


def _same(one: Row, other: Row, tolerance: float) -> bool:
    off, fault = deviation(other, one)
    return not fault and off <= tolerance


def _alike(rows: Sequence[Row], answers: Sequence[Row]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        groups.setdefault(shape_of(row, answer), []).append(number)
    return list(groups.values())
