"""``brim load``: callers of every class at a service's own rate, in an open loop, and a verdict against its SLO."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say, table_text
from brim.cli.self_check import ANSWER_TIMEOUT_S, ROW_TOLERANCE
from brim.cli.whole_answers import require_whole_answers
from brim.config.generate import Profile
from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.gateway.admission import admissions
from brim.gateway.envoy import Gateway
from brim.gateway.limits import request_limits
from brim.measure.callers import ask_all
from brim.measure.plan import Distribution, Protocol
from brim.paths import Project, find_project
from brim.server.canary import ask
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import LOOPBACK, NO_ANSWER, Endpoint, endpoint_from_url
from brim.server.ports import choose_ports
from brim.server.supervise import Supervisor
from brim.service.load import find_service
from brim.service.samples import random_rows, sample_rows
from brim.service.schema import Service
from brim.units import US_PER_S, ms_to_us, us_to_ms
from brim_export.known_answers import known_answers
from brim_loadtest.job import Job
from brim_loadtest.payload import Payload, make_payload
from brim_loadtest.results import Slo, document, write
from brim_loadtest.run import MOST_WORKERS, Progress, Ran, run
from brim_loadtest.schedule import GRACE_US, Schedule, callers_of
from brim_loadtest.shapes import MISBEHAVIOUR, PEAK_FACTOR, Behaviour, Shape, Travel, profile
from brim_loadtest.verdict import Judgement, Verdict, judge

ROWS = 200
"""Different rows that callers send, as many as there are."""
INTERRUPTED = 130
LIVE_TIMEOUT_S = 10.0


def load(
    name: Annotated[str, typer.Argument(help="A service.")],
    shape: Annotated[Shape, typer.Option(help="What the traffic looks like.")] = Shape.STEADY,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests a second; the service's own when absent.")
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            help="Requests a second at the worst; when absent as many times the rate as the service says, or 2."
        ),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds.")] = 10.0,
    protocol: Annotated[Travel, typer.Option(help="How requests travel.")] = Travel.BOTH,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="Processes that send.")] = 1,
    url: Annotated[
        str | None, typer.Option(help="A server that already runs on this machine; one is started when absent.")
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="The gRPC port at --url; when absent the same (a gateway's), or the next one."
        ),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway/--no-gateway", help="Whether callers go through the gateway, as in service.")
    ] = True,
    tenants: Annotated[int, typer.Option(min=0, max=1_000_000, help="On behalf of so many; 0 for nobody's.")] = 0,
    in_flight: Annotated[int, typer.Option(min=1, max=50_000, help="Most requests under way at once.")] = 2_000,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="How long callers wait where the service does not say.")
    ] = 30.0,
    constant: Annotated[bool, typer.Option("--constant", help="Equal gaps instead of Poisson arrivals.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Locust's own page while it runs, on this machine only.")] = False,
    web_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Chosen by the system when absent.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For every random choice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Send a service's traffic at its own rate, whether or not answers come, and judge its SLO by class of callers."""
    if url is None and grpc_port is not None:
        raise InputError("--grpc-port without --url", hint="a server that is started here chooses its own ports")
    if web_port is not None and not web:
        raise InputError("--web-port without --web", hint="add --web")
    project = find_project()
    service = find_service(project.services, name)
    require_whole_answers(service, "brim load")
    plan = _plan(service, shape, rate, peak, round(duration * US_PER_S), protocol, tenants, seed, constant=constant)
    foreign = None if url is None else _foreign(url, grpc_port)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-load-{service.name}"
    folder.mkdir(parents=True, exist_ok=True)
    asked = _Asked(plan.shape, protocol, workers, in_flight, timeout_s, web, web_port)
    done: _Done | None = None
    with stop_on_signal(), ExitStack() as stack:
        running = _Running(foreign) if foreign else _serve(stack, project, service, gateway=gateway)
        done = _go(running, service, plan, asked, folder)
    if done is None:
        say("interrupted before the first request")
        return INTERRUPTED
    conditions = {
        "service": service.name,
        "shape": plan.shape.value,
        "rate_per_s": plan.rate_per_s,
        "peak_per_s": plan.peak_per_s,
        "duration_s": duration,
        "protocol": protocol.value,
        "arrivals": plan.schedule.distribution.value,
        "tenants": tenants,
        "workers": workers,
        "in_flight": in_flight,
        "seed": seed,
        "rows": done.rows,
        "reference": done.reference,
        "target": url or ("its own server behind the gateway" if gateway else "its own server, no gateway"),
        "began": done.began,
        "cpus": os.cpu_count(),
        "load_average": round(done.load_average, 2),
    }
    command = _command(service, plan, asked, duration, url, grpc_port, gateway=gateway)
    slo = Slo(ms_to_us(service.slo.latency_ms), service.slo.percentile)
    content = document(done.ran, done.found, slo, conditions, command)
    path = write(folder, content)
    met = done.found.verdict is Verdict.MET
    if as_json:
        put_answer("load", {**content, "folder": str(folder)}, ok=met)
    else:
        put(_table(content))
    say(f"{done.found.verdict.value}: {done.found.message}")
    say(f"written: {path}")
    return INTERRUPTED if done.ran.stopped else done.found.verdict.exit_code


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is sent, and the figures that it was worked out from."""

    schedule: Schedule
    shape: Shape
    rate_per_s: float
    peak_per_s: float
    given: bool
    """Whether the rate was given, and is not the service's own."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How it is sent."""

    shape: Shape
    protocol: Travel
    workers: int
    in_flight: int
    timeout_s: float
    web: bool
    web_port: int | None


