"""``brim measure``: a service under load, with Triton's own batch statistics around every point.

The load comes from the real perf_analyzer, or with ``--open-loop`` from Brim's own driver (``measure_open``); a language model's
always from streaming callers of Brim's own (``measure_text``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.measure_open import OpenLoopOptions, measure_open_loop
from brim.cli.commands.measure_perf_analyzer import measure_with_perf_analyzer
from brim.cli.commands.measure_target import numbers, refuse
from brim.cli.commands.measure_text import PROMPTS, TEXTS, TextOptions, measure_language_model
from brim.errors import InputError
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.schedule import Arrivals
from brim.measure.text.lengths import EXPECTED
from brim.paths import find_project
from brim.server.endpoint import endpoint_from_url
from brim.service.load import find_service

CONCURRENCIES = "1,10,100,200"
WINDOW_MS = 2_000
MAX_TRIALS = 10
STABILITY_PERCENT = 10.0


def measure(
    name: Annotated[str, typer.Argument(help="A service.")],
    concurrency: Annotated[
        str | None, typer.Option(help=f"Closed loop: callers, such as {CONCURRENCIES} (the default).")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Open loop: requests a second, such as 50,100; with --open-loop the service's traffic."),
    ] = None,
    constant: Annotated[bool, typer.Option("--constant", help="Equal gaps instead of Poisson arrivals.")] = False,
    open_loop: Annotated[
        bool,
        typer.Option("--open-loop", help="Brim's own driver: latency from when a request was due, goodput, overload."),
    ] = False,
    arrival: Annotated[
        Arrivals | None,
        typer.Option(help="--open-loop: one run a rate, or through all rates (ramp, steps); poisson when absent."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help='--open-loop: repeat recorded arrivals, JSON lines of {"offset_us": 1250}.')
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="--open-loop: seconds of each run; 10, or the trace's own length, when absent.")
    ] = None,
    give_up_ms: Annotated[
        float | None, typer.Option(help="--open-loop: callers leave then; what the service file says when absent.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="--open-loop: driver processes that share a schedule; 1 when absent.")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="How requests travel.")] = Protocol.GRPC,
    url: Annotated[
        str | None, typer.Option(help="A server that already runs, by its HTTP address; one is started when absent.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The gRPC port at --url; the HTTP port plus one when absent.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help=f"Language models: tokens of a prompt: {EXPECTED}; {PROMPTS} when absent.")
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help=f"Language models: tokens of a text, said the same way; {TEXTS} when absent.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help='Language models: recorded lengths, JSON lines of {"prompt_tokens": 9, "output_tokens": 7}.'),
    ] = None,
    batch_share: Annotated[
        float | None, typer.Option(help="Language models: share of requests of the last class of callers, 0 to 1.")
    ] = None,
    shared_prefix: Annotated[
        int | None, typer.Option(min=1, help="Language models: tokens that all prompts begin with; none when absent.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Language models: the metrics port at --url.")
    ] = None,
    with_perf_analyzer: Annotated[
        bool, typer.Option("--perf-analyzer", help="Language models: perf_analyzer's streaming callers as well.")
    ] = False,
    window_ms: Annotated[
        int | None, typer.Option(min=100, help=f"One measurement window; {WINDOW_MS} when absent.")
    ] = None,
    stability_percent: Annotated[
        float, typer.Option(help="Three windows, or the thirds of an open-loop run, must agree within this.")
    ] = STABILITY_PERCENT,
    max_trials: Annotated[int | None, typer.Option(min=3, help=f"Windows at most; {MAX_TRIALS} when absent.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the rows that are sent, and for arrivals of --open-loop.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; an earlier one of the same plan is taken up again.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure throughput, latency, batch sizes and duty at each load; a table, and a picture of it."""
    if concurrency is not None and rate is not None:
        raise InputError(
            "--concurrency and --rate exclude each other", hint="one is a closed loop, the other an open one"
        )
    if url is None:
        refuse(
            {"--grpc-port": grpc_port, "--metrics-port": metrics_port},
            "without --url",
            "a server that is started here chooses its own ports",
        )
    project = find_project()
    service = find_service(project.services, name)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-measure-{service.name}"
    of_open_loop: dict[str, object] = {"--arrival": arrival, "--trace": trace, "--duration": duration}
    of_open_loop["--give-up-ms"] = give_up_ms
    of_windows: dict[str, object] = {"--window-ms": window_ms, "--max-trials": max_trials}
    of_text: dict[str, object] = {"--prompts": prompts, "--texts": texts, "--pairs": pairs}
    of_text |= {"--batch-share": batch_share, "--shared-prefix": shared_prefix, "--metrics-port": metrics_port}
    if service.generation is not None:
        refuse(
            {
                "--open-loop": open_loop or None,
                "--constant": constant or None,
                "--processes": processes,
                "--protocol http": None if protocol is Protocol.GRPC else protocol,
                **({} if with_perf_analyzer else of_windows),
            },
            f"for {name}, a language model",
            "its callers stream over gRPC from one process: --concurrency is a closed loop, --rate an open one with "
            "--arrival (constant is one) and --trace; windows are --perf-analyzer's",
        )
        text_options = TextOptions(
            concurrency=None if concurrency is None else numbers(concurrency, "--concurrency"),
            rates=None if rate is None else numbers(rate, "--rate"),
            arrival=arrival,
            trace=trace,
            duration_s=duration,
            give_up_ms=give_up_ms,
            prompts=prompts,
            texts=texts,
            pairs=pairs,
            batch_share=batch_share or 0.0,
            shared_prefix=shared_prefix or 0,
            perf_analyzer=with_perf_analyzer,
            window_ms=window_ms,
            max_trials=max_trials,
            stability_percent=stability_percent,
            seed=seed,
        )
        at = None
        if url is not None:
            at = endpoint_from_url(url, grpc_port=grpc_port, metrics_port=metrics_port)
        return measure_language_model(project, service, text_options, at, folder, as_json=as_json)
    refuse(
        {**of_text, "--perf-analyzer": with_perf_analyzer or None},
        f"for {name}, which is no language model",
        "perf_analyzer is what measures it anyway; its rows have the service file's shapes",
    )
    _check_generator(
        open_loop,
        {**of_open_loop, "--processes": processes},
        {"--concurrency": concurrency, "--constant": constant or None, **of_windows},
    )
    # Where the metrics page is would be a guess, and nothing of it is in a point.
    running = None if url is None else replace(endpoint_from_url(url, grpc_port=grpc_port), metrics=None)
    if open_loop:
        options = OpenLoopOptions(
            rates=None if rate is None else numbers(rate, "--rate"),
            arrival=arrival,
            trace=trace,
            duration_s=duration,
            give_up_ms=give_up_ms,
            processes=processes or 1,
            protocol=protocol,
            stability_percent=stability_percent,
            seed=seed,
        )
        return measure_open_loop(project, service, options, running, folder, as_json=as_json)
    closed = numbers(CONCURRENCIES if concurrency is None else concurrency, "--concurrency")
    plan = Plan(
        mode=Mode.CONCURRENCY if rate is None else Mode.RATE,
        values=closed if rate is None else numbers(rate, "--rate"),
        protocol=protocol,
        distribution=Distribution.CONSTANT if constant else Distribution.POISSON,
        window_ms=WINDOW_MS if window_ms is None else window_ms,
        stability_percent=stability_percent,
        max_trials=MAX_TRIALS if max_trials is None else max_trials,
    )
    return measure_with_perf_analyzer(project, service, plan, running, folder, seed, as_json=as_json)


def _check_generator(open_loop: bool, own: dict[str, object], of_perf_analyzer: dict[str, object]) -> None:
    """No option of the other load generator.

    Raises:
        InputError: there is one; all of them at once.
    """
    if open_loop:
        refuse(
            of_perf_analyzer,
            "beside --open-loop",
            "those are perf_analyzer's; the open loop has --rate, --arrival (constant is one), --trace and --duration",
        )
    else:
        refuse(own, "without --open-loop", "--open-loop takes Brim's own driver")
