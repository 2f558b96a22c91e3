"""The real server behind the real gateway, for as long as a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

from brim.bench.overload_case import Case
from brim.bench.overload_seen import Gauges, Sampler
from brim.gateway.envoy import Gateway
from brim.measure.callers import Row
from brim.measure.known_time import INPUT, WIDTH, Execution, read_executions, write_known_time
from brim.server.embedded import EmbeddedServer

ROWS: list[Row] = [{INPUT: np.full((1, WIDTH), value, np.float32)} for value in range(10)]


class Place:
    """Every model of a case on one server, and the gateway in front of it."""

    def __init__(
        self, case: Case, *, cache: Path, log_file: Path, on_progress: Callable[[str], None] = lambda _: None
    ) -> None:
        """Nothing starts before the ``with`` block.

        Args:
            case: what is served.
            cache: of the embedded server.
            log_file: of the server; the gateway's lies beside it.
            on_progress: told what is happening.
        """
        self.case = case
        self.cache, self.log_file, self.say = cache, log_file, on_progress

    def __enter__(self) -> Self:
        """Start both."""
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="brim-overload-"))
            self.repository = Path(folder) / "repository"
            for name, time in self.case.models().items():
                write_known_time(self.repository, name, time)
            names = sorted(self.case.models())
            self.server = stack.enter_context(
                EmbeddedServer(self.repository, names, cache=self.cache, log_file=self.log_file, on_progress=self.say)
            )
            self.gateway = stack.enter_context(
                Gateway(
                    self.server.endpoint,
                    log_file=self.log_file.with_suffix(".gateway.log"),
                    admitted=self.case.admitted(),
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both."""
        self._stack.close()

    def gauges(self, model: str) -> Gauges:
        """Counts of one model; the caller closes them."""
        return Gauges(self.gateway.admin, self._metrics, model)

    def sampler(self, model: str) -> Sampler:
        """The same, looked at all the time."""
        return Sampler(self.gateway.admin, self._metrics, model)

    def executions(self, model: str) -> list[Execution]:
        """What the model itself has noted so far."""
        return read_executions(self.repository / model)

    @property
    def _metrics(self) -> str:
        metrics = self.server.endpoint.metrics
        assert metrics is not None
        return metrics
