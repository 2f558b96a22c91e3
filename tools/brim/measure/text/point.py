"""One run against a language model as a measured point, and the file that such points are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from brim.measure.accounting import Outcome
from brim.measure.histogram import Latencies
from brim.measure.json_lines import append_line, read_lines
from brim.measure.open_point import Generator, Part
from brim.measure.plan import Mode
from brim.measure.text.account import TextAccount
from brim.units import us_to_ms

FILE_NAME = "text.jsonl"
PERCENTILES = (50.0, 90.0, 99.0)
UNANSWERED = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.ANSWERED)
"""Fields of the outcomes of requests that got no whole text."""


class TokenSlo(Part):
    """What requests were held against; None for a time that nobody bounds."""

    percentile: float = Field(gt=0, le=100)
    ttft_us: int | None
    tpot_us: int | None

    @property
    def in_words(self) -> str:
        """For people: ``p99 within TTFT 2000 ms and TPOT 200 ms``."""
        limits = (("TTFT", self.ttft_us), ("TPOT", self.tpot_us))
        told = [f"{name} {us_to_ms(us):g} ms" for name, us in limits if us is not None]
        return f"p{self.percentile:g} within {' and '.join(told)}"


class TextCounts(Part):
    """What became of a number of requests; the seven kinds add up to ``offered`` (``brim.measure.accounting.Outcome``).

    Times are microseconds by percentile (``brim.measure.text.token_times``); empty where there was none.
    """

    offered: int = Field(ge=0)
    answered: int = Field(ge=0)
    refused: int = Field(ge=0)
    refused_by: dict[str, int]
    """The scheduler's reason -> refusals, as callers were told; another engine gives none."""
    expired: int = Field(ge=0)
    timed_out: int = Field(ge=0)
    cancelled: int = Field(ge=0)
    failed: int = Field(ge=0)
    not_sent: int = Field(ge=0)
    in_slo: int = Field(ge=0)
    ttft_us: dict[str, int]
    itl_us: dict[str, int]
    tpot_us: dict[str, int]
    e2e_us: dict[str, int]
    ttft_since_sent_us: dict[str, int]
    """What a driver that does not charge for its own lateness would report."""
    reject_p99_us: int | None

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        kinds = sum(getattr(self, outcome.value) for outcome in Outcome)
        if kinds != self.offered:
            raise ValueError(f"the outcomes add up to {kinds}, and {self.offered} requests were offered")
        if self.in_slo > self.answered:
            raise ValueError(f"in_slo {self.in_slo} is more than answered {self.answered}")
        if sum(self.refused_by.values()) > self.refused:
            raise ValueError(f"refused_by has more than the {self.refused} refused")
        return self


def text_counts(account: TextAccount) -> dict[str, Any]:
    """The fields of ``TextCounts``."""
    outcomes = account.outcomes
    return {
        **{outcome.value: outcomes.counts[outcome] for outcome in Outcome},
        "offered": outcomes.offered,
        "refused_by": dict(account.refused_by),
        "in_slo": account.in_slo,
        "ttft_us": percentiles(account.ttft),
        "itl_us": percentiles(account.itl),
        "tpot_us": percentiles(account.tpot),
        "e2e_us": percentiles(outcomes.since_due),
        "ttft_since_sent_us": percentiles(account.ttft_since_sent),
        "reject_p99_us": outcomes.until_refused.percentile_us(99),
    }


def percentiles(latencies: Latencies) -> dict[str, int]:
    """The usual ones by name; empty without a latency."""
    named = {f"{one:g}": latencies.percentile_us(one) for one in PERCENTILES}
    return {name: us for name, us in named.items() if us is not None}


class TextProvenance(Part):
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
    """Of lengths, classes and arrivals."""
    words_seed: str
    """Of the prompts' words, another one for every run."""

    @property
    def generator(self) -> str:
        """What sent the load."""
        return "brim's streaming callers, 1 process"


