"""``brim serve``: the services on a server, until told to stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import psutil
import typer

from brim.cli.commands.serve_replicas import (
    BalanceOption,
    PickerPlan,
    Picks,
    PicksOption,
    ReplicaCount,
    Wanted,
    described,
    fleet_of,
    look_after,
    picker_of,
    plan_picker,
)
from brim.cli.output import put, say
from brim.config.files import VERSION, needed_files
from brim.config.generate import Profile, models_of, profiles_of
from brim.config.generation import LANGUAGE_MODEL_RECORD
from brim.errors import InputError, ModelFileError
from brim.gateway.admission import admissions
from brim.gateway.clusters import MOST_REQUESTS
from brim.gateway.envoy import Gateway
from brim.gateway.limits import request_limits
from brim.gateway.replicas import Balance, Replicas
from brim.paths import Project, find_project
from brim.server.canary import ask
from brim.server.container import IMAGE, VLLM_IMAGE, ContainerServer
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.server.endpoint import Endpoint, endpoint_from_url
from brim.server.supervise import Bounds, Supervisor
from brim.server.tracing import asked_of, hides_contexts
from brim.server.watch import watch
from brim.service.load import find_services
from brim.service.samples import Row, sample_rows
from brim.service.schema import Service, Tracing
from brim_export.artifact import ARTIFACT_NAME, verify
from brim_export.language_model_record import LanguageModelRecord

if TYPE_CHECKING:
    from brim.exporter.serve import ExporterBeside

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Chosen by the system when absent.")]
BOUNDS = Bounds()
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Told(KeyboardInterrupt):
    """A signal said stop while something else was under way. Not an Exception: nothing on the way may swallow it."""


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP end what runs inside the block; the block itself then ends without an error.

    Only the first signal interrupts, so that a second one cannot break the clean-up that the first has started.
    """
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            raise Told

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    except Told:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def canaries(services: Sequence[Service]) -> dict[str, Row | None]:
    """The first sample of each service, or None where it has none."""
    rows = {service.name: sample_rows(service) for service in services}
    return {name: found[0] if found else None for name, found in rows.items()}


def require_artifacts(project: Project, services: Sequence[Service], profile: Profile) -> None:
    """Check that the model repository holds what the profile needs, unharmed since its export.

    Raises:
        ModelFileError: a configuration or a model file is missing, empty or changed; all of them at once.
    """
    faults = []
    for service in services:
        folder = project.model_repository / service.name
        for path, remedy in needed_files(project.model_repository, service, profile).items():
            if not path.is_file() or path.stat().st_size == 0:
                state = "is empty" if path.is_file() else "is missing"
                faults.append(f"{path.relative_to(project.root)} {state}: `{remedy}` makes it")
        # What a language model's folder holds is told by another record.
        check = verify if service.generation is None else LanguageModelRecord.verified
        if (folder / VERSION / (ARTIFACT_NAME if service.generation is None else LANGUAGE_MODEL_RECORD)).is_file():
            try:
                check(folder / VERSION)
            except ModelFileError as error:
                faults.append(f"{error.message}: `brim export {service.name} --force` makes it anew")
    if faults:
        raise ModelFileError("\n".join(faults), hint="`make up` does all of it")


