"""Figures of one model in a stretch of time, from what its servers did and what ended at the gateway. Pure.

Where a figure comes from, and when there is none:

- Rates, batch sizes, fill, duty and queue time are Triton's own statistics: exact over the stretch, canaries included. Triton has sums
  of latencies only, so **no percentile ever comes from it**, and a mean is never shown as one.
- p50 and p99 are of answers at the gateway, by Envoy's histogram: the upper bound of the bucket that holds the rank, so that the
  true value is at most what is shown. Without a gateway a language model's own histogram takes its place; else there is none.
- The share in the SLO is answers within its latency / all requests that ended, but for callers' own errors and those whose caller
  left; of a language model, by its own histograms of TTFT and TPOT. A range where no bound of the histogram is the SLO's, or where
  two shares only say so much.
- None means that it is not known. What did not happen is 0; a mean of nothing is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from brim.engine.lifecycle import End
from brim.engine.metrics import (
    E2E,
    KV_USAGE,
    PREEMPTIONS,
    PREFIX_ASKED,
    PREFIX_HIT,
    REFUSALS,
    RUNNING,
    STEP_TIME,
    TOKENS_IN,
    TOKENS_OUT,
    TPOT,
    TTFT,
)
from brim.gateway.outcomes import Ended
from brim.limits import BATCH_LIMIT
from brim.live.ended import Tally
from brim.live.figures import AtGateway, Figures, Goodput, Latency, Text
from brim.live.seen import Objectives
from brim.live.work import Known, Work, ended_by_end
from brim.measure.text.server_side import Difference, Observed, gauge
from brim.units import US_PER_S, ns_to_us

GATEWAY, MODEL = "gateway", "model"
WHOLE = (End.STOP.value, End.LENGTH.value)


def figures(
    model: str,
    server: str,
    work: Work | None,
    now: Sequence[Known],
    *,
    objectives: Objectives | None = None,
    ended: Tally | None = None,
    ended_us: int = 0,
    in_flight: int | None = None,
) -> Figures:
    """Everything of one model.

    Args:
        model: its name.
        server: name, or empty for all together.
        work: what was done; None until a second look.
        now: how it is on each of the servers, at the last look.
        objectives: what was promised to its callers.
        ended: what ended at the gateway; None without one, and for one server of several.
        ended_us: in how long.
        in_flight: at the gateway now.
    """
    counters = None if work is None else work.counters
    of_text = None if work is None else work.of_text
    is_text = of_text is not None or any(one.text is not None for one in now)
    wall_us = 0 if work is None else work.wall_us
    executions = counters.executions if counters else 0
    rows = counters.inferences if counters else None
    mean_batch = counters.inferences / executions if counters and executions and not is_text else None
    ends = {} if work is None else ended_by_end(work)
    return Figures(
        model=model,
        server=server,
        versions=tuple(sorted({version for one in now for version in one.versions})),
        wall_us=wall_us,
        rate_per_s=_rate(_ended_well(of_text, ends) if is_text else rows, wall_us),
        inferences=counters.inferences if counters else 0,
        requests=counters.succeeded if counters else 0,
        failed=counters.failed if counters else 0,
        executions=executions,
        mean_batch=mean_batch,
        fill=None if mean_batch is None else mean_batch / BATCH_LIMIT,
        duty=_duty(work, of_text),
        queue_us=ns_to_us(counters.queue_ns / counters.queued)
        if counters and counters.queued and not is_text
        else None,
        waiting=_known_sum([one.waiting for one in now]),
        batch_sizes={size: counters.by_size[size].executions for size in sorted(counters.by_size)}
        if counters and not is_text
        else {},
        failures=None if work is None or work.failures is None else {k: v for k, v in work.failures.items() if v},
        restarted=work is not None and work.restarted,
        latency=_latency(ended, of_text),
        goodput=_goodput(objectives, ended, of_text, ends),
        gateway=None if ended is None else _at_gateway(ended, ended_us, in_flight),
        text=_text(work, now, ends) if is_text else None,
    )


def _ended_well(of_text: Difference | None, ends: Mapping[str, int]) -> int | None:
    return None if of_text is None else sum(ends.get(end, 0) for end in WHOLE)


def _rate(count: float | None, wall_us: int) -> float | None:
    return None if count is None or wall_us <= 0 else count * US_PER_S / wall_us


def _known_sum(values: Sequence[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _duty(work: Work | None, of_text: Difference | None) -> float | None:
    """Triton's own counts of a decoupled model say nothing about its engine."""
    if work is None or work.capacity_us <= 0:
        return None
    if of_text is None:
        return work.counters.busy_ns / 1_000 / work.capacity_us
    steps = of_text.observed(STEP_TIME)
    return None if steps is None else (steps.mean_us or 0.0) * steps.count / work.capacity_us


