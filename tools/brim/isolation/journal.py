"""A bounded sample of what a check saw, as evidence: all that was hurt up to a limit, and some of everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from brim.isolation.evidence import Company, Evidence
from brim.isolation.flights import Flights
from brim.isolation.judge import HURT, Judgement
from brim.isolation.request import Came, Expected, Request
from brim.service.samples import Row

FAULTS_SHOWN = 50
OTHERS_SHOWN = 20
ALIKE_SHOWN = 2
"""Of requests with the same verdict and the same speciality."""
NEIGHBOURS_SHOWN = 8
VALUES_SHOWN = 4
TEXT_SHOWN = 300


class Journal:
    """Evidence of one check. ``note`` while answers come, ``close`` when an exchange has ended: then who met whom is known."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.kept: list[Evidence] = []
        self._open: list[tuple[int, Request, str, Came, Judgement]] = []
        self._alike: Counter[tuple[str, str]] = Counter()
        self._faults = 0
        self._others = 0

    def note(self, number: int, request: Request, request_id: str, came: Came, judgement: Judgement) -> None:
        """One request with its verdict; kept or not."""
        if judgement.verdict in HURT:
            self._faults += 1
            wanted = self._faults <= FAULTS_SHOWN
        else:
            kind = (judgement.verdict.value, request.what)
            wanted = self._others < OTHERS_SHOWN and self._alike[kind] < ALIKE_SHOWN
            if wanted:
                self._alike[kind] += 1
                self._others += 1
        if wanted:
            self._open.append((number, request, request_id, came, judgement))

    def close(self, flights: Flights, *, prefix: str, batches: Sequence[Sequence[int]] | None = None) -> None:
        """An exchange has ended: add the neighbours to what was noted of it.

        Args:
            flights: its times.
            prefix: of its request ids.
            batches: numbers of the requests that shared each batch, where it is known.
        """
        mates = {number: batch for batch in batches or () for number in batch}
        for number, request, request_id, came, judgement in self._open:
            if batches is None:
                company = Company.OVERLAPPING
                others = [int(other) for other in flights.beside(number)]
            else:
                company = Company.BATCH
                others = [other for other in mates.get(number, ()) if other != number]
            # What is special is what a reader looks for.
            shown = sorted(others, key=lambda other: not flights.requests[other].what)[:NEIGHBOURS_SHOWN]
            self.kept.append(
                Evidence(
                    request_id=request_id,
                    protocol=request.protocol.value,
                    sent=request.content(),
                    expected=expected_in_short(request.expected),
                    came=came_in_short(came),
                    verdict=judgement.verdict.value,
                    fault=judgement.fault[:TEXT_SHOWN],
                    company=company if others else Company.ALONE,
                    neighbours=tuple(f"{prefix}-{other} ({flights.requests[other].content()})" for other in shown),
                    neighbour_count=len(others),
                    began_us=flights.began_us(number),
                    took_us=flights.took_us(number),
                )
            )
        self._open.clear()


def expected_in_short(expected: Expected | None) -> str:
    """What a request gets alone, in a few words; empty where that is not known."""
    if expected is None:
        return ""
    return f"refused with {expected.status}" if expected.outputs is None else outputs_in_short(expected.outputs)


def came_in_short(came: Came) -> str:
    """What came, in a few words."""
    if came.hung:
        return "no answer in time"
    if came.left:
        return "the caller had gone"
    if came.error:
        return f"[{came.status}] {came.error[:TEXT_SHOWN]}"
    return "an answer without outputs" if came.outputs is None else outputs_in_short(came.outputs)


def outputs_in_short(outputs: Row) -> str:
    """Type, shape and first values of each output."""
    parts = []
    for name, array in outputs.items():
        values = ", ".join(str(value) for value in array.ravel()[:VALUES_SHOWN].tolist())
        more = ", ..." if array.size > VALUES_SHOWN else ""
        parts.append(f"{name} {array.dtype} {list(array.shape)}: {values[:TEXT_SHOWN]}{more}")
    return "; ".join(parts)
