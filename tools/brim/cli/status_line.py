"""The live line under a running server: what it answered in the last moment, and in what batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from brim.errors import BrimError
from brim.measure import batch_stats
from brim.measure.batch_stats import Snapshot
from brim.server.endpoint import Endpoint


def status_text(before: Snapshot, after: Snapshot, name: str) -> str:
    """One model between two readings: answers a second, mean batch, time in the queue."""
    try:
        stats = batch_stats.difference(before, after, instances=1)
    except BrimError:
        return f"{name}: restarted"
    rate = stats.inferences * 1_000_000 / max(1, stats.wall_us)
    if not stats.executions:
        return f"{name}: idle"
    queue = f", queue {(stats.queue_us or 0) / 1_000:.1f} ms" if stats.queue_us is not None else ""
    failed = f", {stats.failed} failed" if stats.failed else ""
    return f"{name}: {rate:.0f}/s in batches of {stats.mean_batch:.1f}{queue}{failed}"


class StatusLine:
    """Reads the statistics once a second at most and hands one line on."""

    def __init__(self, endpoint: Endpoint, models: Sequence[str], show: Callable[[str], None]) -> None:
        """``show`` is given each line."""
        self._endpoint, self._models, self._show = endpoint, models, show
        self._before: dict[str, Snapshot] = {}
        self._due = 0.0

    def tick(self) -> None:
        """Show the line if a second has passed since the last one. A server that does not answer is left out."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 1.0
        parts = []
        try:
            with closing(self._endpoint.http_client(timeout_s=2.0)) as client:
                for model in self._models:
                    now = batch_stats.snapshot(client, model)
                    before = self._before.get(model)
                    parts.append(status_text(before, now, model) if before else f"{model}: idle")
                    self._before[model] = now
        except Exception:  # noqa: BLE001 - a line that cannot be drawn must not end the server
            parts = ["no answer"]
        self._show(" | ".join(parts))
