"""A model's totals once nothing of an earlier load is being run: an answer leaves before its batch is counted."""

from __future__ import annotations

from collections.abc import Callable

from brim.measure import batch_stats
from brim.measure.batch_stats import Snapshot
from brim.measure.measure import ask_target, read_snapshot
from brim.server.endpoint import Endpoint

TIMEOUT_S = 60


def settled(read: Callable[[], Snapshot]) -> Snapshot:
    """What ``read`` gives once it gives the same twice."""
    found, quiet = batch_stats.settle(read, timeout_s=TIMEOUT_S)
    assert quiet, "somebody else uses the model"
    return found


def settled_totals(endpoint: Endpoint, model: str) -> Snapshot:
    """Read over gRPC."""
    target = ask_target(endpoint, model)
    return settled(lambda: read_snapshot(target))


def executed(endpoint: Endpoint, model: str) -> int:
    """Rows that the model has run so far, over all its versions."""
    return sum(counters.inferences for counters in settled_totals(endpoint, model).versions.values())
