"""``brim measure``: the real perf_analyzer against a service, with Triton's own batch statistics around every point."""

from __future__ import annotations

import errno
import http.client
import json
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from tritonclient.utils import InferenceServerException

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import STOP_SIGNALS, canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.errors import InputError, ServerFailed
from brim.measure.input_data import write_input_data
from brim.measure.launcher import find_launcher
from brim.measure.measure import ask_target
from brim.measure.measure import measure as measure_points
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.measure.point import FILE_NAME, Point
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint, endpoint_from_url
from brim.service.load import find_service
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim.units import ms_to_us, us_to_ms
from brim_export.known_answers import known_answers

ROWS = 200
"""Different rows that the generator hands out in turn."""
CONCURRENCIES = "1,10,100,200"
PICTURE = "measurements.svg"
INTERRUPTED = 130
ANSWER_TIMEOUT_S = 10.0
LONGEST_METADATA = 1 << 20
COLUMNS = {
    "load": 14,
    "infer/s": 9,
    "p50 ms": 9,
    "p99 ms": 9,
    "mean batch": 10,
    "fill": 5,
    "duty": 5,
    "stable": 6,
    "limited by": 14,
}
"""Titles and widths: a row is shown as soon as its point has ended, so none can wait for the widest."""


def numbers(text: str, option: str) -> tuple[float, ...]:
    """``"1,10,100"`` as numbers.

    Raises:
        InputError: a part is no finite number, or there is none; every such part at once.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not _is_finite(part)]
    if wrong:
        raise InputError(
            f"{option} {text}: " + ", ".join(repr(part) for part in wrong) + ": a number is expected",
            hint=f"numbers with commas between, such as {CONCURRENCIES}",
        )
    return tuple(float(part) for part in parts)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


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
    url: Annotated[
        str | None, typer.Option(help="A server that already runs, by its HTTP address; one is started when absent.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The gRPC port at --url; the HTTP port plus one when absent.")
    ] = None,
    window_ms: Annotated[int, typer.Option(min=100, help="One measurement window.")] = 2000,
    stability_percent: Annotated[float, typer.Option(help="Three windows must agree within this.")] = 10.0,
    max_trials: Annotated[int, typer.Option(min=3, help="Windows at most.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="For the rows that are sent.")] = 0,
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
    if grpc_port is not None and url is None:
        raise InputError("--grpc-port without --url", hint="a server that is started here chooses its own ports")
    project = find_project()
    service = find_service(project.services, name)
    closed = numbers(CONCURRENCIES if concurrency is None else concurrency, "--concurrency")
    plan = Plan(
        mode=Mode.CONCURRENCY if rate is None else Mode.RATE,
        values=closed if rate is None else numbers(rate, "--rate"),
        protocol=protocol,
        distribution=Distribution.CONSTANT if constant else Distribution.POISSON,
        window_ms=window_ms,
        stability_percent=stability_percent,
        max_trials=max_trials,
    )
    # Where the metrics page is would be a guess, and nothing of it is in a point.
    running = None if url is None else replace(endpoint_from_url(url, grpc_port=grpc_port), metrics=None)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-measure-{service.name}"
    shown: list[Point] = []
    show = say if as_json else put

    def on_point(point: Point) -> None:
        if not shown:
            show(_line(list(COLUMNS)))
        shown.append(point)
        show(_line(_cells(point)))
        for remark in _remarks(point):
            say(f"  {remark}")

    finished = False
    with stop_on_signal():
        _measure(project, service, plan, running, folder, seed, on_point)
        finished = True
    if not finished:
        say(f"interrupted: {len(shown)} of {len(plan.values)} points are kept in {folder}")
        say(f"the same command with --out {folder} goes on from there")
        return INTERRUPTED
    picture = _draw(shown, folder, service, plan)
    if as_json:
        points = [point.as_json() for point in shown]
        put_answer("measure", {"points": points, "folder": str(folder), "plot": picture and str(picture)})
    else:
        say(f"raw output and {FILE_NAME}: {folder}")
    return 0


def _measure(
    project: Project,
    service: Service,
    plan: Plan,
    running: Endpoint | None,
    folder: Path,
    seed: int,
    on_point: Callable[[Point], None],
) -> None:
    """Against the running server, or one of its own that ends with this call, however that ends."""
    if running is None:
        require_artifacts(project, [service], Profile.DEFAULT)
    else:
        _check_running(running, service.name, plan.protocol)
    launcher = find_launcher(project.cache_folder(), on_progress=say)
    with _kept_in(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        plan = replace(plan, input_data=write_input_data(folder / "rows.json", payload(service, seed=seed)))
        endpoint = running or _serve(stack, project, service)
        measure_points(
            endpoint,
            service.name,
            plan,
            launcher=launcher,
            folder=folder,
            resume=True,
            on_point=on_point,
            on_progress=say,
        )


def _check_running(endpoint: Endpoint, model: str, protocol: Protocol) -> None:
    """Refuse an address at which there is nothing to measure, before anything is written.

    Raises:
        ServerFailed: nothing answers there, or something that is no KServe v2 server.
        InputError: the server does not know the model.
    """
    connection = http.client.HTTPConnection(endpoint.http, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/v2")
        said = json.loads(connection.getresponse().read(LONGEST_METADATA))
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = repr(error)
    finally:
        connection.close()
    if not isinstance(said, dict) or "extensions" not in said:
        raise ServerFailed(
            f"{endpoint.http}: no KServe v2 server answers over HTTP: {str(said)[:200]}",
            hint="start one with `brim serve`, and give the HTTP address that it prints",
        )
    ask_target(endpoint, model)
    if protocol is Protocol.GRPC:
        with closing(endpoint.grpc_client()) as client:
            try:
                client.get_model_metadata(model, client_timeout=ANSWER_TIMEOUT_S)
            except InferenceServerException as error:
                raise ServerFailed(
                    f"{endpoint.grpc}: {model} does not answer over gRPC: {error.message()}",
                    hint="--grpc-port tells where the server's gRPC side is; --protocol http goes without",
                ) from error


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Say which file or folder of the run folder cannot be read or written, and why.

    Raises:
        InputError: anything of the kind but a full disk, which has its own error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC or not _on_the_way(error.filename, folder):
            raise
        raise InputError(
            f"{error.filename}: {error.strerror}: the run folder {folder} cannot be used",
            hint="--out wants a folder that is not there yet, or one of an earlier run",
        ) from error


def _on_the_way(path: object, folder: Path) -> bool:
    """Whether an error's path is the folder, above it or in it; an error need not have one."""
    if not isinstance(path, str | Path):
        return False
    found, folder = Path(path).absolute(), folder.absolute()
    return found.is_relative_to(folder) or folder.is_relative_to(found)