def serve(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Services; all when none.")] = None,
    http_port: Port = None,
    grpc_port: Port = None,
    metrics_port: Port = None,
    gateway_port: Port = None,
    exporter_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Also a page of `brim exporter`, on this port; 0: chosen by the system."),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway/--no-gateway", help="Envoy in front: checks, bounds and deadlines.")
    ] = True,
    replicas: ReplicaCount = 1,
    balance: BalanceOption = Balance.LEAST_REQUEST,
    picks: PicksOption = Picks.TEXTS,
    profile: Annotated[Profile, typer.Option(help="Which configuration to serve.")] = Profile.DEFAULT,
    container: Annotated[bool, typer.Option("--container", help="Serve from NVIDIA's image with Docker.")] = False,
    supervise: Annotated[
        bool, typer.Option("--supervise/--no-supervise", help="Heal dead stubs, silent models and a crashed server.")
    ] = True,
    canary_every_s: Annotated[
        float, typer.Option(min=0, max=86_400, help="Pause between a model's canaries while it serves; 0 sends none.")
    ] = BOUNDS.canary_every_s,
    canary_timeout_s: Annotated[
        float, typer.Option(min=1, max=86_400, help="How long such a canary waits: longer than the longest answer.")
    ] = BOUNDS.canary_timeout_s,
    url: Annotated[str | None, typer.Option(help="Use a server that already runs, by its HTTP address.")] = None,
    ready_timeout_s: Annotated[
        float, typer.Option(min=1, max=86_400, help="Bound on the wait for every canary.")
    ] = 180.0,
    as_json: Annotated[bool, typer.Option("--json", help="One line with the endpoints when all are ready.")] = False,
) -> int:
    """Serve models until SIGTERM or Ctrl-C; ready means that every model has answered a real request.

    The embedded server is supervised; for a container, Docker or whatever runs it has to do that.
    """
    if replicas > 1:
        _require_alone(
            gateway=gateway, container=container, supervise=supervise, url=url, exporter=exporter_port is not None
        )
    project = find_project()
    services = find_services(project.services, names or [])
    if not names:
        # A language model has other profiles than the rest.
        services = [service for service in services if profile in profiles_of(service)]
        if not services:
            raise InputError(
                f"no service has the profile {profile.value}", hint="`brim config NAME` shows what one has"
            )
    models = [service.name for service in services]
    if url is not None:
        if exporter_port is not None:
            raise InputError(
                f"--exporter-port {exporter_port} with --url: this command ends at once, and an exporter with it",
                hint="`brim exporter --server HOST:PORT` looks at a server that already runs",
            )
        return _already_running(url, services, as_json)
    require_artifacts(project, services, profile)
    tracing = asked_of(services)
    loaded = [model for service in services for model in models_of(service, profile)]
    options = ServerOptions(
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        profile=None if profile is Profile.DEFAULT else profile.value,
        ready_timeout_s=ready_timeout_s,
        tracing=tracing,
        trace_file=trace_place(project, tracing),
    )
    bounds = Bounds(canary_every_s=canary_every_s, canary_timeout_s=canary_timeout_s)
    if replicas > 1:
        with stop_on_signal():
            wanted = Wanted(
                project.model_repository,
                loaded,
                project.cache,
                canaries(services),
                options,
                log_folder(project, "replicas"),
            )
            plan = plan_picker(picks, services)
            serve_many(
                project, wanted, services, profile, gateway_port, replicas, balance, bounds, plan, as_json=as_json
            )
        return 0
    with stop_on_signal():
        server: EmbeddedServer | ContainerServer
        if container:
            server = ContainerServer(
                project.model_repository,
                loaded,
                log_file=project.cache / "logs" / "container.log",
                canaries=canaries(services),
                options=options,
                image=VLLM_IMAGE if profile is Profile.VLLM else IMAGE,
                gpus=profile is not Profile.ONNX_CPU,
                adapters=profile is not Profile.VLLM,
                on_progress=say,
            )
        else:
            server = EmbeddedServer(
                project.model_repository,
                loaded,
                cache=project.cache,
                log_file=new_log(project),
                canaries=canaries(services),
                options=options,
                on_progress=say,
            )
        with server, ExitStack() as stack:
            supervisor = None
            if supervise and isinstance(server, EmbeddedServer):
                supervisor = stack.enter_context(
                    Supervisor(server, bounds=bounds, on_event=lambda event: say(str(event)))
                )
            front = None
            if gateway:
                front = stack.enter_context(gateway_before(server.endpoint, project, services, profile, gateway_port))
            exporter = None
            if exporter_port is not None:
                exporter = stack.enter_context(_exporter_of(server.endpoint, front, exporter_port))
            ready = {
                "event": "ready",
                **server.endpoint.as_json(),
                "gateway": front.endpoint.http if front else None,
                "gateway_metrics": front.metrics if front else None,
                "gateway_admin": front.admin if front else None,
                "exporter": exporter.address if exporter else None,
                "models": models,
                "pid": server.pid,
                **_traces(options),
            }
            put(json.dumps(ready) if as_json else "\n".join(f"{key}: {value}" for key, value in ready.items()))
            if container:
                say("a container is not supervised: its restart policy has to do that")
            say("Ctrl-C stops it")
            watch(server, supervisor=supervisor, every=lambda: _look_after(front))
    return 0


