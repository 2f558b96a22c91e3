"""``brim simulate``: what Triton's batcher would make of some traffic under a configuration, without a server; or, for a
language model, what batching before every step would (``brim.cli.commands.simulate_text``)."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from brim.batcher.arrivals import Arrival, ClosedLoop, OpenLoop, Traffic, bursty, constant, poisson, waiting
from brim.batcher.batch_time import AffineBatchTime, BatchTime, read_batch_time
from brim.batcher.machine import LOST_WAKEUP, Machine
from brim.batcher.result import Result
from brim.batcher.settings import Settings, settings_of
from brim.batcher.simulate import simulate as replay
from brim.cli.app import JsonFlag
from brim.cli.commands import simulate_text
from brim.cli.output import put, put_answer, say, table_text
from brim.config.textformat import MAX_BYTES, parse
from brim.errors import InputError, MissingTool
from brim.findings import Severity, has_errors
from brim.measure.arrivals import read_trace
from brim.measure.text.lengths import EXPECTED
from brim.units import us_to_ms

PICTURES = (".svg", ".png")
REQUESTS = 10_000
FEW_BATCHES = 40
"""Batches that the words for people list."""


def simulate(
    service: Annotated[
        str | None, typer.Argument(help="A language model's service: its settings, traffic and objective.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A config.pbtxt, for Triton's batcher.")] = None,
    tau: Annotated[Path | None, typer.Option(help="Measured batch times: a JSON file of points.")] = None,
    tau0_us: Annotated[float | None, typer.Option(help="Time that every batch costs.")] = None,
    alpha_us: Annotated[float | None, typer.Option(help="Time that every row costs on top.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests a second.")] = None,
    arrival: Annotated[Arrival | None, typer.Option(help="Gaps of the open loop; poisson when absent.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: callers who wait for their answers.")] = None,
    think_us: Annotated[int | None, typer.Option(help="Closed loop: mean exponential think time.")] = None,
    waiting_requests: Annotated[
        int | None, typer.Option("--waiting", help="So many requests wait when the batcher starts; batches are listed.")
    ] = None,
    waited_us: Annotated[
        int | None, typer.Option(help="How long those have already waited then; 0 when absent.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help='Repeat recorded arrivals: JSON lines of {"offset_us": 1250}, as `brim measure` does.'),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help=f"Requests in all; {REQUESTS} when absent, of a language model {simulate_text.REQUESTS}."),
    ] = None,
    instances: Annotated[int | None, typer.Option(help="Instances, instead of what the configuration says.")] = None,
    shared_device: Annotated[
        bool, typer.Option("--shared-device", help="Instances prepare side by side and compute one after the other.")
    ] = False,
    prepare_us: Annotated[int, typer.Option(help="An instance's work on a batch before it computes.")] = 0,
    prepare_row_us: Annotated[int, typer.Option(help="The same for every row.")] = 0,
    request_us: Annotated[int, typer.Option(help="Work before the queue, one request after the other.")] = 0,
    overhead_us: Annotated[int, typer.Option(help="What every request takes besides: network, parsing.")] = 0,
    jitter: Annotated[float, typer.Option(help="Sigma of lognormal batch times; 0 for none.")] = 0.0,
    lost_wakeup: Annotated[
        float, typer.Option(help="With a queue policy: share of executions whose end the batcher misses.")
    ] = LOST_WAKEUP,
    step_time: Annotated[
        Path | None, typer.Option(help="Language model: what a step takes, coefficients or logged steps.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help=f"Language model: lengths of prompts: {EXPECTED}; sharegpt when absent.")
    ] = None,
    texts: Annotated[str | None, typer.Option(help="Language model: the same of texts.")] = None,
    batch_share: Annotated[
        float | None, typer.Option(help="Language model: share of the batch class; as the service says when absent.")
    ] = None,
    chunk_tokens: Annotated[int | None, typer.Option(help="What if a step had so many tokens.")] = None,
    max_sequences: Annotated[int | None, typer.Option(help="What if so many texts ran at once.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="What if the KV cache had so many blocks.")] = None,
    batch_kept_share: Annotated[
        float | None, typer.Option(help="What if the batch class kept so much of seats and cache.")
    ] = None,
    ttft_ms: Annotated[float | None, typer.Option(help="Objective for the first token, for goodput.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Objective for each further token, for goodput.")] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Language model: batches of whole requests beside it, and the ratio.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .svg or .png file.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Predict latency, batch sizes and refusals of a configuration, or of a language model, without a server."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(
            f"--plot {plot}: a name that ends in {' or '.join(PICTURES)} is expected", hint="such as run.svg"
        )
    for name, given in (("--waiting", waiting_requests), ("--trace", trace)):
        if given is not None and requests is not None:
            raise InputError(f"--requests beside {name}", hint=f"{name} says already how many requests there are")
    options = simulate_text.TextOptions(
        service, step_time, prompts, texts, batch_share, chunk_tokens, max_sequences, kv_blocks, batch_kept_share,
        ttft_ms, tpot_ms, static,
    )  # fmt: skip
    of_batcher = {
        "--tau": tau, "--tau0-us": tau0_us, "--alpha-us": alpha_us, "--think-us": think_us,
        "--waiting": waiting_requests, "--waited-us": waited_us, "--instances": instances,
        "--shared-device": shared_device or None, "--prepare-us": prepare_us or None,
        "--prepare-row-us": prepare_row_us or None, "--request-us": request_us or None,
        "--overhead-us": overhead_us or None,
    }  # fmt: skip
    if config is None:
        _refuse("a language model", of_batcher, "these are for Triton's batcher, which --config FILE names")
        named_load = None if service is None else "the service's traffic"
        _check_choice(
            {"--rate": rate, "--trace": trace, "--concurrency": concurrency},
            {"--arrival": ("--rate", arrival)},
            otherwise=named_load,
        )
        load = simulate_text.Load(rate, arrival, trace, concurrency, requests)
        return simulate_text.simulate_text(options, load, jitter=jitter, seed=seed, plot=plot, as_json=as_json)
    _refuse("--config", options.given(), "these are for language models, which have no batcher: leave --config out")
    _check_choice(
        {"--rate": rate, "--trace": trace, "--concurrency": concurrency, "--waiting": waiting_requests},
        {"--arrival": ("--rate", arrival), "--think-us": ("--concurrency", think_us)}
        | {"--waited-us": ("--waiting", waited_us)},
    )
    settings = _settings(config, instances)
    machine = Machine(
        batch_time(tau, tau0_us, alpha_us),
        jitter=jitter,
        prepare_us=prepare_us,
        prepare_row_us=prepare_row_us,
        serialised=shared_device,
        overhead_us=overhead_us,
        request_us=request_us,
        lost_wakeup=lost_wakeup,
    )
    count = REQUESTS if requests is None else requests
    traffic: Traffic
    if waiting_requests is not None:
        traffic = waiting(waiting_requests, waited_us=waited_us or 0)
    elif trace is not None:
        traffic = OpenLoop(read_trace(trace))
    elif concurrency is not None:
        traffic = ClosedLoop(concurrency, count, think_us or 0)
    else:
        assert rate is not None
        traffic = _open_loop(arrival or Arrival.POISSON, rate, count, seed)
    if not settings.batches:
        say(f"{config} has no dynamic_batching: every request is a batch")
    began_ns = perf_counter_ns()
    result = replay(settings, machine, traffic, seed=seed)
    took_s = max(1, perf_counter_ns() - began_ns) / 1e9
    # Not in the answer: the same seed gives the same one.
    say(f"{result.offered / took_s:,.0f} requests/s simulated on one core ({result.offered:,} in {took_s:.3f} s)")
    data: dict[str, Any] = {**result.as_json(), "mean_us": _mean_us(result)}
    if waiting_requests is not None:
        data["batches"] = result.batches.rows.tolist()
        data["reasons"] = [reason.value for _, reason in result.batches.pairs()]
    if plot is not None:
        _draw(result, plot, title=f"{config}, simulated: {_load_words(traffic)}")
    if as_json:
        put_answer("simulate", data)
    else:
        put(_words(data, result, lists_batches=waiting_requests is not None))
    return 0


def _mean_us(result: Result) -> int | None:
    """Of answers: beside the percentiles, to show what it hides."""
    return round(float(result.latency_us.mean())) if len(result.latency_us) else None


def _load_words(traffic: Traffic) -> str:
    if isinstance(traffic, ClosedLoop):
        return f"{traffic.callers} callers, {traffic.requests} requests"
    return f"{len(traffic.sent_us)} requests"


def _draw(result: Result, path: Path, *, title: str) -> None:
    """The picture.

    Raises:
        MissingTool: matplotlib is not installed.
    """
    try:
        from brim.measure.plot_simulation import draw
    except ImportError as error:
        raise MissingTool(
            f"no picture can be drawn: {error}", hint="pip install 'brim[report]' brings what it needs"
        ) from error
    say(f"picture: {draw(result, path, title=title)}")


def _refuse(what: str, others: dict[str, Any], hint: str) -> None:
    """Refuse options that mean nothing here.

    Raises:
        InputError: one of them is given.
    """
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"{', '.join(given)} beside {what}", hint=hint)


def _check_choice(loads: dict[str, Any], details: dict[str, tuple[str, Any]], *, otherwise: str | None = None) -> None:
    """One load, and no detail of another; without any, ``otherwise`` is one, which takes every detail.

    Raises:
        InputError: none or several loads, or a detail that its load is not there for.
    """
    given = [name for name, value in loads.items() if value is not None]
    if not given and otherwise is not None:
        return
    if len(given) != 1:
        said = " and ".join(given) + " exclude each other" if given else "no load is given"
        raise InputError(said, hint=f"give one of {', '.join(loads)}")
    lost = [
        f"{name} without {load}" for name, (load, value) in details.items() if value is not None and load not in given
    ]
    if lost:
        raise InputError("; ".join(lost), hint=f"the load here is {given[0]}")


def _settings(config: Path, instances: int | None) -> Settings:
    """Read the configuration.

    Raises:
        InputError: it cannot be read, or not be simulated.
    """
    with config.open("rb") as file:
        parsed = parse(file.read(MAX_BYTES + 1), str(config))
    if parsed.message is None or has_errors(parsed.findings):
        faults = [finding for finding in parsed.findings if finding.severity is Severity.ERROR]
        raise InputError(
            "\n".join(finding.render() for finding in faults), hint=f"`brim lint {config}` shows warnings as well"
        )
    return settings_of(parsed.message, instances=instances)


def batch_time(tau: Path | None, tau0_us: float | None, alpha_us: float | None) -> BatchTime:
    """What was typed about how long a batch takes.

    Raises:
        InputError: nothing, or both ways to say it.
    """
    affine = [name for name, value in (("--tau0-us", tau0_us), ("--alpha-us", alpha_us)) if value is not None]
    if tau is not None and affine:
        raise InputError(f"--tau and {', '.join(affine)} exclude each other", hint="both say how long a batch takes")
    if tau is not None:
        return read_batch_time(tau)
    if tau0_us is None or alpha_us is None:
        raise InputError(
            "it is not said how long a batch takes",
            hint="give --tau FILE with measured points, or --tau0-us and --alpha-us for tau0 + alpha * rows",
        )
    return AffineBatchTime(tau0_us, alpha_us)


def _open_loop(arrival: Arrival, rate: float, count: int, seed: int) -> OpenLoop:
    # Another stream than that of the simulation, which draws from children of the same seed.
    rng = np.random.default_rng(seed)
    if arrival is Arrival.CONSTANT:
        return OpenLoop(constant(rate, count))
    if arrival is Arrival.BURSTY:
        return OpenLoop(bursty(rate, count, rng))
    return OpenLoop(poisson(rate, count, rng))


def _words(data: dict[str, Any], result: Result, *, lists_batches: bool) -> str:
    """Three tables, and the batches where they were asked for."""
    figures = Table("p50 ms", "p90 ms", "p99 ms", "mean ms", "answers/s", "mean batch", "fill", "duty")
    latencies = (
        None if data[name] is None else us_to_ms(data[name]) for name in ("p50_us", "p90_us", "p99_us", "mean_us")
    )
    figures.add_row(
        *(_number(value, 2) for value in latencies),
        _number(data["throughput"], 1),
        _number(data["mean_batch"], 1),
        _number(data["fill"], 2),
        _number(data["duty"], 2),
    )
    ends = ("offered", "answered", "refused", "expired", "cancelled")
    counts = Table(*ends)
    counts.add_row(*(str(data[end]) for end in ends))
    launches = Table("batches", *data["launches"])
    launches.add_row(str(len(result.batches)), *map(str, data["launches"].values()))
    text = "\n".join(table_text(table) for table in (figures, counts, launches))
    if lists_batches:
        shown = [
            f"{rows} {reason.value}"
            for _, (rows, reason) in zip(range(FEW_BATCHES), result.batches.pairs(), strict=False)
        ]
        more = len(result.batches) - len(shown)
        text += f"\nbatches: {', '.join(shown)}" + (f" and {more} more" if more else "")
    return text


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