def _serve(stack: ExitStack, project: Project, service: Service) -> Endpoint:
    server = EmbeddedServer(
        project.model_repository,
        [service.name],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries([service]),
        on_progress=say,
    )
    endpoint = stack.enter_context(server).endpoint
    # On the way out a signal has nothing left to interrupt but the end of the server, which must not be cut short.
    stack.callback(_disregard_signals)
    return endpoint


def _disregard_signals() -> None:
    """Until the end of ``stop_on_signal``'s block, which puts the handlers back."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _draw(points: Sequence[Point], folder: Path, service: Service, plan: Plan) -> Path | None:
    """The picture; None where matplotlib is not installed, since the figures are there without it."""
    try:
        from brim.measure.plot import draw
    except ImportError as error:
        say(f"no picture: {error}")
        return None
    loop = "closed loop" if plan.mode is Mode.CONCURRENCY else f"open loop, {plan.distribution.value} arrivals"
    with _kept_in(folder):
        picture = draw(
            points,
            folder / PICTURE,
            title=f"{service.name}: {loop}, {plan.protocol.value}",
            slo_latency_us=ms_to_us(service.slo.latency_ms),
            percentile=service.slo.percentile,
        )
    say(f"picture: {picture}")
    return picture


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _cells(point: Point) -> list[str]:
    return [
        f"{point.value:.10g}" + {None: "/s", 1: " caller"}.get(point.concurrency, " callers"),
        _number(point.throughput, 1),
        _number(None if point.p50_us is None else us_to_ms(point.p50_us), 2),
        _number(None if point.p99_us is None else us_to_ms(point.p99_us), 2),
        _number(point.mean_batch, 1),
        _number(point.fill, 2),
        _number(point.duty, 2),
        "yes" if point.stable else "no",
        "generator" if point.generator_bound else "server or load",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _remarks(point: Point) -> list[str]:
    """What a row cannot say."""
    remarks = [point.note] if point.note else []
    if point.generator_bound:
        remarks.append(point.reason)
    if not point.settled:
        remarks.append("other requests were under way: they are in the batch figures, the fill and the duty")
    return remarks