def _of(observed: Observed | None, source: str) -> Latency | None:
    if observed is None or not observed.count:
        return None
    return Latency(source, observed.count, observed.percentile_us(50), observed.percentile_us(99))


def _latency(ended: Tally | None, of_text: Difference | None) -> Latency | None:
    found = None if ended is None else _of(ended.latencies, GATEWAY)
    return _of(of_text.observed(E2E), MODEL) if found is None and of_text is not None else found


def _goodput(
    objectives: Objectives | None, ended: Tally | None, of_text: Difference | None, ends: Mapping[str, int]
) -> Goodput | None:
    if objectives is None:
        return None
    if of_text is not None:
        return _text_goodput(objectives, of_text, ends)
    if ended is None or not ended.timed:
        return None
    low, high = ended.in_time(objectives.latency_us)
    return Goodput(GATEWAY, low / ended.timed, high / ended.timed)


def _text_goodput(objectives: Objectives, of_text: Difference, ends: Mapping[str, int]) -> Goodput | None:
    """By the shares of first tokens and of paces that were in time. Both hold for at least their sum less one."""
    shares = []
    for family, limit_us in ((TTFT, objectives.ttft_us), (TPOT, objectives.tpot_us)):
        observed = of_text.observed(family)
        if limit_us is not None and observed is not None and observed.count:
            shares.append(_within(observed, limit_us))
    ended = sum(count for end, count in ends.items() if end != End.CANCELLED.value)
    if not shares or not ended:
        return None
    answered = sum(ends.get(end, 0) for end in WHOLE) / ended
    low = max(0.0, sum(share[0] for share in shares) - (len(shares) - 1))
    return Goodput(MODEL, low * answered, min(share[1] for share in shares) * answered)


def _within(observed: Observed, limit_us: int) -> tuple[float, float]:
    """Least and greatest share of observations within a limit."""
    low = high = 0
    below_us = 0
    for bound, count in observed.buckets:
        bound_us = limit_us + 1 if bound == float("inf") else round(bound * US_PER_S)
        low += count if bound_us <= limit_us else 0
        high += count if below_us < limit_us else 0
        below_us = bound_us
    return low / observed.count, high / observed.count


def _at_gateway(ended: Tally, wall_us: int, in_flight: int | None) -> AtGateway:
    outcomes = {outcome.value: ended.of(outcome) for outcome in Ended}
    classes: dict[str, dict[str, int]] = {}
    reasons: Counter[str] = Counter()
    for (name, outcome, reason), count in sorted(ended.counts.items()):
        if count:
            of_class = classes.setdefault(name, dict.fromkeys(outcomes, 0))
            of_class[outcome.value] += count
            if outcome is Ended.REFUSED:
                reasons[reason or "not told"] += count
    return AtGateway(_rate(sum(outcomes.values()), wall_us), outcomes, classes, dict(reasons), in_flight)


def _text(work: Work | None, now: Sequence[Known], ends: Mapping[str, int]) -> Text:
    readings = [one.text for one in now if one.text is not None]
    running = [value for reading in readings if (value := gauge(reading, RUNNING)) is not None]
    usage = [value for reading in readings if (value := gauge(reading, KV_USAGE)) is not None]
    change = None if work is None else work.of_text
    wall_us = 0 if work is None else work.wall_us
    asked = None if change is None else change.counted(PREFIX_ASKED)
    hit = None if change is None else change.counted(PREFIX_HIT)
    return Text(
        running=round(sum(running)) if running else None,
        kv_usage=max(usage) if usage else None,
        tokens_per_s=None if change is None else _rate(change.counted(TOKENS_OUT), wall_us),
        prompt_tokens_per_s=None if change is None else _rate(change.counted(TOKENS_IN), wall_us),
        ttft=None if change is None else _of(change.observed(TTFT), MODEL),
        tpot=None if change is None else _of(change.observed(TPOT), MODEL),
        prefix_hit_ratio=hit / asked if asked and hit is not None else None,
        preemptions=None if change is None else change.counted(PREEMPTIONS),
        refusals={} if change is None else change.by_label(REFUSALS),
        ends=dict(ends),
    )
