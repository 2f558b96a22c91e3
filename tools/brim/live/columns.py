"""What each column of the overview shows, for the terminal, the plain table and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from brim.exporter.server_said import ROWS_BOUNDS
from brim.live.figures import Figures, Goodput, Latency
from brim.units import us_to_ms

BLANK = "-"
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: above it.
        cell: what it shows of a model.
        order: what rows are sorted by; None goes last.
        about: what it means, in one sentence.
    """

    title: str
    cell: Callable[[Figures], str]
    order: Callable[[Figures], float | None]
    about: str


def count_text(value: float | None) -> str:
    """Whole from a hundred on, with a digit behind the point below."""
    return BLANK if value is None else f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"


def percent_text(ratio: float | None) -> str:
    """A ratio in percent."""
    return BLANK if ratio is None else f"{100 * ratio:.0f}%"


def ms_text(us: float | None) -> str:
    """Microseconds as milliseconds, with three digits or so."""
    if us is None:
        return BLANK
    ms = us_to_ms(us)
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def at_most_text(us: int | None) -> str:
    """A percentile that comes from a histogram, in milliseconds: the true one is at most that."""
    return BLANK if us is None else f"<={us_to_ms(us):,.10g}"


def goodput_text(goodput: Goodput | None) -> str:
    """Rounded towards the worse, so that 100% is all of them; a range where only that is known."""
    if goodput is None:
        return BLANK
    low, high = (int(1e-9 + 100 * ratio) for ratio in (goodput.low, goodput.high))
    return f"{low}%" if low == high else f"{low}-{high}%"


def refused_text(model: Figures) -> str:
    """How many were refused, and the commonest reason."""
    refusals = model.refusals
    if refusals is None:
        return BLANK
    if not sum(refusals.values()):
        return "0"
    reason = max(refusals, key=lambda one: refusals[one])
    return f"{sum(refusals.values()):,} {reason}"


def binned(sizes: Mapping[int, int]) -> list[int]:
    """Batches by ``ROWS_BOUNDS``: how many had at most so many rows, and more than the bound before; the last has all others."""
    counts = [0] * len(ROWS_BOUNDS)
    for size, count in sizes.items():
        index = next((index for index, bound in enumerate(ROWS_BOUNDS) if size <= bound), len(ROWS_BOUNDS) - 1)
        counts[index] += count
    return counts


def bars(values: Sequence[float]) -> str:
    """One block a value, the highest full; what is not 0 is at least the lowest block."""
    top = max(values, default=0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[0] if value <= 0 else BARS[max(1, round(value / top * (len(BARS) - 1)))] for value in values)


def sizes_text(sizes: Mapping[int, int], most: int = 4) -> str:
    """The commonest batch sizes, as ``batches x rows``."""
    common = sorted(sizes.items(), key=lambda one: (-one[1], one[0]))[:most]
    return " ".join(f"{count}x{size}" for size, count in sorted(common)) if common else BLANK


def _tokens(model: Figures) -> float | None:
    return None if model.text is None else model.text.tokens_per_s


def _kv(model: Figures) -> float | None:
    return None if model.text is None else model.text.kv_usage


def _latency_us(latency: Latency | None, percentile: str) -> int | None:
    return None if latency is None else latency.p50_us if percentile == "p50" else latency.p99_us


def _latency_column(percentile: str) -> Column:
    return Column(
        f"{percentile} ms",
        lambda one: at_most_text(_latency_us(one.latency, percentile)),
        lambda one: _latency_us(one.latency, percentile),
        f"{percentile} of the answers is at most that: the bound of a histogram's bucket",
    )


COLUMNS = (
    Column(
        "rate/s",
        lambda one: count_text(one.rate_per_s),
        lambda one: one.rate_per_s,
        "rows answered a second, by Triton's statistics; texts of a language model",
    ),
    Column(
        "in SLO",
        lambda one: goodput_text(one.goodput),
        lambda one: None if one.goodput is None else one.goodput.low,
        "share of all requests that were answered within the service's SLO",
    ),
    _latency_column("p50"),
    _latency_column("p99"),
    Column(
        "batch",
        lambda one: BLANK if one.mean_batch is None else f"{one.mean_batch:.1f}",
        lambda one: one.mean_batch,
        "mean rows a batch",
    ),
    Column("fill", lambda one: percent_text(one.fill), lambda one: one.fill, "mean batch / 100"),
    Column("duty", lambda one: percent_text(one.duty), lambda one: one.duty, "share of the time in which it computes"),
    Column(
        "queue ms",
        lambda one: ms_text(one.queue_us),
        lambda one: one.queue_us,
        "mean time in Triton's queue (not a percentile: Triton has sums only)",
    ),
    Column(
        "waiting",
        lambda one: count_text(one.waiting),
        lambda one: one.waiting,
        "requests in the queue now, or without a seat",
    ),
    Column(
        "in flight",
        lambda one: count_text(None if one.gateway is None else one.gateway.in_flight),
        lambda one: None if one.gateway is None else one.gateway.in_flight,
        "requests between gateway and server now",
    ),
    Column(
        "refused",
        refused_text,
        lambda one: None if one.refusals is None else sum(one.refusals.values()),
        "requests refused in the stretch, and the commonest reason",
    ),
    Column("KV", lambda one: percent_text(_kv(one)), _kv, "KV cache used, of the fullest replica"),
    Column("tokens/s", lambda one: count_text(_tokens(one)), _tokens, "tokens delivered a second"),
)


def in_order(models: Sequence[Figures], column: int | None, *, descending: bool = True) -> list[Figures]:
    """Sorted by a column, None last whichever way; by name without a column and among equals."""
    named = sorted(models, key=lambda one: one.model)
    if column is None:
        return named
    order = COLUMNS[column].order
    known = [one for one in named if order(one) is not None]
    known.sort(key=lambda one: order(one) or 0.0, reverse=descending)
    return [*known, *(one for one in named if order(one) is None)]