@dataclass(frozen=True, slots=True)
class _Running:
    """A server, and what has to be done now and then to keep it running."""

    endpoint: Endpoint
    look_after: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Done:
    """A run that is over."""

    ran: Ran
    found: Judgement
    rows: int
    reference: str
    began: str
    load_average: float


def _plan(
    service: Service,
    shape: Shape,
    rate: float | None,
    peak: float | None,
    duration_us: int,
    travel: Travel,
    tenants: int,
    seed: int,
    *,
    constant: bool,
) -> _Planned:
    traffic = service.traffic
    if shape is Shape.SLOW_CLIENT and travel is Travel.GRPC:
        raise InputError(
            "slow-client over gRPC: its library sends a message whole",
            hint="--protocol http, or both, of which the slow come over HTTP",
        )
    rate_per_s = traffic.rate_per_s if rate is None else rate
    factor = traffic.peak_per_s / traffic.rate_per_s if traffic.peak_per_s else PEAK_FACTOR
    peak_per_s = rate_per_s * factor if peak is None else peak
    schedule = Schedule(
        profile(shape, rate_per_s, peak_per_s, duration_us, seed=seed),
        callers_of(service),
        Distribution.CONSTANT if constant else Distribution.POISSON,
        travel,
        MISBEHAVIOUR.get(shape, Behaviour.PLAIN),
        tenants=tenants,
        seed=seed,
    )
    return _Planned(schedule, shape, rate_per_s, peak_per_s, rate is not None)


