"""What is counted about token models: one place, one lock, every number under our name and under those that routers expect.

Definitions, and what each hides:

- *TTFT*, time to first token: from ``Scheduler.submit`` to the end of the step that produced the first token. It hides
  what comes before and after: parsing, the way there and back, and a reader who is slow.
- *ITL*, inter-token latency: the gap between two steps that produced tokens of one request, over all gaps of all requests.
  Long texts have most of the gaps, so a few stalled short texts do not show.
- *TPOT*, time per output token: (end-to-end - TTFT) / (tokens - 1), one value a request. One long stall hides in the mean.
- *End-to-end*: from ``submit`` to the end of the text. Depends on how long the text was, so compare it among equal lengths.
- *Queue wait*: from ``submit`` to the first seat; a preempted request's second wait is not in it, but is in its ITL.

Nothing is published here. Whoever publishes takes ``changes()`` from one thread: Triton 24.10 dies when
``pb_utils.Metric`` is set from several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from brim.engine.lifecycle import End, Reason
from brim.units import US_PER_S

MOST_PENDING = 65_536
"""Observations of one histogram that are kept for whoever publishes; when nobody does, the oldest are dropped."""


class Kind(StrEnum):
    """What a metric is, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric.

    Attributes:
        name: ours.
        kind: what it is.
        help: what it counts, in one sentence.
        buckets: upper bounds, ascending, of a histogram, in the metric's unit; empty otherwise.
        label: name of its one label; empty without.
        aliases: names under which routers look for the same values, each with the labels that they expect.
    """

    name: str
    kind: Kind
    help: str
    buckets: tuple[float, ...] = ()
    label: str = ""
    aliases: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()


def _ladder(first: float, last: float) -> tuple[float, ...]:
    """1, 1.5, 2, 3, 5, 7 times powers of ten: neighbours differ by at most 1.67, so a percentile is no further off."""
    bounds: list[float] = []
    decade = first
    while decade <= last:
        bounds += [decade * step for step in (1, 1.5, 2, 3, 5, 7)]
        decade *= 10
    return tuple(float(f"{bound:.12g}") for bound in bounds if bound <= last)


SECONDS = _ladder(0.001, 100)
TOKENS = tuple(float(1 << power) for power in range(15))
TRT_REQUESTS = "nv_trt_llm_request_metrics"
TRT_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


def _counter(name: str, help_: str, *aliases: str, label: str = "") -> Family:
    return Family(name, Kind.COUNTER, help_, (), label, tuple((alias, ()) for alias in aliases))


def _gauge(name: str, help_: str, *aliases: tuple[str, tuple[tuple[str, str], ...]]) -> Family:
    return Family(name, Kind.GAUGE, help_, (), "", aliases)


def _histogram(name: str, help_: str, *aliases: str, buckets: tuple[float, ...] = SECONDS) -> Family:
    return Family(name, Kind.HISTOGRAM, help_, buckets, "", tuple((alias, ()) for alias in aliases))


def _trt(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(labels.items())


RUNNING = _gauge(
    "brim_llm_requests_running",
    "Requests that hold a seat: prefilling or decoding.",
    ("vllm:num_requests_running", ()),
    _trt(TRT_REQUESTS, request_type="scheduled"),
)
WAITING = _gauge(
    "brim_llm_requests_waiting",
    "Requests that wait for a seat, preempted ones among them.",
    ("vllm:num_requests_waiting", ()),
    _trt(TRT_REQUESTS, request_type="waiting"),
)
BLOCKS_USED = _gauge(
    "brim_llm_kv_blocks_used",
    "KV blocks that sequences hold in the engine.",
    _trt(TRT_BLOCKS, kv_cache_block_type="used"),
)
BLOCKS_FREE = _gauge(
    "brim_llm_kv_blocks_free",
    "KV blocks that no sequence holds; cached prefixes count as free.",
    _trt(TRT_BLOCKS, kv_cache_block_type="free"),
)
BLOCKS_TOTAL = _gauge(
    "brim_llm_kv_blocks_total", "KV blocks of the engine.", _trt(TRT_BLOCKS, kv_cache_block_type="max")
)
BLOCK_TOKENS = _gauge(
    "brim_llm_kv_block_tokens", "Tokens a KV block.", _trt(TRT_BLOCKS, kv_cache_block_type="tokens_per")
)
BLOCKS_PROMISED = _gauge(
    "brim_llm_kv_blocks_promised", "KV blocks promised to requests for their whole lives; admission goes by these."
)
KV_USAGE = _gauge(
    "brim_llm_kv_cache_usage_ratio",
    "KV blocks used / total, 0 to 1.",
    ("vllm:kv_cache_usage_perc", ()),
    _trt(TRT_BLOCKS, kv_cache_block_type="fraction"),
)
TTFT = _histogram(
    "brim_llm_time_to_first_token_seconds", "From submission to the first token.", "vllm:time_to_first_token_seconds"
)
# Under one name: every token is an observation, each a message to the server, and no router asks for it.
ITL = _histogram("brim_llm_inter_token_latency_seconds", "Between two productions of one request.")
TPOT = _histogram(
    "brim_llm_time_per_output_token_seconds",
    "Mean gap between the tokens of one request, one value a request.",
    "vllm:request_time_per_output_token_seconds",
)
E2E = _histogram(
    "brim_llm_request_latency_seconds", "From submission to the end of the text.", "vllm:e2e_request_latency_seconds"
)
QUEUE_WAIT = _histogram(
    "brim_llm_queue_wait_seconds", "From submission to the first seat.", "vllm:request_queue_time_seconds"
)
STEP_TIME = _histogram("brim_llm_step_seconds", "Time of an engine step.")
STEP_TOKENS = _histogram(
    "brim_llm_step_tokens",
    "Tokens of an engine step, prefilled and decoded.",
    "vllm:iteration_tokens_total",
    buckets=TOKENS,
)
TOKENS_IN = _counter(
    "brim_llm_prompt_tokens_total", "Tokens of prompts whose prefill is done.", "vllm:prompt_tokens_total"
)
TOKENS_OUT = _counter("brim_llm_output_tokens_total", "Tokens delivered.", "vllm:generation_tokens_total")
PREFIX_ASKED = _counter(
    "brim_llm_prefix_cache_asked_tokens_total",
    "Prompt tokens looked up in the prefix cache when a seat was given.",
    "vllm:prefix_cache_queries_total",
)
PREFIX_HIT = _counter(
    "brim_llm_prefix_cache_hit_tokens_total",
    "Prompt tokens among them that were expected to be cached.",
    "vllm:prefix_cache_hits_total",
)
PREEMPTIONS = _counter(
    "brim_llm_preemptions_total", "Running requests sent back to wait.", "vllm:num_preemptions_total"
)
REFUSALS = _counter("brim_llm_refusals_total", "Requests refused, by reason.", label="reason")
ENDS = _counter("brim_llm_requests_total", "Requests that ended, by how they did.", label="end")
STEPS = _counter("brim_llm_steps_total", "Engine steps.")
ENGINE_UP = _gauge("brim_llm_engine_up", "1 while requests are taken; 0 while there is no engine to run them.")
ENGINE_RESTARTS = _counter("brim_llm_engine_restarts_total", "Engines started in place of a lost one.")

FAMILIES = (
    *(RUNNING, WAITING, BLOCKS_USED, BLOCKS_FREE, BLOCKS_TOTAL, BLOCK_TOKENS, BLOCKS_PROMISED, KV_USAGE),
    *(TTFT, ITL, TPOT, E2E, QUEUE_WAIT, STEP_TIME, STEP_TOKENS),
    *(TOKENS_IN, TOKENS_OUT, PREFIX_ASKED, PREFIX_HIT, PREEMPTIONS, REFUSALS, ENDS, STEPS),
    *(ENGINE_UP, ENGINE_RESTARTS),
)


class Histogram:
    """Counts by bucket; the last one is for what lies above every bound."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        """Empty."""
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """One observation."""
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value

    def percentile(self, percent: float) -> float | None:
        """Upper bound of the bucket that holds the nearest rank; None when empty, infinite above the last bound."""
        count = self.count
        if not count:
            return None
        rank, seen = max(1.0, count * percent / 100), 0
        for bound, here in zip((*self.buckets, float("inf")), self.counts, strict=True):
            seen += here
            if seen >= rank:
                return bound
        raise AssertionError("the buckets hold every observation")


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one metric since the last look.

    Attributes:
        family: which.
        label: value of its label; empty where it has none.
        amount: added to a counter, or the value of a gauge.
        observed: new observations of a histogram, in order.
    """

    family: Family
    label: str = ""
    amount: float = 0.0
    observed: tuple[float, ...] = ()


