"""Measuring a language model: one run a load, with the server's metrics read before and after every run."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import brim
from brim.engine.metrics import E2E, ITL, QUEUE_WAIT, TPOT, TTFT
from brim.engine.traffic import Call
from brim.errors import CouldNotTell
from brim.measure.accounting import Outcome
from brim.measure.histogram import nearest_rank
from brim.measure.measure import Target, ask_target
from brim.measure.open_point import Generator
from brim.measure.plan import Mode, usable_cores
from brim.measure.schedule import Schedule
from brim.measure.text.gap import ttft_parts
from brim.measure.text.plan import MOST_CALLERS, TextPlan
from brim.measure.text.point import (
    TextCounts,
    TextPoint,
    TextProvenance,
    TokenSlo,
    append_text_point,
    read_text_points,
    text_counts,
)
from brim.measure.text.prompts import CALIBRATIONS, Prompts, count_words
from brim.measure.text.run import TextLoad, TextRun, run_load
from brim.measure.text.server_side import Difference, Reading, ServerSide, is_idle, read_page, texts_ended
from brim.measure.text.stream import TextCallers
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S

SETTLE_TIMEOUT_S = 30.0
SETTLE_POLL_S = 0.1
SERVER_TIMES = {"ttft": TTFT, "itl": ITL, "tpot": TPOT, "e2e": E2E, "queue": QUEUE_WAIT}


def measure_text(
    endpoint: Endpoint,
    model: str,
    plan: TextPlan,
    *,
    folder: Path,
    on_point: Callable[[TextPoint], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[TextPoint]:
    """Carry out every load, in order. Each point is in ``text.jsonl`` before the next run begins.

    Points that the folder holds already for this plan and this configuration of the model are taken over.

    Args:
        endpoint: where the server answers; without a metrics address the server's side stays unknown.
        model: name of the model.
        plan: what to do.
        folder: the run folder.
        on_point: told of each point as it ends.
        on_progress: told what is happening.

    Raises:
        ServerFailed: the server does not answer, or ended during a run.
        InputError: the model is unknown, or the context does not hold the lengths.
        CouldNotTell: the model answers no prompt, or was started anew during a run.
    """
    target = ask_target(endpoint, model)
    known = {point.key: point for point in read_text_points(folder)}
    found = []
    for load in plan.loads:
        value = load.rate_per_s if isinstance(load, Schedule) else float(load)
        mode = Mode.RATE if isinstance(load, Schedule) else Mode.CONCURRENCY
        key = f"{model}/{mode.value}={value:g}/{plan.fingerprint(load)}/{target.config_digest}"
        point = known.get(key)
        if point is None:
            words = load.in_words if isinstance(load, Schedule) else f"{load} callers"
            seconds = (load.duration_us if isinstance(load, Schedule) else plan.duration_us) / US_PER_S
            on_progress(f"measuring {model}: {words}, {seconds:g} s, {plan.mix_words}")
            point = _measure(target, plan, load, key)
            append_text_point(folder, point)
        found.append(point)
        on_point(point)
    return found


def _measure(target: Target, plan: TextPlan, load: int | Schedule, key: str) -> TextPoint:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    load_average = os.getloadavg()[0]
    calls = plan.calls(load)
    words_seed = secrets.token_hex(8)
    before, after, run = asyncio.run(_run(target, plan, load, calls, words_seed))
    # What came of a server that has ended is no measurement.
    ask_target(target.endpoint, target.model)
    change = Difference(before, after) if before is not None and after is not None else None
    provenance = TextProvenance(
        command=list(plan.command),
        server=target.server,
        brim=brim.__version__,
        usable_cores=usable_cores(),
        load_average=load_average,
        started_at=started_at,
        seed=plan.seed,
        words_seed=words_seed,
    )
    return make_text_point(target.model, plan, load, run, change, key, provenance)


async def _run(
    target: Target, plan: TextPlan, load: int | Schedule, calls: Sequence[Call], words_seed: str
) -> tuple[Reading | None, Reading | None, TextRun]:
    concurrency, due_us, duration_us = (
        (0, load.due_us, load.duration_us) if isinstance(load, Schedule) else (load, (), plan.duration_us)
    )
    async with TextCallers(target.endpoint, target.model) as callers:
        unsettled = await _read(target)
        count = await count_words(callers, words_seed)
        if not count.told:
            raise CouldNotTell(
                f"{target.model} does not say how many tokens a prompt has",
                hint="the vLLM backend's contract has num_input_tokens: `brim export` and `brim serve` make such a model",
            )
        sent = TextLoad(
            concurrency=concurrency,
            due_us=due_us,
            calls=calls,
            prompts=Prompts(count, words_seed, plan.shared_prefix_tokens, str(plan.seed)),
            classes=dict(plan.classes) if plan.batch_share else {},
            duration_us=duration_us,
            objective=plan.objective,
            give_up_us=plan.give_up_us,
            timeout_us=plan.timeout_us,
            in_flight_limit=MOST_CALLERS,
        )
        begun = await _settled(target, unsettled, CALIBRATIONS)
        run = await run_load(callers, target.endpoint, target.model, sent)
        return begun, await _settled(target, begun, run.whole.outcomes.counts[Outcome.ANSWERED]), run


async def _read(target: Target) -> Reading | None:
    address = target.endpoint.metrics
    return None if address is None else await asyncio.to_thread(read_page, address, target.model)


async def _settled(target: Target, since: Reading | None, answered: int) -> Reading | None:
    """The metrics page once nothing runs or waits, and it counts as many whole texts more as have been heard.

    The page is brought up to date after a step's answers have left, so it may be behind them. After ``SETTLE_TIMEOUT_S`` it is
    what it is. None without a page.
    """
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        reading = await _read(target)
        if reading is None or time.monotonic() > deadline_s:
            return reading
        ended = texts_ended(reading)
        behind = since is not None and ended is not None and ended - (texts_ended(since) or 0) < answered
        if is_idle(reading) and not behind:
            return reading
        await asyncio.sleep(SETTLE_POLL_S)


def make_text_point(
    model: str,
    plan: TextPlan,
    load: int | Schedule,
    run: TextRun,
    change: Difference | None,
    key: str,
    provenance: TextProvenance,
) -> TextPoint:
    """A point from one run and the metrics around it.

    Raises:
        CountersWentBackwards: the model was started anew during the run.
    """
    whole, objective, is_open = run.whole, plan.objective, isinstance(load, Schedule)
    outcomes = whole.outcomes
    duration_us = load.duration_us if isinstance(load, Schedule) else plan.duration_us
    over_us = max(duration_us, run.wall_us) if is_open else duration_us

    def per_s(in_all: int, in_window: int) -> float:
        return (in_all if is_open else in_window) * US_PER_S / over_us

    in_slo = whole.in_slo if is_open else whole.in_slo_in_window
    side = None if change is None else ServerSide(change, run.looks, run.wall_us)
    running = None if side is None else side.mean_running
    slo_met = None
    if objective is not None and not run.limits and outcomes.offered:
        slo_met = whole.in_slo >= nearest_rank(objective.percentile, outcomes.offered)
    return TextPoint(
        **text_counts(whole),
        key=key,
        model=model,
        mode=Mode.RATE if is_open else Mode.CONCURRENCY,
        concurrency=None if isinstance(load, Schedule) else load,
        rate=load.rate_per_s if isinstance(load, Schedule) else None,
        arrivals=load.arrivals.value if isinstance(load, Schedule) else "closed",
        mix=plan.mix_words,
        duration_us=duration_us,
        throughput=per_s(outcomes.counts[Outcome.ANSWERED], whole.ended_in_window),
        p50_us=outcomes.since_due.percentile_us(50),
        p99_us=outcomes.since_due.percentile_us(99),
        output_tokens_per_s=per_s(whole.output_tokens, whole.output_tokens_in_window),
        input_tokens_per_s=per_s(whole.input_tokens, whole.input_tokens_in_window),
        output_tokens=whole.output_tokens,
        input_tokens=whole.input_tokens,
        asked_tokens=whole.asked_tokens,
        slo=None
        if objective is None
        else TokenSlo(percentile=objective.percentile, ttft_us=objective.ttft_us, tpot_us=objective.tpot_us),
        goodput=None if objective is None else in_slo * US_PER_S / duration_us,
        goodput_ratio=None if objective is None or not outcomes.offered else whole.in_slo / outcomes.offered,
        slo_met=slo_met,
        mean_batch=running,
        fill=None if running is None else running / plan.max_sequences,
        duty=None if side is None else side.duty,
        stable=whole.is_stable(plan.stability_percent),
        settled=None if change is None else is_idle(change.before) and is_idle(change.after),
        generator_bound=bool(run.limits),
        limits=run.limits,
        late=outcomes.late,
        late_us=outcomes.late_us,
        generator=Generator(
            loop_cores=run.evidence.loop_cores,
            lag_us=run.evidence.lag_us,
            most_under_way=run.evidence.most_under_way,
            processes=1,
        ),
        classes={name: TextCounts(**text_counts(account)) for name, account in run.classes.items()},
        ttft_parts_us=ttft_parts(whole.ttft, whole.ttft_since_sent, run.turnaround, run.lag, change),
        server=None if side is None else side.figures(),
        server_us={} if change is None else _server_times(change),
        messages=outcomes.messages,
        histograms={
            name: latencies.as_json()
            for name, latencies in (
                ("ttft", whole.ttft),
                ("itl", whole.itl),
                ("tpot", whole.tpot),
                ("e2e", outcomes.since_due),
            )
        },
        provenance=provenance,
    )


def _server_times(change: Difference) -> dict[str, dict[str, int]]:
    found = {}
    for name, family in SERVER_TIMES.items():
        observed = change.observed(family)
        if observed is not None and observed.mean_us is not None:
            bounds = {f"{p:g}": us for p in (50, 90, 99) if (us := observed.percentile_us(p)) is not None}
            found[name] = {"mean": round(observed.mean_us), **bounds}
    return found
