"""``brim sweep``: perf_analyzer over loads and configurations of a service, resumable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.measure_target import numbers, payload
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.cli.whole_answers import require_whole_answers
from brim.config.generate import Profile
from brim.errors import CouldNotTell, InputError
from brim.measure.input_data import write_input_data
from brim.measure.launcher import find_launcher
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.point import FILE_NAME
from brim.measure.sweep import grid
from brim.measure.sweep_run import Failure, SweptPoint
from brim.measure.sweep_run import sweep as sweep_points
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.service.load import find_service
from brim.service.schema import Service
from brim.units import us_to_ms

CONCURRENCIES = "1,10,100"
NONE = "none"
INTERRUPTED = 130
LONGEST_NUMBER = 9
COLUMNS = {
    "load": 20,
    "infer/s": 9,
    "p50 ms": 9,
    "p99 ms": 9,
    "mean batch": 10,
    "duty": 5,
    "stable": 6,
    "limited by": 14,
}


def sweep(
    name: Annotated[str, typer.Argument(help="A service.")],
    concurrency: Annotated[
        str | None,
        typer.Option(help=f"Closed loop: callers, such as {CONCURRENCIES} (the default when no load is given)."),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Open loop, Poisson arrivals: requests a second.")] = None,
    constant_rate: Annotated[str | None, typer.Option(help="Open loop, equal gaps: requests a second.")] = None,
    instances: Annotated[str | None, typer.Option(help="Instances of the model, such as 1,2.")] = None,
    preferred: Annotated[
        str | None, typer.Option(help=f"Preferred batch sizes: {NONE},100,32+64 are three configurations.")
    ] = None,
    delay_us: Annotated[str | None, typer.Option(help="Queue delays in microseconds, such as 0,2000.")] = None,
    protocol: Annotated[Protocol, typer.Option(help="How requests travel.")] = Protocol.GRPC,
    window_ms: Annotated[int, typer.Option(min=100, help="One measurement window.")] = 2000,
    stability_percent: Annotated[float, typer.Option(help="Three windows must agree within this.")] = 10.0,
    max_trials: Annotated[int, typer.Option(min=3, help="Windows at most.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="For the rows that are sent.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; an earlier sweep in it is taken up again.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure every load on every configuration, one server after the other; a sweep that was stopped goes on."""
    project = find_project()
    service = find_service(project.services, name)
    require_whole_answers(service, "brim sweep")
    if concurrency is None and rate is None and constant_rate is None:
        concurrency = CONCURRENCIES
    base = Plan(
        mode=Mode.CONCURRENCY,
        values=(1.0,),
        protocol=protocol,
        window_ms=window_ms,
        stability_percent=stability_percent,
        max_trials=max_trials,
    )
    plans = _plans(base, concurrency, rate, constant_rate)
    settings = grid(
        _whole(instances, "--instances"), _preferred(preferred, "--preferred"), _whole(delay_us, "--delay-us")
    )
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-sweep-{service.name}"
    require_artifacts(project, [service], Profile.DEFAULT)
    show = say if as_json else put
    shown: list[SweptPoint] = []
    failures: list[Failure] = []

    def on_point(swept: SweptPoint) -> None:
        if not shown or shown[-1].settings != swept.settings:
            show(f"{service.name}: {swept.settings}")
            show(_line(list(COLUMNS)))
        shown.append(swept)
        show(_line(_cells(swept)))

    def on_failure(failure: Failure) -> None:
        failures.append(failure)
        say(f"  {failure.load or 'the whole configuration'}: {failure.error.message}")

    finished = False
    with stop_on_signal():
        launcher = find_launcher(project.cache_folder(), on_progress=say)
        folder.mkdir(parents=True, exist_ok=True)
        data = write_input_data(folder / "rows.json", payload(service, seed=seed))
        sweep_points(
            project.model_repository / service.name,
            settings,
            [replace(plan, input_data=data) for plan in plans],
            serve=lambda repository: _serve(project, service, repository),
            launcher=launcher,
            folder=folder,
            on_point=on_point,
            on_failure=on_failure,
            on_progress=say,
        )
        finished = True
    wanted = len(settings) * sum(len(plan.values) for plan in plans)
    if not finished:
        say(f"interrupted: {len(shown)} of {wanted} points are kept in {folder}")
        say(f"the same command with --out {folder} goes on from there")
        return INTERRUPTED
    if as_json:
        answer = {
            "points": [swept.as_json() for swept in shown],
            "failed": [failure.as_json() for failure in failures],
            "folder": str(folder),
        }
        put_answer("sweep", answer, ok=not failures)
    else:
        say(f"{FILE_NAME} and raw output: {folder}")
        if failures:
            say(
                f"{wanted - len(shown)} of {wanted} points could not be measured; the same command with --out tries again"
            )
    return CouldNotTell.exit_code if failures else 0


def _plans(base: Plan, concurrency: str | None, rate: str | None, constant_rate: str | None) -> list[Plan]:
    """One plan a kind of load."""
    plans = []
    if concurrency is not None:
        plans.append(replace(base, values=_once(numbers(concurrency, "--concurrency"))))
    for text, option, distribution in (
        (rate, "--rate", Distribution.POISSON),
        (constant_rate, "--constant-rate", Distribution.CONSTANT),
    ):
        if text is not None:
            values = _once(numbers(text, option))
            plans.append(replace(base, mode=Mode.RATE, values=values, distribution=distribution))
    return plans


def _once(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(values))


def _whole(text: str | None, option: str) -> list[int]:
    """Whole numbers with commas between; none for no text.

    Raises:
        InputError: a part is something else; every such part at once.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not _is_whole(part)]
    if wrong:
        raise InputError(
            f"{option} {text}: " + ", ".join(repr(part) for part in wrong) + ": a whole number from 0 is expected",
            hint="numbers with commas between, such as 1,2",
        )
    return list(dict.fromkeys(int(part) for part in parts))


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER


def _preferred(text: str | None, option: str) -> list[tuple[int, ...]]:
    """``none,100,32+64`` as lists of sizes."""
    found: list[tuple[int, ...]] = []
    for part in [] if text is None else text.split(","):
        sizes = () if part.strip() == NONE else tuple(_whole(part.replace("+", ","), option))
        if sizes not in found:
            found.append(sizes)
    return found


@contextmanager
def _serve(project: Project, service: Service, repository: Path) -> Iterator[Endpoint]:
    server = EmbeddedServer(
        repository,
        [service.name],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries([service]),
        on_progress=say,
    )
    with server:
        yield server.endpoint


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _cells(swept: SweptPoint) -> list[str]:
    point = swept.point
    return [
        f"{swept.arrivals} {point.value:.10g}" + ("" if point.mode is Mode.CONCURRENCY else "/s"),
        _number(point.throughput, 1),
        _number(None if point.p50_us is None else us_to_ms(point.p50_us), 2),
        _number(None if point.p99_us is None else us_to_ms(point.p99_us), 2),
        _number(point.mean_batch, 1),
        _number(point.duty, 2),
        "yes" if point.stable else "no",
        "generator" if point.generator_bound else "server or load",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
