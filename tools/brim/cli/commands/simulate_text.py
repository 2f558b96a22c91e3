"""``brim simulate`` for language models: what batching again before every step makes of some traffic, without an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.table import Table

from brim.batcher.arrivals import Arrival, bursty, constant, poisson
from brim.cli.output import put, put_answer, say, table_text
from brim.engine.simulate import closed_loop, open_loop
from brim.engine.simulated import Simulated
from brim.engine.static_batching import simulate_static
from brim.engine.step_time import read_step_time
from brim.engine.traffic import MOST_REQUESTS
from brim.errors import InputError, MissingTool
from brim.measure.arrivals import read_trace
from brim.measure.text.lengths import mix_of
from brim.paths import find_project
from brim.service.load import find_service
from brim.service.schema import Service, Slo
from brim.tune.text.setting import Setting, host_settings, limits_of, setting_of, with_setting
from brim.units import ms_to_us, us_to_ms

REQUESTS = 300
UNNAMED = {
    "name": "unnamed",
    "model": {"llm": "any"},
    "callers": [{"name": "interactive", "share": 0.5}, {"name": "batch", "priority": 2, "share": 0.5}],
}
"""Stands in for a service where none is named: every default, and two classes of callers."""
SHAREGPT = "sharegpt"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What was typed; None is what the service file says, or the usual.

    Attributes:
        service: name of a service.
        step_time: file of coefficients or logged steps.
        prompts, texts: distributions of lengths (``brim.measure.text.lengths``).
        batch_share: share of the batch class.
        chunk_tokens, max_sequences, kv_blocks, batch_kept_share: instead of the service's.
        ttft_ms, tpot_ms: the objective, instead of the service's.
        static: batching whole requests beside it.
    """

    service: str | None = None
    step_time: Path | None = None
    prompts: str | None = None
    texts: str | None = None
    batch_share: float | None = None
    chunk_tokens: int | None = None
    max_sequences: int | None = None
    kv_blocks: int | None = None
    batch_kept_share: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    static: bool = False

    def given(self) -> dict[str, Any]:
        """What was typed, by option; None where nothing was."""
        options = {f"--{name.replace('_', '-')}": getattr(self, name) for name in self.__dataclass_fields__}
        return {**options, "--service": None, "a service": self.service, "--static": self.static or None}


@dataclass(frozen=True, slots=True)
class Load:
    """The load that was typed: one of ``rate``, ``trace`` and ``concurrency``, or none."""

    rate: float | None
    arrival: Arrival | None
    trace: Path | None
    concurrency: int | None
    requests: int | None


def simulate_text(
    options: TextOptions, load: Load, *, jitter: float, seed: int, plot: Path | None, as_json: bool
) -> int:
    """Simulate, and show it."""
    if options.step_time is None:
        raise InputError(
            "it is not said how long a step takes",
            hint="give --step-time FILE: coefficients, or steps as `brim tune` measures them (docs/text-tuning.md)",
        )
    service = _service(options)
    settings = host_settings(service)
    limits, policy = limits_of(settings), settings.policy
    step_time = read_step_time(options.step_time)
    rng = np.random.default_rng(seed)
    sent_us = _times(load, service if options.service else None, rng)
    count = _count(load) if sent_us is None else len(sent_us)
    mix = mix_of(options.prompts or SHAREGPT, options.texts or SHAREGPT, context_tokens=limits.context_tokens)
    calls = mix.draw(count, rng, context_tokens=limits.context_tokens, batch_share=_batch_share(options, service))
    began_ns = perf_counter_ns()
    if sent_us is None:
        assert load.concurrency is not None
        found = closed_loop(calls, load.concurrency, step_time, limits, policy, jitter=jitter, seed=seed)
    else:
        found = open_loop(calls, sent_us, step_time, limits, policy, jitter=jitter, seed=seed)
    took_s = max(1, perf_counter_ns() - began_ns) / 1e9
    # Not in the answer: the same seed gives the same one.
    say(f"{len(found.step_us) / took_s:,.0f} steps/s simulated on one core ({len(found.step_us):,} in {took_s:.3f} s)")
    data: dict[str, Any] = {
        **_figures(found, service.slo),
        "setting": setting_of(service).as_json(),
        "step_time": step_time.as_json(),
        "slo": {name: None if at_ms is None else ms_to_us(at_ms) for name, at_ms in _objectives(service.slo).items()},
    }
    static = None
    if options.static:
        if sent_us is None:
            raise InputError(
                "--static beside --concurrency", hint="static batches are simulated under --rate or --trace"
            )
        static = simulate_static(calls, sent_us, step_time, limits, settings.max_sequences)
        data["static"] = _figures(static, service.slo)
        data["ratio"] = _ratios(data, data["static"])
    if plot is not None:
        _draw(found, static, plot, service.slo, title=f"{service.name}, simulated: {count} requests")
    if as_json:
        put_answer("simulate", data)
    else:
        put(_words(data))
    return 0


