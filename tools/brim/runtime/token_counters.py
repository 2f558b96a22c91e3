"""What padding costs, on the server's metrics page: tokens that callers sent, and tokens that the model was given."""

from __future__ import annotations

import os
from typing import Any, Protocol

from brim.runtime.padding import PaddingStats

REAL = "brim_real_tokens_total"
PADDED = "brim_padded_tokens_total"


class MetricsBackend(Protocol):
    """The part of ``triton_python_backend_utils`` that makes metrics."""

    MetricFamily: Any


class TokenCounters:
    """Two counters of one instance of a model, updated from the thread that runs its batches, and from no other.

    Metrics used from several threads of a stub end tritonserver 24.10 (seen). Two instances with equal labels would
    share one counter, which the first of them to be unloaded frees (core ``metric_family.cc``, Remove: references are
    counted by the family object, and each stub makes its own); so the process is one of the labels.
    """

    def __init__(self, backend: MetricsBackend, model: str, version: str) -> None:
        """Put both counters on the page, at 0. Whatever the server objects to passes through."""
        labels = {"model": model, "version": version, "process": str(os.getpid())}
        texts = {REAL: "Tokens of guarded rows", PADDED: "Tokens that the model was given, padding included"}
        # A metric does not keep its family, and dies with it.
        self._families = {
            name: backend.MetricFamily(name=name, description=text, kind=backend.MetricFamily.COUNTER)
            for name, text in texts.items()
        }
        self._counters = {name: family.Metric(labels=labels) for name, family in self._families.items()}
        self._told = dict.fromkeys(texts, 0)

    def update(self, stats: PaddingStats) -> None:
        """Add what has come since the last time."""
        for name, total in ((REAL, stats.real_tokens), (PADDED, stats.padded_tokens)):
            if total > self._told[name]:
                self._counters[name].increment(total - self._told[name])
                self._told[name] = total
