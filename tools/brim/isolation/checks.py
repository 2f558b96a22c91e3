"""The checks in the order of the suite."""

from __future__ import annotations

from collections.abc import Sequence

from brim.errors import InputError
from brim.isolation import traffic
from brim.isolation.check import Check, Material
from brim.isolation.hostile import fuzz
from brim.isolation.killed import backend_killed
from brim.isolation.known_batches import deterministic_batches
from brim.isolation.reload import reload_under_load
from brim.isolation.request import Request
from brim.isolation.rows import has_lengths, markable
from brim.isolation.throughput import poison_throughput

FAILED_RUN = ("500", "INTERNAL", "UNKNOWN")
"""What a request gets alone when the run of the model raised, and not only its guard refused it."""


def _no_marker(material: Material) -> str:
    return "" if markable(material.pool.contract) else "no input can carry a marker"


def _no_rows(material: Material) -> str:
    return "" if material.pool.contract.max_rows > 1 else "the model takes one row a request"


def _no_other(material: Material) -> str:
    return "" if material.other else "the server holds no other model that answers"


def _no_frames(material: Material) -> str:
    contract = material.pool.contract
    if contract.batched or any(spec.datatype == "BYTES" for spec in contract.inputs):
        return ""
    return "neither a batch dimension nor BYTES: the server can compare every size with the bytes"


def _no_lengths(material: Material) -> str:
    return "" if has_lengths(material.pool.contract) else "every row has the same size"


def _answered_lengths(requests: Sequence[Request]) -> tuple[list[Request], str]:
    """All of them, as long as rows of more than one length get an answer alone."""
    answered = {one.what for one in requests if one.what and one.expected and one.expected.outputs is not None}
    if len(answered) > 1:
        return list(requests), ""
    return [], f"rows of {len(answered)} lengths get an answer alone, and two are needed"


def _failing_runs(requests: Sequence[Request]) -> tuple[list[Request], str]:
    """The good requests, and of the poison what alone makes the run of the model raise."""
    kept = [
        one
        for one in requests
        if not one.what or (one.expected and one.expected.outputs is None and one.expected.status in FAILED_RUN)
    ]
    if any(one.what for one in kept):
        return kept, ""
    return [], "no poison makes a run of this model fail: alone each is answered, or refused before the run"


CHECKS = (
    Check("identity", "every caller gets its own answer", 1.0, traffic.identity),
    Check("batch_invariance", "a row's answer does not move with its neighbours", 0.5, traffic.batch_invariance),
    Check(
        "unequal_lengths",
        "short and long rows do not mix",
        0.5,
        traffic.unequal_lengths,
        _no_lengths,
        narrow=_answered_lengths,
    ),
    Check("row_counts", "requests of different row counts share batches", 0.5, traffic.row_counts, _no_rows),
    Check("poison_neighbours", "a harmful value hurts its own caller only", 1.0, traffic.poison_neighbours),
    Check(
        "whole_batch_failure",
        "a run that fails fails only the row that made it fail",
        0.5,
        traffic.whole_batch_failure,
        narrow=_failing_runs,
    ),
    Check("own_errors_only", "an error speaks of its own request only", 0.5, traffic.own_errors_only, _no_marker),
    Check("two_models", "two models at once do not mix", 0.5, traffic.two_models, _no_other),
    Check("malformed_neighbours", "a broken message hurts its own caller only", 0.5, traffic.malformed_neighbours),
    Check(
        "framing_neighbours",
        "sizes that lie hurt their own caller only",
        0.5,
        traffic.framing_neighbours,
        _no_frames,
        overfull=True,
    ),
    Check("caller_gone", "a caller that leaves hurts nobody and frees its slot", 0.5, traffic.caller_gone, frees=True),
    Check(
        "poison_throughput",
        "some poison leaves the others their throughput",
        0.25,
        procedure=poison_throughput,
    ),
    Check(
        "deterministic_batches",
        "in batches that are known exactly, every row gets what it gets alone",
        0,
        procedure=deterministic_batches,
    ),
    Check(
        "reload_under_load",
        "loading the model anew hurts nobody",
        0.5,
        procedure=reload_under_load,
    ),
    Check(
        "backend_killed",
        "when the backend's process dies, callers are released and the model comes back",
        0.5,
        kills=True,
        procedure=backend_killed,
    ),
    Check("fuzz", "broken requests by the thousand hurt nobody", 1.0, procedure=fuzz),
)


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
