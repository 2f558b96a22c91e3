"""Who shared a batch: requests whose computing began and ended in the same nanoseconds.

Triton stamps the four times of an execution once, and reports them for every request in it (``TRITONBACKEND_ModelInstance
ReportStatistics``; ``src/infer_request.cc`` of triton-inference-server/core). Two executions with the same four would have to
pass through four clock readings together, on two instances. The sizes found so are held against Triton's own count of
executions by size, which has to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from brim.trace.events import Followed

STAMPS = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


@dataclass(frozen=True, slots=True)
class Batch:
    """One execution.

    Attributes:
        number: in the order in which they began, from 0.
        began_ns: on the monotonic clock.
        ended_ns: likewise.
        members: the ids of the requests in it, as their callers said; empty where they said none.
    """

    number: int
    began_ns: int
    ended_ns: int
    members: tuple[str, ...]


def batches_of(followed: Sequence[Followed]) -> list[Batch]:
    """The executions in which these requests were computed, in the order in which they began. Others had none.

    One whose model nobody knows is in a batch with those whose model is known.
    """
    shared: dict[tuple[int, ...], list[Followed]] = {}
    for one in followed:
        if all(stamp in one.events for stamp in STAMPS):
            shared.setdefault(tuple(one.events[stamp] for stamp in STAMPS), []).append(one)
    of_a_model = (members for members in shared.values() if any(one.model for one in members))
    in_order = sorted(of_a_model, key=lambda members: members[0].events["COMPUTE_START"])
    return [
        Batch(
            number,
            members[0].events["COMPUTE_START"],
            members[0].events["COMPUTE_END"],
            tuple(member.request_id for member in members),
        )
        for number, members in enumerate(in_order)
    ]


def sizes(batches: Sequence[Batch]) -> dict[int, int]:
    """Requests of a batch -> batches of that size, ascending."""
    counted = Counter(len(batch.members) for batch in batches)
    return dict(sorted(counted.items()))
