"""``brim trace``: one request followed from its caller through gateway, queue and batch and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.measure_target import INTERRUPTED, ROWS, check_running, kept_in, refuse
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.engine.step_file import VARIABLE
from brim.errors import InputError
from brim.gateway.access_log import AccessLog
from brim.gateway.admission import admissions
from brim.gateway.envoy import Gateway
from brim.gateway.limits import request_limits
from brim.measure.plan import Protocol
from brim.measure.text.stream import Ask
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import HOST_AND_PORT, Endpoint, endpoint_from_url
from brim.server.options import ServerOptions
from brim.server.tracing import asked_of, trace_arguments
from brim.service.load import find_service, find_services
from brim.service.samples import random_rows, sample_rows
from brim.service.schema import Service
from brim.trace.callers import MOST_CALLERS, MOST_REQUESTS
from brim.trace.chrome import chrome
from brim.trace.page import page
from brim.trace.run import Run, Traced, new_prefix
from brim.trace.run import trace as trace_requests
from brim.trace.text import trace_texts
from brim.trace.waterfall import MEANING

BAR = 40
"""Letters."""
SHOWN_IDS = 3
PRODUCTION_FILE = Path("/tmp/brim-trace.json")
"""Where Triton's image writes its traces, with a number behind: a folder that is there, and that the chart makes writable."""


