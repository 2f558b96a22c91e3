"""``bench.json`` of ``brim bench overload`` as far as a report shows it; whatever else it holds is left alone."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from brim.errors import InputError
from brim.measure.accounting import Objective, Outcome
from brim.measure.histogram import Latencies
from brim.measure.open_point import Counts, Slo
from brim.report.bench_verdict import Verdict, verdict_of
from brim.units import US_PER_S

COUNTED = (Outcome.ANSWERED, Outcome.REFUSED, Outcome.EXPIRED, Outcome.CANCELLED)
"""How a request that was sent may end; any other end is a fault."""

Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


def _latencies(document: Any) -> Latencies | None:
    """Read as it was written.

    Raises:
        ValueError: it is something else.
    """
    if document is None or isinstance(document, Latencies):
        return document
    try:
        return Latencies.from_json(document)
    except InputError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error


class Histograms(_Part):
    """How often each latency was seen."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    refused_since_sent: Annotated[Latencies | None, BeforeValidator(_latencies)] = None
    """Of refusals, from sending."""


class Driver(_Part):
    """What was seen of the load generator."""

    wall_us: Annotated[int | None, Field(ge=1)] = None
    """From the beginning of the schedule to the last answer."""


class Callers(Counts):
    """Callers of one kind at one load. ``p50_us`` and ``p99_us`` are of answers, from when each request was due."""

    duration_us: int = Field(ge=1)
    slo: Slo
    limits: list[str] = Field(default_factory=list)
    generator: Driver = Driver()
    reject_p99_us: Annotated[int | None, Field(ge=0)] = None
    """Of refusals, from when each request was due."""
    histograms: Histograms = Histograms()

    @property
    def sent(self) -> int:
        """Arrivals that left."""
        return self.offered - self.not_sent

    def refusal_us(self, percentile: float) -> int | None:
        """Of refusals, from sending; None without any, or where the file does not tell."""
        found = self.histograms.refused_since_sent
        return None if found is None else found.percentile_us(percentile)


class Load(_Part):
    """One open loop: what became of the requests by the driver, by the gateway and by the model itself."""

    name: str
    factor: float = Field(gt=0)
    """Offered over capacity."""
    sent: Count
    goodput_per_s: float = Field(ge=0)
    most_in_flight: Count
    most_waiting: Count
    executed: Count
    gateway: dict[str, Count]
    """``class/outcome`` -> requests, as the gateway has counted them."""
    groups: dict[str, Callers] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        left = sum(one.sent for one in self.groups.values())
        if left != self.sent:
            raise ValueError(f"sent is {self.sent}, and {left} requests of its groups were")
        if self.goodput_per_s > self.answered_per_s * (1 + 1e-9):
            raise ValueError(f"goodput_per_s {self.goodput_per_s:g} is more than answered, {self.answered_per_s:g}/s")
        return self

    def count(self, outcome: Outcome) -> int:
        """By the driver, over all groups."""
        return sum(getattr(one, outcome.value) for one in self.groups.values())

    def counted(self, outcome: Outcome) -> int:
        """By the gateway, over all classes."""
        return sum(count for name, count in self.gateway.items() if name.rpartition("/")[2] == outcome.value)

    @property
    def wall_us(self) -> int:
        """From the beginning of the schedule to the last answer: what is answered after the schedule takes time as well."""
        return max(one.generator.wall_us or one.duration_us for one in self.groups.values())

    @property
    def answered_per_s(self) -> float:
        """Answers in time or not, over the same time as the goodput."""
        return self.count(Outcome.ANSWERED) * US_PER_S / self.wall_us

    @property
    def unlike(self) -> int:
        """Sent requests with none of the ends that one may come to."""
        return self.sent - sum(self.count(end) for end in COUNTED)

    @property
    def limits(self) -> list[str]:
        """In what ways the driver, and not the server, set the figures."""
        return [limit for one in self.groups.values() for limit in one.limits]


class Burst(_Part):
    """Requests that were sent at once onto an idle server, and as many questions for the health page beside them."""

    requests: int = Field(ge=1)
    answered: Count
    in_slo: Count
    refused: Count
    last_answer_us: Count
    last_refusal_us: Annotated[int | None, Field(ge=0)]
    health_us: int = Field(ge=1)
    lone_before_us: Count
    lone_after_us: Count
    most_in_flight: Count
    executed: Count

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.answered + self.refused > self.requests:
            raise ValueError(
                f"answered {self.answered} and refused {self.refused} are more than requests {self.requests}"
            )
        if self.in_slo > self.answered:
            raise ValueError(f"in_slo {self.in_slo} is more than answered {self.answered}")
        return self


class Leave(_Part):
    """Callers that disconnected while they waited behind a batch, at the gateway's bound."""

    protocol: str
    queued: bool
    """Whether all of this took place while the one batch ran; else the rest says nothing."""
    leavers: Count
    newcomers: Count
    newcomers_refused: Count
    freed_us: Count
    executed_for_nobody: int
    cancelled: Count
    most_in_flight: Count


class Cost(_Part):
    """One round with and without the gateway."""

    protocol: str
    direct_p50_us: Count
    gateway_p50_us: Count
    direct_per_s: float = Field(gt=0)
    gateway_per_s: float = Field(ge=0)


class Judged(_Part):
    """One figure, and what it was held against; without a target there is no verdict."""

    part: str
    figure: str
    value: float | None
    target: str = ""
    verdict: Verdict | None = None
    note: str = ""


class Case(_Part):
    """What was served, and the bound that follows from it."""

    tau0_us: int = Field(ge=0)
    alpha_us: float = Field(ge=0)
    max_rows: int = Field(ge=1)
    slo_us: int = Field(ge=1)
    bound: int = Field(ge=1)


class Overload(_Part):
    """The whole file."""

    command: str = ""
    measured_at: str = ""
    seed: int = 0
    judged: list[Judged]
    conditions: dict[str, Any]
    case: Case
    closed_per_s: dict[str, Annotated[float, Field(ge=0)]]
    """Callers of a closed loop -> rows a second."""
    capacity_per_s: float = Field(gt=0)
    loads: list[Load] = Field(min_length=1)
    mixes: list[Load] = Field(default_factory=list)
    leaving: list[Load] = Field(default_factory=list)
    bursts: list[Burst] = Field(default_factory=list)
    leaves: list[Leave] = Field(default_factory=list)
    costs: list[Cost] = Field(default_factory=list)

    @property
    def ok(self) -> bool | None:
        """No with a missed target; None where one is unclear."""
        return verdict_of([one.verdict for one in self.judged if one.verdict is not None])

    @property
    def objective(self) -> Objective:
        """What answers were held against."""
        percentile = next(iter(self.loads[0].groups.values())).slo.percentile
        return Objective(percentile=percentile, latency_us=self.case.slo_us)

    @property
    def best_per_s(self) -> float:
        """The most goodput of all loads of one kind of callers."""
        return max(load.goodput_per_s for load in self.loads)

    @property
    def typed(self) -> str:
        """The command, as far as the file tells."""
        return self.command or "brim bench overload"
