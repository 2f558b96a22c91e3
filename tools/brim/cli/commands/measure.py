"""``brim measure``: the real perf_analyzer against a service, with Triton's own batch statistics around every point."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import canaries, new_log, require_artifacts
from brim.cli.output import put, put_answer, say, table_text
from brim.config.generate import Profile
from brim.errors import InputError
from brim.measure.input_data import write_input_data
from brim.measure.launcher import find_launcher
from brim.measure.measure import measure as measure_points
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.point import Point
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint, endpoint_from_url
from brim.service.load import find_service
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim_export.known_answers import known_answers

ROWS = 200
"""Different rows that the generator hands out in turn."""
CONCURRENCIES = "1,10,100,200"


def numbers(text: str, option: str) -> tuple[float, ...]:
    """``"1,10,100"`` as numbers.

    Raises:
        InputError: a part is no number.
    """
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(
            f"{option} {text}: {error}", hint=f"numbers with commas between, such as {CONCURRENCIES}"
        ) from error


def payload(service: Service, *, seed: int) -> list[Row]:
    """Rows without the batch dimension: varied ones where the model's source has some, else samples, else random."""
    known = known_answers(service, ROWS, seed=seed)
    rows = known.requests if known else sample_rows(service) or random_rows(service, ROWS, seed=seed)
    return [{name: array[0] for name, array in row.items()} for row in rows]


def measure(
    name: Annotated[str, typer.Argument(help="A service.")],
    concurrency: Annotated[
        str | None, typer.Option(help=f"Closed loop: callers, such as {CONCURRENCIES} (the default).")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Open loop: requests a second, such as 50,100.")] = None,
    constant: Annotated[bool, typer.Option("--constant", help="Equal gaps instead of Poisson arrivals.")] = False,
    protocol: Annotated[Protocol, typer.Option(help="How requests travel.")] = Protocol.GRPC,
    url: Annotated[str | None, typer.Option(help="A server that already runs; one is started when absent.")] = None,
    window_ms: Annotated[int, typer.Option(min=100, help="One measurement window.")] = 2000,
    stability_percent: Annotated[float, typer.Option(help="Three windows must agree within this.")] = 10.0,
    max_trials: Annotated[int, typer.Option(min=3, help="Windows at most.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="For the rows that are sent.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; an earlier one of the same plan is taken up again.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure throughput, latency, batch sizes and duty at each load."""
    if concurrency and rate:
        raise InputError(
            "--concurrency and --rate exclude each other", hint="one is a closed loop, the other an open one"
        )
    project = find_project()
    service = find_service(project.services, name)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-measure-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        mode=Mode.RATE if rate else Mode.CONCURRENCY,
        values=numbers(rate, "--rate") if rate else numbers(concurrency or CONCURRENCIES, "--concurrency"),
        protocol=protocol,
        distribution=Distribution.CONSTANT if constant else Distribution.POISSON,
        input_data=write_input_data(folder / "rows.json", payload(service, seed=seed)),
        window_ms=window_ms,
        stability_percent=stability_percent,
        max_trials=max_trials,
    )
    launcher = find_launcher(project.cache, on_progress=say)
    with ExitStack() as stack:
        endpoint = endpoint_from_url(url) if url else _serve(stack, project, service)
        points = measure_points(endpoint, name, plan, launcher=launcher, folder=folder, resume=True, on_progress=say)
    if as_json:
        put_answer("measure", {"points": [point.as_json() for point in points], "folder": str(folder)})
    else:
        put(table_text(_table(points)))
        say(f"raw output and measurements.jsonl: {folder}")
    return 0


def _serve(stack: ExitStack, project: Project, service: Service) -> Endpoint:
    require_artifacts(project, [service], Profile.DEFAULT)
    server = EmbeddedServer(
        project.model_repository,
        [service.name],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries([service]),
        on_progress=say,
    )
    return stack.enter_context(server).endpoint


def _table(points: list[Point]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("load", "infer/s", "p50 ms", "p99 ms", "mean batch", "fill", "duty", "stable", "limited by"):
        table.add_column(title, justify="right")
    for point in points:
        load = f"{point.concurrency} callers" if point.concurrency else f"{point.rate:g}/s"
        table.add_row(
            load,
            _number(point.throughput, 1),
            _number(point.p50_us and point.p50_us / 1000, 2),
            _number(point.p99_us and point.p99_us / 1000, 2),
            _number(point.mean_batch, 1),
            _number(point.fill, 2),
            _number(point.duty, 2),
            "yes" if point.stable else "no",
            "generator" if point.generator_bound else "server or load",
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
