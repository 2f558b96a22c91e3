"""Where the time of a batch goes: each stage is charged what it took itself, without the stages that ran inside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.runtime.adapter import OnnxModel
from brim.runtime.batch import BatchRuntime
from brim.runtime.guard import Guard
from brim.runtime.session import OnnxSession

FILE_NAME = "stages.json"
"""Written into a model's folder when it is unloaded."""
READ, STACK, VALUES, RUN, DEAL, PACK, REST = (
    "read tensors",
    "guard form, stack",
    "guard values",
    "run",
    "scatter",
    "pack responses",
    "plan, check outputs",
)
ADAPTER_STAGES: tuple[tuple[str, type, str], ...] = (
    (READ, OnnxModel, "_read"),
    (STACK, Guard, "stack"),
    (VALUES, Guard, "values_ok"),
    (RUN, OnnxSession, "run"),
    (DEAL, BatchRuntime, "_deal"),
    (REST, BatchRuntime, "execute"),
    (PACK, OnnxModel, "_pack"),
)
"""What each stage of the adapter is: a method, each called once a batch (the guard's values once an input)."""


class StageClock:
    """Exclusive time by stage. One thread only."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Nothing runs yet."""
        self.spent_ns: dict[str, int] = {}
        self.batches = 0
        self.rows = 0
        self._now_ns = now_ns
        self._open: list[str] = []
        self._since_ns = 0

    def enter(self, stage: str) -> None:
        """A stage begins; the one around it stands still."""
        self._charge()
        self._open.append(stage)

    def leave(self) -> None:
        """The stage that began last ends."""
        self._charge()
        self._open.pop()

    def next(self, stage: str) -> None:
        """The stage that began last ends, and another begins."""
        self.leave()
        self.enter(stage)

    def _charge(self) -> None:
        now_ns = self._now_ns()
        if self._open:
            stage = self._open[-1]
            self.spent_ns[stage] = self.spent_ns.get(stage, 0) + now_ns - self._since_ns
        self._since_ns = now_ns

    def timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The method, charged to a stage."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.enter(stage)
            try:
                return method(*arguments, **named)
            finally:
                self.leave()

        return call

    def wrap(self, stages: Sequence[tuple[str, type, str]]) -> None:
        """Time these methods of these classes from now on, in the whole process.

        Raises:
            AttributeError: a class has no such method.
        """
        for stage, owner, name in stages:
            setattr(owner, name, self.timed(getattr(owner, name), stage))

    def count(self, requests: int) -> None:
        """One more batch, of so many requests."""
        self.batches += 1
        self.rows += requests

    def save(self, folder: Path | str) -> None:
        """Write what was found to ``FILE_NAME`` in ``folder``."""
        found = {"spent_ns": self.spent_ns, "batches": self.batches, "requests": self.rows}
        (Path(folder) / FILE_NAME).write_text(json.dumps(found), encoding="utf-8")


def us_per_request(folder: Path) -> dict[str, float]:
    """Microseconds a request by stage, from ``FILE_NAME`` in a model's folder; nothing when no request came.

    Raises:
        OSError, ValueError: the file is not there or is not one: the model was not unloaded in peace.
    """
    found: Mapping[str, Any] = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    requests = int(found["requests"])
    return {stage: spent / 1_000 / requests for stage, spent in found["spent_ns"].items()} if requests else {}
