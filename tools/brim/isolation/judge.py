"""Every request gets exactly one verdict. Pure: what was sent and what came back go in, nothing is asked here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from brim.isolation.contract import is_floating
from brim.isolation.request import Came, Request

Outputs = Mapping[str, np.ndarray[Any, Any]]
MARKER = re.compile(r"\b77\d{5}\b")
"""Seven digits that start with 77: a float32 holds each such number exactly, and a text can carry it.
Inside a word, such as the random digits of an incident, it is none."""
INSIDES = ("Traceback (most recent call last)", 'File "/')
FAULTS_KEPT = 5


class Verdict(StrEnum):
    """The columns of a check's counts; the first three are no fault."""

    RIGHT = "right"
    OWN_ERROR = "own_error"
    CANCELLED = "cancelled"
    WRONG = "wrong"
    NEIGHBOUR_ERRORS = "neighbour_errors"
    HUNG = "hung"


HURT = (Verdict.WRONG, Verdict.NEIGHBOUR_ERRORS, Verdict.HUNG)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, why when it is a fault, and how far the answer was from the one alone (0 when not comparable)."""

    verdict: Verdict
    fault: str = ""
    deviation: float = 0.0


@dataclass(slots=True)
class Tally:
    """Counts of one check. ``sent`` is always the sum of the six verdicts.

    Attributes:
        counts: how many requests got each verdict.
        faults: the first few, in words.
        deviation: the largest of a right answer, as ``deviation`` defines it.
    """

    counts: Counter[Verdict] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    deviation: float = 0.0

    @property
    def sent(self) -> int:
        """Requests that have a verdict."""
        return self.counts.total()

    @property
    def hurt(self) -> int:
        """Requests with a verdict that is a fault."""
        return sum(self.counts[verdict] for verdict in HURT)

    def add(self, judgement: Judgement, where: str) -> None:
        """Count one request; ``where`` says which it was."""
        self.counts[judgement.verdict] += 1
        if np.isfinite(judgement.deviation):
            self.deviation = max(self.deviation, judgement.deviation)
        if judgement.fault and len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"{where}: {judgement.fault}")


def judge(request: Request, came: Came, request_id: str, tolerance: float) -> Judgement:
    """The verdict on one request.

    A request whose ``expected`` is None is alone: any answer and any error is its own.
    """
    if came.hung:
        return Judgement(Verdict.HUNG, "no answer in time")
    if came.left:
        return Judgement(Verdict.CANCELLED)
    if came.error:
        return _judge_error(request, came)
    if came.outputs is None:
        return Judgement(Verdict.WRONG, "an answer without outputs")
    if came.echoed is not None and came.echoed != request_id:
        return Judgement(Verdict.WRONG, f"the answer carries the id {came.echoed!r}, the request had {request_id!r}")
    if request.expected is None:
        return Judgement(Verdict.RIGHT)
    if request.expected.outputs is None:
        return Judgement(Verdict.WRONG, f"answered in company, alone it is refused with {request.expected.status}")
    off, fault = deviation(came.outputs, request.expected.outputs)
    if fault or off > tolerance:
        return Judgement(
            Verdict.WRONG, fault or f"off by {off:.3g} from its answer alone, tolerance {tolerance:g}", off
        )
    return Judgement(Verdict.RIGHT, deviation=off)


def _judge_error(request: Request, came: Came) -> Judgement:
    said = f"[{came.status}] {came.error[:300]}"
    if request.marker:
        strange = sorted(set(MARKER.findall(came.error)) - {request.marker})
        if strange:
            return Judgement(Verdict.WRONG, f"its error quotes {', '.join(strange[:3])} of other callers: {said}")
        if any(words in came.error for words in INSIDES):
            return Judgement(Verdict.WRONG, f"its error shows the server's insides: {said}")
    expected = request.expected
    if expected is None:
        return Judgement(Verdict.OWN_ERROR)
    if expected.outputs is not None:
        return Judgement(Verdict.NEIGHBOUR_ERRORS, f"answered alone, in company an error: {said}")
    if expected.status != came.status:
        return Judgement(Verdict.NEIGHBOUR_ERRORS, f"alone refused with {expected.status}, in company with {said}")
    return Judgement(Verdict.OWN_ERROR)


def deviation(got: Outputs, expected: Outputs) -> tuple[float, str]:
    """How far ``got`` is from ``expected``: the largest ``|got - expected| / (1 + |expected|)`` over all elements.

    NaN equals NaN and infinities equal themselves, at the same place. Types other than floating point must be equal.
    The text says what is wrong where a distance says nothing; it is empty otherwise.
    """
    largest = 0.0
    for name, want in expected.items():
        have = got.get(name)
        if have is None:
            return np.inf, f"output {name} is missing"
        if have.shape != want.shape or have.dtype != want.dtype:
            return np.inf, (
                f"output {name} is {have.dtype} {list(have.shape)}, alone it is {want.dtype} {list(want.shape)}"
            )
        if not is_floating(want.dtype):
            if not np.array_equal(have, want):
                return np.inf, f"output {name} differs from its answer alone"
            continue
        # Half and single precision can overflow in the difference itself.
        have, want = have.astype(np.float64), want.astype(np.float64)
        alike = (have == want) | (np.isnan(have) & np.isnan(want))
        if alike.all():
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(have - want)[~alike] / (1 + np.abs(want[~alike]))
        if not np.isfinite(off).all():
            return np.inf, f"output {name} has NaN or infinity where its answer alone has not, or the other way round"
        largest = max(largest, float(off.max()))
    return largest, ""