def serve_many(
    project: Project,
    wanted: Wanted,
    services: Sequence[Service],
    profile: Profile,
    gateway_port: int | None,
    count: int,
    balance: Balance,
    bounds: Bounds,
    plan: PickerPlan | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Replicas behind the gateway, until a signal or until every one was given up.

    Raises:
        BrimError: the first one does not start, or all were given up, or the gateway ended too often.
    """
    names = [service.name for service in services]
    with (
        fleet_of(wanted, count, services=services, bounds=bounds, balance=balance, plan=plan) as fleet,
        ExitStack() as stack,
    ):
        endpoint = fleet.first.server.endpoint
        front = stack.enter_context(
            gateway_before(endpoint, project, services, profile, gateway_port, fleet.for_gateway)
        )
        fleet.gateway = front
        fleet.tick()
        picker = stack.enter_context(picker_of(plan, fleet, front, new_log(project, "picker")))
        ready = {
            "event": "ready",
            **endpoint.as_json(),
            "gateway": front.endpoint.http,
            "gateway_metrics": front.metrics,
            "gateway_admin": front.admin,
            "picker_metrics": None if plan is None else plan.place.metrics,
            "models": names,
            "pid": fleet.first.server.pid,
            "replicas": described(fleet),
            **_traces(wanted.options),
        }
        put(json.dumps(ready) if as_json else "\n".join(f"{key}: {value}" for key, value in ready.items()))
        say("Ctrl-C stops it; `brim replicas` shows the replicas, and drains one")
        look_after(fleet, front, picker)


def _exporter_of(endpoint: Endpoint, front: Gateway | None, port: int) -> ExporterBeside:
    from brim.exporter.serve import ExporterBeside
    from brim.exporter.sources import Sources

    admin = front.admin if front else None
    return ExporterBeside(Sources(endpoint.http, gateway_admin=admin), port=port, on_change=say)


def _require_alone(*, gateway: bool, container: bool, supervise: bool, url: str | None, exporter: bool) -> None:
    """Refuse what does not go with replicas.

    Raises:
        InputError: with every fault at once.
    """
    faults = {
        "--no-gateway": not gateway,
        "--container": container,
        "--no-supervise": not supervise,
        "--url": url is not None,
        "--exporter-port": exporter,
    }
    given = [flag for flag, is_given in faults.items() if is_given]
    if given:
        raise InputError(
            f"--replicas with {', '.join(given)}: replicas are embedded servers, each supervised and each with an exporter of "
            "its own, behind the gateway",
            hint=f"leave {' and '.join(given)} out",
        )


def gateway_before(
    endpoint: Endpoint,
    project: Project,
    services: Sequence[Service],
    profile: Profile = Profile.DEFAULT,
    port: int | None = None,
    replicas: Replicas | None = None,
) -> Gateway:
    """The gateway of these services, not started yet.

    Args:
        endpoint: of the server behind it, or of the first of its replicas.
        project: keeps its log.
        services: that are served.
        profile: under which.
        port: for callers; chosen by the system when absent.
        replicas: who is asked in place of the one server.
    """
    say("starting the gateway")
    for service in services:
        # A language model's host has a waiting room of its own.
        if service.generation is None and service.batching.in_flight_bound is None:
            say(
                f"{service.name} has no in_flight_bound: up to {MOST_REQUESTS:,} requests are let in, however late their "
                f"answers come. To derive it from the objective: brim tune {service.name} --apply"
            )
    return Gateway(
        endpoint,
        log_file=new_log(project, "gateway"),
        limits=request_limits(services),
        admitted=admissions(services, profile),
        canaries=canaries(services),
        port=port,
        replicas=replicas,
        untraced=hides_contexts(asked_of(services)),
    )


def _look_after(front: Gateway | None) -> None:
    done = front.keep_running() if front else None
    if done:
        say(done)


def trace_place(project: Project, tracing: Tracing | None) -> Path | None:
    """Where a server writes what it follows; None when it sends that away, or follows nothing."""
    return log_folder(project, "traces") / "trace.json" if tracing is not None and tracing.mode == "triton" else None


def _traces(options: ServerOptions) -> dict[str, str]:
    return {} if options.trace_file is None else {"traces": str(options.trace_file.parent)}


def log_folder(project: Project, kind: str) -> Path:
    """A folder for the logs of this process's replicas; those of processes that have ended are removed."""
    folder = project.cache / "logs" / kind
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not (old.name.isdigit() and psutil.pid_exists(int(old.name))):
            shutil.rmtree(old, ignore_errors=True)
    own = folder / str(os.getpid())
    own.mkdir(exist_ok=True)
    return own


def new_log(project: Project, kind: str = "triton", *, keep: int = 10) -> Path:
    """A log file of this process's own; the oldest of earlier runs are removed, with what lies beside them."""
    folder = project.cache / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    old = sorted(folder.glob(f"{kind}-*.log"), key=lambda path: path.stat().st_mtime)
    for path in old[: max(0, len(old) - keep + 1)]:
        for one in folder.glob(f"{path.stem}.*"):
            one.unlink(missing_ok=True)
    return folder / f"{kind}-{os.getpid()}.log"


def _already_running(url: str, services: Sequence[Service], as_json: bool) -> int:
    endpoint = endpoint_from_url(url)
    failed = {name: trouble for name, row in canaries(services).items() if (trouble := ask(endpoint, name, row))}
    if failed:
        raise InputError(
            "\n".join(f"{url}: {name} did not answer its canary: {trouble}" for name, trouble in failed.items()),
            hint="is the server up, and does it hold these models?",
        )
    models = [service.name for service in services]
    ready = {
        "event": "ready",
        **endpoint.as_json(),
        "gateway": None,
        "gateway_metrics": None,
        "gateway_admin": None,
        "exporter": None,
        "models": models,
        "pid": None,
    }
    put(json.dumps(ready) if as_json else "\n".join(f"{key}: {value}" for key, value in ready.items()))
    return 0
