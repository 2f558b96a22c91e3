"""The run in the trace event format that Perfetto (ui.perfetto.dev) and chrome://tracing read.

Source: "Trace Event Format", complete events (``ph: X``) and metadata (``ph: M``), times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brim.trace.batches import Batch
from brim.trace.run import Run
from brim.trace.waterfall import MEANING

REQUESTS, EXECUTIONS = 1, 2
"""Processes of the picture: a line for each request, and as many lines for executions as there were at once."""


def chrome(run: Run) -> dict[str, Any]:
    """The whole document; times count from the first sending."""
    origin_ns = min(one.call.sent_ns for one in run.traced)
    events = [_named(REQUESTS, f"requests to {run.model}"), _named(EXECUTIONS, f"executions ({run.unit})")]
    for line, one in enumerate(run.traced, start=1):
        events.append(_named(REQUESTS, one.call.request_id, line))
        began_us = (one.call.sent_ns - origin_ns) // 1_000
        numbers = [batch.number for batch in one.batches]
        about = {"request_id": one.call.request_id, "outcome": one.call.outcome, run.unit: numbers}
        for part in one.way.parts:
            args = {**about, "meaning": MEANING[part.name]}
            events.append(_slice(part.name, REQUESTS, line, began_us + part.began_us, part.took_us, args))
    for line, batch in _lines(run.batches):
        told = run.batch_as_json(batch)
        began_us = (batch.began_ns - origin_ns) // 1_000
        name = f"{run.unit} {batch.number}: {len(batch.members)}"
        events.append(_slice(name, EXECUTIONS, line, began_us, told["took_us"], told))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _slice(name: str, process: int, line: int, at_us: int, took_us: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "brim",
        "ph": "X",
        "pid": process,
        "tid": line,
        "ts": at_us,
        "dur": took_us,
        "args": args,
    }


def _named(process: int, name: str, line: int | None = None) -> dict[str, Any]:
    about = {"name": "process_name"} if line is None else {"name": "thread_name", "tid": line}
    return {**about, "ph": "M", "pid": process, "args": {"name": name}}


def _lines(batches: Sequence[Batch]) -> list[tuple[int, Batch]]:
    """Each batch with a line on which no other is under way: instances have no names in Triton's traces."""
    free_from_ns: list[int] = []
    found = []
    for batch in batches:
        line = next((number for number, at in enumerate(free_from_ns) if at <= batch.began_ns), len(free_from_ns))
        if line == len(free_from_ns):
            free_from_ns.append(0)
        free_from_ns[line] = batch.ended_ns
        found.append((line + 1, batch))
    return found
