"""Figures of one model in a stretch of time (``brim.live.derive`` works them out). None is what cannot be known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Latency:
    """Of answers, in microseconds, each at most that. ``source`` is ``gateway``, or ``model`` for its own histogram."""

    source: str
    answers: int
    p50_us: int | None
    p99_us: int | None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the requests that were answered within the SLO: it lies between these two, 0..1."""

    source: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AtGateway:
    """Requests that ended at the gateway in the stretch.

    Attributes:
        offered_per_s: all of them a second.
        outcomes: outcome -> requests.
        classes: class of callers -> outcome -> requests.
        reasons: why requests were refused -> requests.
        in_flight: now.
    """

    offered_per_s: float | None
    outcomes: dict[str, int]
    classes: dict[str, dict[str, int]]
    reasons: dict[str, int]
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class Text:
    """What only a language model has.

    Attributes:
        running: requests that hold a seat now.
        kv_usage: of the fullest server now, 0..1.
        tokens_per_s: delivered.
        prompt_tokens_per_s: prefilled.
        ttft: time to the first token.
        tpot: for each further token.
        prefix_hit_ratio: prompt tokens that were expected in the cache / looked up.
        preemptions: in the stretch.
        refusals: reason -> requests.
        ends: how requests ended -> requests.
    """

    running: int | None
    kv_usage: float | None
    tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    ttft: Latency | None
    tpot: Latency | None
    prefix_hit_ratio: float | None
    preemptions: int | None
    refusals: dict[str, int]
    ends: dict[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """One model, on one server or on all that have it.

    Attributes:
        model: its name.
        server: name of the server; empty for all of them together.
        versions: that are loaded.
        wall_us: the stretch of time; 0 until a second look.
        rate_per_s: rows answered a second; of a language model texts that came to their end. None without a stretch.
        inferences: rows.
        requests: requests that were answered, as Triton counts them.
        failed: requests that failed, as Triton counts them.
        executions: batches.
        mean_batch: rows a batch.
        fill: the same / 100.
        duty: time in which instances were taken / time that they had; of a language model, time in steps.
        queue_us: mean time in Triton's queue.
        waiting: requests in the queue, or without a seat, now.
        batch_sizes: rows -> batches.
        failures: reason -> failed requests, from Triton's metrics page.
        restarted: whether counters began anew in the stretch.
        latency, goodput, gateway, text: see there; None where it cannot be known.
    """

    model: str
    server: str
    versions: tuple[str, ...]
    wall_us: int
    rate_per_s: float | None
    inferences: int
    requests: int
    failed: int
    executions: int
    mean_batch: float | None
    fill: float | None
    duty: float | None
    queue_us: int | None
    waiting: int | None
    batch_sizes: dict[int, int]
    failures: dict[str, int] | None
    restarted: bool
    latency: Latency | None
    goodput: Goodput | None
    gateway: AtGateway | None
    text: Text | None

    @property
    def refusals(self) -> dict[str, int] | None:
        """Reason -> requests that were refused: at the gateway, or by the host itself. None where nobody says."""
        if self.gateway is not None:
            return self.gateway.reasons
        if self.text is not None:
            return self.text.refusals
        # A queue that is full is not counted by Triton at all.
        return None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        document = asdict(self)
        document["batch_sizes"] = {str(size): count for size, count in self.batch_sizes.items()}
        return document