class Metrics:
    """Every number about one model. Safe to use from several threads.

    A number's key is its family and the value of its label.
    """

    def __init__(self) -> None:
        """All zero; reasons and ends are there from the start, so that a rate over a first one is seen."""
        self._lock = Lock()
        self._values: dict[tuple[Family, str], float] = {}
        for family in FAMILIES:
            if family.kind is not Kind.HISTOGRAM:
                for label in _labels(family):
                    self._values[family, label] = 0.0
        self._published: dict[tuple[Family, str], float] = {}
        self._histograms = {family: Histogram(family.buckets) for family in FAMILIES if family.kind is Kind.HISTOGRAM}
        self._pending: dict[Family, deque[float]] = {family: deque(maxlen=MOST_PENDING) for family in self._histograms}

    def add(self, family: Family, amount: float = 1, label: str = "") -> None:
        """Count.

        Raises:
            KeyError: no such counter, or no such label of it.
        """
        with self._lock:
            self._values[family, label] += amount

    def set(self, values: Mapping[Family, float]) -> None:
        """Set gauges together, so that nobody sees one without the others."""
        with self._lock:
            for family, value in values.items():
                self._values[family, ""] = value

    def observe_us(self, family: Family, value_us: float) -> None:
        """A time, in microseconds; histograms of times are in seconds."""
        self.observe(family, value_us / US_PER_S)

    def observe(self, family: Family, value: float) -> None:
        """A value in the histogram's own unit."""
        with self._lock:
            self._histograms[family].observe(value)
            self._pending[family].append(value)

    def value(self, family: Family, label: str = "") -> float:
        """A counter's or a gauge's value now."""
        with self._lock:
            return self._values[family, label]

    def count(self, family: Family) -> int:
        """Observations of a histogram."""
        with self._lock:
            return self._histograms[family].count

    def percentile(self, family: Family, percent: float) -> float | None:
        """Of a histogram, to the width of its buckets; None when it is empty."""
        with self._lock:
            return self._histograms[family].percentile(percent)

    def changes(self) -> list[Change]:
        """What to publish: what moved since the last call; each costs a message to the server. The first call has all but histograms."""
        with self._lock:
            changes: list[Change] = []
            for key, value in self._values.items():
                family, label = key
                if key in self._published and value == self._published[key]:
                    continue
                amount = value if family.kind is Kind.GAUGE else value - self._published.get(key, 0.0)
                changes.append(Change(family, label, amount))
                self._published[key] = value
            for family, pending in self._pending.items():
                if pending:
                    changes.append(Change(family, observed=tuple(pending)))
                    pending.clear()
            return changes


def _labels(family: Family) -> Iterable[str]:
    if family is REFUSALS:
        return [reason.value for reason in Reason]
    if family is ENDS:
        return [end.value for end in End]
    return [""]
