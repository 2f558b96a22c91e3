"""``choice.json`` and the runs of ``brim tune`` as far as a report shows them; whatever else they hold is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from brim.measure.sweep import Settings as Swept
from brim.report.text_choice import TextChoice
from brim.runtime.padding import PaddingCost
from brim.tune.setting import Setting as Tuned

FILE_NAME = "choice.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Setting(_Part):
    """What tuning varies; threads and cutting are None where they are as the service file has them."""

    preferred: tuple[int, ...]
    max_queue_delay_us: int
    instances: int
    threads: int | None = None
    padding: PaddingCost | None = None

    def __str__(self) -> str:
        """In the words of ``brim tune``, which are those of ``Choice.why`` too."""
        return str(Tuned(self.preferred, self.max_queue_delay_us, self.instances, self.threads, self.padding))

    @property
    def in_a_sweep(self) -> str:
        """In the words that a sweep has for the same; empty where it has none, since it varies no threads and no cutting."""
        if self.threads is not None or self.padding is not None:
            return ""
        return str(Swept(self.instances, self.preferred, self.max_queue_delay_us))


class Chosen(Setting):
    """The choice, with what the gateway gets."""

    in_flight: int | None = None
    timeout_us: int | None = None


class Slo(_Part):
    """The service's objective."""

    latency_us: int = Field(ge=1)
    percentile: float = Field(gt=0, lt=100)


class Traffic(_Part):
    """What is expected."""

    rate_per_s: float
    peak_per_s: float | None = None
    arrival: str


class Predicted(_Part):
    """By the simulator; latencies and mean batch are at the expected rate."""

    capacity_per_s: float | None = None
    goodput_per_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    latency_us: float | None = None
    mean_batch: float | None = None


class Measured(Predicted):
    """On the server."""

    spread: float | None = None
    in_slo_expected: float | None = None
    in_slo_peak: float | None = None
    limited_by_generator: bool = False


class TuneRun(_Part):
    """One run on the server. In a tuning's folder the lines of measurements.jsonl are these."""

    setting: Setting
    rate_per_s: float = Field(gt=0)
    duration_us: int = Field(ge=1)
    offered: int
    answered: int
    in_slo: int
    goodput_per_s: float
    in_slo_ratio: float | None = None
    p50_us: int | None = None
    p99_us: int | None = None
    latency_us: int | None = None
    mean_batch: float | None = None
    duty: float | None = None
    executions_by_size: dict[int, int] = Field(default_factory=dict)
    limits: list[str] = Field(default_factory=list)


class MeasuredSetting(_Part):
    """One setting that was verified on the server."""

    setting: Setting
    is_default: bool = False
    is_current: bool = False
    is_choice: bool = False
    predicted: Predicted
    measured: Measured
    deviation: float | None = None
    runs: list[TuneRun] = Field(default_factory=list)


class SimulatedSetting(Predicted):
    """One of the best that were only simulated."""

    setting: Setting


class Reference(_Part):
    """The default configuration, for comparison."""

    setting: Setting
    predicted: Predicted | None = None
    measured: Measured | None = None


class Reason(_Part):
    """Why something is as it is."""

    why: str


class Candidates(_Part):
    """How many were looked at."""

    generated: int
    refused: int
    simulated: int


class Behaviour(_Part):
    """The choice at one load, as the simulator has it."""

    share: float
    rate_per_s: float
    p50_us: float | None = None
    p99_us: float | None = None
    mean_batch: float | None = None
    in_slo: float | None = None


class Lone(_Part):
    """A request with nobody else there."""

    latency_us: float
    waits_us: float


class Behaviours(_Part):
    """The choice from an idle server to a nearly full one."""

    lone: Lone | None = None
    low: Behaviour | None = None
    moderate: Behaviour | None = None
    high: Behaviour | None = None


class BatchTimePoint(_Part):
    """tau of one batch size."""

    rows: int = Field(ge=1)
    time_us: float = Field(ge=0)


class SimulatedMachine(_Part):
    """What the simulator used last."""

    overhead_us: int = Field(default=0, ge=0)
    jitter: float = Field(default=0.0, ge=0)
    prepare_us: int = Field(default=0, ge=0)
    serialised: bool = False
    points: list[BatchTimePoint] = Field(default_factory=list)


class _Tuning(_Part):
    service: str
    conditions: dict[str, Any]

    @property
    def protocol(self) -> str:
        """How requests travelled; empty where nobody says."""
        return str(self.conditions.get("protocol", ""))

    @property
    def command(self) -> str:
        """What made the file, as far as it tells."""
        known = {f"--{name}": self.conditions[name] for name in ("protocol", "seed") if name in self.conditions}
        return " ".join(["brim tune", self.service, *(f"{flag} {value}" for flag, value in known.items())])


class Interrupted(_Tuning):
    """The file of a tuning that was stopped: there is no choice."""

    runs: list[TuneRun] = Field(default_factory=list)


class Choice(_Tuning):
    """The file of a tuning that came to its end."""

    slo: Slo
    traffic: Traffic
    machine: SimulatedMachine | None = None
    candidates: Candidates | None = None
    predicted_top: list[SimulatedSetting] = Field(default_factory=list)
    default: Reference | None = None
    measurements: list[MeasuredSetting] = Field(default_factory=list)
    choice: Chosen | None = None
    predicted: Predicted | None = None
    measured: Measured | None = None
    behaviour: Behaviours | None = None
    slo_met: bool
    why: str
    way_out: str | None = None
    notes: list[str] = Field(default_factory=list)
    limits: Reason | None = None
    """What ended the climb of the best setting."""
    weighed: dict[str, Reason] = Field(default_factory=dict)
    """What was compared beside the batcher: threads, cutting of unequal lengths."""
    diff: str = ""
    applied: bool = False


def _which(document: object) -> str:
    if not isinstance(document, Mapping):
        return "tuning"
    slo = document.get("slo")
    if isinstance(slo, Mapping) and "ttft_us" in slo:
        return "tuning of a language model"
    return "interrupted tuning" if document.get("interrupted") is True and slo is None else "tuning"


ChoiceFile = Annotated[
    Annotated[Choice, Tag("tuning")]
    | Annotated[TextChoice, Tag("tuning of a language model")]
    | Annotated[Interrupted, Tag("interrupted tuning")],
    Discriminator(_which),
]
"""What the file holds: a whole tuning, of a batcher or of a language model, or the beginning of one."""
