"""Text generation through the server: its speed against the engine's alone, who waits for whom, and what overload does.

Three parts in one run. *Speed*: so many streams through Triton against the same engine without a server, the callers being
on the same processors; in turn. *Long prompts*: a short prompt that comes while a long one is prefilled. *Overload*: an
open loop of a minute at five times what a closed loop got through, mostly of the batch class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from brim.bench.comparison import QUIET_CORES, Comparison, Judged, judged
from brim.bench.conditions import Conditions, Watch
from brim.bench.generation_load import (
    BATCH,
    INTERACTIVE,
    Overload,
    measure_capacity,
    measure_overload,
    refusal_us,
    ttft_us,
)
from brim.bench.generation_place import Place, ask, first_token_us, per_s, prompt_of
from brim.bench.verdict import Target, Verdict, spread_of
from brim.engine import metrics as m
from brim.errors import CouldNotTell, InputError
from brim.measure.text.stream import Heard, TextCallers, clock_us
from brim.paths import Project
from brim.service.schema import Service
from brim.units import US_PER_S, ms_to_us, us_to_ms

NAME = "generation"
SPEED = Target("tokens/s through Triton / engine alone", least=0.85)
SHORT = Target("TTFT of a short prompt behind a long one / step time", most=3.0)
LONG = Target("TTFT of the long prompt, disturbed / undisturbed", most=1.3)
REFUSED_US = 50_000
PERCENTILE = 99.0
SPEED_WORDS = 10
COUNTED = ("return_num_output_tokens",)
"""What the callers of the first part are told beside their text."""
SHORT_WORDS = 8
SHORT_TOKENS = 4
LEAST_INTERACTIVE = 0.99
"""Of interactive requests, those that are answered while batch requests are shed."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of the first two parts.
        streams: at once, of the first part.
        tokens: of each of them.
        long_words: of the long prompt; a word is a token or more.
        capacity_s: length of the closed loop before the overload.
        overload_s: length of the overload.
        factor: offered over capacity.
        interactive: interactive requests over capacity.
    """

    rounds: int = 8
    streams: int = 32
    tokens: int = 64
    long_words: int = 2_990
    capacity_s: float = 15.0
    overload_s: float = 60.0
    factor: float = 5.0
    interactive: float = 0.7


DEFAULT_EFFORT = Effort()
Progress = Callable[[str], None]


def generation(
    project: Project,
    service: Service,
    *,
    log_file: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Progress = lambda _: None,
) -> Comparison:
    """Measure all parts.

    Args:
        project: where the model repository lies.
        service: an exported language model with an objective for the first token.
        log_file: of the server.
        seed: for prompts, lengths and arrivals.
        effort: how long to look.
        on_progress: told what is happening, a short sentence each.

    Raises:
        InputError: the service is no language model, or says nothing of the first token.
        ServerFailed: the server or the engine did not start, or died.
        CouldNotTell: a request failed that must not.
    """
    if service.generation is None or service.slo.ttft_ms is None:
        raise InputError(
            f"{service.name} is no language model with slo.ttft_ms",
            hint="`brim bench generation` wants one, such as text_generation",
        )
    rng = np.random.default_rng(seed)
    watch = Watch()
    with Place(project, service, log_file=log_file, on_progress=on_progress) as place:
        speed = _speed(place, effort, rng, on_progress)
        prefill = _prefill(place, effort, rng, on_progress)
        on_progress(f"a closed loop of {service.generation.max_sequences} callers for {effort.capacity_s:g} s")
        capacity_per_s = measure_capacity(
            place, seconds=effort.capacity_s, callers=service.generation.max_sequences, seed=seed
        )
        on_progress(
            f"capacity {capacity_per_s:.1f} requests/s; {effort.factor:g} times that for {effort.overload_s:g} s"
        )
        load = measure_overload(
            place,
            capacity_per_s,
            factor=effort.factor,
            interactive=effort.interactive,
            seconds=effort.overload_s,
            seed=seed,
        )
        watch.note()
    conditions = watch.stop()
    rounds = [
        judged(SPEED, [ours / alone for ours, alone in zip(speed["through_per_s"], speed["alone_per_s"], strict=True)], conditions),
        judged(SHORT, [short / step for short, step in zip(prefill["short_ttft_us"], prefill["step_us"], strict=True)], conditions),
        judged(LONG, [one / alone for one, alone in zip(prefill["disturbed_ttft_us"], prefill["long_ttft_us"], strict=True)], conditions),
    ]  # fmt: skip
    details = {"effort": asdict(effort), "overload": overload_json(load), "findings": findings(load)}
    return Comparison(
        NAME,
        (*rounds, *judge_overload(load, ms_to_us(service.slo.ttft_ms), conditions)),
        {**speed, **prefill},
        conditions,
        details,
    )


def _speed(place: Place, effort: Effort, rng: np.random.Generator, say: Progress) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"alone_per_s": [], "through_per_s": []}
    for number in range(effort.rounds):
        ways: list[tuple[str, Callable[[Sequence[str]], float]]] = [
            ("alone_per_s", lambda prompts: place.alone_per_s(prompts, effort.tokens)),
            ("through_per_s", lambda prompts: _through_per_s(place, prompts, effort.tokens)),
        ]
        for name, way in ways if number % 2 else reversed(ways):
            found[name].append(way([prompt_of(rng, SPEED_WORDS) for _ in range(effort.streams)]))
        say(
            f"speed, round {number + 1} of {effort.rounds}: {found['through_per_s'][-1]:.0f} tokens/s through Triton, "
            f"{found['alone_per_s'][-1]:.0f} alone"
        )
    return found


def _through_per_s(place: Place, prompts: Sequence[str], tokens: int) -> float:
    async def all_at_once() -> tuple[list[Heard], int]:
        async with TextCallers(place.endpoint, place.service.name) as lines:
            began_us = clock_us()
            heard = await asyncio.gather(
                *(lines.ask(replace(ask(prompt, tokens), returns=COUNTED)) for prompt in prompts)
            )
            return heard, clock_us() - began_us

    heard, elapsed_us = asyncio.run(all_at_once())
    produced = sum(one.output_tokens for one in heard)
    if produced != tokens * len(prompts):
        wrong = next((one.error for one in heard if one.error), "texts are short")
        raise CouldNotTell(f"{produced} tokens of {tokens * len(prompts)} came: {wrong}", hint="see the server's log")
    return per_s(produced, elapsed_us)


def _prefill(place: Place, effort: Effort, rng: np.random.Generator, say: Progress) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {
        name: [] for name in ("long_ttft_us", "step_us", "disturbed_ttft_us", "short_ttft_us", "long_tokens")
    }
    for number in range(effort.rounds):
        before = place.metrics()
        alone = asyncio.run(_one(place, prompt_of(rng, effort.long_words)))
        after = place.metrics()
        steps = after[f"{m.STEP_TIME.name}_count"] - before[f"{m.STEP_TIME.name}_count"]
        took_us = (after[f"{m.STEP_TIME.name}_sum"] - before[f"{m.STEP_TIME.name}_sum"]) * US_PER_S
        undisturbed_us = first_token_us(alone)
        # Anywhere in the middle of the prefill, so that the short one comes at any moment of a step.
        delay_us = round(undisturbed_us * rng.uniform(0.2, 0.7))
        disturbed, short = asyncio.run(
            _two(place, prompt_of(rng, effort.long_words), prompt_of(rng, SHORT_WORDS), delay_us)
        )
        if short.sent_us + first_token_us(short) > disturbed.sent_us + first_token_us(disturbed):
            say("the long prompt was done before the short one had its first token")
        found["long_ttft_us"].append(undisturbed_us)
        found["step_us"].append(took_us / steps)
        found["disturbed_ttft_us"].append(first_token_us(disturbed))
        found["short_ttft_us"].append(first_token_us(short))
        found["long_tokens"].append(disturbed.input_tokens)
        say(
            f"long prompts, round {number + 1} of {effort.rounds}: a short one waits {us_to_ms(first_token_us(short)):.0f} ms "
            f"beside steps of {us_to_ms(took_us / steps):.0f} ms; {disturbed.input_tokens} tokens take "
            f"{us_to_ms(first_token_us(disturbed)):.0f} ms, {us_to_ms(undisturbed_us):.0f} ms undisturbed"
        )
    return found


async def _one(place: Place, prompt: str) -> Heard:
    async with TextCallers(place.endpoint, place.service.name) as lines:
        return await lines.ask(ask(prompt, 1))


async def _two(place: Place, long: str, short: str, delay_us: int) -> tuple[Heard, Heard]:
    async with TextCallers(place.endpoint, place.service.name) as lines:
        first = asyncio.create_task(lines.ask(ask(long, 1)))
        await asyncio.sleep(delay_us / US_PER_S)
        second = await lines.ask(ask(short, SHORT_TOKENS))
        return await first, second


def judge_overload(load: Overload, ttft_slo_us: int, conditions: Conditions) -> list[Judged]:
    """The whole of the overload, held against its targets: percentiles and counts over every request of it."""
    interactive, busy = load.of(INTERACTIVE), conditions.other_cores > QUIET_CORES
    held, promised = load.most_blocks
    timed = [
        (Target("overload: interactive TTFT p99 / objective", most=1.0), ttft_us(interactive, PERCENTILE), ttft_slo_us),
        (Target("overload: refusals at once, p99 ms", most=us_to_ms(REFUSED_US)), refusal_us(load.sent, PERCENTILE), ms_to_us(1)),
    ]  # fmt: skip
    counted = [
        (
            Target("overload: interactive requests answered", least=LEAST_INTERACTIVE),
            sum(one.heard.complete for one in interactive) / max(1, len(interactive)),
        ),
        (Target("overload: most KV blocks held / all", most=1.0), held / max(1.0, load.total_blocks)),
        (Target("overload: most KV blocks promised / all", most=1.0), promised / max(1.0, load.total_blocks)),
        (Target("overload: texts cut after they had begun", most=0), float(len(load.cut))),
        (Target("overload: neither complete nor refused with a reason", most=0), float(len(load.unexplained))),
        (Target("overload: KV blocks not free a second later", most=0), load.left_blocks),
    ]
    return [
        *(_of_the_run(target, found / unit_us, busy=busy) for target, found, unit_us in timed if found is not None),
        *(_of_the_run(target, value) for target, value in counted),
    ]


def _of_the_run(target: Target, value: float, *, busy: bool = False) -> Judged:
    """One figure of one run: it holds or it does not, and what is slow on a machine that others used tells nothing."""
    missed = Verdict.UNCLEAR if busy else Verdict.MISSED
    return Judged(target, (value,), spread_of([value]), Verdict.MET if target.least <= value <= target.most else missed)


def findings(load: Overload) -> list[str]:
    """For people: how the requests of either class ended."""
    lines = [
        f"overload: {len(load.sent)} requests, {load.offered_per_s:.1f}/s for {load.duration_us / US_PER_S:g} s, "
        f"capacity {load.capacity_per_s:.1f}/s; {load.preemptions:.0f} seats taken from batch requests"
    ]
    for kind in (INTERACTIVE, BATCH):
        ends = ", ".join(f"{count} {end}" for end, count in sorted(load.ends(kind).items()))
        first = ttft_us(load.of(kind), PERCENTILE)
        at = "-" if first is None else f"{us_to_ms(first):.0f}"
        lines.append(f"  {kind}: {ends}; first token p99 {at} ms")
    return lines


def overload_json(load: Overload) -> Mapping[str, object]:
    """For ``bench.json``."""
    return {
        "capacity_per_s": load.capacity_per_s,
        "offered_per_s": load.offered_per_s,
        "duration_us": load.duration_us,
        "ends": {kind: load.ends(kind) for kind in (INTERACTIVE, BATCH)},
        "most_blocks_held": load.most_blocks[0],
        "most_blocks_promised": load.most_blocks[1],
        "blocks": load.total_blocks,
        "blocks_left": load.left_blocks,
        "preemptions": load.preemptions,
        "ttft_us": {
            f"{kind}_p{percentile:g}": ttft_us(load.of(kind), percentile)
            for kind in (INTERACTIVE, BATCH)
            for percentile in (50.0, PERCENTILE)
        },
        "refused_at_once_us": {f"p{percentile:g}": refusal_us(load.sent, percentile) for percentile in (50.0, PERCENTILE, 100.0)},
    }  # fmt: skip