def _foreign(url: str, grpc_port: int | None) -> Endpoint:
    """Somebody else's server on this machine.

    Raises:
        InputError: the address is one of another machine.
        ServerFailed: nothing answers there over gRPC.
    """
    endpoint = endpoint_from_url(url, grpc_port=grpc_port)
    host, _, port = endpoint.http.rpartition(":")
    if not _is_loopback(host.strip("[]")):
        raise InputError(
            f"{url}: {host} is another machine, or every address of this one",
            hint=f"a load test goes to this machine only: --url {LOOPBACK}:PORT",
        )
    # A gateway has one port for both protocols, Triton has the next one for gRPC.
    candidates = [grpc_port] if grpc_port else [int(port), int(port) + 1]
    found = [address for one in candidates if _speaks_grpc(address := f"{host}:{one}")]
    return replace(endpoint, grpc=found[0] if found else f"{host}:{candidates[0]}", metrics=None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _speaks_grpc(address: str) -> bool:
    with closing(Endpoint(http=address, grpc=address).grpc_client()) as client:
        try:
            return bool(client.is_server_live(client_timeout=LIVE_TIMEOUT_S))
        except NO_ANSWER:
            return False


def _serve(stack: ExitStack, project: Project, service: Service, *, gateway: bool) -> _Running:
    """A server of our own, as ``brim serve`` starts it."""
    require_artifacts(project, [service], Profile.DEFAULT)
    server = EmbeddedServer(
        project.model_repository,
        [service.name],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries([service]),
        on_progress=say,
    )
    stack.enter_context(server)
    stack.enter_context(Supervisor(server, on_event=lambda event: say(str(event))))
    if not gateway:
        return _Running(server.endpoint)
    front = stack.enter_context(
        Gateway(
            server.endpoint,
            log_file=new_log(project, "gateway"),
            limits=request_limits([service]),
            admitted=admissions([service]),
            canaries=canaries([service]),
        )
    )

    def look_after() -> None:
        if done := front.keep_running():
            say(done)

    return _Running(front.endpoint, look_after)


def _payload(endpoint: Endpoint, service: Service, *, seed: int) -> tuple[Payload, str]:
    """Rows with their answers, and where those come from: torch where the model's source has some, else each row alone."""
    known = known_answers(service, ROWS, seed=seed)
    if known is not None:
        tolerance = max(known.tolerance, ROW_TOLERANCE)
        return make_payload(service.name, known.requests, known.answers, tolerance), "torch"
    rows = sample_rows(service)[:ROWS] or random_rows(service, ROWS, seed=seed)
    alone = ask_all(endpoint.http, Protocol.HTTP, service.name, rows, 1, ANSWER_TIMEOUT_S)
    silent = [answer for answer in alone if answer.outputs is None]
    if silent:
        error = silent[0].error
        raise CouldNotTell(
            f"{service.name}: {len(silent)} of {len(rows)} rows get no answer even alone: {error.message if error else ''}",
            hint=f"give services/{service.name}.yaml real rows under `samples:`",
        )
    answers = [dict(answer.outputs or {}) for answer in alone]
    return make_payload(service.name, rows, answers, ROW_TOLERANCE), "the same row alone"


def _go(running: _Running, service: Service, plan: _Planned, asked: _Asked, folder: Path) -> _Done:
    """Carry it out against a server that is there."""
    endpoint = running.endpoint
    say(f"asking {service.name} at {endpoint.http} for its answers to the rows that are sent")
    first = canaries([service])[service.name]
    if trouble := ask(endpoint, service.name, first):
        raise ServerFailed(
            f"{endpoint.http}: {service.name} did not answer its canary: {trouble}",
            hint="is the server up, and does it hold this model?",
        )
    payload, reference = _payload(endpoint, service, seed=plan.schedule.seed)
    web_port = choose_ports(LOOPBACK, {"web": asked.web_port})["web"] if asked.web else None
    gives_up_ms = service.slo.caller_gives_up_ms
    longest_us = [caller.deadline_us for caller in plan.schedule.callers if caller.deadline_us is not None]
    patience_us = round(asked.timeout_s * US_PER_S)
    if gives_up_ms is not None:
        patience_us = max(ms_to_us(gives_up_ms), *longest_us, 0) + GRACE_US
    job = Job(
        schedule=replace(plan.schedule, rows=len(payload.references)),
        payload=payload,
        model=service.name,
        http=endpoint.http,
        grpc=endpoint.grpc,
        workers=asked.workers,
        in_flight=asked.in_flight,
        patience_us=patience_us,
        leaving=gives_up_ms is not None,
        folder=str(folder.resolve()),
        web_port=web_port,
    )
    say(f"{asked.shape.value}, {plan.rate_per_s:g} requests a second for {plan.schedule.duration_us / US_PER_S:g} s")
    if web_port is not None:
        say(f"Locust's page while it runs: http://{LOOPBACK}:{web_port}/")
    began, load_average = datetime.now(UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
    ran = run(job, on_progress=lambda progress: say(_progress_line(progress)), every=running.look_after)
    alive = _is_alive(endpoint)
    found = judge(ran.tally, ran.evidence, asked.in_flight, stopped=ran.stopped, lost=ran.lost, server_alive=alive)
    return _Done(ran, found, len(payload.references), reference, began, load_average)


def _is_alive(endpoint: Endpoint) -> bool:
    with closing(endpoint.http_client(timeout_s=LIVE_TIMEOUT_S)) as client:
        try:
            return bool(client.is_server_live())
        except NO_ANSWER:
            return False


def _progress_line(progress: Progress) -> str:
    shown = ("offered", "answered", "in_slo", "refused", "expired", "cancelled", "failed", "not_sent", "under_way")
    words = (f"{name.replace('_', ' ')} {progress.counts.get(name, 0)}" for name in shown)
    return f"{progress.second:5} s: {', '.join(words)}"


def _command(
    service: Service,
    plan: _Planned,
    asked: _Asked,
    duration: float,
    url: str | None,
    grpc_port: int | None,
    *,
    gateway: bool,
) -> str:
    """The command that does the same again."""
    schedule = plan.schedule
    words = [
        *("brim", "load", service.name, "--shape", plan.shape.value),
        *("--rate", f"{plan.rate_per_s:g}", "--peak", f"{plan.peak_per_s:g}", "--duration", f"{duration:g}"),
        *("--protocol", asked.protocol.value, "--workers", str(asked.workers), "--seed", str(schedule.seed)),
        *(["--url", url] if url is not None else []),
        *(["--grpc-port", str(grpc_port)] if grpc_port is not None else []),
        *([] if gateway else ["--no-gateway"]),
        *(["--tenants", str(schedule.tenants)] if schedule.tenants else []),
        *("--in-flight", str(asked.in_flight)),
        *(["--constant"] if schedule.distribution is Distribution.CONSTANT else []),
    ]
    return shlex.join(words)


COLUMNS = ("offered", "answered", "in_slo", "refused", "expired", "cancelled", "failed")


def _table(content: dict[str, Any]) -> str:
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for column in (*COLUMNS, "p50 ms", "p99 ms", "refusal p99 ms", "SLO"):
        table.add_column(column.replace("_", " "), justify="right")
    for name, one in content["classes"].items():
        met = {True: "met", False: "missed", None: "-"}[one["met"]]
        latencies = [_ms(one[key]) for key in ("p50_us", "p99_us", "reject_p99_us")]
        table.add_row(name, *(str(one[column]) for column in COLUMNS), *latencies, met)
    return table_text(table)


def _ms(value_us: int | None) -> str:
    return "-" if value_us is None else f"{us_to_ms(value_us):.1f}"
