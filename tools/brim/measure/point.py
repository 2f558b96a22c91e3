"""One measured point, and the file that points are kept in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from brim.measure.json_lines import append_line, read_lines
from brim.measure.plan import Mode

FILE_NAME = "measurements.jsonl"


class Provenance(BaseModel):
    """Where a point comes from."""

    model_config = ConfigDict(frozen=True)

    command: list[str]
    perf_analyzer: str
    origin: str
    server: str
    brim: str
    usable_cores: int
    load_average: float
    """One-minute load of the machine just before the point."""
    started_at: str
    """UTC, ISO 8601."""
    raw: str
    """Folder of the raw output, relative to the run folder."""

    @property
    def generator(self) -> str:
        """What sent the load."""
        return f"perf_analyzer {self.perf_analyzer} ({self.origin})"


class Point(BaseModel):
    """One value of a plan, measured. Times are microseconds, ratios 0..1, throughput inferences a second.

    Latency is the client's, from sending: in rate mode a request that is sent late is not charged for it.
    Figures that could not be had are None, never made up.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    model: str
    protocol: str
    mode: Mode
    concurrency: int | None = None
    rate: float | None = None
    throughput: float | None
    p50_us: int | None
    p99_us: int | None
    latency_us: dict[str, int]
    """Percentile (``50``, ``99.9``) -> latency."""
    split_us: dict[str, int]
    """Mean share of a request's life at the client, on the network and in each phase in the server."""
    mean_batch: float | None
    fill: float | None
    duty: float | None
    queue_us: int | None
    compute_us: dict[str, int]
    executions_by_size: dict[int, int]
    execution_us_by_size: dict[int, int]
    inferences: int
    executions: int
    failed: int
    instances: int
    stable: bool
    """Whether the last three windows agreed. When not, the figures are of windows that did not agree."""
    settled: bool
    """Whether the model was idle before and after; when not, somebody else's requests are in the batch figures."""
    generator_bound: bool
    reason: str
    """Why ``generator_bound`` is what it is."""
    note: str
    """What else to know: why a run was ended. Empty when there is nothing."""
    generator_cores: float | None
    machine_busy: float | None
    outside_ratio: float | None
    callers_in_server: float | None
    sent_rate: float | None
    delayed_ratio: float | None
    provenance: Provenance

    @property
    def value(self) -> float:
        """Concurrency or rate."""
        given = self.concurrency if self.mode is Mode.CONCURRENCY else self.rate
        assert given is not None
        return given

    def as_json(self) -> dict[str, Any]:
        """The point as it stands in files and in the command's answer: with ``concurrency`` or ``rate``, not both."""
        absent = "rate" if self.mode is Mode.CONCURRENCY else "concurrency"
        return self.model_dump(mode="json", exclude={absent})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """A point from what ``as_json`` gave.

        Raises:
            ValidationError: it is something else.
        """
        return cls.model_validate(document)


def append_point(folder: Path, point: Point) -> None:
    """Add one line to the run folder's file, and see it on the disk before the next point is measured."""
    append_line(folder / FILE_NAME, point.as_json())


def read_points(folder: Path) -> list[Point]:
    """The points in a run folder, in the order in which they were measured; none when there is no file.

    A line that was cut short by the end of the process that wrote it is passed over: its point is measured again.

    Raises:
        InputError: a whole line is not a point.
    """
    return read_lines(folder / FILE_NAME, Point.from_json, "a measured point")