def _service(options: TextOptions) -> Service:
    """The named service, or one of defaults; under the settings that were typed.

    Raises:
        InputError: it is no language model's, or a setting is out of its range or fits not with the others.
    """
    service = (
        Service.model_validate(UNNAMED)
        if options.service is None
        else find_service(find_project().services, options.service)
    )
    if service.generation is None:
        raise InputError(
            f"{service.name} is no language model",
            hint=f"`brim simulate --config model_repository/{service.name}/config.pbtxt` is for its batcher",
        )
    wanted = {name: given for name in Setting.__dataclass_fields__ if (given := getattr(options, name)) is not None}
    objective = {name: given for name in ("ttft_ms", "tpot_ms") if (given := getattr(options, name)) is not None}
    try:
        service = with_setting(service, Setting(**{**setting_of(service).as_json(), **wanted}))
        slo = Slo.model_validate({**service.slo.model_dump(), **objective})
    except ValidationError as error:
        faults = [
            f"{'--' + str(fault['loc'][0]).replace('_', '-') + ': ' if fault['loc'] else ''}{fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        raise InputError("; ".join(faults), hint="docs/service-file.md has the ranges") from error
    return service.model_copy(update={"slo": slo})


def _times(load: Load, service: Service | None, rng: np.random.Generator) -> Sequence[int] | None:
    """When the requests of an open loop are sent; None for a closed one.

    Raises:
        InputError: there is no load, or a value of it is out of its range.
    """
    if load.concurrency is not None:
        return None
    if load.trace is not None:
        return read_trace(load.trace)
    rate, arrival = load.rate, load.arrival
    if rate is None:
        if service is None:
            raise InputError("no load is given", hint="give --rate, --trace or --concurrency, or name a service")
        rate = service.traffic.rate_per_s
        arrival = arrival or (Arrival.BURSTY if service.traffic.arrival.value == Arrival.BURSTY.value else None)
    count = _count(load)
    if arrival is Arrival.CONSTANT:
        return [int(at_us) for at_us in constant(rate, count)]
    drawn = bursty(rate, count, rng) if arrival is Arrival.BURSTY else poisson(rate, count, rng)
    return [int(at_us) for at_us in drawn]


def _count(load: Load) -> int:
    count = REQUESTS if load.requests is None else load.requests
    if not 1 <= count <= MOST_REQUESTS:
        raise InputError(f"{count} requests; 1..{MOST_REQUESTS} can be simulated", hint="a longer run adds little")
    return count


def _batch_share(options: TextOptions, service: Service) -> float:
    """What was typed; else the share of the classes after the first, where a service is named."""
    if options.batch_share is not None:
        return options.batch_share
    if options.service is None or not service.callers:
        return 0.0
    first = min(service.callers, key=lambda caller: caller.priority)
    return 1 - first.share


def _objectives(slo: Slo) -> dict[str, float | None]:
    return {"ttft_us": slo.ttft_ms, "tpot_us": slo.tpot_ms}


def _figures(found: Simulated, slo: Slo) -> dict[str, Any]:
    """What ``Simulated.as_json`` has, and what of it kept the objective; None without one."""
    if slo.ttft_ms is None and slo.tpot_ms is None:
        return {**found.as_json(), "goodput_per_s": None, "in_slo": None}
    limits_us = [math.inf if at_ms is None else ms_to_us(at_ms) for at_ms in _objectives(slo).values()]
    good = found.in_time(*limits_us)
    return {
        **found.as_json(),
        "goodput_per_s": found.goodput_per_s(*limits_us),
        "in_slo": float(good.mean()) if len(good) else None,
    }


def _ratios(continuous: dict[str, Any], static: dict[str, Any]) -> dict[str, float | None]:
    """Continuous over static."""
    names = ("tokens_per_s", "ttft_p50_us", "ttft_p99_us", "tpot_p50_us", "e2e_p50_us", "e2e_p99_us")
    return {
        name: continuous[name] / static[name] if static[name] and continuous[name] is not None else None
        for name in names
    }


def _draw(found: Simulated, static: Simulated | None, path: Path, slo: Slo, *, title: str) -> None:
    """The picture.

    Raises:
        MissingTool: matplotlib is not installed.
    """
    try:
        from brim.measure.plot_text_simulation import draw
    except ImportError as error:
        raise MissingTool(
            f"no picture can be drawn: {error}", hint="pip install 'brim[report]' brings what it needs"
        ) from error
    say(f"picture: {draw(found, path, static=static, ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms, title=title)}")


def _words(data: dict[str, Any]) -> str:
    """The figures, one row a way of batching; then counts."""
    table = Table(
        "batching", "TTFT p50 ms", "p99 ms", "TPOT p50 ms", "p99 ms", "e2e p50 ms", "p99 ms", "tokens/s", "in SLO",
        "goodput/s", "texts a step",
    )  # fmt: skip
    rows = {"every step": data} | ({"whole requests": data["static"]} if "static" in data else {})
    for name, of in rows.items():
        table.add_row(name, *_figure_cells(of))
    if "ratio" in data:
        ratio = {name: "-" if value is None else f"x{value:.2f}" for name, value in data["ratio"].items()}
        table.add_row(
            "ratio", ratio["ttft_p50_us"], ratio["ttft_p99_us"], ratio["tpot_p50_us"], "", ratio["e2e_p50_us"],
            ratio["e2e_p99_us"], ratio["tokens_per_s"], "", "", "",
        )  # fmt: skip
    ends = ("offered", "stop", "length", "refused", "preemptions", "steps", "most_blocks")
    counts = Table(*ends)
    counts.add_row(*(str(data[end]) for end in ends))
    refused = [f"refused: {', '.join(f'{count} {reason}' for reason, count in data['reasons'].items())}"]
    return "\n".join([table_text(table), table_text(counts), *(refused if data["reasons"] else [])])


def _figure_cells(of: dict[str, Any]) -> list[str]:
    latencies = [of[f"{name}_p{percent}_us"] for name in ("ttft", "tpot", "e2e") for percent in (50, 99)]
    return [
        *("-" if value is None else f"{us_to_ms(value):.1f}" for value in latencies),
        f"{of['tokens_per_s']:.1f}",
        "-" if of["in_slo"] is None else f"{of['in_slo']:.1%}",
        "-" if of["goodput_per_s"] is None else f"{of['goodput_per_s']:.2f}",
        "-" if of["mean_sequences"] is None else f"{of['mean_sequences']:.1f}",
    ]