class TextPoint(TextCounts):
    """One run. Rates are a second: of a closed loop over the time in which load was offered, counting what was heard by its end; of an
    open one until the last request had ended. The latencies ``p50_us`` and ``p99_us`` are end to end.
    """

    key: str
    model: str
    mode: Mode
    concurrency: int | None = None
    rate: float | None = None
    arrivals: str
    """``closed``, or how requests of the open loop came."""
    mix: str
    """Lengths of prompts and texts, in words."""
    duration_us: int = Field(ge=1)
    throughput: float
    """Whole texts."""
    p50_us: int | None
    p99_us: int | None
    output_tokens_per_s: float
    input_tokens_per_s: float
    output_tokens: int
    input_tokens: int
    """Of whole texts' prompts, as the server counts them."""
    asked_tokens: int
    """Of the same, as wanted."""
    slo: TokenSlo | None
    goodput: float | None
    """Whole texts inside the SLO; of an open loop a second of the schedule. None without an SLO of TTFT or TPOT."""
    goodput_ratio: float | None
    """In SLO / offered."""
    slo_met: bool | None
    """None without an SLO, and where the driver was the limit."""
    mean_batch: float | None
    """Mean running sequences, from looks at the server's gauge; None without its metrics page."""
    fill: float | None
    """Of the most sequences that the service file lets run."""
    duty: float | None
    """Share of the time in a step."""
    stable: bool
    """Whether the median normalised latencies of the run's thirds agree."""
    settled: bool | None
    """Whether the model was idle before and after; None without its metrics page."""
    generator_bound: bool
    limits: list[str]
    late: int
    late_us: int
    generator: Generator
    classes: dict[str, TextCounts]
    """By the class that requests named; empty where they named none."""
    ttft_parts_us: dict[str, float | int | None]
    """Means (``brim.measure.text.gap.ttft_parts``)."""
    server: dict[str, Any] | None
    """``brim.measure.text.server_side.ServerSide.figures``; None without its metrics page."""
    server_us: dict[str, dict[str, int]]
    """ttft, itl, tpot, e2e and queue, as the server took them: exact mean, and bounds of percentiles from its buckets."""
    messages: dict[str, int]
    histograms: dict[str, dict[str, Any]]
    """``brim.measure.histogram.Latencies.as_json`` of ttft, itl, tpot and e2e: runs can be merged."""
    provenance: TextProvenance

    @property
    def value(self) -> float:
        """Callers or rate."""
        given = self.concurrency if self.mode is Mode.CONCURRENCY else self.rate
        assert given is not None
        return given

    @property
    def load_text(self) -> str:
        """For people: ``8 callers``, ``poisson 2/s``."""
        if self.mode is Mode.CONCURRENCY:
            return f"{self.value:g} caller" + ("" if self.value == 1 else "s")
        return f"{self.arrivals} {self.value:.6g}/s"

    def as_json(self) -> dict[str, Any]:
        """The point as it stands in the file and in the command's answer: with ``concurrency`` or ``rate``, not both."""
        return self.model_dump(mode="json", exclude={"rate" if self.mode is Mode.CONCURRENCY else "concurrency"})

    @model_validator(mode="after")
    def _placed(self) -> Self:
        given = self.concurrency if self.mode is Mode.CONCURRENCY else self.rate
        if given is None or given <= 0:
            raise ValueError(f"{self.mode.value}: {given}, a load above 0 is expected")
        return self


def append_text_point(folder: Path, point: TextPoint) -> None:
    """Add one line to the run folder's file, and see it on the disk before the next run begins."""
    append_line(folder / FILE_NAME, point.as_json())


def read_text_points(folder: Path) -> list[TextPoint]:
    """The points in a run folder, in the order in which they were measured; none when there is no file.

    Raises:
        InputError: a whole line is not such a point.
    """
    return read_lines(folder / FILE_NAME, TextPoint.model_validate, "a point of a language model")