def trace(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A service; its samples are sent.")] = None,
    requests: Annotated[int, typer.Option(min=1, max=MOST_REQUESTS, help="How many are sent.")] = 100,
    concurrency: Annotated[int, typer.Option(min=1, max=MOST_CALLERS, help="Callers at once.")] = 32,
    request_id: Annotated[
        str | None, typer.Option(help="Which one is shown: its number in the run, or its id; the slowest when absent.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that runs on this machine, by Triton's own HTTP address.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The gateway before it; asked directly when absent.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=3600, help="Longest wait for one answer.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="For random rows, where a service has no samples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for trace.json (Perfetto) and waterfall.html.")] = None,
    arguments: Annotated[
        bool,
        typer.Option(
            "--arguments", help="Send nothing: print what `tracing` in service files makes of tritonserver's arguments."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Send requests, follow each, and show where one of them spent its time and who shared its batch."""
    project = find_project()
    if arguments:
        return _arguments(find_services(project.services, [name] if name else []), as_json)
    if name is None:
        raise InputError("no service is named", hint="brim trace NAME --requests 100")
    if url is None:
        refuse({"--gateway": gateway}, "without --url", "a server of its own has a gateway of its own")
    if gateway is not None and not HOST_AND_PORT.fullmatch(gateway):
        raise InputError(f"--gateway {gateway}: expected host:port", hint="as `brim serve` prints it")
    service = find_service(project.services, name)
    if service.generation is not None and url is not None:
        raise InputError(
            f"{service.name} is a language model, and --url is given: its steps are in a log of the server's own",
            hint=f"leave --url out: brim trace {service.name} starts a server whose log it reads",
        )
    if request_id is not None and request_id.isdecimal() and int(request_id) >= requests:
        raise InputError(
            f"--request-id {request_id}: the run has {requests} requests, 0 to {requests - 1}",
            hint="name one of them, or send more with --requests",
        )
    if out is not None:
        # Before the work, so that nothing is lost.
        with kept_in(out):
            out.mkdir(parents=True, exist_ok=True)
    run: Run | None = None
    with stop_on_signal(), ExitStack() as stack:
        prefix = new_prefix()
        sending = _Sending(requests, concurrency, timeout_s, prefix)
        if url is not None:
            server, address = _running(url, gateway, service.name)
            run = _rows(server, address, service, sending, None, seed)
        else:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="brim-trace-")))
            server, address, access = _own(stack, project, service, folder, prefix)
            if service.generation is None:
                run = _rows(server, address, service, sending, access, seed)
            else:
                run = _texts(address, service, sending, access, folder)
    if run is None:
        say("interrupted: nothing to show")
        return INTERRUPTED
    one = run.one(request_id)
    files = {} if out is None else _written(run, one, out)
    if as_json:
        put_answer("trace", {**run.as_json(), "request": run.way_as_json(one), "files": files})
    else:
        put(shown(run, one))
    for what, file in files.items():
        say(f"{what}: {file}")
    return 0


def _arguments(services: Sequence[Service], as_json: bool) -> int:
    told = trace_arguments(asked_of(services), PRODUCTION_FILE if asked_of(services) else None)
    if as_json:
        put_answer("trace", {"arguments": list(told)})
    elif told:
        put("\n".join(told))
    else:
        say("no service asks for tracing: tritonserver gets no argument for it")
    return 0


@dataclass(frozen=True, slots=True)
class _Sending:
    """How many requests, how many at once, the bound on each wait, and what their ids begin with."""

    requests: int
    concurrency: int
    timeout_s: float
    prefix: str


def _rows(
    server: Endpoint, address: str, service: Service, sending: _Sending, access: AccessLog | None, seed: int
) -> Run:
    rows = sample_rows(service) or random_rows(service, ROWS, seed=seed)
    return trace_requests(server, address, service.name, rows, **asdict(sending), access=access, on_progress=say)


def _texts(address: str, service: Service, sending: _Sending, access: AccessLog | None, folder: Path) -> Run:
    samples = [
        Ask(str(sample.inputs["text_input"]).encode(), str(sample.inputs.get("sampling_parameters", "{}")).encode())
        for sample in service.samples
    ]
    if not samples:
        raise InputError(f"{service.name} has no samples", hint=f"give services/{service.name}.yaml a prompt to send")
    return trace_texts(
        address, service.name, samples, **asdict(sending), access=access, steps_in=folder, on_progress=say
    )


def _own(
    stack: ExitStack, project: Project, service: Service, folder: Path, prefix: str
) -> tuple[Endpoint, str, AccessLog]:
    require_artifacts(project, [service], Profile.DEFAULT)
    rows = canaries([service])
    server = stack.enter_context(
        EmbeddedServer(
            project.model_repository,
            [service.name],
            cache=project.cache_folder(),
            log_file=new_log(project),
            canaries=rows,
            options=ServerOptions(trace_file=folder / "trace.json", extra_environment={VARIABLE: str(folder)}),
            on_progress=say,
        )
    )
    access = AccessLog(folder / "gateway.log", prefix)
    front = Gateway(
        server.endpoint,
        log_file=new_log(project, "gateway"),
        limits=request_limits([service]),
        admitted=admissions([service]),
        canaries=rows,
        access=access,
    )
    return server.endpoint, stack.enter_context(front).endpoint.http, access


def _running(url: str, gateway: str | None, model: str) -> tuple[Endpoint, str]:
    server = endpoint_from_url(url)
    check_running(server, model, Protocol.HTTP)
    if gateway is not None:
        say("a gateway that runs already notes no single requests: its part of the way is not accounted for")
    return server, gateway or server.http


def _written(run: Run, one: Traced, folder: Path) -> dict[str, str]:
    with kept_in(folder):
        events, picture = folder / "trace.json", folder / "waterfall.html"
        events.write_text(json.dumps(chrome(run)), encoding="utf-8")
        picture.write_text(page(run, one), encoding="utf-8")
    return {"trace": str(events), "waterfall": str(picture)}


def shown(run: Run, one: Traced) -> str:
    """For people."""
    call, way = one.call, one.way
    why = f" ({one.refused_for or call.message})" if call.outcome != "right" else ""
    longest = max(len(part.name) for part in way.parts)
    lines = [f"{call.request_id}: {call.outcome}{why}, {way.took_us:,} us from sending to answer", ""]
    for part in way.parts:
        began = min(BAR - 1, part.began_us * BAR // max(1, way.took_us))
        filled = min(BAR - began, max(1, round(part.took_us * BAR / max(1, way.took_us))))
        bar = " " * began + "#" * filled
        lines.append(f"{part.name:<{longest}} {part.took_us:>12,} us  {bar:<{BAR}}  {MEANING[part.name]}")
    lines += [f"{'together':<{longest}} {way.took_us:>12,} us", ""]
    if not one.batches:
        lines.append(f"it was in no {run.unit}")
    for batch in one.batches:
        told = run.batch_as_json(batch)
        others = [other for other in told["own"] if other != call.request_id]
        more = f" and {len(others) - SHOWN_IDS} more" if len(others) > SHOWN_IDS else ""
        foreign = f"; {told['others']} of other callers" if told["others"] else ""
        with_whom = ", ".join(others[:SHOWN_IDS]) + more if others else "nobody of this run"
        lines.append(
            f"{run.unit} {told['number']}: {told['requests']} requests, {told['took_us']:,} us; shared with {with_whom}{foreign}"
        )
    if way.stayed_us:
        lines.append(f"the server worked on its batch for another {way.stayed_us:,} us")
    if way.contradicted_us:
        lines.append(
            f"the gateway's clock contradicts the others by {way.contradicted_us:,} us: take its parts with care"
        )
    data = run.as_json()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in data["outcomes"].items())
    agrees = ""
    if run.unit == "batch":
        said = {True: "as Triton counts them", False: "Triton counts others", None: "others used the model, too"}
        agrees = f" ({said[run.agrees]})"
    count = len(run.batches)
    units = f"{count} {run.unit}{'' if count == 1 else 'es' if run.unit == 'batch' else 's'}"
    lines.append(f"run: {data['requests']} requests ({outcomes}), {units}{agrees}")
    return "\n".join(lines)
