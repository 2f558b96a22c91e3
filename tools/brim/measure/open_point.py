"""One run of the open-loop driver as a measured point, and the file that such points are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from brim.measure.accounting import Account, Outcome
from brim.measure.json_lines import append_line, read_lines
from brim.measure.plan import Mode
from brim.measure.schedule import Arrivals

FILE_NAME = "openloop.jsonl"


class Part(BaseModel):
    """Any JSON object in the file: finite numbers only."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Slo(Part):
    """What the answers were held against."""

    percentile: float = Field(gt=0, le=100)
    latency_us: int = Field(ge=1)


class Counts(Part):
    """What became of a number of arrivals; the seven kinds add up to ``offered`` (``brim.measure.accounting.Outcome``)."""

    offered: int = Field(ge=0)
    answered: int = Field(ge=0)
    refused: int = Field(ge=0)
    expired: int = Field(ge=0)
    timed_out: int = Field(ge=0)
    cancelled: int = Field(ge=0)
    failed: int = Field(ge=0)
    not_sent: int = Field(ge=0)
    in_slo: int = Field(ge=0)
    p50_us: int | None
    p99_us: int | None

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        kinds = sum(getattr(self, outcome.value) for outcome in Outcome)
        if kinds != self.offered:
            raise ValueError(f"the outcomes add up to {kinds}, and {self.offered} arrivals were offered")
        if self.in_slo > self.answered:
            raise ValueError(f"in_slo {self.in_slo} is more than answered {self.answered}")
        return self


def counts(account: Account) -> dict[str, Any]:
    """The fields of ``Counts``. Latencies are of answers, from the time at which they were due."""
    return {
        **{outcome.value: account.counts[outcome] for outcome in Outcome},
        "offered": account.offered,
        "in_slo": account.in_slo,
        "p50_us": account.since_due.percentile_us(50),
        "p99_us": account.since_due.percentile_us(99),
    }


class Segment(Counts):
    """A part of the run, by when its arrivals were due."""

    begin_us: int = Field(ge=0)
    duration_us: int = Field(ge=1)
    rate: float = Field(ge=0)
    """As planned, requests a second."""


class Generator(Part):
    """What was seen of the driver itself (``brim.measure.openloop_limits.Evidence``)."""

    loop_cores: float | None
    lag_us: int | None
    most_under_way: int
    processes: int


class Provenance(Part):
    """Where a point comes from."""

    command: list[str]
    server: str
    brim: str
    usable_cores: int
    load_average: float
    """One-minute load of the machine just before the run."""
    started_at: str
    """UTC, ISO 8601."""
    seed: int
    give_up_us: int | None
    timeout_us: int
    in_flight_limit: int
    processes: int

    @property
    def generator(self) -> str:
        """What sent the load."""
        return f"brim's open-loop driver, {self.processes} process{'' if self.processes == 1 else 'es'}"


class OpenPoint(Counts):
    """One run. Times are microseconds, ratios 0..1; goodput and rates are a second of the schedule.

    Latency is of answers, charged from the time at which each request was *due*. The generator is judged by
    ``brim.measure.openloop_limits``; a figure that could not be had is None.
    """

    key: str
    model: str
    protocol: str
    mode: Literal[Mode.RATE] = Mode.RATE
    rate: float = Field(gt=0)
    """Mean of the planned rate."""
    arrivals: Arrivals
    rates: list[float]
    """As asked; empty for a trace."""
    duration_us: int = Field(ge=1)
    throughput: float
    """Answers a second until the last request had ended: after the schedule's end too, where a queue was left."""
    latency_us: dict[str, int]
    """Percentile (``50``, ``99.9``) -> latency."""
    since_sent_us: dict[str, int]
    """The same counted from sending: what a driver that does not charge for lateness would report."""
    reject_p99_us: int | None
    """How soon a caller hears that there is no room, from when it was due."""
    slo: Slo | None
    goodput: float | None
    goodput_ratio: float | None
    """Answers inside the SLO / offered."""
    slo_met: bool | None
    """None without an SLO, and where the driver was the limit."""
    mean_batch: float | None
    fill: float | None
    duty: float | None
    queue_us: int | None
    compute_us: dict[str, int]
    executions_by_size: dict[int, int]
    execution_us_by_size: dict[int, int]
    inferences: int
    executions: int
    instances: int
    stable: bool
    """Whether the medians of the three thirds of the run agree; never where the rate changes by plan."""
    settled: bool
    """Whether the model was idle before and after; when not, somebody else's requests are in the batch figures."""
    generator_bound: bool
    limits: list[str]
    """In what ways the driver, and not the server, set the figures."""
    late: int
    """Requests that left more than ``late_us`` after they were due."""
    late_us: int
    generator: Generator
    messages: dict[str, int]
    """Texts of errors -> how often; some of them."""
    segments: list[Segment] = Field(min_length=1)
    histograms: dict[str, dict[str, Any]]
    """``brim.measure.histogram.Latencies.as_json`` by name: runs can be merged."""
    provenance: Provenance

    @property
    def value(self) -> float:
        """The rate."""
        return self.rate

    @property
    def latency_from(self) -> str:
        """What latency is counted from."""
        return "schedule"

    def as_json(self) -> dict[str, Any]:
        """The point as it stands in files and in the command's answer."""
        return {**self.model_dump(mode="json"), "latency_from": self.latency_from}


def append_open_point(folder: Path, point: OpenPoint) -> None:
    """Add one line to the run folder's file, and see it on the disk before the next run begins."""
    append_line(folder / FILE_NAME, point.as_json())


def read_open_points(folder: Path) -> list[OpenPoint]:
    """The points in a run folder, in the order in which they were measured; none when there is no file.

    Raises:
        InputError: a whole line is not such a point.
    """
    return read_lines(folder / FILE_NAME, OpenPoint.model_validate, "a point of the open-loop driver")
