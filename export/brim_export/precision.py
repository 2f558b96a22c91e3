"""What the gates allow each precision of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from brim.service.schema import Precision
from brim_export.gates import PARITY_TOLERANCE, ROW_TOLERANCE


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the gates allow a precision, in their own terms (``brim_export.gates``)."""

    parity: float
    rows: float


ALLOWED = {
    Precision.FP32: Allowed(PARITY_TOLERANCE, ROW_TOLERANCE),
    Precision.FP16: Allowed(parity=1e-2, rows=2e-3),
    Precision.INT8: Allowed(parity=0.2, rows=2e-3),
    Precision.INT8_ROWS: Allowed(parity=0.1, rows=2e-3),
    Precision.INT8_DYNAMIC: Allowed(parity=0.2, rows=2e-3),
}
"""By precision. Parity only finds what is broken; whether the answers are still good is for the accuracy gate.

Half precision has 11 bits, and a sum in another order may round to the next of them in a layer. Quantised values are whole
numbers, whose sums do not depend on their order; only what stays in floats may tip one over the edge of a step.
"""


def parity_allowed(precision: Precision, asked: float) -> float:
    """What parity may be off by: ``asked`` is of FP32, a lower precision has an allowance of its own."""
    return asked if precision is Precision.FP32 else max(asked, ALLOWED[precision].parity)


def rows_allowed(precision: Precision, asked: float) -> float:
    """What a row's answer may change by its neighbours, likewise."""
    return asked if precision is Precision.FP32 else max(asked, ALLOWED[precision].rows)
